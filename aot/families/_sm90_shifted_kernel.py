"""A Hopper GEMM of operands whose rows begin at any element, by wgmma. Imports CUTLASS and quack.

TMA takes rows that begin at multiples of 16 bytes, and wgmma operands in shared memory, in swizzled rows. Here some
warps copy a block of k of an operand that has other rows by `cp.async`, in pieces of 16 bytes from the aligned address
in front of each row on, several blocks ahead. Others move it to a stage, each row to where it begins. An operand that
TMA takes is loaded by TMA, to the same stages: whether one is, a launch finds out. All that surrounds this is that of
`SplitGemmSm90` or `OneTileGemmSm90`, with D stored by elements.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Boolean, Constexpr, Int32, const_expr, cute, range_constexpr

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.core.tile_order import HEURISTIC
from aot.families import Entry
from aot.families._arguments import epilogue_arguments
from aot.families._mma_sync_tile import ITEM_BYTES
from aot.families._next_start import AFTER_LOADS, await_front, clock
from aot.families._pieces import SEGMENT, SEGMENT_BYTES
from aot.families._realign_kernel import as_loaded, rows_of
from aot.families._skinny_epilogue_kernel import Vectors
from aot.families._sm90_element_store import (
    ElementEpilogueOneTileGemmSm90,
    ElementEpilogueSplitGemmSm90,
    ElementOneTileGemmSm90,
    ElementSplitGemmSm90,
)
from aot.families._sm90_shifted_side import ShiftedSide
from aot.families._sm90_shifted_tile import BLOCK_K, NUM_COPYING, NUM_MOVING, NUM_MOVING_WARPS, ShiftedTile
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_loads import Copy, Sharers, barriers, load_block, make_copy
from aot.families._waits import await_phase


class Shifted(NamedTuple):
    """What brings an operand's part of a tile to the stages."""

    by_tma: Copy
    side: int
    """0 of the tile's rows, 1 of its columns."""
    source: Any
    """The operand as it lies in memory."""
    first_row: Any
    is_wide: Any
    """Whether TMA takes it."""


