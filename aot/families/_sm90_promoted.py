"""How our Hopper kernels overlap a tile of FP8 with the storing of the one before. Imports CUTLASS and quack.

FP8 sums are promoted: the tensor cores' accumulators hold the product of one stage, which is added to float32 in other
registers. Once a tile's last stage is added, the accumulators are free, so the first stage of the next tile is
multiplied while the tile is stored. Where there is room, a tile is stored through shared memory for all of it, so that
all threads wait for each other only before they write it, and not twice for each piece of it.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import Boolean, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warpgroup
from quack.epilogue.ops import DStore

from aot.families._sm90_residual import ResidualSm90

FIRST_BARRIER = 12
"""The first of the named barriers at which the warp that stores waits for pieces of a tile. Source: quack's own are
below (`NamedBarrierGemm`), and PTX has 16."""

NUM_BARRIERS = 4
"""Of these."""


class PromotedSm90(ResidualSm90):
    """quack's GEMM, whose promoted sums are stored while the next tile is begun."""

    def __init__(
        self,
        *args: Any,
        overlaps_tiles: bool = False,
        whole_tile_stages: tuple[int, int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure as quack does.

        Args:
            args: as in quack's `GemmSm90`, and `kwargs`.
            overlaps_tiles: whether the first stage of the next tile is multiplied while a tile is stored.
            whole_tile_stages: stages of A and B, of D as many as a tile has pieces, and of a residual, where a tile is
                stored through memory for all of it.
        """
        super().__init__(*args, **kwargs)
        self.overlaps_tiles = overlaps_tiles
        self.chosen_stages = whole_tile_stages

    def fetch_vectors(self, parameters: Any, lengths: Any, tile: Any, thread: Any) -> dict[str, Any]:
        """Read what a tile's epilogue needs of vectors to registers, in a class whose epilogue takes it from there."""
        del parameters, lengths, tile, thread
        return {}

    @cute.jit
    def begin_tile(self, pipeline: Any, state: Any, multiply_stage: Any, work: Any) -> None:
        """Begin to multiply the first stage of a tile; after the last tile, a stage whose product nobody reads.

        Were it begun on a condition, the compiler would wait for each instruction of wgmma before the next.
        """
        stage = Int32(0)
        if work.is_valid_tile:
            pipeline.consumer_wait(state)
            stage = state.index
        multiply_stage(A_idx=stage, B_idx=stage, zero_init=Boolean(True))

    def make_first_factors(self, parameters: Any, multiply_stage: Any) -> Any:
        """Make the registers of what `read_first_factors` reads, in a class whose stages have factors."""
        del parameters, multiply_stage

    def read_first_factors(self, first_factors: Any, parameters: Any, multiply_stage: Any, work: Any) -> None:
        """Read the factors of a tile's first stage, before the tile in front is stored, in such a class."""
        del first_factors, parameters, multiply_stage, work

    @cute.jit
    def end_tile(
        self,
        pipeline: Any,
        state: Any,
        multiply_stage: Any,
        sums: Any,
        k_tiles: Int32,
        parameters: Any,  # noqa: ARG002 - a subclass needs this and what follows
        tile: Any,  # noqa: ARG002
        first_factors: Any,  # noqa: ARG002
    ) -> Any:
        """Multiply the stages of a tile behind its first, which is begun, and add all in float32.

        The first is added to zero: were it copied, the compiler would put it where the sums are, and wait as above.

        Args:
            pipeline: of the stages of A and B.
            state: its, at the tile's first stage.
            multiply_stage: begins to multiply a stage.
            sums: of a stage and of the tile.
            k_tiles: the tile's stages.
            parameters: of the epilogue.
            tile: its place.
            first_factors: what `read_first_factors` has read.

        Returns:
            The pipeline's state behind the tile.
        """
        of_stage, of_tile = sums
        of_tile.fill(0.0)
        warpgroup.wait_group(0)
        pipeline.consumer_release(state)
        state.advance()
        is_full = Boolean(True)
        if k_tiles > 1:
            is_full = pipeline.consumer_try_wait(state)
        of_tile.store(of_tile.load() + of_stage.load())
        return self.add_stages_from(1, pipeline, state, is_full, multiply_stage, of_stage, of_tile, k_tiles)

    def epilogue(self, *args: Any, **kwargs: Any) -> Any:
        """Run a tile's epilogue, as quack does or through shared memory for the whole tile; quack's parameters."""
        if self.chosen_stages is None:
            return super().epilogue(*args, **kwargs)
        return self._store_whole_tile(*args, **kwargs)

    @cute.jit
    def _store_whole_tile(
        self,
        parameters: Any,
        shared: Any,
        residual_pipeline: Any,
        store_pipeline: Any,
        of_residual: Any,
        of_residual_loads: Any,
        piece: Any,
        read_sums: Any,
        *,
        tRS_rD: Any,  # noqa: N803
        tRS_rC: Any,  # noqa: N803
        tiled_copy_t2r: Any,
        tiled_copy_r2s: Any,
        tRS_sD: Any,  # noqa: N803
        tiled_copy_s2r: Any,
        tSR_rC: Any,  # noqa: N803
        tSR_sC: Any,  # noqa: N803
        copy_D: Any,  # noqa: N803
        copy_C: Any,  # noqa: N803, ARG002 - quack's parameters, this and one below
        tile_coord_mnkl: Any,
        varlen_manager: Any,
        epilogue_barrier: Any,
        tile_scheduler: Any,  # noqa: ARG002
        tidx: Any,
        is_tma_warp: Any,
    ) -> Any:
        """Finish all pieces of a tile in shared memory of their own, then store them.

        The threads wait for each other where the memory of the tile before has been read, that of its vectors too, and
        where those of this tile are written. Only the warp that stores waits for pieces to be written. What else quack
        lets an output or an epilogue do, to skip a tile, to round it by blocks or to add it up, none of ours asks for.
        """
        place = (tile_coord_mnkl, varlen_manager)
        more = self.epi_setup_aux_out(parameters, shared, tiled_copy_r2s, tiled_copy_t2r, *place, tidx)
        own = ((DStore(), None, tiled_copy_r2s, tRS_sD, copy_D, None),) if const_expr(copy_D is not None) else ()
        outputs = (*own, *more)
        assert all(x[1] is None and x[5] is None for x in outputs)  # noqa: S101 - while tracing
        assert not self.epi_needs_acc_prepass  # noqa: S101
        if is_tma_warp:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        epilogue_barrier.arrive_and_wait()
        loaded = self.epi_begin(
            parameters,
            shared,
            piece,
            tiled_copy_t2r,
            tiled_copy_r2s,
            *place,
            epilogue_barrier,
            tidx,
            tRS_rD.layout,
        )
        pieces = cute.make_ordered_layout(self.epi_tile_shape, order=(0, 1) if const_expr(self.epi_m_major) else (1, 0))
        at_once = -(-cute.size(pieces) // NUM_BARRIERS)
        for i in range_constexpr(cute.size(pieces)):
            coordinate = pieces.get_hier_coord(i)
            read_sums(tRS_rD, coordinate)
            if const_expr(tRS_rC is not None):
                residual_pipeline.consumer_wait(of_residual)
                cute.copy(tiled_copy_s2r, tSR_sC[None, None, None, of_residual.index], tSR_rC)
                cute.arch.fence_view_async_shared()
                residual_pipeline.consumer_release(of_residual)
                of_residual.advance()
            vectors = self.epi_begin_loop(parameters, loaded, coordinate)
            finished = self.epi_visit_subtile(parameters, vectors, tRS_rD, tRS_rC)
            values = (tRS_rD, *finished) if const_expr(copy_D is not None) else finished
            for j in range_constexpr(len(outputs)):
                output, _, copy, stages, _, _ = outputs[j]
                rounded = output.store_convert(self, values[j], None, tidx, tile_coord_mnkl, Int32(0), i)
                output.store_r2s(self, copy, rounded, stages[None, None, None, i], tidx)
            if const_expr((i + 1) % at_once == 0 or i + 1 == cute.size(pieces)):
                cute.arch.fence_view_async_shared()
                barrier = {"barrier_id": FIRST_BARRIER + i // at_once, "number_of_threads": self.num_epi_warps * 32}
                if is_tma_warp:
                    cute.arch.barrier(**barrier)
                    for x in range_constexpr(i // at_once * at_once, i + 1):
                        for j in range_constexpr(len(outputs)):
                            outputs[j][4](src_idx=x, dst_idx=pieces.get_hier_coord(x))
                    store_pipeline.producer_commit()
                else:
                    cute.arch.barrier_arrive(**barrier)
        return of_residual, of_residual_loads
