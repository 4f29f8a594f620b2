"""Tensors in narrow elements with a factor for each block along k, by torch's own functions: NVFP4, MXFP4, MXFP8.

All is done in float32, on the tensor's own device. The toolchain's block_quantization.py has the same rules for numpy,
and gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from . import _factors, _row_options, _row_request, _rows, errors
from ._catalogue import BLOCK_FORMATS, BlockFormat
from ._torch_check import check_tensor

FORMATS = tuple(BLOCK_FORMATS)
"""The formats by name, as `quantize` takes them."""
PACKED = (torch.uint8, getattr(torch, "float4_e2m1fn_x2", torch.uint8))
"""Element types of tensors whose elements are bytes that hold two e2m1 each."""
_WIDE = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST = {"float4_e2m1fn": 6.0, "float8_e4m3fn": 448.0}
"""By element type: its largest value."""
_LEAST_E4M3 = 2.0**-9
"""Twins of LEAST_E4M3 and LEAST_SCALE of the toolchain's block_quantization.py."""
_LEAST_SCALE = 2.0**-126
_E8M0_BIAS = 127
_SLAB = 1024
"""Rows that are rounded at a time, so that little is held in float32."""
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By code; the fourth bit is the sign. Source: Open Compute Project, Microscaling Formats, section 5.3.3."""
_SIGN, _CODE, _MOST_CODE = 8, 0xF, 7
_BITS = 4
_PER_BYTE = 2


def quantize(
    x: Any, dtype: str, *, scale: Any = None, offsets: Any = None, index: Any = None, groups: int | None = None
) -> tuple[Any, Any]:
    """Round a tensor (..., k) to elements and factors of a format; `aot_gemm.torch.quantize` says how."""
    form = BLOCK_FORMATS[dtype]
    check_tensor("quantize", "x", x)
    _check(x, dtype, form)
    _check_groups(x, offsets, index, groups)
    held = x.detach().reshape(math.prod(x.shape[:-1]), x.shape[-1])
    own = own_factor(held, scale) if form.has_tensor_factor else None
    if own is None and scale is not None:
        raise errors.OperandError(f"quantize: got scale, which goes with nvfp4; {dtype} has factors of blocks alone")
    where = {"offsets": offsets, "index": index, "groups": groups}
    values, scales = _by_operator(held, dtype, own, where) or round_here(held, dtype, own, where)
    return values.reshape(*x.shape[:-1], values.shape[1]) if offsets is None else values, scales


def round_here(x: Any, name: str, own: Any, where: dict[str, Any]) -> tuple[Any, Any]:
    """Round a tensor (rows, k) by the wheel's kernel, or by torch's own functions; what `quantize` has checked.

    Args:
        x: the tensor.
        name: of the format.
        own: its own factor; None where the format has none.
        where: `offsets`, `index` and `groups`, each of which may be None.
    """
    found = _by_kernel(x, name, own, where)
    if found is not None:
        return found
    form = BLOCK_FORMATS[name]
    values, factors = _rounded(x, own, form)
    if where["offsets"] is None:
        atoms = _factors.atoms_of(torch, factors)
    else:
        parts = _factors.groups_of(where["offsets"], where["groups"])
        values, atoms = _in_groups(values, factors, parts, where["index"])
    return values, atoms if own is None else (atoms, own)


def _check_groups(x: Any, offsets: Any, index: Any, groups: int | None) -> None:
    """Check which of these there are; how many groups offsets are of, kernels and torch's own functions check."""
    if offsets is not None and x.ndim != 2:
        raise errors.ShapeError(f"quantize: x has {x.ndim} dimensions beside offsets; expected (rows, k)")
    if offsets is None and (index is not None or groups is not None):
        raise errors.OperandError("quantize: got an index or groups without offsets; expected where each group ends")


def _in_groups(values: Any, factors: Any, parts: tuple[Any, Any], index: Any) -> tuple[Any, Any]:
    """Return elements of rows in groups, gathered by an index, and their factors in atoms."""
    rows = values.shape[0]
    atoms = _factors.atoms_of_groups(torch, factors, parts, index)
    if index is not None:
        is_there = (index >= 0) & (index < rows)
        codes = values.view(torch.uint8)
        codes = codes if rows else codes.new_zeros(1, codes.shape[1])
        values = (codes[index.clip(0, max(rows - 1, 0))] * is_there[:, None]).view(values.dtype)
    return values, atoms


