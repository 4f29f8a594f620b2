"""Weights that are packed for the kernels of `packed_linear`: packing, and taking apart again, by torch's tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import errors
from ._factors import rows_of
from ._torch_blocks import E2M1_VALUES, of_powers
from ._torch_check import check_tensor
from ._weight_format import (
    BLOCK_K,
    FORMATS,
    INT4_OFFSET,
    TILE_ROWS,
    Code,
    PackedLayout,
    WeightFormat,
    WeightParts,
    format_named,
)

DTYPES = (torch.bfloat16, torch.float16)
"""Of x and of results, and of int4's factors."""
_E8M0 = getattr(torch, "float8_e8m0fnu", torch.uint8)
_FLOATS_OF_BYTES = (torch.float8_e4m3fn, _E8M0, torch.int8, torch.uint8)
"""Types whose elements are taken for their bits."""
_CODES = {Code.INT8: torch.int8, Code.E4M3: torch.float8_e4m3fn}
"""The type of codes that are elements; of others int8 holds them too."""
_FACTORS = {"nvfp4": torch.float8_e4m3fn, "mxfp4": _E8M0}
"""The type of groups' factors of 8 bits, by what codes and factors are called."""


class Parts(NamedTuple):
    """What a weight (n, k) is packed of, as `unpack` gives it."""

    codes: Any
    """uint8 (n, k)."""
    factors: Any
    """(n, k / group): bfloat16 or float16 of int4, float8_e4m3fn of nvfp4, uint8 of mxfp4; else None."""
    zeros: Any
    """uint8 (n, k / group), of the formats with zero points; None elsewhere."""
    scale: Any
    """float32, one for each row or one for all, of nvfp4, int8 and e4m3; None elsewhere."""


