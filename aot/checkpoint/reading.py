"""Some rows of a weight of a checkpoint at a time, as codes and factors, rounded where the checkpoint is wide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.checkpoint.stored import Stored, StoredLayer
from aot.core.block_quantization import own_factor
from aot.core.element import ElementType
from aot.core.errors import CheckpointError, FormatError
from aot.core.numerics import decode, encode, is_bad
from aot.core.packed_folder import SCALE_BLOCK
from aot.core.safetensors_file import StoredTensor, short
from aot.core.weight_checkpoints import PER_WORD, ReadWeight, from_awq, from_compressed_int4, from_gptq, from_mxfp4
from aot.core.weight_checkpoints import from_nvfp4 as nvfp4_of
from aot.core.weight_format import INT4_OFFSET, TILE_ROWS, Code, PackedLayout, WeightParts
from aot.core.weight_packing import pack, unpack
from aot.core.weight_rounding import by_blocks, by_rows, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Bits = NDArray[Any]
    Wide = NDArray[np.float32]

CHUNK = 2**21
"""Elements that are packed at once, about: a process holds some 30 bytes for each."""
ELEMENTS = {"bfloat16": ElementType.BFLOAT16, "float16": ElementType.FLOAT16}
_STORED = {"BF16": ElementType.BFLOAT16, "F16": ElementType.FLOAT16, "F32": ElementType.FLOAT32}


def wide_of(bits: Bits, dtype: str) -> Wide:
    """Return the float32 values of elements of a floating-point type."""
    if dtype == "BF16":
        return np.asarray(bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(decode(_STORED[dtype], bits).astype(np.float32) if dtype == "F16" else bits.view(np.float32))


def _in_turns(gate: Bits, line: Bits) -> Bits:
    """Return rows of two arrays, the even ones those of one."""
    return np.stack((gate, line), 1).reshape(-1, *gate.shape[1:])


class LayerReader:
    """Gives the tensors of a packed layer, rows after rows."""

    def __init__(self, layer: StoredLayer, *, check_all: bool = False) -> None:
        """Read a layer.

        Args:
            layer: the layer.
            check_all: whether all rows are unpacked again and compared; else the first 16 of every few millions of
                elements are.
        """
        self.layer, self.check_all = layer, check_all
        self._scales: list[Wide] = []
        self._own: np.float32 | None = None
        self._halves = tuple(LayerReader(x) for x in layer.halves)

    def qweight(self) -> Iterator[Bits]:
        """Give the bytes of `qweight`, some rows at a time.

        Raises:
            CheckpointError: factors are not finite, or codes are none of the format's.
        """
        (n, k), form = self.layer.packed.matrix, self.layer.packed.form
        step = max(SCALE_BLOCK, CHUNK // k // SCALE_BLOCK * SCALE_BLOCK)
        behind = []  # the factors of a weight in rows, which stand behind all of them
        try:
            for start in range(0, n, step):
                rows = self._rows(start, min(start + step, n))
                if form is not None and form.in_rows:
                    rows, atoms = np.split(rows, [PackedLayout(form).first_atom_row(min(step, n - start))])
                    behind.append(atoms)
                yield rows
        except FormatError as error:
            raise CheckpointError(f"{short(self.layer.name)}: {error}") from error
        yield from behind

    def scale(self) -> Wide:
        """Return `scale`, which of what is rounded is known once all rows were given."""
        layer, (n, _) = self.layer, self.layer.packed.matrix
        if self._halves:
            return _in_turns(*(x.scale() for x in self._halves))
        if layer.stored is Stored.BYTES:
            held = layer.tensors["scale"]
            found = wide_of(held.bits(), held.dtype)
            whole = np.broadcast_to(found.reshape(-1, 1), (n, 1)) if layer.packed.format != "fp8_block" else found
        elif layer.stored is Stored.NVFP4:
            whole = self._whole().reshape(1)
        elif self._own is not None:
            whole = self._own.reshape(1)
        else:
            whole = np.concatenate(self._scales) if self._scales else np.empty(0, np.float32)
        if not np.isfinite(whole).all():
            raise CheckpointError(f"{short(layer.name)}: a factor is not finite; expected numbers; quantise it again")
        if layer.is_in_stack:
            whole = np.broadcast_to(whole.reshape(-1), (n,)) if whole.size else whole
            return np.ascontiguousarray(whole, "<f4")
        return np.ascontiguousarray(whole, "<f4").reshape(layer.packed.tensors[1][2])

    def _whole(self) -> Wide:
        """Return the factor of a whole weight of NVFP4, by which compressed-tensors divides."""
        tensors = self.layer.tensors
        end = next(x for x in ("weight_scale_2", "weight_global_scale") if x in tensors)
        found = tensors[end].bits().reshape(()).view(np.float32)
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / found.astype(np.float64) if end == "weight_global_scale" else found, np.float32)

    def _rows(self, start: int, stop: int) -> Bits:
        form = self.layer.packed.form
        if form is None:
            return self._bytes(start, stop)
        parts = self._parts(start, stop)
        if form.factor_bits == 16:
            self._check_factors(parts)
        packed = pack(form, parts)
        count = stop - start if self.check_all else min(TILE_ROWS, stop - start)
        _, k = self.layer.packed.matrix
        if form.in_rows:
            again = unpack(form, packed, stop - start, k)
            again = WeightParts(again.codes[:count], again.factors[:count])  # type: ignore[index]
        else:
            again = unpack(form, packed[: -(-count // TILE_ROWS)], count, k)
        for got, expected in ((again.codes, parts.codes), (again.factors, parts.factors), (again.zeros, parts.zeros)):
            if got is not None and expected is not None and not np.array_equal(got, expected[:count]):
                raise CheckpointError(
                    f"{short(self.layer.name)}: rows from {start} on are not what they were packed of; expected the "
                    "same bits; check this machine's memory, and pack again"
                )
        return packed

    def _bytes(self, start: int, stop: int) -> Bits:
        """Return rows of a format whose elements lie as torch has them."""
        if self._halves:
            return _in_turns(*(x._bytes(start // 2, stop // 2) for x in self._halves))  # noqa: SLF001 - its own class
        if self.layer.stored is Stored.BYTES:
            return self._elements(start, stop)
        wide = self._wide(start, stop)
        if self.layer.packed.format == "fp8_block":
            codes, scale = by_blocks(wide, SCALE_BLOCK)
        else:
            codes, scale = by_rows(wide, ElementType.INT8 if self.layer.packed.format == "int8" else ElementType.E4M3)
        self._scales.append(scale)
        return codes

    def _elements(self, start: int, stop: int) -> Bits:
        """Return elements of 8 bits as they lie in a checkpoint."""
        stored = self.layer.tensors["weight"]
        found = np.ascontiguousarray(stored.bits()[start:stop])
        if stored.dtype != "I8" and is_bad(ElementType.E4M3, found).any():
            raise CheckpointError(
                f"{short(self.layer.name)}: rows {start} to {stop} have an element that is NaN; expected numbers; "
                "fetch the checkpoint again, or quantise it again"
            )
        return found

    def _check_factors(self, parts: WeightParts) -> None:
        assert parts.factors is not None and self.layer.packed.dtype is not None  # noqa: S101, PT018 - as int4 has it
        if is_bad(ELEMENTS[self.layer.packed.dtype], parts.factors).any():
            raise CheckpointError(
                f"{short(self.layer.name)}: a factor is not finite in {self.layer.packed.dtype}; expected numbers; "
                "give another --dtype, or quantise it again"
            )

    def _parts(self, start: int, stop: int) -> WeightParts:
        if self._halves:
            gate, line = (x._parts(start // 2, stop // 2) for x in self._halves)  # noqa: SLF001 - its own class
            factors, zeros = (
                None if x is None or y is None else _in_turns(x, y)
                for x, y in ((gate.factors, line.factors), (gate.zeros, line.zeros))
            )
            return WeightParts(_in_turns(gate.codes, line.codes), factors, zeros)
        if self.layer.stored is Stored.WIDE:
            return self._rounded(start, stop)
        if self.layer.stored is Stored.BYTES:
            return WeightParts(self._elements(start, stop))
        read = self._read(start, stop)
        parts, packed = read.parts, self.layer.packed
        form = packed.form
        assert form is not None  # noqa: S101 - else its elements are bytes
        zeros = parts.zeros if form.has_zeros else None  # none where all are 8, of the weight or of these rows
        if zeros is None and form.has_zeros:
            zeros = np.full(parts.factors.shape, INT4_OFFSET, np.uint8)  # type: ignore[union-attr]
        return WeightParts(parts.codes, parts.factors, zeros)

    def _read(self, start: int, stop: int) -> ReadWeight:
        held, rows = self.layer.tensors, slice(start, stop)
        words = slice(start // PER_WORD, -(-stop // PER_WORD))
        match self.layer.stored:
            case Stored.GPTQ:
                zeros = held["qzeros"].bits()[:, words]
                factors = self._factors(held["scales"], columns=rows)
                codes = held["qweight"].bits()[:, rows]
                return from_gptq(codes, zeros, factors, zero_offset=self.layer.zero_offset)
            case Stored.AWQ:
                codes, zeros = (held[x].bits()[:, words] for x in ("qweight", "qzeros"))
                return from_awq(codes, zeros, self._factors(held["scales"], columns=rows))
            case Stored.INT4:
                points = held["weight_zero_point"].bits()[words] if "weight_zero_point" in held else None
                factors = self._factors(held["weight_scale"])[rows]
                return from_compressed_int4(held["weight_packed"].bits()[rows], factors, points)
            case _:
                codes = next(held[x] for x in ("weight_packed", "weight") if x in held).bits()[rows]
                scales = np.ascontiguousarray(held["weight_scale"].bits()[rows])
                if self.layer.packed.form is not None and self.layer.packed.form.is_nvfp4:
                    return nvfp4_of(codes, scales, 1.0)
                return from_mxfp4(codes.reshape(len(codes), -1, 16), scales)

    def _factors(self, scales: StoredTensor, columns: slice = slice(None)) -> Bits:
        """Return factors of 16 bits, in the type that the layer has them in."""
        assert self.layer.packed.dtype is not None  # noqa: S101 - as int4 has it
        bits, element = scales.bits()[:, columns], ELEMENTS[self.layer.packed.dtype]
        return bits if _STORED[scales.dtype] is element else encode(element, wide_of(bits, scales.dtype))

    def _wide(self, start: int, stop: int) -> Wide:
        weight = self.layer.tensors["weight"]
        found = wide_of(weight.bits()[start:stop], weight.dtype)
        if not np.isfinite(found).all():
            raise CheckpointError(
                f"{short(self.layer.name)}: rows {start} to {stop} have a number that is not finite; expected finite "
                f"ones; mend the checkpoint, or leave it by --skip {short(self.layer.name)}"
            )
        return found

    def _rounded(self, start: int, stop: int) -> WeightParts:
        packed = self.layer.packed
        assert packed.form is not None  # noqa: S101 - else its elements are bytes
        if packed.form.is_nvfp4 and self._own is None:
            self._own = own_factor(self._most())
        element = ELEMENTS[packed.dtype or "bfloat16"]
        found = rounded(packed.form, self._wide(start, stop), element, self._own)
        if packed.form.code in {Code.INT8, Code.E4M3} and found.scale is not None:
            self._scales.append(found.scale)
        return found.parts

    def _most(self) -> np.float32:
        """Return the largest magnitude of a wide weight."""
        n, k = self.layer.packed.matrix
        step = max(1, CHUNK // k)
        return np.float32(max(float(np.abs(self._wide(i, min(i + step, n))).max()) for i in range(0, n, step)))
