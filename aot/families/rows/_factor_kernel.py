"""The kernels of quantisation to narrow elements with a factor for each few columns of a row. Imports CUTLASS.

The threads of a block hold its columns side by side, one vector each, and find its largest magnitude among
themselves. The first of them writes the factor where block-scaled products read it: `aot.core.factor_atoms`. What
fills the last atom of a row up is written as 0; the rows that fill atoms up are left as they are.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, Uint8, const_expr, cute, range_constexpr

from aot.core.element import ElementType
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families.rows._factor_codes import e2m1_code, mx_factor, nvfp4_factor
from aot.families.rows._memory import maximum
from aot.families.rows._quotient import divide, in_float32
from aot.families.rows._row_kernel import RowKernel

CODES_OF_BYTE = ElementType.E2M1.num_sharing
CODE_BITS = ElementType.E2M1.bits


@dataclass(frozen=True, repr=False)
class FactorKernel(RowKernel):
    """The kernel of one candidate."""

    @property
    def form(self) -> Any:
        """Return the ScaleFormat of the factors."""
        return self.operation.factors

    @property
    def block_threads(self) -> int:
        """Return the threads that have a block's columns."""
        return int(self.form.block_k // self.knobs.vector_elements)

    @cute.jit
    def _loop(self, operands: Any, place: Any, shared: Any) -> None:
        """Normalise and quantise a row of any width, a part at a time."""
        parts = cute.ceil_div(operands.y.shape[1], self.knobs.columns)
        mean, deviation = self._statistics(operands, place, shared, parts)
        for part in cutlass.range(parts, unroll=1):
            there = self._part(place, part)
            values = self._finished(operands, there, mean, deviation)
            self._quantize(values, operands, there, shared, part)
            self._write(values, operands, there)

    @cute.jit
    def _quantize(self, values: Any, operands: Any, place: Any, shared: Any, piece: Any) -> None:
        """Divide values by the factors of their blocks, in place, and write those."""
        del shared, piece
        own = Float32(1.0) if const_expr(operands.tensor_scale is None) else operands.tensor_scale[0]
        for i in range_constexpr(self.knobs.vectors_per_thread):
            magnitude = Float32(0.0)
            for e in range_constexpr(self.knobs.vector_elements):
                magnitude = maximum(magnitude, cute.math.absf(values[e, i]))
            magnitude = cutlass.select_(place.column(i) < place.limit, magnitude, Float32(0.0))
            magnitude = cute.arch.warp_reduction(magnitude, maximum, threads_in_group=self.block_threads)
            if const_expr(self.form.has_tensor_factor):
                factor = nvfp4_factor(magnitude, own)
                divide(values[None, i], factor.by, magnitude)
            else:
                factor = mx_factor(magnitude, self.operation.y)
                for e in range_constexpr(self.knobs.vector_elements):
                    values[e, i] = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", values[e, i], factor.by)
            self._write_factor(factor.code, operands, place, i)

    @cute.jit
    def _write_factor(self, code: Int32, operands: Any, place: Any, i: Constexpr[int]) -> None:
        """Write the factor of a block that a row has, and 0 for one that fills its last atom up."""
        cols, column, row = operands.y.shape[1], place.column(i), place.row
        whole = const_expr(self.form.block_k * ATOM_COLUMNS)
        is_first = cute.arch.thread_idx()[0] % self.block_threads == 0
        # The columns behind the last of a row that there is not are none.
        if is_first & (place.limit > 0) & (column < cute.round_up(cols, whole)):
            block = column // self.form.block_k
            atom = Int64(row // ATOM_ROWS) * operands.scale.stride[0] + block // ATOM_COLUMNS * ATOM_BYTES
            offset = atom + byte_in_atom(row, block)
            target = cute.make_tensor(operands.scale.iterator + offset, cute.make_layout(1))
            target[0] = Uint8(Int32(cutlass.select_(column < cols, code, 0)))

    def _write(self, values: Any, operands: Any, place: Any) -> None:
        """Round values to Y's type and store them."""
        if self.operation.y is not ElementType.E2M1:
            super()._write(values, operands, place)
        elif self.knobs.vector_elements == 1:
            self._write_pairs(values, operands, place)
        else:
            self._write_words(values, operands, place)

    @cute.jit
    def _write_words(self, values: Any, operands: Any, place: Any) -> None:
        """Store the eight elements of each vector as a word."""
        for i in range_constexpr(self.knobs.vectors_per_thread):
            word = Int32(0)
            for e in range_constexpr(self.knobs.vector_elements):
                word |= e2m1_code(values[e, i]) << (CODE_BITS * e)
            if place.column(i) < place.limit:
                num_bytes = const_expr(self.knobs.vector_elements // CODES_OF_BYTE)
                start = operands.y.iterator + cute.assume(_byte_of(operands.y, place, i), divby=num_bytes)
                cute.make_tensor(cute.recast_ptr(start, dtype=Int32), cute.make_layout(1))[0] = word

    @cute.jit
    def _write_pairs(self, values: Any, operands: Any, place: Any) -> None:
        """Store elements of which each thread has one: those of two share a byte, which the first of them writes."""
        for i in range_constexpr(self.knobs.vectors_per_thread):
            code = e2m1_code(values[0, i])
            other = cute.arch.shuffle_sync_bfly(code, offset=1)
            if (place.column(i) < place.limit) & (cute.arch.thread_idx()[0] % CODES_OF_BYTE == 0):
                target = operands.y.iterator + _byte_of(operands.y, place, i)
                cute.make_tensor(target, cute.make_layout(1))[0] = Uint8(Int32(code | (other << CODE_BITS)))


def _byte_of(y: Any, place: Any, i: int) -> Any:
    """Return the byte that a thread's vector i of e2m1 begins with."""
    return (Int64(place.row) * y.stride[0] + place.column(i)) // CODES_OF_BYTE
