"""How the CTAs of `mma_sync` add up their sums and store a tile of D. Imports CUTLASS.

Each warp writes its sums to shared memory, over the stages. The threads of a CTA, or of all CTAs of a cluster that
share k, then read rows of the tile, add up what the warps along k and the CTAs have, in order, finish the elements and
store them: four next to each other at once where D's rows begin at multiples of their bytes, else one, lanes next to
each other storing elements next to each other.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr

from aot.core.operation import Operation
from aot.families._epilogue_steps import EpilogueOperands, finish
from aot.families._mma_sync_tile import ITEM_BYTES, MMA_M, MMA_N, SUM_PAD, Tile

WIDTH = 4
"""Elements of D that a thread stores at once where it may: its sums are then 16 bytes, the most of a load."""

MAX_WIDE_PARTS = 16
"""Parts of a sum up to which threads store `WIDTH` elements: more, four wide, do not fit a thread's registers."""

BATCH = 4
"""Rows whose sums a thread reads before it finishes the first of them, so that their loads overlap: an assumption."""


@dataclass(frozen=True)
class Store:
    """The end of a tile's work. Its rows are a power of two; as many rows at a time as that divides have threads."""

    tile: Tile
    operation: Operation

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return self.operation.num_rows_of_b(1)

    @property
    def row_floats(self) -> int:
        """Floats from a row of the sums to the next."""
        return self.tile.columns + SUM_PAD

    @cute.jit
    def write_sums(self, sums: cute.Tensor, floats: Any, of_warp: Any) -> None:
        """Write a warp's sums to shared memory. Source: PTX ISA, mma.m16n8k16, registers of the accumulator.

        Args:
            sums: ((2, 2), rows of 16, columns of 8) of a thread.
            floats: where the sums of the CTA begin: (warp along k, row, column).
            of_warp: the number of the warp along m, n and k.
        """
        tile = self.tile
        lane = cute.arch.lane_idx()
        along_m, along_n, along_k = of_warp
        row = along_k * tile.rows + along_m * tile.warp_rows + lane // 4
        column = along_n * tile.warp_columns + lane % 4 * 2
        for i in range_constexpr(tile.warp_rows // MMA_M):
            for j in range_constexpr(tile.warp_columns // MMA_N):
                for half in range_constexpr(2):
                    place = (row + i * MMA_M + half * 8) * self.row_floats + column + j * MMA_N
                    target = (floats + cute.assume(place, divby=2)).align(2 * Float32.width // 8)
                    cute.autovec_copy(sums[(None, half), i, j], cute.make_tensor(target, cute.make_layout(2)))

    @cute.jit
    def store(
        self, parts: Any, d: cute.Tensor, operands: Constexpr[EpilogueOperands], first: Any, thread: Int32
    ) -> None:
        """Add up the parts of the sums, finish them, and store the tile of D from `first`, (m, n), on.

        Args:
            parts: where the sums of each CTA of the cluster begin: a pointer, or addresses in the cluster's memory.
            d: D.
            operands: what the epilogue reads.
            first: the tile's first row and column of D.
            thread: number of the thread among those of the cluster.
        """
        places = Int32(d.iterator.toint()) | Int32(Int64(d.stride[0]) * ITEM_BYTES)
        if const_expr(len(parts) * self.tile.warps[2] <= MAX_WIDE_PARTS):
            if places % (WIDTH * ITEM_BYTES) == 0:
                self._store_rows(parts, d, operands, first, thread, WIDTH)
            else:
                self._store_rows(parts, d, operands, first, thread, 1)
        else:
            self._store_rows(parts, d, operands, first, thread, 1)

    @cute.jit
    def _store_rows(
        self,
        parts: Any,
        d: cute.Tensor,
        operands: Constexpr[EpilogueOperands],
        first: Any,
        thread: Int32,
        width: Constexpr[int],
    ) -> None:
        """Store `width` elements of a row by each thread that has a row, row after row in the same columns."""
        tile = self.tile
        per_row = tile.columns // self.num_halves // width
        shared = tile.num_threads * tile.splits // per_row
        step = 1 << (shared.bit_length() - 1)
        row, column = thread // per_row, thread % per_row * width
        if row < (tile.rows if step * per_row == tile.num_threads * tile.splits else min(step, tile.rows)):
            num_turns = max(tile.rows // step, 1)
            together = min(BATCH, num_turns)
            for turn in cutlass.range(num_turns // together, unroll=1):
                start = row + turn * (together * step)
                totals = [self._total(parts, start + i * step, column, width) for i in range(together)]
                for i in range_constexpr(together):
                    self._store_row(totals[i], d, first[0] + start + i * step, first[1] + column, operands, width)

    @cute.jit
    def _store_row(
        self,
        totals: Any,
        d: cute.Tensor,
        m: Int32,
        n: Int32,
        operands: Constexpr[EpilogueOperands],
        width: Constexpr[int],
    ) -> None:
        """Store `width` elements of a row, if D has the row, and those of them that it has."""
        if m < d.shape[0]:
            if const_expr(width == 1):
                if n < d.shape[1]:
                    d[m, n] = self._finished(totals, 0, m, n, operands).to(d.element_type)
            else:
                self._store_wide(totals, d, m, n, operands)

    @cute.jit
    def _store_wide(
        self, totals: cute.Tensor, d: cute.Tensor, m: Int32, n: Int32, operands: Constexpr[EpilogueOperands]
    ) -> None:
        """Store `WIDTH` elements of a row at once, or those of them that D has."""
        if n + WIDTH <= d.shape[1]:
            values = cute.make_rmem_tensor(WIDTH, Float32)
            for e in range_constexpr(WIDTH):
                values[e] = self._finished(totals, e, m, n + e, operands)
            rounded = cute.make_rmem_tensor(WIDTH, d.element_type)
            rounded.store(values.load().to(d.element_type))
            place = (d.iterator + cute.crd2idx((m, n), d.layout)).align(WIDTH * ITEM_BYTES)
            cute.autovec_copy(rounded, cute.make_tensor(place, cute.make_layout(WIDTH)))
        else:
            for e in range_constexpr(WIDTH - 1):
                if n + e < d.shape[1]:
                    d[m, n + e] = self._finished(totals, e, m, n + e, operands).to(d.element_type)

    def _finished(self, totals: Any, element: int, m: Int32, n: Int32, operands: EpilogueOperands) -> Any:
        """Finish an element of those whose sums a thread has; to be called while tracing."""
        sums = tuple(totals[element * self.num_halves + half] for half in range(self.num_halves))
        return finish(sums, m, n, operands, self.operation)

    def _total(self, parts: Any, row: Any, column: Any, width: int) -> Any:
        """Add up the parts of the sums of `width` elements in order; to be called while tracing."""
        count = width * self.num_halves
        total = None
        for of_cta in parts:
            for along_k in range(self.tile.warps[2]):
                place = (row + along_k * self.tile.rows) * self.row_floats + column * self.num_halves
                part = self._part(of_cta, place, count)
                total = part if total is None else [x + y for x, y in zip(total, part, strict=True)]
        return total

    def _part(self, of_cta: Any, place: Any, count: int) -> list[Any]:
        """Read parts of sums: from this CTA's memory, a pointer, or from one of the cluster's, an address."""
        each = min(count, WIDTH)
        found: list[Any] = []
        for begin in range(0, count, each):
            if self.tile.splits == 1:
                source = of_cta + cute.assume(place + begin, divby=each)
                vector = cute.make_tensor(source.align(each * Float32.width // 8), cute.make_layout(each))
                values = cute.make_rmem_tensor(each, Float32)
                cute.autovec_copy(vector, values)
                found += [values[e] for e in range(each)]
            else:
                found += of_cluster(Int32(of_cta) + (place + begin) * (Float32.width // 8), each)
        return found


def of_cluster(address: Any, count: int) -> tuple[Any, ...]:
    """Load 1, 2 or 4 floats of a CTA's shared memory, by their address among those of the cluster."""
    names = ", ".join(f"{{$w{i}}}" for i in range(count))
    vector, target = ("", names) if count == 1 else (f".v{count}", f"{{{names}}}")
    found = cute.arch.inline_ptx(
        f"ld.shared::cluster{vector}.f32 {target}, [{{$r0}}];",
        write_only_types=[Float32] * count,
        read_only_args=[address],
    )
    return (found,) if count == 1 else found
