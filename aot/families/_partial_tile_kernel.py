"""A Hopper GEMM whose loads end at the operands' last row. Imports CUTLASS and quack.

TMA fills the rows of a box that lie outside a tensor with zeros, and takes longer for each than to load one. Here an
operand's last, partial tile is loaded through a descriptor of its own, whose box has few more rows than are left. What
then remains in the rest of the stage is whatever was there: it reaches only rows and columns of the product that lie
outside D, which the TMA store clips.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Constexpr, Int32, Int64, const_expr, cute
from cutlass.block import block_copy
from cutlass.cute.nvgpu import cpasync
from quack import copy_utils

from aot.families._boxes import box_rows
from aot.families._descriptor import pointer_to_descriptor
from aot.families._sm90_mainloop import MainloopSm90, Source


class Box(NamedTuple):
    """The box of an operand's last tile, in a kernel."""

    extent: Any
    """Int32: rows of the operand."""
    rows: Any
    """Int32: rows of the least box that holds the tile's; 0 if the tile is whole."""
    address: Any
    """Int64: the address of its descriptor."""
    least: Any
    """The copy atom of the least box of all. The instruction takes its box from the descriptor, so this atom serves for
    all of them."""


class GemmPartialTileSm90(MainloopSm90):
    """`MainloopSm90` that loads whole tiles as quack does, and partial ones by boxes. Pairs below are of A and B."""

    def make_load_arguments(self, operands: Any, stages: Any, prefetch_b: Any) -> Any:
        """Make the atoms of all sizes of boxes, for each operand, and pass on `prefetch_b`.

        Args:
            operands: A and B in global memory, (rows, k, batch).
            stages: layouts of one stage of A and of B in shared memory.
            prefetch_b: None, or what `GemmPrefetchBSm90` takes.
        """
        tile_k = self.cta_tile_shape_mnk[2]
        boxes = [
            [
                cpasync.make_tiled_tma_atom(
                    cpasync.CopyBulkTensorTileG2SOp(), operand, cute.composition(stage, (rows, tile_k)), (rows, tile_k)
                )[0]
                for rows in box_rows(self.cta_tile_shape_mnk[i])
            ]
            for i, (operand, stage) in enumerate(zip(operands, stages, strict=True))
        ]
        return boxes, [operand.shape[0] for operand in operands], prefetch_b

    def prepare_loads(self, arguments: Any, warp: Int32) -> Any:
        """Choose the boxes of the operands' last tiles; nothing of theirs is read, so this needs no wait."""
        boxes, extents, prefetch_b = arguments
        return [self._choose_box(boxes[i], extents[i], warp, i) for i in range(2)], prefetch_b

    @cute.jit
    def _choose_box(self, atoms: Any, extent: Int32, warp: Int32, i: int) -> Box:
        """Choose the least box for the last tile of an operand of `extent` rows, in the warps that load."""
        rows, address = Int32(0), Int64(0)
        if self.is_loading(warp):
            tile = self.cta_tile_shape_mnk[i]
            left = extent - (extent - 1) // tile * tile
            sizes = box_rows(tile)
            for s in cutlass.range_constexpr(len(sizes) - 1, -1, -1):
                fits = left <= sizes[s]
                rows = Int32(sizes[s]) if fits else rows
                address = copy_utils.get_tma_desc_addr(atoms[s]).toint() if fits else address
            if rows > 0:
                cute.arch.inline_ptx("prefetch.tensormap [{$r0}];", read_only_args=[address])
        return Box(extent, rows, address, atoms[0])

    @cute.jit
    def load_tile(
        self, sources: Any, prepared: Any, pipeline: Any, state: Any, k_tiles: Int32, first_k_tile: Any
    ) -> Any:
        """Load the stages of a tile: as quack does where it is whole, else by boxes."""
        boxes, _ = prepared
        counts = [self.count_rows(sources[i], boxes[i], i) for i in range(2)]
        whole_a, whole_b = counts[0] == self.cta_tile_shape_mnk[0], counts[1] == self.cta_tile_shape_mnk[1]
        # A loop for each case, since the loading warp bounds the time of small problems: with the branches inside one
        # loop, 64x128 tiles took 40 us instead of 35 at m 3, n 4096, k 14336 on an H200.
        if whole_a and whole_b:
            copies = [source.copy for source in sources]
            state = self.load_tma(pipeline, state, copies, k_tiles, k_tile_start=first_k_tile)
        elif whole_a:
            state = self._load_partial(sources, boxes, (False, True), counts, pipeline, state, k_tiles, first_k_tile)
        elif whole_b:
            state = self._load_partial(sources, boxes, (True, False), counts, pipeline, state, k_tiles, first_k_tile)
        else:
            state = self._load_partial(sources, boxes, (True, True), counts, pipeline, state, k_tiles, first_k_tile)
        return state

    @cute.jit
    def count_rows(self, source: Source, box: Box, i: int) -> Any:
        """Count the rows to load of a tile: all, those of its box, or none where a cluster reaches past the last."""
        tile = self.cta_tile_shape_mnk[i]
        left = box.extent - source.tiles[0, 0, 0][1]
        count = Int32(tile)
        if left < tile and box.rows > 0:
            count = box.rows
        if left <= 0:
            count = Int32(0)
        return count

    @cute.jit
    def _load_partial(
        self,
        sources: Any,
        boxes: Any,
        partial: Constexpr[tuple[bool, bool]],
        counts: Any,
        pipeline: Any,
        state: Any,
        k_tiles: Int32,
        first_k_tile: Any,
    ) -> Any:
        """Load a tile's stages by boxes where an operand is partial, as quack does where it is not."""
        num_bytes = self.count_bytes(counts)
        is_free = Boolean(True)
        if k_tiles > 0:
            is_free = pipeline.producer_try_acquire(state)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            # producer_acquire would expect the bytes of whole tiles.
            if not is_free:
                pipeline.sync_object_empty.wait(state.index, state.phase)
            pipeline.sync_object_full.arrive_and_expect_tx(state.index, num_bytes)
            barrier = pipeline.producer_get_barrier(state)
            for i in cutlass.range_constexpr(2):
                if const_expr(not partial[i]):
                    sources[i].copy(first_k_tile + k_tile, state.index, tma_bar_ptr=barrier)
                elif self.has_box(counts[i]):
                    box = boxes[i]
                    self.load_box(sources[i], box.least, box.address, i, first_k_tile + k_tile, state.index, barrier)
            state.advance()
            is_free = Boolean(True)
            if k_tile + 1 < k_tiles:
                is_free = pipeline.producer_try_acquire(state)
        return state

    def count_bytes(self, counts: Any) -> Any:
        """Count the bytes of a stage of which `counts` rows are loaded, of A and of B."""
        return (counts[0] + counts[1]) * (self.cta_tile_shape_mnk[2] * self.a_dtype.width // 8)

    def has_box(self, count: Any) -> Any:
        """Say whether an operand's partial tile has rows to load; without clusters it always has."""
        return True if self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1] == 1 else count > 0

    @cute.jit
    def load_box(
        self, source: Source, least: Any, address: Int64, i: int, k_tile: Int32, stage: Int32, barrier: Any
    ) -> None:
        """Load the box of a tile by the descriptor at `address`, every CTA for itself: sharing it gained nothing."""
        shape = (box_rows(self.cta_tile_shape_mnk[i])[0], self.cta_tile_shape_mnk[2])
        src = cute.local_tile(source.tiles[None, None, k_tile], shape, (0, 0))
        dst = cute.local_tile(source.stages[None, None, stage], shape, (0, 0))
        block_copy(
            least,
            cute.group_modes(src, 0, 2),
            cute.group_modes(dst, 0, 2),
            tma_bar_ptr=barrier,
            tma_desc_ptr=pointer_to_descriptor(address),
        )