class PackedBytes:
    """What packed weights have, one or a stack: `data`, the bytes, `scale`, the float32 factors, `format`, `shape`."""

    data: Any
    scale: Any
    format: str
    shape: tuple[int, ...]

    @property
    def form(self) -> WeightFormat:
        """Return the format."""
        return format_named(self.format)

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes, with its factors."""
        return int(self.data.nbytes + (0 if self.scale is None else self.scale.nbytes))

    def __repr__(self) -> str:
        """Name the format, the size and the device."""
        return f"<{type(self).__name__} {self.format} {self.shape} on {self.data.device}>"


class PackedWeight(PackedBytes):
    """A weight (n, k) whose bytes are packed: what `pack` returns, and `linear` takes in a weight's place.

    `data` are the bytes, uint8, and `scale` the float32 factors beside them, or None. `dtype` is the type of x where
    the factors of groups have it, as of int4; else None, and x is bfloat16 or float16. `shape` is (n, k).
    """

    def __init__(self, data: Any, scale: Any, format: str, shape: tuple[int, int], dtype: Any = None) -> None:  # noqa: A002
        """Hold bytes and factors that belong together; nothing is copied.

        Raises:
            FormatError: there is no such format, or the bytes are not those of such a weight.
        """
        form = format_named(format)
        form.check(*shape)
        expected = PackedLayout(form).shape(*shape)
        if data.dtype is not torch.uint8 or tuple(data.shape) != expected:
            text = f"torch.uint8 of {expected}, as a {format} weight of {shape[0]} x {shape[1]} has"
            raise errors.FormatError(f"packed bytes are {data.dtype} of {tuple(data.shape)}; expected {text}")
        if (scale is not None) != form.has_row_factors:
            raise errors.FormatError(f"{format} {_scale_text(form)}, got {'none' if scale is None else 'some'}")
        self.data, self.scale, self.format, self.shape, self.dtype = data, scale, format, tuple(shape), dtype

    @property
    def rows(self) -> tuple[Any, Any]:
        """Return the elements and factors that a product with narrow x takes: views of the bytes.

        They are what `quantize` of a tensor to nvfp4 or mxfp4 returns first, (n, k / 2) bytes of two e2m1 each, and
        atoms.

        Raises:
            FormatError: the bytes lie otherwise.
        """
        if not self.form.in_rows:
            known, rows = "nvfp4rows or mxfp4rows", self.form.rows
            if rows is not None:
                known = f'{rows.name}; pack it anew by packed.repack("{rows.name}")'
            raise errors.FormatError(
                f"the packed weight is {self.format}, whose bytes lie as kernels with x of 16 bits read them; expected "
                f"{known}, or quantize the model with activation_format="
            )
        return rows_and_atoms(self.form, self.data, self.shape)

    def repack(self, format: str) -> PackedWeight:  # noqa: A002 - what the thing is called
        """Return the same codes and factors packed in another layout, as "nvfp4rows" is of "nvfp4"; by the CPU.

        Raises:
            FormatError: the other format has other codes or factors.
        """
        form = format_named(format)
        if form.elements != self.form.elements:
            raise errors.FormatError(
                f"repack: the weight is {self.format}, and {format} has other codes or factors; expected another "
                "layout of the same; round the wide weight by quantize"
            )
        parts = unpack(self)
        return pack(parts.codes, parts.factors, parts.zeros, format=format, scale=parts.scale)

    def promise(self) -> PackedWeight:
        """Promise that nobody writes the bytes while they are in use, as `constant` has it of a weight; return this.

        Products may then begin to read them before the kernel in front has ended, which few rows of x gain from. Waits
        for the work on the current stream.
        """
        from ._torch_promises import promise  # which needs the library

        promise(self.data)
        return self

    def to(self, device: Any) -> PackedWeight:
        """Return it on another device."""
        scale = None if self.scale is None else self.scale.to(device)
        return PackedWeight(self.data.to(device), scale, self.format, self.shape, self.dtype)


def _scale_text(form: WeightFormat) -> str:
    if form.has_row_factors:
        return "has float32 factors, one for each row or one for all: pass scale="
    return "has no float32 factors beside those of groups"


def pack(
    codes: Any,
    factors: Any = None,
    zeros: Any = None,
    *,
    format: str,  # noqa: A002 - what the thing is called
    scale: Any = None,
) -> Any:
    """Pack a weight once, where a model is loaded: codes and factors as checkpoints hold them.

        packed = aot_gemm.torch.pack(codes, factors, format="int4g128")
        y = aot_gemm.torch.linear(x, packed)

    It is done on the CPU, by numpy, at some 150 million elements a second of one core; the result is on the device of
    the codes. docs/weights.md of the toolchain has the formats and the layout.

    Args:
        codes: uint8 (n, k): of int4 0 to 15, of which 8 or the zero point is taken; of nvfp4 and mxfp4 e2m1's bits; or
            int8 or float8_e4m3fn elements, or their bits.
        factors: (n, k / group): of int4 bfloat16 or float16, as x is; of nvfp4 float8_e4m3fn, not negative; of mxfp4
            float8_e8m0fnu; the last two or their bits. None of int8 and e4m3.
        zeros: uint8 (n, k / group), 0 to 16, of the formats with zero points.
        format: such as "int4g128", "int4g128z", "nvfp4", "mxfp4", "int8".
        scale: float32, of nvfp4 one element by which the weight is multiplied, of int8 and e4m3 (n,) or (n, 1) or one.

    Returns:
        A PackedWeight; of codes (experts, n, k), with the experts in front of all else too, PackedExperts.

    Raises:
        OperandError: one of them is no tensor, or has no elements.
        FormatError: extents, types or codes that the format does not have.
        UnsupportedError: there is no numpy.
    """
    form = format_named(format)
    for name, given in (("codes", codes), ("factors", factors), ("zeros", zeros), ("scale", scale)):
        if given is not None or name == "codes":
            check_tensor("pack", name, given, has_memory=True)
    if codes.ndim == 3:  # of experts
        from ._torch_experts import pack_experts  # which imports this module

        return pack_experts(codes, factors, zeros, format=format, scale=scale)
    _check_types(form, codes, factors)
    parts = WeightParts(*(None if x is None else bits_of(x) for x in (codes, factors, zeros)))
    data = torch.from_numpy(_packing().pack(form, parts)).to(codes.device)
    held = None if scale is None else scale.detach().to(codes.device, torch.float32).reshape(-1)
    if held is not None and held.numel() not in (1, codes.shape[0]):
        raise errors.FormatError(f"scale has {held.numel()} elements; expected 1 or {codes.shape[0]}, one for each row")
    dtype = factors.dtype if form.factor_bits == 16 else None
    return PackedWeight(data, held, format, tuple(codes.shape), dtype)


def _check_types(form: WeightFormat, codes: Any, factors: Any) -> None:
    """Refuse elements whose bits mean something else in a format (FormatError); uint8 are bits of any type."""
    expected = torch.uint8, _CODES.get(form.code, torch.int8)
    if codes.ndim != 2 or codes.dtype not in expected:
        names = " or ".join(map(str, dict.fromkeys(expected)))
        raise errors.FormatError(
            f"pack: codes are {codes.dtype} {tuple(codes.shape)}; expected (n, k) of {names}, as {form.name} has them; "
            "convert them"
        )
    if not form.group or (factors is None and form.factor_bits != 16):
        return  # none are wanted, or the packing says that there are none
    wanted = DTYPES if form.factor_bits == 16 else (_FACTORS[form.elements], torch.uint8)
    if factors is None or factors.dtype not in wanted:
        got = "none" if factors is None else factors.dtype
        text = "as x is" if form.factor_bits == 16 else "its bits"
        raise errors.FormatError(
            f"factors of {form.name} are {got}; expected {' or '.join(map(str, wanted))}, {text}; convert them"
        )


def _packing() -> Any:
    """Return the module that packs, whose import needs numpy.

    Raises:
        UnsupportedError: there is no numpy.
    """
    try:
        from . import _weight_packing
    except ImportError as error:
        raise errors.UnsupportedError("packing a weight needs numpy, which is not installed; install it") from error
    return _weight_packing


def bits_of(tensor: Any) -> Any:
    """Return the bits of a tensor as numpy has them, of as many unsigned bytes as an element has."""
    held = tensor.detach().cpu().contiguous()
    if held.dtype in DTYPES:
        return held.view(torch.int16).numpy().view("u2")
    return held.view(torch.uint8).numpy() if held.dtype in _FLOATS_OF_BYTES else held.numpy()


def unpack(packed: PackedWeight) -> Parts:
    """Return what a weight was packed of, bit for bit, on its own device.

    Raises:
        OperandError: it is none that `pack` returned.
    """
    if not isinstance(packed, PackedWeight):
        from ._torch_experts import unpack_experts  # which imports this module

        return unpack_experts(packed)
    form, (n, k) = packed.form, packed.shape
    layout = PackedLayout(form)
    if form.in_rows:
        elements, atoms = packed.rows
        codes = torch.stack((elements & 0xF, elements >> 4), 2).reshape(n, k)
        factors = rows_of(torch, atoms, n, form.num_groups(k))
        return Parts(codes, factors.view(torch.uint8) if form.is_mxfp4 else factors, None, packed.scale)
    blocks = packed.data.reshape(packed.data.shape[0], -1, layout.block_bytes)
    codes, factors, zeros = blocks.split((layout.code_bytes, layout.factor_bytes, layout.zero_bytes), 2)
    groups = form.num_groups(k)
    held = points = None
    if form.group:
        kind = {"nvfp4": torch.float8_e4m3fn, "mxfp4": torch.uint8}.get(form.elements, packed.dtype)
        held = _of_groups(form, factors, form.factor_bits // 8)[:n, :groups].contiguous().view(kind).reshape(n, groups)
    if form.has_zeros:
        points = _of_groups(form, zeros, 1)[:n, :groups].reshape(n, groups)
    return Parts(_codes(form, codes)[:n, :k], held, points, packed.scale)


def rows_and_atoms(form: WeightFormat, data: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the elements, (n, k / 2) bytes, and the atoms of factors of a weight (n, k) whose bytes are in rows.

    Of a stack (experts, n, k) they have the experts in front, and lie apart. All are views.
    """
    n, k = shape[-2:]
    atoms = data[..., PackedLayout(form).first_atom_row(n) :, :].flatten(-2)
    return data[..., :n, : k // 2], atoms.view(_FACTORS[form.elements])


def _codes(form: WeightFormat, packed: Any) -> Any:
    """Return the codes of blocks (tiles, blocks, bytes) as (rows, elements): the twin of `_unpack_codes`."""
    tiles, blocks = packed.shape[:2]
    if form.code.bits == 8:
        found = packed.reshape(tiles, blocks, 4, 8, 4, 2, 2, 2, 2).permute(0, 8, 3, 1, 2, 4, 5, 6, 7)
        return found.reshape(tiles * TILE_ROWS, blocks * BLOCK_K)
    words = packed.contiguous().view(torch.int32).reshape(tiles, blocks, 2, 8, 4, 2, 2)
    places = _packing_places(form.code)
    codes = [[_gathered(words, places[register][element]) for element in range(2)] for register in range(4)]
    found = torch.stack([torch.stack(x) for x in codes]).reshape(2, 2, 2, *words.shape)
    return found.permute(3, 1, 6, 4, 5, 8, 7, 9, 0, 2).reshape(tiles * TILE_ROWS, blocks * BLOCK_K)


def _packing_places(code: Code) -> list[list[list[int]]]:
    """Return the places of a code's bits in a word, by register and element."""
    packing = _packing()
    return [[[packing.place(code, r, e, i) for i in range(4)] for e in range(2)] for r in range(4)]


def _gathered(words: Any, places: list[int]) -> Any:
    """Return the codes whose bits are at some places of words."""
    found = (words >> places[0]) & 1
    for i, place in enumerate(places[1:], start=1):
        found = found | ((words >> place) & 1) << i
    return found.to(torch.uint8)


def _of_groups(form: WeightFormat, packed: Any, num_bytes: int) -> Any:
    """Return what groups have, (rows, groups, bytes): the twin of `_unpack_factors`."""
    tiles, blocks = packed.shape[:2]
    groups = form.num_groups(BLOCK_K)
    if form.is_nvfp4:
        found = packed.reshape(tiles, blocks, 8, 2, 2, 2, 2, num_bytes).permute(0, 5, 2, 1, 4, 6, 3, 7)
    else:
        found = packed.reshape(tiles, blocks, 8, groups, 2, num_bytes).permute(0, 4, 2, 1, 3, 5)
    return found.reshape(tiles * TILE_ROWS, blocks * groups, num_bytes)


def dequantize(packed: PackedWeight, dtype: Any = None) -> Any:
    """Return the weight (n, k) that packed bytes stand for, on their device: a float32 product, rounded to `dtype`.

    Args:
        packed: the weight, or of experts (experts, n, k).
        dtype: bfloat16, float16 or float32; by default that of the factors, or bfloat16.
    """
    parts, form = unpack(packed), packed.form
    dtype = dtype or packed.dtype or torch.bfloat16
    values = _code_values(form.code, parts.codes)
    if parts.zeros is not None:
        values = values + INT4_OFFSET - parts.zeros.float().repeat_interleave(form.group, -1)
    if parts.factors is not None:
        factors = of_powers(parts.factors) if form.is_mxfp4 else parts.factors.float()
        values = values * factors.repeat_interleave(form.group, -1)
    return (values if parts.scale is None else values * parts.scale.reshape(*values.shape[:-2], -1, 1)).to(dtype)


def _code_values(code: Code, codes: Any) -> Any:
    if code is Code.INT4:
        return codes.float() - INT4_OFFSET
    if code is Code.INT8:
        return codes.view(torch.int8).float()
    if code is Code.E4M3:
        return codes.view(torch.float8_e4m3fn).float()
    values = torch.tensor([*E2M1_VALUES, *(-x for x in E2M1_VALUES)], device=codes.device)
    return values[codes.int()]


FORMAT_NAMES = tuple(x.name for x in FORMATS)
"""Of all formats that weights are packed in."""
