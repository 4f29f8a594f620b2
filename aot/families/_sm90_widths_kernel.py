"""The kernel of `sm90_one_tile` that computes tiles of several widths, told which at launch. Imports CUTLASS and quack.

wgmma has the columns of a tile in its instruction: so there is a loop over k for each width, and all leave their sums
in the registers of the widest. A TMA descriptor has its box when it is made: one brings the columns of the least width,
and one of 8 columns is used for each 8 that the width has more. CTAs that share columns load whole blocks in turns,
since a width has no equal parts for all.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, cute, range_constexpr

from aot.core.tile_order import NUM_ORDERS
from aot.families._sm90_one_tile_kernel import OneTileGemmSm90
from aot.families._sm90_split_loads import Copy, Sharers, copy_of
from aot.families._sm90_split_tile import GROUP, NUM_WIDTHS, ROW_BYTES


@dataclass(frozen=True)
class WidthsGemmSm90(OneTileGemmSm90):
    """The kernel of one candidate. What tells the order of the tiles tells the width too: see `width`."""

    @property
    def least(self) -> int:
        """Return the columns of the narrowest tile."""
        return self.tile.columns - GROUP * (NUM_WIDTHS - 1)

    def width(self, tile_order: Any) -> Any:
        """Return the columns of a tile: 8 fewer for each NUM_ORDERS that the order is more than one."""
        return Int32(self.tile.columns) - GROUP * (tile_order // NUM_ORDERS)

    def place_tiles(self, counts: list[Any], tile_order: Any) -> tuple[Any, Any]:
        """Return the grid, and what tells a CTA its tile and the tile's columns."""
        grid, places = super().place_tiles(counts, tile_order % NUM_ORDERS)
        return grid, (*places, self.width(tile_order))

    def columns_of(self, places: Any) -> Any:
        """Return the columns of a tile."""
        return places[2]

    def make_load(self, view: Any, layout: Any, side: int) -> Any:
        """Make the descriptor of a tile's rows; or both descriptors of its columns."""
        if side == 0:
            return super().make_load(view, layout, side)
        extents = self.least, GROUP
        return tuple(self.make_descriptor(view, self.stages_of(side, x), x, side, 1) for x in extents)

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of both operands' loads."""
        rows, columns = loads
        return [atom for atom, _ in (rows, *columns)]

    def copy_columns(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Copy:
        """Make what loads a block of k of the columns: the least width's, and 8 at a time of what is wider."""
        columns, tile = place
        firsts = 0, *range(self.least, self.tile.columns, GROUP)
        copies = []
        for first in firsts:
            atom, operand = load[1 if first else 0]
            extent = GROUP if first else self.least
            shifted = cute.domain_offset((tile * columns + first, 0), operand)
            source = cute.local_tile(shifted, (extent, self.block_k), (0, None))
            copies.append(copy_of(atom, source, self._part_of_stages(stages, first, extent), sharers))
        turn = sharers.part if sharers.count > 1 else 0
        num_more = (columns - self.least) // GROUP
        return Copy(copies[0], columns * ROW_BYTES, sharers.count, turn, tuple(copies[1:]), num_more)

    def _part_of_stages(self, stages: Any, first: int, extent: int) -> Any:
        """View some columns of the stages of the widest tile."""
        own = self.stages_of(1, extent).outer
        widest = self.stages_of(1, self.tile.columns).outer
        layout = cute.make_layout(own.shape, stride=(*own.stride[:2], widest.stride[2]))
        return cute.make_tensor(stages.iterator + first * self.block_k, layout)

    @cute.jit
    def multiply_tile(
        self,
        mma: cute.TiledMma,  # noqa: ARG002 - that of the widest
        stages: Any,
        storage: Any,
        warp: Int32,
        num_k_blocks: Int32,
        columns: Constexpr[Any],
    ) -> Any:
        """Multiply a tile of so many columns and return a thread's sums, those of further columns undefined."""
        sums = cute.make_rmem_tensor(self.tile.num_accumulators, Float32)
        for narrower in range_constexpr(NUM_WIDTHS):
            if columns == self.tile.columns - GROUP * narrower:
                self._multiply_width(sums, self.tile.columns - GROUP * narrower, stages, storage, warp, num_k_blocks)
        return sums

    @cute.jit
    def _multiply_width(
        self, sums: cute.Tensor, columns: Constexpr[int], stages: Any, storage: Any, warp: Int32, num_k_blocks: Int32
    ) -> None:
        """Multiply a tile of so many columns into the first of a thread's sums."""
        part = self._part_of_stages(stages[1], 0, columns)
        own = self.multiply(self.make_mma(columns), (stages[0], part), storage, warp, Int32(0), num_k_blocks)
        for i in range_constexpr(cute.size(own)):
            sums[i] = own[i]

    def stored_part(self, d: cute.Tensor, corner: Any, columns: Any) -> Any:
        """View D up to the tile's last column: so far a tile may store."""
        side = 0 if self.swap_ab else 1
        end = cutlass.min(Int32(d.shape[side]), corner[1] + columns)
        shape = (end, d.shape[1]) if self.swap_ab else (d.shape[0], end)
        return cute.make_tensor(d.iterator, cute.make_layout(shape, stride=d.stride))
