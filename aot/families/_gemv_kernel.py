"""The kernel of `gemv`: a row of A by the rows of B, of any alignment. Imports CUTLASS.

Where B is contiguous along k, the CTAs of eight neighbours take its rows by turns. The rows of a CTA begin equally far
behind multiples of 16 bytes, so that what a thread loads of A, element by element, is multiplied by the pieces of all
of them. The elements in front of a row's first multiple, and those behind its last whole piece, are multiplied by
lanes of their own.

Where B is contiguous along n, each eighth of its rows, as they lie in memory, is a warp's, or two warps'. A lane's
pieces then hold the same eight columns in each of them, and its sums lie in registers until the end, where they are
added up at their columns. A piece that reaches beyond B itself is loaded by elements: there are two in such an eighth
at most, since the library refuses a B whose rows overlap (`leading_stride` of templates/src/problem.cc). What a piece
holds of other columns and of what lies between the rows is summed and never stored.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.memory import SmemAllocator

from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import cutlass_type, epilogue_arguments
from aot.families._epilogue_steps import EpilogueOperands, finish
from aot.families._gemv_tile import ITEM_BYTES, PIECE, PIECE_BYTES, Tile
from aot.families._grid import along_x
from aot.families._mma_sync_store import of_cluster
from aot.families.rows._memory import LOAD, WORDS

WIDENED = {
    ElementType.BFLOAT16: "cvt.u32.u16 wide, half; shl.b32 wide, wide, 16; mov.b32 {$w0}, wide;",
    ElementType.FLOAT16: "cvt.f32.f16 {$w0}, half;",
}
"""How an element becomes float32. A bfloat16 is the upper half of one."""


@dataclass(frozen=True)
class Gemv:
    """The kernel of one candidate."""

    element: ElementType
    """That of A and B."""
    tile: Tile
    operation: Operation
    is_dependent: bool
    """Whether the chip can start it before the kernel in front of it ends: then it waits for that end."""

    def _num_tiles(self, d: cute.Tensor) -> Any:
        """Count the tiles along n: where each takes every eighth row, a multiple of 8; to be called while tracing."""
        if self.tile.b_is_k_major:
            return cute.ceil_div(d.shape[1], PIECE * self.tile.columns) * PIECE
        return cute.ceil_div(d.shape[1], self.tile.columns)

    def launch_options(self, d: cute.Tensor) -> dict[str, Any]:
        """Say how the kernel is launched, but for the stream; to be called while tracing."""
        tile = self.tile
        return {
            "grid": along_x(d.shape[0], self._num_tiles(d), tile.splits),
            "block": (tile.num_threads, 1, 1),
            **({"cluster": (tile.splits, 1, 1)} if tile.splits > 1 else {}),
            "use_pdl": self.is_dependent,
        }

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, bias: Any, residual: Any) -> None:
        """Compute a tile's columns of one row of D: see the module."""
        tile = self.tile
        block, _, _ = cute.arch.block_idx()
        rank, block = block % tile.splits, block // tile.splits
        num_tiles = self._num_tiles(d)
        row, number = block // num_tiles, block % num_tiles
        if const_expr(self.is_dependent):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        operands = EpilogueOperands(bias=bias, residual=residual)
        if const_expr(tile.b_is_k_major):
            self._multiply_rows(a, b, d, row, number, operands)
        else:
            self._multiply_columns(a, b, d, row, number, rank, operands)

    # --- B contiguous along k

    @cute.jit
    def _multiply_rows(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        row: Int32,
        number: Int32,
        operands: Constexpr[EpilogueOperands],
    ) -> None:
        """Multiply every eighth of the rows of B that are a group of eight CTAs', from the CTA's first on."""
        tile = self.tile
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        part, along_k = warp % tile.along_k, lane % tile.lanes
        first = number // PIECE * (PIECE * tile.columns) + number % PIECE
        of_lane = (warp // tile.along_k * tile.groups + lane // tile.lanes) * tile.at_once
        own = first + of_lane * PIECE
        begins = [_address(b, own + i * PIECE, Int32(0)) for i in range(tile.at_once)]
        depth = Int32(cute.size(a, mode=[1]))
        front = cutlass.min(-(Int32(begins[0]) // ITEM_BYTES) & (PIECE - 1), depth)
        of_k = front, (depth - front) // PIECE, depth
        sums = cute.make_rmem_tensor(tile.at_once, Float32)
        sums.fill(0.0)
        step = tile.lanes * tile.along_k
        for turn in cutlass.range(cute.ceil_div(of_k[1], step * tile.turns_at_once), unroll=1):
            start = turn * tile.turns_at_once * step + part * tile.lanes + along_k
            self._add_pieces(sums, a, begins, (row, own, d.shape[1]), of_k, start)
        if part == 0:
            self._add_ends(sums, a, begins, (row, own, d.shape[1]), of_k, along_k)
        for i in range_constexpr(tile.at_once):
            sums[i] = cute.arch.warp_reduction(sums[i], _plus, threads_in_group=tile.lanes)
        if const_expr(tile.along_k == 1):
            for i in range_constexpr(tile.at_once):
                if along_k == i:
                    self._store(sums[i], d, row, own + i * PIECE, operands)
        else:
            floats = self._floats()
            if along_k == 0:
                for i in range_constexpr(tile.at_once):
                    floats[part * tile.columns + of_lane + i] = sums[i]
            cute.arch.sync_threads()
            thread = cute.arch.thread_idx()[0]
            if thread < tile.columns:
                self._store(self._total(floats, thread), d, row, first + thread * PIECE, operands)

    @cute.jit
    def _add_pieces(self, sums: cute.Tensor, a: cute.Tensor, begins: Any, places: Any, of_k: Any, start: Int32) -> None:
        """Multiply a thread's next pieces of each row, from the piece `start` on; the others are `_add_ends`'."""
        tile = self.tile
        (row, own, num_rows), (front, num_pieces, _) = places, of_k
        step, rows = tile.lanes * tile.along_k, range(tile.at_once)
        numbers = [start + u * step for u in range(tile.turns_at_once)]
        pieces = [
            [
                _piece(begins[i] + _bytes(front + p * PIECE), (p < num_pieces) & (own + i * PIECE < num_rows))
                for i in rows
            ]
            for p in numbers
        ]
        of_a = [
            [self._element(_address(a, row, front + p * PIECE + e), p < num_pieces) for e in range(PIECE)]
            for p in numbers
        ]
        for u in range_constexpr(tile.turns_at_once):
            for i in range_constexpr(tile.at_once):
                values = self._widened(pieces[u][i])
                for e in range_constexpr(PIECE):
                    sums[i] = sums[i] + values[e] * of_a[u][e]

    @cute.jit
    def _add_ends(self, sums: cute.Tensor, a: cute.Tensor, begins: Any, places: Any, of_k: Any, along_k: Int32) -> None:
        """Add what lies in front of the first piece of each row, and behind the last: 16 elements, by lanes in turns.

        Args:
            sums: of each row of B.
            a: A.
            begins: the addresses of the rows of B.
            places: the row of A, the first row of B, and the rows that B has.
            of_k: elements in front, pieces, and all elements.
            along_k: the thread's number among the lanes of a row.
        """
        (row, own, num_rows), (front, num_pieces, depth) = places, of_k
        for turn in range_constexpr(-(-2 * PIECE // self.tile.lanes)):
            end = along_k + turn * self.tile.lanes
            is_in_front = end < PIECE
            k = cutlass.select_(is_in_front, end, front + num_pieces * PIECE + end - PIECE)
            behind = depth - front - num_pieces * PIECE + PIECE  # counts, since places near 2^31 would wrap
            is_there = (end < cutlass.select_(is_in_front, front, behind)) & (end < 2 * PIECE)
            value = self._element(_address(a, row, k), is_there)
            for i in range_constexpr(self.tile.at_once):
                has_row = is_there & (own + i * PIECE < num_rows)
                sums[i] = sums[i] + value * self._element(begins[i] + _bytes(k), has_row)

    # --- B contiguous along n

    @cute.jit
    def _multiply_columns(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        row: Int32,
        number: Int32,
        rank: Int32,
        operands: Constexpr[EpilogueOperands],
    ) -> None:
        """Multiply the columns of B that are the CTA's, each warp every eighth row as they lie in memory."""
        tile = self.tile
        warp, lane = cute.arch.make_warp_uniform(cute.arch.warp_idx()), cute.arch.lane_idx()
        eighth, along_n = warp % PIECE, lane % tile.lanes
        turn_rows = tile.along_k // PIECE * tile.groups
        own = warp // PIECE * tile.groups + lane // tile.lanes
        num_columns, depth = Int32(d.shape[1]), Int32(cute.size(a, mode=[1]))
        first = number * tile.columns
        begin = _address(b, first, eighth)
        shift = (Int32(begin) & (PIECE_BYTES - 1)) // ITEM_BYTES
        column = first - shift + along_n * PIECE
        begin += along_n * PIECE_BYTES - shift * ITEM_BYTES
        step = Int64(b.stride[1]) * (PIECE * ITEM_BYTES)
        limits = _address(b, Int32(0), Int32(0)), _address(b, num_columns - 1, depth - 1) + ITEM_BYTES
        count = depth // PIECE + Int32(depth % PIECE > eighth)
        sums = cute.make_rmem_tensor(PIECE, Float32)
        sums.fill(0.0)
        of_turn = turn_rows * tile.splits * tile.turns_at_once
        for turn in cutlass.range(cute.ceil_div(cute.ceil_div(depth, PIECE), of_turn), unroll=1):
            places = [
                own + turn_rows * (rank + tile.splits * (turn * tile.turns_at_once + u))
                for u in range(tile.turns_at_once)
            ]
            inside = [(j < count) & (column < num_columns) & _is_inside(begin + j * step, limits) for j in places]
            pieces = [_piece(begin + j * step, x) for j, x in zip(places, inside, strict=True)]
            of_a = [self._element(_address(a, row, eighth + j * PIECE), x) for j, x in zip(places, inside, strict=True)]
            for u in range_constexpr(tile.turns_at_once):
                values = self._widened(pieces[u])
                for e in range_constexpr(PIECE):
                    sums[e] = sums[e] + values[e] * of_a[u]
        if (own == 0) & (rank == 0) & (eighth < depth):
            last = eighth + (depth - 1 - eighth) // PIECE * PIECE
            self._add_outside(sums, a, b, (row, eighth, column), begin, limits)
            if last > eighth:
                begin += Int64(last // PIECE) * step
                self._add_outside(sums, a, b, (row, last, column), begin, limits)
        self._gather(sums, along_n * PIECE + PIECE - shift, d, (row, first, rank), operands)

    @cute.jit
    def _add_outside(
        self, sums: cute.Tensor, a: cute.Tensor, b: cute.Tensor, places: Any, address: Int64, limits: Any
    ) -> None:
        """Add the elements of a piece that is not loaded because it reaches beyond B; see `_multiply_columns`."""
        row, k, column = places
        num_columns = Int32(cute.size(b, mode=[0]))
        is_outside = (address < limits[0]) | (address + PIECE_BYTES > limits[1])
        value = self._element(_address(a, row, k), is_outside)
        for e in range_constexpr(PIECE):
            is_there = is_outside & (column + e >= 0) & (column + e < num_columns)
            sums[e] = sums[e] + value * self._element(address + e * ITEM_BYTES, is_there)

    @cute.jit
    def _gather(
        self, sums: cute.Tensor, place: Int32, d: cute.Tensor, places: Any, operands: Constexpr[EpilogueOperands]
    ) -> None:
        """Add up the sums of all lanes, warps and CTAs of a column, and store it.

        Args:
            sums: of a lane's eight columns.
            place: where the first of them lies among a warp's in shared memory, of which eight are in front.
            d: D.
            places: the row of D, its first column, and the CTA's number in its cluster.
            operands: what the epilogue reads.
        """
        tile = self.tile
        row, first, rank = places
        num_columns = cutlass.min(d.shape[1] - first, tile.columns)  # a column behind them could wrap
        thread, lane, warp = cute.arch.thread_idx()[0], cute.arch.lane_idx(), cute.arch.warp_idx()
        floats = self._floats()
        for e in range_constexpr(PIECE):
            for i in range_constexpr(tile.groups.bit_length() - 1):
                sums[e] = sums[e] + cute.arch.shuffle_sync_bfly(sums[e], tile.lanes << i)
        if lane < tile.lanes:
            for e in range_constexpr(PIECE):
                floats[warp * tile.row_floats + place + e] = sums[e]
        cute.arch.sync_threads()
        if const_expr(tile.splits == 1):
            if thread < num_columns:
                self._store(self._total(floats, thread + PIECE), d, row, first + thread, operands)
        else:
            shared = tile.along_k * tile.row_floats
            if thread < tile.columns:
                floats[shared + thread] = self._total(floats, thread + PIECE)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            if (thread < num_columns) & (thread % tile.splits == rank):
                total = Float32(0.0)
                for r in range_constexpr(tile.splits):
                    address = cute.arch.map_dsmem_ptr(floats.iterator, r).toint()
                    total = total + of_cluster(Int32(address) + (shared + thread) * (Float32.width // 8), 1)[0]
                self._store(total, d, row, first + thread, operands)
            cute.arch.cluster_arrive_relaxed()  # others read this CTA's sums
            cute.arch.cluster_wait()

    # --- both

    def _floats(self) -> Any:
        """View shared memory as floats; to be called while tracing."""
        memory = SmemAllocator().allocate(self.tile.smem_bytes, PIECE_BYTES)
        floats = cute.recast_ptr(memory, dtype=Float32)
        return cute.make_tensor(floats, cute.make_layout(self.tile.smem_bytes // 4))

    def _total(self, floats: cute.Tensor, place: Any) -> Any:
        """Add up what the warps along k have of a sum, in order; to be called while tracing."""
        total = floats[place]
        for warp in range(1, self.tile.along_k):
            total = total + floats[warp * self.tile.row_floats + place]
        return total

    def _element(self, address: Any, is_there: Any) -> Any:
        """Load an element as float32, or zero where it is not there; to be called while tracing."""
        return cute.arch.inline_ptx(
            "{ .reg .pred there; .reg .b16 half; .reg .b32 wide; setp.ne.s32 there, {$r1}, 0; mov.b16 half, 0; "
            "@there ld.global.b16 half, [{$r0}]; " + WIDENED[self.element] + " }",
            write_only_types=[Float32],
            read_only_args=[address, Int32(is_there)],
        )

    def _widened(self, words: cute.Tensor) -> Any:
        """Return the elements of a piece in float32; to be called while tracing."""
        values = cute.make_rmem_tensor(PIECE, Float32)
        values.store(cute.recast_tensor(words, cutlass_type(self.element)).load().to(Float32))
        return values

    @cute.jit
    def _store(
        self, total: Any, d: cute.Tensor, row: Int32, column: Int32, operands: Constexpr[EpilogueOperands]
    ) -> None:
        """Finish and store an element, if D has it."""
        if column < d.shape[1]:
            d[row, column] = finish((total,), row, column, operands, self.operation).to(d.element_type)


def _plus(x: Any, y: Any) -> Any:
    return x + y


def _address(operand: cute.Tensor, row: Any, k: Any) -> Any:
    """Return the address of an element of A or B, inside or outside; to be called while tracing."""
    offset = Int64(row) * Int64(operand.stride[0]) + Int64(k) * Int64(operand.stride[1])
    return operand.iterator.toint() + offset * ITEM_BYTES


def _bytes(count: Any) -> Any:
    """Return the bytes of some elements, in 64 bits; to be called while tracing."""
    return Int64(count) * ITEM_BYTES


def _is_inside(address: Any, limits: Any) -> Any:
    """Say whether a piece lies inside of an operand; to be called while tracing."""
    return (address >= limits[0]) & (address + PIECE_BYTES <= limits[1])


def _piece(address: Any, is_there: Any) -> Any:
    """Load a piece, or zeros where it is not there, without a branch; to be called while tracing."""
    loaded = cute.arch.inline_ptx(LOAD, write_only_types=[Int32] * WORDS, read_only_args=[address, Int32(is_there)])
    words = cute.make_rmem_tensor(WORDS, Int32)
    for i in range(WORDS):
        words[i] = loaded[i]
    return words


def gemv_entry(tile: Tile, operation: Operation, signature: Signature, *, is_dependent: bool) -> Entry:
    """Make the entry of a candidate.

    Args:
        tile: the candidate's.
        operation: element types, layout and epilogue.
        signature: the entry's arguments.
        is_dependent: whether the chip has programmatic dependent launch.
    """
    gemv = Gemv(operation.a.element, tile, operation, is_dependent)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        _scale_a: None,
        _scale_b: None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        _scale_d: None,
        _workspace: None,
        _prefetch_b: None,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        gemv.kernel(a, b, d, bias, residual).launch(**gemv.launch_options(d), stream=stream)

    return Entry(entry, epilogue_arguments(signature, operation, stores=1, loads=ITEM_BYTES))
