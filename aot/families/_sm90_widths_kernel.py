"""The kernel of `sm90_one_tile` that computes tiles of several widths, told which at launch. Imports CUTLASS and quack.

wgmma has the columns of a tile in its instruction: so there is a loop over k for each width, and all leave their sums
in the registers of the widest. A TMA descriptor has its box when it is made: so there is one for each width. With a box
of the least width and one of 8 columns for each 8 that a width has more, a block of k took 30 ns longer to be asked for
(research/log/2026-11-26-cold-start.md). CTAs that share columns load whole blocks in turns, since a width has no equal
parts for all.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, Uint32, cute, range_constexpr, select_
from quack.copy_utils import get_tma_desc_addr

from aot.core.tile_order import NUM_ORDERS
from aot.families._sm90_one_tile_kernel import OneTileGemmSm90
from aot.families._sm90_split_loads import Copy, Sharers, copy_of
from aot.families._sm90_split_tile import GROUP, NUM_WIDTHS, ROW_BYTES


@dataclass(frozen=True)
class WidthsGemmSm90(OneTileGemmSm90):
    """The kernel of one candidate. What tells the order of the tiles tells the width too: see `width`."""

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

    @property
    def widths(self) -> tuple[int, ...]:
        """List the widths, the widest first."""
        return tuple(self.tile.columns - GROUP * i for i in range(NUM_WIDTHS))

    def number(self, columns: Any) -> Any:
        """Return which of the widths a tile of so many columns has."""
        return Int32(Uint32(self.tile.columns - columns) // GROUP)

    def make_load(self, view: Any, layout: Any, side: int) -> Any:
        """Make the descriptor of a tile's rows; or one of its columns for each width."""
        if side == 0:
            return super().make_load(view, layout, side)
        return tuple(self.make_descriptor(view, self.stages_of(side, x), x, side, 1) for x in self.widths)

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of both operands' loads: which width is taken is not waited for."""
        rows, columns = loads
        return [atom for atom, _ in (rows, *columns)]

    def copy_columns(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Copy:
        """Make what loads a block of k of the columns: the widest's, with the descriptor of the tile's own width."""
        columns, tile = place
        atom, operand = load[0]
        shifted = cute.domain_offset((tile * columns, 0), operand)
        source = cute.local_tile(shifted, (self.tile.columns, self.block_k), (0, None))
        turn = sharers.part if sharers.count > 1 else 0
        copy = copy_of(atom, source, stages, sharers)
        return Copy(copy, columns * ROW_BYTES, sharers.count, turn, self._descriptor(load, columns))

    def _descriptor(self, load: Any, columns: Any) -> Any:
        """Return the address of the descriptor of what loads so many columns, without a branch."""
        addresses = [get_tma_desc_addr(atom).toint() for atom, _ in load]
        number = self.number(columns)
        lower, upper = (select_(number & 1 != 0, addresses[i + 1], addresses[i]) for i in (0, 2))
        return select_(number & 2 != 0, upper, lower)

    def _part_of_stages(self, stages: Any, extent: int) -> Any:
        """View the first columns of the stages of the widest tile."""
        own = self.stages_of(1, extent).outer
        widest = self.stages_of(1, self.tile.columns).outer
        layout = cute.make_layout(own.shape, stride=(*own.stride[:2], widest.stride[2]))
        return cute.make_tensor(stages.iterator, layout)

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
        multiply = partial(self._multiply_width, sums, stages, storage, warp, num_k_blocks)
        number = self.number(columns)
        # By its bits: if it is compared with one number after the other, the compiler jumps by a table of constants,
        # which a kernel that has just started has to fetch first (research/log/2026-11-26-cold-start.md).
        if number & 2 == 0:
            if number & 1 == 0:
                multiply(self.widths[0])
            else:
                multiply(self.widths[1])
        elif number & 1 == 0:
            multiply(self.widths[2])
        else:
            multiply(self.widths[3])
        return sums

    @cute.jit
    def _multiply_width(
        self, sums: cute.Tensor, stages: Any, storage: Any, warp: Int32, num_k_blocks: Int32, columns: Constexpr[int]
    ) -> None:
        """Multiply a tile of so many columns into the first of a thread's sums."""
        part = self._part_of_stages(stages[1], columns)
        own = self.multiply(self.make_mma(columns), (stages[0], part), storage, warp, Int32(0), num_k_blocks)
        for i in range_constexpr(cute.size(own)):
            sums[i] = own[i]

    def stored_part(self, d: cute.Tensor, corner: Any, columns: Any) -> Any:
        """View D up to the tile's last column: so far a tile may store."""
        side = 0 if self.swap_ab else 1
        end = cutlass.min(Int32(d.shape[side]), corner[1] + columns)
        shape = (end, d.shape[1]) if self.swap_ab else (d.shape[0], end)
        return cute.make_tensor(d.iterator, cute.make_layout(shape, stride=d.stride))