@dataclass(frozen=True)
class ShiftedLoadsSm90(SplitGemmSm90):
    """What the kernels load, and how."""

    tile: ShiftedTile

    @property
    def sides(self) -> tuple[ShiftedSide, ShiftedSide]:
        """Describe the parts of the rows' operand and of the columns'."""
        extents = self.tile.rows, self.tile.columns
        rows, columns = (
            ShiftedSide(x, BLOCK_K, is_k_major, ITEM_BYTES, NUM_COPYING)
            for x, is_k_major in zip(extents, self.are_k_major, strict=True)
        )
        return rows, columns

    def prepare_side(self, side: int, operand: Any) -> tuple[Any, Any, Any]:
        """Return the layout of an operand's stages, what loads them, and the operand's extent; on the host.

        Of an operand that TMA does not take the descriptor is of what it would take, and is never loaded by.
        """
        is_k_major = self.are_k_major[side]
        rows = rows_of(operand, is_k_major=is_k_major)
        aligned = as_loaded(operand, rows, rows.address & -SEGMENT_BYTES, is_k_major=is_k_major)
        layout, load, extent = super().prepare_side(side, aligned)
        is_wide = cutlass.select_(rows.is_copied, Boolean(False), Boolean(True))
        return layout, (*load, operand, is_wide), extent

    def of_product(self, load: Any, product: Any) -> Any:
        """Return what loads an operand of one product of a batch."""
        atom, view, operand, is_wide = load
        return atom, view[None, None, product], operand[product, None, None], is_wide

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of both operands' loads."""
        return [load[0] for load in loads]

    def copy_rows(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Any:
        """Make what brings the rows' operand; the place is the tile's rows, and its number."""
        return Shifted(make_copy(load[:2], stages, place, sharers), 0, load[2], place[0] * place[1], load[3])

    def copy_columns(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Any:
        """Make what brings the columns' operand; the place is the tile's columns, and its number."""
        return Shifted(make_copy(load[:2], stages, place, sharers), 1, load[2], place[0] * place[1], load[3])

    def fields_beside_stages(self) -> dict[str, Any]:
        """Describe the shared memory for blocks under way, beside what others send."""
        count = self.tile.num_raw * self.tile.raw_bytes // ITEM_BYTES
        return {
            **super().fields_beside_stages(),
            "raw": cute.struct.Align[cute.struct.MemRange[self.element, count], SEGMENT_BYTES],
            "raw_barriers": cute.struct.MemRange[cutlass.Int64, 2 * self.tile.num_raw],
        }

    def raw_barriers(self, storage: Any) -> Any:
        """Return the barriers of blocks that have arrived, and of those that are moved."""
        first = storage.raw_barriers.data_ptr()
        return first, first + self.tile.num_raw

    def init_barriers_beside(self, storage: Any) -> None:
        """Initialise the barriers of blocks as they lie in memory; in one thread, while tracing."""
        arrived, moved = self.raw_barriers(storage)
        for i in range(self.tile.num_raw):
            cute.arch.mbarrier_init(arrived + i, NUM_COPYING)
            cute.arch.mbarrier_init(moved + i, NUM_MOVING_WARPS)

    @cute.jit
    def load_operands(
        self, copies: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32, starts: Any
    ) -> None:
        """Bring the CTA's blocks of k to the stages: some warps copy, some move, and the last loads by TMA."""
        tile, (prefetch_b, next_one) = self.tile, starts
        thread, _, _ = cute.arch.thread_idx()
        count = cute.ceil_div(cutlass.max(num_k_blocks - rank, 0), tile.splits)
        first = const_expr(tile.num_multiplying // 32)
        side_b = const_expr(0 if self.swap_ab else 1)
        if warp < first + NUM_MOVING_WARPS:
            self._move_all(copies, storage, warp - first, count)
        elif warp < first + NUM_MOVING_WARPS + NUM_COPYING // 32:
            self._copy_all(copies, storage, thread - (tile.num_multiplying + NUM_MOVING), count, rank, prefetch_b)
            if next_one == AFTER_LOADS:
                cute.arch.griddepcontrol_launch_dependents()
        else:
            if (prefetch_b == 0) | (copies[1 - side_b].is_wide != 0):
                await_front(next_one, clock(next_one))
            self._load_wide(copies, storage, count, rank)
            if (prefetch_b != 0) & (copies[1 - side_b].is_wide == 0):
                await_front(next_one, clock(next_one))

    @cute.jit
    def _load_wide(self, copies: Constexpr[Any], storage: Any, count: Int32, rank: Int32) -> None:
        """Load blocks of k of the operands that TMA takes, and say of all stages how many bytes are on their way."""
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        num_bytes = Int32(0)
        for copy in copies:
            num_bytes += cutlass.select_(copy.is_wide != 0, Int32(copy.by_tma.num_bytes), Int32(0))
        stage, phase = Int32(0), Int32(1)
        for block in cutlass.range(count, unroll=1):
            await_phase(empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, num_bytes)
            for side in range_constexpr(2):
                if copies[side].is_wide != 0:
                    load_block(copies[side].by_tma, rank + block * tile.splits, stage, full + stage)
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1

    @cute.jit
    def _copy_all(
        self, copies: Constexpr[Any], storage: Any, thread: Int32, count: Int32, rank: Int32, prefetch_b: Int32
    ) -> None:
        """Copy blocks of k of the operands that TMA does not take, as many ahead as there is room for.

        The first ones of B are copied before the kernel in front has ended, where B is constant.
        """
        tile = self.tile
        _, moved = self.raw_barriers(storage)
        lines = [self.sides[x.side].lines(x.source, Int32(x.first_row), thread) for x in copies]
        side_b = const_expr(0 if self.swap_ab else 1)
        ahead = cutlass.min(count, Int32(tile.num_raw))
        if prefetch_b == 0:
            cute.arch.griddepcontrol_wait()
        # One loop, so that what copies a block stands once: of `ahead` blocks B's part, then A's, then both of others.
        slot, phase = Int32(0), Int32(0)
        for turn in cutlass.range(count + ahead, unroll=1):
            block = cutlass.select_(turn < ahead, turn, turn - ahead)
            if turn == ahead:
                cute.arch.griddepcontrol_wait()
            if turn >= 2 * ahead:
                await_phase(moved + slot, phase)
            if (turn < ahead) | (turn >= 2 * ahead):
                self._bring(copies[side_b], lines[side_b], storage, slot, block, rank)
            if turn >= ahead:
                self._bring(copies[1 - side_b], lines[1 - side_b], storage, slot, block, rank)
                self._announce(lines, storage, slot, (rank == 0) & (block == 0))
            slot += 1
            if slot == ahead:
                slot = Int32(0)
                phase ^= 1
        if count == 0:
            cute.arch.griddepcontrol_wait()

    @cute.jit
    def _bring(self, copy: Constexpr[Any], lines: Any, storage: Any, slot: Int32, block: Int32, rank: Int32) -> None:
        """Copy one of the CTA's blocks of k of an operand, unless TMA loads it."""
        if copy.is_wide == 0:
            target = self._raw(storage, slot, copy.side)
            self.sides[copy.side].copy(lines, copy.source, target, rank + block * self.tile.splits)

    @cute.jit
    def _announce(self, lines: Any, storage: Any, slot: Int32, is_first: Any) -> None:
        """Say of a thread's pieces of a block that they are there, once they are.

        The piece in which an operand begins is copied by elements, which no arrival of copies waits for: the thread
        that has it waits for its other pieces instead.
        """
        arrived, _ = self.raw_barriers(storage)
        is_front = Boolean(False)
        for side in range_constexpr(2):
            for front in lines[side].fronts[:-1]:
                is_front = is_front | front
        if is_first & is_front:
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(0)
            cute.arch.mbarrier_arrive(arrived + slot)
        else:
            cute.arch.cp_async_mbarrier_arrive_noinc(arrived + slot)

    @cute.jit
    def _move_all(self, copies: Constexpr[Any], storage: Any, warp: Int32, count: Int32) -> None:
        """Move blocks of k of the operands that TMA does not take to the stages, as they arrive."""
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        arrived, moved = self.raw_barriers(storage)
        begins = [self._begin(x, warp) for x in copies]
        stage, phase, slot, raw_phase = Int32(0), Int32(1), Int32(0), Int32(0)
        for _ in cutlass.range(count, unroll=1):
            await_phase(arrived + slot, raw_phase)
            await_phase(empty + stage, phase)
            for side in range_constexpr(2):
                self._move(copies[side], begins[side], storage, slot, stage, warp)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(full + stage)
                cute.arch.mbarrier_arrive(moved + slot)
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1
            slot += 1
            if slot == tile.num_raw:
                slot = Int32(0)
                raw_phase ^= 1

    def _begin(self, copy: Any, warp: Any) -> Any:
        """Return the last bits of the address at which the rows begin that a lane moves; to be called while tracing."""
        row = warp * SEGMENT + cute.arch.lane_idx() % SEGMENT
        found = self.sides[copy.side].start(copy.source, Int32(copy.first_row), row, Int32(0)).begin
        return Int32(found & (SEGMENT_BYTES - 1))

    @cute.jit
    def _move(self, copy: Constexpr[Any], begin: Int32, storage: Any, slot: Int32, stage: Int32, warp: Int32) -> None:
        """Move a warp's rows of a block of k of an operand to its stage, unless TMA loads it."""
        if copy.is_wide == 0:
            side = self.sides[copy.side]
            memory = storage.rows if const_expr(copy.side == 0) else storage.columns
            start = memory.data_ptr() + cute.assume(stage * (side.extent * BLOCK_K), divby=SEGMENT)
            target = cute.make_tensor(start.align(SEGMENT_BYTES), cute.make_layout(1))
            side.move(begin, self._raw(storage, slot, copy.side), target, warp)

    def _raw(self, storage: Any, slot: Any, side: int) -> Any:
        """View an operand's block of k as it lies in memory; to be called while tracing."""
        sizes = [x // ITEM_BYTES for x in self.tile.raw_parts]
        offset = slot * sum(sizes) + side * sizes[0]
        start = storage.raw.data_ptr() + cute.assume(offset, divby=SEGMENT)
        return cute.make_tensor(start, self.sides[side].layout)


@dataclass(frozen=True)
class ShiftedSplitGemmSm90(ShiftedLoadsSm90, ElementSplitGemmSm90):
    """The kernel of one candidate whose k CTAs share."""


@dataclass(frozen=True)
class ShiftedOneTileGemmSm90(ShiftedLoadsSm90, ElementOneTileGemmSm90):
    """The kernel of one candidate that computes a tile in a CTA."""


@dataclass(frozen=True)
class ShiftedEpilogueSplitGemmSm90(ShiftedLoadsSm90, ElementEpilogueSplitGemmSm90):
    """The kernel of one candidate whose k CTAs share, with more of an epilogue than a bias."""


@dataclass(frozen=True)
class ShiftedEpilogueOneTileGemmSm90(ShiftedLoadsSm90, ElementEpilogueOneTileGemmSm90):
    """The kernel of one candidate that computes a tile in a CTA, with more of an epilogue than a bias."""


def shifted_entry(gemm: Any, signature: Signature, operation: Operation, *, has_vectors: bool) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, the bias or `Vectors`, whether B is constant, the
            stream, and the order of the tiles where a CTA computes one.
        signature: the entry's arguments.
        operation: element types, layout and epilogue.
        has_vectors: whether it takes `Vectors`.
    """
    orders = (Int32(HEURISTIC),) if gemm.tile.splits == 1 else ()

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
        prefetch_b: Int32,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        vectors = Vectors(None, None, bias, residual, None, None) if const_expr(has_vectors) else bias
        gemm(a, b, d, vectors, prefetch_b, stream, *orders)

    return Entry(entry, epilogue_arguments(signature, operation, stores=1, loads=ITEM_BYTES))
