"""How a tile of `sm100_weight_only` leaves tensor memory. Imports CUTLASS.

A thread has a row of the weight, and so a column of D: one factor, one bias. It writes its elements to shared memory as
D has them, over stages that nobody reads any more, from which 16 bytes of a row of D are stored at once. With a gate
the upper half of the threads have rows of the linear weight, and write their sums there for the lower half, which has
the same rows of the gate's.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float16, Float32, Int32, Int64, Uint8, Uint16, Uint32, const_expr, cute, range_constexpr, select_
from cutlass.cute.nvgpu import tcgen05

from aot.core.weight_format import TILE_ROWS
from aot.families._epilogue import finish_gate
from aot.families._epilogue_registers import Registers
from aot.families._sm100_packed_tile import NUM_STORING, ROWS, PackedTile

CHUNK = 32
"""Columns that a warp reads of tensor memory at once."""
PIECE = 8
"""Elements of D that are stored at once."""
D_BYTES = 2
"""Of an element of D."""
STORING = 1
"""The named barrier of the warps that store."""


@dataclass(frozen=True)
class StoreSm100:
    """Reads sums, and stores them; to be called while tracing, by the storing warps."""

    tile: PackedTile
    element: Any
    decoder: Any
    gate: Any
    """A `Step`, or None."""

    @property
    def columns_of_d(self) -> int:
        """Return the columns of D that a tile's rows make."""
        return ROWS if self.gate is None else ROWS // 2

    def read(self, tmem: Any, thread: Any) -> Any:
        """Read 32 columns of a thread's lane of tensor memory, from an address on."""
        atom = cute.make_copy_atom(tcgen05.copy.Ld32x32bOp(tcgen05.copy.Repetition(CHUNK)), Float32)
        source = cute.make_tensor(tmem, cute.make_layout((ROWS, CHUNK), stride=(1 << 16, 1)))
        copy = tcgen05.make_tmem_copy(atom, source)
        part = copy.get_slice(thread)
        of = part.partition_S(source)
        to = cute.make_rmem_tensor(part.partition_D(cute.make_identity_tensor((ROWS, CHUNK))).shape, Float32)
        cute.copy(copy, of, to)
        cute.arch.fence_view_async_tmem_load()
        return cute.make_tensor(to.iterator, cute.make_layout(CHUNK))

    def add_group(self, sums: cute.Tensor, tmem: Any, thread: Any, factor: Any) -> None:
        """Add a group's sums, times the factor of the thread's row."""
        for first in range(0, self.tile.columns, CHUNK):
            found = self.read(tmem + first, thread)
            for i in range(CHUNK):
                sums[first + i] = sums[first + i] + found[i] * factor

    def group_factor(self, stage: Any, thread: Any, group: Any) -> Any:
        """Read the factor of a thread's row in a group of a block, from a stage as it was packed."""
        form, layout = self.tile.form, self.tile.layout
        row = thread % TILE_ROWS
        index = row % 8 * (2 * self.tile.groups_of_block) + 2 * group + row // 8
        start = stage + (thread // TILE_ROWS * layout.block_bytes + layout.code_bytes + index * (form.factor_bits // 8))
        if form.is_mxfp4:  # the exponent of a float32; the code 0 becomes 0, where 2^-127 is meant
            code = cute.make_ptr(Uint8, start.toint(), cute.AddressSpace.smem, assumed_align=1)
            return Int32(Uint32(cute.make_tensor(code, cute.make_layout(1))[0]) << 23).bitcast(Float32)
        if self.decoder.is_bf16:
            code = cute.make_ptr(Uint16, start.toint(), cute.AddressSpace.smem, assumed_align=2)
            return Int32(Uint32(cute.make_tensor(code, cute.make_layout(1))[0]) << 16).bitcast(Float32)
        value = cute.make_ptr(Float16, start.toint(), cute.AddressSpace.smem, assumed_align=2)
        return cute.make_tensor(value, cute.make_layout(1))[0].to(Float32)

    @cute.jit
    def store(self, tmem: Any, sums: cute.Tensor, place: Any, memory: Any, d: Any, added: Any) -> None:
        """Round a tile and store it.

        Args:
            tmem: its sums, if they were not promoted.
            sums: its promoted sums, else.
            place: the tile among rows of the weight and of x; m, n and k; and the thread.
            memory: for the tile as D has it.
            d: D's address, and the stride of its rows.
            added: factors of the weight's rows, and the bias, as `added_of` returns them.
        """
        (row_tile, column_tile), (m, n, _), thread = place
        rows = const_expr(self.columns_of_d)
        row, half = row_tile * rows + thread, Int32(0)
        if const_expr(self.gate is not None):
            row, half = row_tile * rows + thread % rows, thread // rows
        scale, bias = added
        factor, offset = Float32(2.0**self.decoder.exponent), Float32(0.0)
        if const_expr(scale[0] is not None):  # noqa: SIM102 - known while tracing, the next is not
            if row < n:
                factor = factor * self._of_row(scale[0] + row * scale[1], scale[2:], half)
        if row < bias[1]:
            offset = self._of_row(bias[0] + row, bias[2:], half).to(Float32)
        staged = cute.make_tensor(
            cute.recast_ptr(memory, dtype=self.element), cute.make_layout((rows, self.tile.columns))
        )
        if const_expr(self.gate is None):
            self._stage(tmem, sums, (staged, thread), None, (factor, offset), thread)
        else:
            behind = memory + rows * self.tile.columns * D_BYTES
            linear = cute.make_tensor(
                cute.recast_ptr(behind, dtype=Float32), cute.make_layout((rows, self.tile.columns))
            )
            if half == 1:
                self._stage(tmem, sums, (linear, thread - rows), None, (factor, offset), thread)
            cute.arch.barrier(barrier_id=STORING, number_of_threads=32 * NUM_STORING)
            if half == 0:
                self._stage(tmem, sums, (staged, thread), linear, (factor, offset), thread)
        cute.arch.barrier(barrier_id=STORING, number_of_threads=32 * NUM_STORING)
        self._copy_out(memory, (row_tile * rows, column_tile * self.tile.columns, m, n), d, thread)

    def _of_row(self, place: Any, step: Any, half: Any) -> Any:
        """Read what a row has, of a gate's weight or `step` behind it of the linear one; to be called while tracing."""
        return cute.make_tensor(place + half * step[0] if step else place, cute.make_layout(1))[0]

    @cute.jit
    def _stage(self, tmem: Any, sums: cute.Tensor, target: Any, linear: Any, affine: Any, thread: Int32) -> None:
        """Write a thread's row of a tile: times a factor and with a bias; of a gate's weight the gate of both sums."""
        (factor, offset), (to, row) = affine, target
        for first in range_constexpr(0, self.tile.columns, CHUNK):
            found = cute.make_tensor(sums.iterator + first, cute.make_layout(CHUNK))
            if const_expr(not self.tile.is_promoted):
                found = self.read(tmem + first, thread)
            for i in range_constexpr(CHUNK):
                value = found[i] * factor + offset
                if const_expr(linear is not None):
                    value = Float32(finish_gate(self.gate, value, linear[row, first + i], Registers()))
                to[row, first + i] = value.to(to.element_type)

    @cute.jit
    def _copy_out(self, memory: Any, place: Any, d: Any, thread: Int32) -> None:
        """Store what the tile has of D, 16 bytes at once where a row of D has as many left."""
        first_row, first_column, m, n = place
        rows = const_expr(self.columns_of_d)
        pieces = const_expr(rows // PIECE)
        columns = cutlass.min(m - first_column, self.tile.columns)
        for index in cutlass.range(thread, columns * pieces, 32 * NUM_STORING, unroll=1):
            column, row = index // pieces, index % pieces * PIECE
            left = n - first_row - row
            source = cute.recast_ptr(memory, dtype=self.element) + (column * rows + row)
            target = d[0] + (Int64(first_column + column) * d[1] + (first_row + row))
            held = cute.make_rmem_tensor(PIECE, self.element)
            of = cute.make_ptr(self.element, source.toint(), cute.AddressSpace.smem, assumed_align=2 * PIECE)
            cute.autovec_copy(cute.make_tensor(of, cute.make_layout(PIECE)), held)
            if left >= PIECE:
                to = cute.make_ptr(self.element, target.toint(), cute.AddressSpace.gmem, assumed_align=2 * PIECE)
                cute.autovec_copy(held, cute.make_tensor(to, cute.make_layout(PIECE)))
            else:
                for i in range_constexpr(PIECE):
                    if i < left:
                        cute.make_tensor(target + i, cute.make_layout(1))[0] = held[i]


def after_thread_sync() -> None:
    """Order tensor memory behind a barrier. Source: PTX ISA, tcgen05.fence."""
    cute.arch.inline_ptx("tcgen05.fence::after_thread_sync;")


def before_thread_sync() -> None:
    """Order tensor memory in front of a barrier. Source: PTX ISA, tcgen05.fence."""
    cute.arch.inline_ptx("tcgen05.fence::before_thread_sync;")


def following(stage: Any, phase: Any, count: int) -> tuple[Any, Any]:
    """Return the stage of a ring behind one, and the phase that is awaited there; to be called while tracing."""
    is_last = stage + 1 == count
    return Int32(select_(is_last, Int32(0), stage + 1)), Int32(select_(is_last, phase ^ 1, phase))


@cute.jit
def commit(barrier: Any) -> None:
    """Have a barrier be told when all products that this warp has issued are done."""
    with cute.arch.elect_one():
        tcgen05.commit(barrier, None, tcgen05.CtaGroup.ONE)
