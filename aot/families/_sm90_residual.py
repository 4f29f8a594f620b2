"""The loading of a residual in our Hopper kernels, while its tile is multiplied. Imports CUTLASS and quack.

quack's kernel begins to load a tile's residual once the tile is multiplied. Here a loading warp of its own does, as far
ahead as the residual's stages reach. The multiplying warps add it, a piece of a tile at a time, as they store.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, const_expr, cute
from cutlass.pipeline import PipelineUserType
from quack import copy_utils
from quack.pipeline import make_pipeline_state

from aot.families._ragged_epilogue import RaggedSm90


class Residual(NamedTuple):
    """A residual in a kernel."""

    stages: Any
    """Shared memory: (rows of a piece, columns of a piece, stages)."""
    pipeline: Any
    """Of the stages."""


class ResidualSm90(RaggedSm90):
    """quack's GEMM, whose residual, quack's C, is loaded by a warp of its own. No tile of it may be ragged."""

    has_residual: bool = False
    """Whether it is called with a residual; a subclass that counts a warp for it says so."""

    def make_residual(self, storage: Any, layout: Any) -> Residual | None:
        """View the residual's stages in shared memory, and make their barriers; None where there is no residual."""
        if not self.has_residual:
            return None
        stages = storage.c.get_tensor(layout.outer, swizzle=layout.inner)
        return Residual(stages, self.make_epi_pipeline(tx_count=self.epi_load_bytes_per_stage))

    @cute.jit
    def load_residual(self, source: Any, residual: Any, make_scheduler: Any) -> None:
        """Load the pieces of the CTA's tiles, in the order in which they are stored; in the warp that does this alone.

        The multiplying warps free every stage before they end, so nothing is waited for after the last load.

        Args:
            source: the TMA atom and the view of the residual in global memory.
            residual: its stages and their pipeline.
            make_scheduler: makes a warp's own view of the scheduler.
        """
        cute.arch.griddepcontrol_wait()
        scheduler = make_scheduler()
        work = scheduler.initial_work_tile_info()
        state = make_pipeline_state(PipelineUserType.Producer, self.epi_c_stage)
        while work.is_valid_tile:
            if self._adds_residual(work.tile_idx):
                state = self._load_pieces(source, residual, state, work.tile_idx)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        if const_expr(self.pingpong and self.split_k == 1):
            work = scheduler.get_current_work()  # the end is told twice: `MainloopSm90.load`

    @cute.jit
    def _load_pieces(self, source: Any, residual: Any, state: Any, tile: Any) -> Any:
        """Load the pieces of a tile. Returns the pipeline's state."""
        atom, whole = source
        copy, _, _ = self.epilog_gmem_copy_and_partition(
            atom, whole[None, None, tile[3]], self.cta_tile_shape_mnk[:2], self.epi_tile, residual.stages, tile
        )
        copy = copy_utils.tma_producer_copy_fn(copy, residual.pipeline)
        order = (0, 1) if const_expr(self.epi_m_major) else (1, 0)
        pieces = cute.make_ordered_layout(self.epi_tile_shape, order=order)
        for i in cutlass.range(cute.size(pieces), unroll=1):
            residual.pipeline.producer_acquire(state)
            copy(src_idx=pieces.get_hier_coord(i), producer_state=state)
            residual.pipeline.producer_commit(state)
            state.advance()
        return state

    def _adds_residual(self, tile: Any) -> Any:
        """Say whether a tile's epilogue reads the residual: where k is split, in one launch, the last split's does."""
        return tile[2] == self.split_k - 1 if self.split_k > 1 else Boolean(True)

    @cute.jit
    def skip_residual(self, state: Any, tile: Any) -> Any:
        """Leave the pieces of a tile to the other group of multiplying warps. Returns the pipeline's state."""
        if const_expr(self.has_residual):
            count = Int32(cute.size(self.epi_tile_shape))
            if self._adds_residual(tile):
                state.advance_iters(count)
        return state

    def view_residual(self, tiled_mma: Any, residual: Any, values: Any, thread: Any) -> tuple[Any, Any, Any, Any]:
        """Return how a thread copies a piece to registers, these as it adds them, as it copies them, and the stages.

        Four times None where there is no residual.

        Args:
            tiled_mma: how the multiplying warps share a tile.
            residual: its stages and their pipeline.
            values: the registers of a piece of D.
            thread: index of the thread among those that share the tile.
        """
        if not self.has_residual:
            return None, None, None, None
        views: tuple[Any, Any, Any, Any] = self.epilog_smem_load_and_partition(
            tiled_mma, self.c_layout, self.c_dtype, residual.stages, values.layout, thread
        )
        return views
