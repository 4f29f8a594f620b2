"""What `SplitGemmSm90` makes of its operands: stages, descriptors, and what a tile loads. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from aot.families._next_start import Places
from aot.families._quack_internals import first_stage
from aot.families._sm90_split_loads import Copy, Sharers, make_copy, products_last
from aot.families._sm90_split_store import StoreSplitSm90
from aot.families._sm90_split_tile import ROW_BYTES


@dataclass(frozen=True)
class OperandsSplitSm90(StoreSplitSm90):
    """How a kernel's operands lie in memory, are loaded, and are counted in tiles and blocks of k."""

    places: Places
    """Of the device."""
    are_k_major: tuple[bool, bool]
    """Whether the operand of the tile's rows is contiguous along k, and whether that of its columns is."""

    @property
    def multiplied(self) -> tuple[Any, Any]:
        """CUTLASS's types of the operands of the tile's rows and columns: here D's."""
        return self.element, self.element

    @property
    def block_k(self) -> int:
        """Elements of k in a stage."""
        return ROW_BYTES * 8 // int(self.multiplied[0].width)

    def prepare_side(self, side: int, operand: Any) -> tuple[Any, Any, Any]:
        """Return the layout of an operand's stages, what loads them, and the operand's extent; on the host."""
        view = products_last(operand)
        layout = self.stages_of(side, (self.tile.rows, self.tile.columns)[side])
        return layout, self.make_load(view, layout, side), cute.size(view, mode=[0])

    def stages_of(self, side: int, extent: int) -> Any:
        """Lay out the stages of an operand's tile, of its rows (side 0) or columns: 128 bytes along k, or along it."""
        is_k_major = self.are_k_major[side]
        kind = warpgroup.SmemLayoutAtomKind.K_SW128 if is_k_major else warpgroup.SmemLayoutAtomKind.MN_SW128
        atom = warpgroup.make_smem_layout_atom(kind, self.multiplied[side])
        order = (0, 1, 2) if is_k_major else (1, 0, 2)
        return cute.tile_to_shape(atom, (extent, self.block_k, self.tile.num_stages), order=order)

    def make_load(self, view: Any, layout: Any, side: int) -> Any:
        """Make the descriptor of what loads a side of a tile; return it and the operand as TMA sees it."""
        tile = self.tile
        parts = 1 if tile.takes_turns[side] else tile.sharing[side]
        return self.make_descriptor(view, layout, (tile.rows, tile.columns)[side], side, parts)

    def make_descriptor(self, view: Any, layout: Any, extent: int, side: int, parts: int) -> Any:
        """Make a descriptor of so many rows, or columns, by 128 bytes, each CTA's load in so many parts."""
        is_alone = self.tile.sharing[side] == 1
        copy = cpasync.CopyBulkTensorTileG2SOp() if is_alone else cpasync.CopyBulkTensorTileG2SMulticastOp()
        box = first_stage(layout)
        return cpasync.make_tiled_tma_atom(copy, view, box, (extent, self.block_k), num_multicast=parts)

    def descriptors(self, loads: Any) -> list[Any]:
        """List the TMA atoms of both operands' loads."""
        return [atom for atom, _ in loads]

    def of_product(self, load: Any, product: Any) -> Any:
        """Return what loads an operand of one product of a batch; its products lie behind its other modes."""
        atom, operand = load
        return atom, operand[None, None, product]

    def part_of(self, loads: Any, d: Any, vectors: Any, place: Any) -> tuple[Any, Any, Any, Any]:
        """Return what loads a tile, D, what the epilogue reads, and the tile's place in D.

        They are of the tile's weight where a launch has several; here of the one that there is.

        Args:
            loads: what loads the rows of a tile, and its columns.
            d: D.
            vectors: what the epilogue reads.
            place: the tile's number along the rows, and along the columns.
        """
        return loads, d, vectors, place

    def stages_in(self, storage: Any, layouts: Any) -> list[Any]:
        """View the stages of the rows' operand, and of the columns'."""
        return [
            memory.get_tensor(layout.outer, swizzle=layout.inner)
            for memory, layout in zip((storage.rows, storage.columns), layouts, strict=True)
        ]

    def num_rows(self, load_rows: Any) -> Any:
        """Return the rows of the rows' operand."""
        return cute.size(load_rows[1], mode=[0])

    def count_clusters_of_rows(self, load_rows: Any, vectors: Any) -> Any:
        """Count the clusters along the tiles' rows."""
        del vectors
        return cute.ceil_div(self.num_rows(load_rows), self.tile.rows * self.tile.cluster_m)

    def count_k_blocks(self, loads: Any) -> Any:
        """Count the blocks of k, by what loads both operands."""
        return cute.ceil_div(loads[0][1].shape[1], self.block_k)

    def copy_rows(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Copy:
        """Make what loads a block of k of the rows' operand; the place is the tile's rows, and its number."""
        return make_copy(load, stages, place, sharers)

    def copy_columns(self, load: Any, stages: Any, place: tuple[Any, Any], sharers: Sharers) -> Copy:
        """Make what loads a block of k of the columns' operand; the place is the tile's columns, and its number."""
        return make_copy(load, stages, place, sharers)
