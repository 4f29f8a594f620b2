"""The kernels of quantisation to narrow elements with a factor for each few columns of a row. Imports CUTLASS.

The threads of a block hold its columns side by side, one vector each, and find its largest magnitude among
themselves. The first of them writes the factor where block-scaled products read it: `aot.core.factor_atoms`. What
fills the last atom of a row up is written as 0; the rows that fill atoms up are left as they are.

Rows may be in groups, with whose first ones atoms begin anew, and an index may say which row of X each is: what a
mixture of experts reads is rounded where it is gathered. Where groups end lies on the device. A warp counts the ends up
to its row, each lane some of them, so that their loads are under way at once.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Float32, Int32, Int64, Uint8, const_expr, cute, range_constexpr

from aot.core.element import ElementType
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom, row_in_atoms
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._group_starts import Starts
from aot.families.rows._factor_codes import e2m1_code, mx_factor, nvfp4_factor
from aot.families.rows._memory import has, maximum, plus
from aot.families.rows._operands import Operands
from aot.families.rows._quotient import divide, in_float32
from aot.families.rows._row_kernel import RowKernel
from aot.kinds.rows.signature import RowFlag

CODES_OF_BYTE = ElementType.E2M1.num_sharing
CODE_BITS = ElementType.E2M1.bits
ENDS_AT_ONCE = 4
"""Loads of groups' ends that a lane has under way: with 32 lanes those of 128 groups."""


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

    def _traced(self, operands: Any) -> Any:
        """Call the kernel with all operands."""
        return self.factor_kernel(*operands)

    @cute.kernel
    def factor_kernel(
        self,
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        y: cute.Tensor,
        residual_out: cute.Tensor | None,
        scale: cute.Tensor,
        tensor_scale: cute.Tensor | None,
        offsets: cute.Tensor | None,
        index: cute.Tensor | None,
        eps: Float32 | None,
        weight_offset: Float32 | None,
        flags: Int32,
    ) -> None:
        """Compute the rows of a CTA, or pieces of them, as `RowKernel.kernel`."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        more = offsets, index, eps, weight_offset, flags
        self._compute(Operands(x, residual, weight, bias, y, residual_out, scale, tensor_scale, *more))

    def _placed(self, operands: Any, place: Any) -> Any:
        """Return the place of a thread: rows of no group are none, and what is no row of X is one of zeros."""
        if not self.operation.takes_groups:
            return place
        found = self._in_groups(operands, place.row, place.limit)
        return place._replace(limit=found[0], source=found[1], source_limit=found[2], row_of_factors=found[3])

    @cute.jit
    def _in_groups(self, operands: Any, row: Int32, limit: Int32) -> Any:
        """Return the columns of a row of Y, its row of X, the columns of that, and the row of its factors."""
        source, row_of_factors, is_of_x = row, row, Boolean(True)
        if has(operands.flags, RowFlag.HAS_OFFSETS):
            rows, count = operands.y.shape[0], operands.offsets.shape[0]
            starts_first = has(operands.flags, RowFlag.OFFSETS_START)
            starts = Starts(operands.offsets, count - cutlass.select_(starts_first, 1, 0), rows)
            group = cutlass.min(self._ends_up_to(starts, row), starts.num_groups - 1)
            start = starts[group]
            limit = cutlass.select_((row >= start) & (row < starts[group + 1]), limit, 0)
            row_of_factors = row_in_atoms(row, start, group)
        if has(operands.flags, RowFlag.HAS_INDEX) & (limit > 0):
            source = operands.index[row]
            is_of_x = (source >= 0) & (source < operands.x.shape[0])
        return limit, source, cutlass.select_(is_of_x, limit, 0), row_of_factors

    @cute.jit
    def _ends_up_to(self, starts: Any, row: Int32) -> Int32:
        """Count the groups that end at a row or before it; all threads of the row come here."""
        width = const_expr(min(self.knobs.threads_per_row, cute.arch.WARP_SIZE))
        lane, count = cute.arch.thread_idx()[0] % width, Int32(0)
        for part in cutlass.range(cute.ceil_div(starts.num_groups, width), unroll=ENDS_AT_ONCE):
            group = part * width + lane
            end = starts[cutlass.min(group, starts.num_groups - 1) + 1]
            count += cutlass.select_((group < starts.num_groups) & (end <= row), 1, 0)
        return Int32(cute.arch.warp_reduction(count, plus, threads_in_group=width))

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
        cols, column = operands.y.shape[1], place.column(i)
        row = place.row if const_expr(place.row_of_factors is None) else place.row_of_factors
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