def _rounded(x: Any, own: Any, form: BlockFormat) -> tuple[Any, Any]:
    """Round a tensor (rows, k): return elements, of e2m1 two in a byte, and factors (rows, blocks)."""
    rows, k = x.shape
    is_packed = form.element == "float4_e2m1fn"
    held_in = torch.uint8 if is_packed else torch.float8_e4m3fn
    values = x.new_empty(rows, k // _PER_BYTE if is_packed else k, dtype=held_in)
    factors = x.new_empty(rows, -(-k // form.block), dtype=getattr(torch, form.factor))
    for start in range(0, rows, _SLAB):
        part = slice(start, start + _SLAB)
        elements, factors[part] = round_blocks(x[part].float(), own, form)
        values[part] = _pairs(elements) if is_packed else elements
    return values, factors


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernel(dtype: str, name: str) -> bool:
    """Say whether the wheel rounds tensors of an element type in GPU memory: in a compiled graph, as it is now."""
    row = _row_request.find("quantize", dtype, BLOCK_FORMATS[name].element, _row_options.format_scales(name))
    return row is not None and _row_request.is_there(row)


def _dtype_of(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def _on_gpu(x: Any) -> bool:
    return bool(x.is_cuda)


def _in_int32(where: dict[str, Any]) -> dict[str, Any]:
    """Return offsets and index as kernels take them."""
    is_wide = {x: isinstance(y, torch.Tensor) and y.dtype != torch.int32 for x, y in where.items()}
    return {x: y.to(torch.int32) if is_wide[x] else y for x, y in where.items()}


def _by_kernel(x: Any, name: str, own: Any, where: dict[str, Any]) -> tuple[Any, Any] | None:
    """Round a tensor by the wheel's kernel. None where it has none for the type or for this GPU, or torch traces."""
    from ._torch_products import is_compiling, is_recorded  # here, since products need what this module has

    if not _on_gpu(x) or is_compiling() or is_recorded(x) or x.numel() == 0 or not _has_kernel(_dtype_of(x), name):
        return None
    try:
        return _rows.quantize(x, name, scale=own, **_in_int32(where))
    except errors.ArchitectureError:
        return None


def _by_operator(x: Any, name: str, own: Any, where: dict[str, Any]) -> tuple[Any, Any] | None:
    """Round a tensor by the operator of the wheel's kernel, where torch traces.

    None where it does not, where there is no such kernel, and where torch.func transforms: torch's own functions, which
    a compiler fuses, are for that.
    """
    from ._torch_products import is_compiling, is_recorded
    from ._torch_transforms import is_transformed

    is_traced = (is_compiling() or is_recorded(x)) and not is_transformed()
    if not (is_traced and _on_gpu(x) and _has_kernel(_dtype_of(x), name)):
        return None
    from ._torch_rows import run_operator

    found: tuple[Any, Any] = run_operator("quantize", {"x": x, "dtype": name, "scale": own, **_in_int32(where)})
    return found


def round_blocks(wide: Any, own: Any, form: BlockFormat) -> tuple[Any, Any]:
    """Return elements (rows, k), of e2m1 their codes, and factors (rows, blocks).

    Args:
        wide: float32 values (rows, k).
        own: the tensor's own factor, as `own_factor` gives it; None where the format has none.
        form: the format.
    """
    k = wide.shape[1]
    blocks = torch.nn.functional.pad(wide, (0, -k % form.block)).unflatten(1, (-1, form.block))
    most = blocks.abs().amax(2)
    if own is None:
        factors = _powers(most, _LARGEST[form.element])
        each = of_powers(factors.view(torch.uint8))
    else:
        ratio = most / (_LARGEST[form.element] * own)
        factors = ratio.clamp(_LEAST_E4M3, _LARGEST[form.factor]).to(torch.float8_e4m3fn)
        each = factors.float() * own
    scaled = (blocks / each.unsqueeze(2)).flatten(1)[:, :k]
    return (_e2m1 if form.element == "float4_e2m1fn" else _e4m3)(scaled), factors


def _check(x: Any, name: str, form: BlockFormat) -> None:
    if x.dtype not in _WIDE:
        raise errors.DtypeError(f"quantize: x is {x.dtype}; expected bfloat16, float16 or float32")
    if x.ndim < 1:
        raise errors.ShapeError("quantize: x has shape (); expected (..., k)")
    if form.element == "float4_e2m1fn" and x.shape[-1] % _PER_BYTE:
        raise errors.ShapeError(
            f"quantize: x has shape {tuple(x.shape)}; expected an even k of {name}, two elements of which are a byte; "
            "pad x and the weight with zeros"
        )
    if not hasattr(torch, form.factor):
        raise errors.UnsupportedError(
            f"quantize: torch {torch.__version__} has no {form.factor}, of which {name} has its factors; expected 2.7 "
            "or newer"
        )


def own_factor(x: Any, given: Any = None) -> Any:
    """Return a tensor's own factor of NVFP4: that by which the largest factor of a block is e4m3's largest number."""
    if given is not None:
        if not isinstance(given, torch.Tensor) or given.dtype != torch.float32 or given.numel() != 1:
            what = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, torch.Tensor) else errors.show(given)
            raise errors.OperandError(f"quantize: scale is {what}; expected a float32 tensor of one element")
        return given.reshape(1)
    whole = (x.abs().amax() if x.numel() else x.new_zeros(())).float().reshape(1)
    largest = torch.full_like(whole, _LARGEST["float4_e2m1fn"] * _LARGEST["float8_e4m3fn"])
    return torch.where(whole == 0, 1.0, (whole / largest).clamp_min(_LEAST_SCALE))  # by a number it would be multiplied


def _powers(most: Any, largest: float) -> Any:
    """Return the least powers of two by which no element of a block is more than its type's largest number."""
    significand, exponent = math.frexp(largest)
    of_most, needed = torch.frexp(most)
    codes = (needed - exponent + (of_most > significand) + _E8M0_BIAS).clamp(0, 2 * _E8M0_BIAS)
    codes = torch.where(most == 0, 0, codes).where(most.isfinite(), 2 * _E8M0_BIAS + 1)
    return codes.to(torch.uint8).view(torch.float8_e8m0fnu)


def of_powers(factors: Any) -> Any:
    """Return what codes of e8m0 stand for, in float32: powers of two, and NaN."""
    codes = factors.int()
    least = torch.full_like(codes, 1 << 22)  # 2^-127, which is no normal number
    bits = torch.where(codes == 0, least, codes << 23)
    return torch.where(codes == 2 * _E8M0_BIAS + 1, torch.full_like(codes, 0x7FC00000), bits).view(torch.float32)


def _e2m1(scaled: Any) -> Any:
    """Return codes of e2m1, rounded to nearest and ties to even; NaN becomes 6, in a block whose factor is NaN."""
    size = scaled.abs()
    small, middle, large = (size * 2).round(), size.round() + 2, (size / 2).round() + 4
    rounded = torch.where(size < 2, small, torch.where(size < 4, middle, large))
    codes = rounded.nan_to_num(_MOST_CODE, _MOST_CODE).clamp_max(_MOST_CODE)
    is_negative = scaled.signbit().logical_and(~scaled.isnan())
    return codes.to(torch.uint8) + is_negative.to(torch.uint8) * _SIGN


def _pairs(codes: Any) -> Any:
    """Return codes two to a byte, the first in the lower half."""
    return codes[:, ::_PER_BYTE] | codes[:, 1::_PER_BYTE] << _BITS


def _e4m3(scaled: Any) -> Any:
    return scaled.clamp(-_LARGEST["float8_e4m3fn"], _LARGEST["float8_e4m3fn"]).to(torch.float8_e4m3fn)


def dequantize(values: Any, scale: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
    """Return what elements and factors of NVFP4, MXFP4 or MXFP8 stand for, as `quantize` returns them.

        values, scale = aot_gemm.torch.quantize(weight, "nvfp4")
        wide = aot_gemm.torch.dequantize(values, scale)

    Args:
        values: (..., k / 2) of uint8 or float4_e2m1fn_x2, or (..., k) of float8_e4m3fn, on any device.
        scale: factors of blocks, of float8_e4m3fn or float8_e8m0fnu: in atoms, or in rows of blocks; with a pair the
            second is the tensor's own float32 factor.
        dtype: of the result, to which products in float32 are rounded once.

    Returns:
        (..., k).

    Raises:
        OperandError: elements or factors are no tensor, as where there are none.
        DtypeError: there is no format of such elements with such factors.
        ShapeError: the factors are not of so many blocks.
    """
    factors, own = scale if isinstance(scale, (tuple, list)) and len(scale) == 2 else (scale, None)
    check_tensor("dequantize", "values", values)
    check_tensor("dequantize", "scale, or the first of its pair,", factors)
    form = _format_of(values, factors)
    if form.element == "float4_e2m1fn":
        held = values.view(torch.uint8)
        codes = torch.stack((held & _CODE, held >> _BITS), -1).flatten(-2).int()
        table = torch.tensor(E2M1_VALUES, device=held.device)
        elements = torch.where(codes >= _SIGN, -table[codes & (_SIGN - 1)], table[codes & (_SIGN - 1)])
    else:
        elements = values.float()
    rows, k = math.prod(elements.shape[:-1]), elements.shape[-1]
    blocks = -(-k // form.block)
    plain = _factors.rows_of(torch, factors, rows, blocks) if factors.ndim == 1 else factors
    if plain.shape[-1] != blocks or plain.numel() != rows * blocks:
        raise errors.ShapeError(
            f"dequantize: scale has shape {tuple(plain.shape)}; expected ({rows}, {blocks}), or the atoms of so many"
        )
    plain = plain.reshape(rows, blocks)
    each = plain.float() if form.factor == "float8_e4m3fn" else of_powers(plain.view(torch.uint8))
    wide = elements.reshape(rows, k) * each.repeat_interleave(form.block, 1)[:, :k]  # which is exact
    return (wide if own is None else wide * own).to(dtype).reshape(elements.shape)


def _format_of(values: Any, factors: Any) -> BlockFormat:
    element = "float4_e2m1fn" if values.dtype in PACKED else str(values.dtype).removeprefix("torch.")
    factor = str(factors.dtype).removeprefix("torch.")
    for form in BLOCK_FORMATS.values():
        if (form.element, form.factor) == (element, factor):
            return form
    known = ", ".join(f"{x.element} with {x.factor} ({name})" for name, x in BLOCK_FORMATS.items())
    raise errors.DtypeError(f"dequantize: got {values.dtype} with factors of {factors.dtype}; expected {known}")
