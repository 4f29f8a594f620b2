"""The multiplying warps of our Hopper kernels, which also store the product. Imports CUTLASS and quack.

In pingpong two groups of four warps take tiles in turn: one multiplies while the other stores. Otherwise all
multiplying warps share a tile. The multiplication of a tile and its epilogue are quack's, or, of FP8 that such warps
share, those of `_sm90_promoted.py`.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from functools import partial
from typing import Any

from cutlass import Boolean, Int32, const_expr, cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.pipeline import PipelineUserType
from quack import sm90_utils as quack_sm90
from quack.gemm_config import SplitKMode
from quack.pipeline import make_pipeline_state

from aot.families._sm90_promoted import PromotedSm90

GROUP_WARPS = 4
"""Warps of a group, which issue wgmma together (PTX ISA, wgmma)."""


class MultiplySm90(PromotedSm90):
    """The multiplying warps of a persistent Hopper GEMM: `multiply` is what each of them runs."""

    def end_multiplication(self) -> None:
        """Let the next kernel start, in each multiplying warp: what it multiplied was loaded after the wait."""
        cute.arch.griddepcontrol_launch_dependents()

    def range_of_k_tiles(self, lengths: Any, scheduler: Any, work: Any) -> Any:
        """Return the first k tile of a tile's split, and how many it has."""
        _, _, split, batch = work.tile_idx
        return scheduler.get_split_k_tile_range(self._count_k_tiles(lengths.len_k(batch)), split)

    def _count_k_tiles(self, k: Any) -> Any:
        return cute.ceil_div(k, self.cta_tile_shape_mnk[2])

    @cute.jit
    def multiply(
        self,
        tiled_mma: cute.TiledMma,
        operands: Any,
        stages: Any,
        product: Any,
        epilogue: Any,
        pipeline: Any,
        make_scheduler: Any,
        warp: Int32,
    ) -> None:
        """Multiply and store the CTA's tiles, in each multiplying warp.

        Args:
            tiled_mma: how the warps share a tile.
            operands: A and B in global memory, (rows, k, batch).
            stages: A and B in shared memory.
            product: the atom that stores D, D in global memory, its stages in shared memory, and the residual or None.
            epilogue: its parameters, its tensors in shared memory, and the problem's lengths as quack asks for them.
            pipeline: of the stages of A and B.
            make_scheduler: makes a warp's own view of the scheduler.
            warp: the warp's index in the CTA.
        """
        stores = Boolean((not self.pingpong and warp == 0) or (self.pingpong and (warp == 0 or warp == GROUP_WARPS)))  # noqa: PLR1714 - values of the kernel are in no set
        thread = cute.arch.thread_idx()[0]
        group = cute.arch.make_warp_uniform(thread // self.num_threads_per_warp_group)
        if const_expr(self.pingpong):
            thread %= self.num_threads_per_warp_group
        sums, multiply_stage = self._make_fragments(tiled_mma, stages, group)
        self._open_turns(group)
        lengths = epilogue[2]
        # These are counted from A, and those of a tile from B: the same number. To count once would save nine
        # instructions in pingpong, but make other code than the one that was measured.
        all_k_tiles = self._count_k_tiles(cute.size(operands[0], mode=[1]))
        state = make_pipeline_state(PipelineUserType.Consumer, self.ab_stage)
        of_residual = make_pipeline_state(PipelineUserType.Consumer, self.epi_c_stage)
        store_pipeline = self.make_epi_store_pipeline()
        scheduler = make_scheduler()
        work = scheduler.initial_work_tile_info()
        if const_expr(self.pingpong):  # noqa: SIM102 - known while tracing, the next is not
            if warp >= GROUP_WARPS:
                state, of_residual, scheduler, work = self._skip_tile(
                    lengths, all_k_tiles, state, of_residual, scheduler, work
                )
        run = self._overlap_tiles if const_expr(self.overlaps_tiles) else self._take_tiles
        run(
            tiled_mma,
            sums,
            multiply_stage,
            product,
            epilogue,
            (pipeline, store_pipeline),
            all_k_tiles,
            state,
            of_residual,
            scheduler,
            work,
            (thread, group, stores),
        )
        self.end_multiplication()
        if const_expr(not self.pingpong):  # noqa: SIM102 - known while tracing, the next is not
            if stores:
                store_pipeline.producer_tail()

    def _make_fragments(self, tiled_mma: Any, stages: Any, group: Any) -> tuple[Any, Any]:
        """Make the registers of a thread's sums, and the function that adds the product of one stage to them."""
        groups = cute.make_layout(1 if self.pingpong else self.mma_warp_groups, stride=self.num_threads_per_warp_group)
        part = tiled_mma.get_slice(groups(0 if self.pingpong else group))
        sums, a, b = quack_sm90.partition_fragment_ABC(part, self.cta_tile_shape_mnk, *stages)
        return sums, partial(quack_sm90.gemm_w_idx, tiled_mma, sums, a, b)

    @cute.jit
    def _open_turns(self, group: Int32) -> None:
        """Return the first group of warps the first turn to multiply and to store, where two take turns."""
        if const_expr(self.pingpong):  # noqa: SIM102 - known while tracing, the next is not
            if group == 0:
                self.pingpong_barrier_arrive(0, stage="mma")
                self.pingpong_barrier_arrive(0, stage="epi")

    @cute.jit
    def _take_tiles(
        self,
        tiled_mma: cute.TiledMma,
        sums: Any,
        multiply_stage: Any,
        product: Any,
        epilogue: Any,
        pipelines: Any,
        all_k_tiles: Int32,
        state: Any,
        of_residual: Any,
        scheduler: Any,
        work: Any,
        who: Any,
    ) -> None:
        """Multiply and store one tile after the other."""
        (pipeline, store_pipeline), (thread, group, stores) = pipelines, who
        while work.is_valid_tile:
            state = self.multiply_tile(epilogue, pipeline, state, multiply_stage, sums, scheduler, work, group)
            to = (product, epilogue, store_pipeline)
            of_residual = self._store_tile(
                tiled_mma, sums, *to, of_residual, scheduler, work.tile_idx, thread, group, stores
            )
            state, of_residual, scheduler, work = self._next_tile(
                epilogue[2], all_k_tiles, state, of_residual, scheduler, work
            )

    @cute.jit
    def _overlap_tiles(
        self,
        tiled_mma: cute.TiledMma,
        of_stage: Any,
        multiply_stage: Any,
        product: Any,
        epilogue: Any,
        pipelines: Any,
        all_k_tiles: Int32,
        state: Any,
        of_residual: Any,
        scheduler: Any,
        work: Any,
        who: Any,
    ) -> None:
        """Multiply and store one tile after the other, where each is begun before the one in front is stored."""
        (pipeline, store_pipeline), (thread, group, stores) = pipelines, who
        parameters, shared, lengths = epilogue
        sums = cute.make_rmem_tensor(of_stage.layout, self.acc_dtype)
        first_factors = self.make_first_factors(parameters, multiply_stage)
        self.begin_tile(pipeline, state, multiply_stage, work)
        self.read_first_factors(first_factors, parameters, multiply_stage, work)
        while work.is_valid_tile:
            tile = work.tile_idx
            fetched = self.fetch_vectors(parameters, lengths, tile, thread)
            state = self.end_tile(
                pipeline, state, multiply_stage, (of_stage, sums), all_k_tiles, parameters, tile, first_factors
            )
            state, of_residual, scheduler, work = self._next_tile(
                lengths, all_k_tiles, state, of_residual, scheduler, work
            )
            self.begin_tile(pipeline, state, multiply_stage, work)
            self.read_first_factors(first_factors, parameters, multiply_stage, work)
            to = (product, (parameters, {**shared, **fetched}, lengths), store_pipeline)
            of_residual = self._store_tile(tiled_mma, sums, *to, of_residual, scheduler, tile, thread, group, stores)
        warpgroup.wait_group(0)

    @cute.jit
    def multiply_tile(
        self,
        epilogue: Any,
        pipeline: Any,
        state: Any,
        multiply_stage: Any,
        sums: Any,
        scheduler: Any,
        work: Any,
        group: Int32,
    ) -> Any:
        """Multiply the stages of a tile, in turn with the other group; the sums of a split without k tiles are zero."""
        _, k_tiles = self.range_of_k_tiles(epilogue[2], scheduler, work)
        if const_expr(self.pingpong):
            self.pingpong_barrier_sync(group, stage="mma")
        promoted = cute.make_rmem_tensor(sums.shape, self.acc_dtype) if const_expr(self.fp8_slow_accum) else None
        state = self.mma(pipeline, state, multiply_stage, sums, promoted, k_tiles, group)
        if const_expr(self.split_k > 1):  # noqa: SIM102 - known while tracing, the next is not
            if k_tiles == 0:
                sums.fill(0.0)
        return state

    @cute.jit
    def _store_tile(
        self,
        tiled_mma: cute.TiledMma,
        sums: Any,
        product: Any,
        epilogue: Any,
        store_pipeline: Any,
        of_residual: Any,
        scheduler: Any,
        tile: Any,
        thread: Int32,
        group: Int32,
        stores: Boolean,
    ) -> Any:
        """Store a tile, in turn with the other group, which stores through the same shared memory.

        Returns the state of the residual's pipeline.
        """
        if const_expr(self.pingpong):
            self.pingpong_barrier_sync(group, stage="epi")
        of_residual = self._run_epilogue(
            tiled_mma, sums, product, epilogue, store_pipeline, of_residual, scheduler, tile, thread, stores
        )
        if const_expr(self.pingpong):
            if stores:
                store_pipeline.producer_tail()
            self.pingpong_barrier_arrive(1 - group, stage="epi")
        return of_residual

    @cute.jit
    def _run_epilogue(
        self,
        tiled_mma: cute.TiledMma,
        sums: Any,
        product: Any,
        epilogue: Any,
        store_pipeline: Any,
        of_residual: Any,
        scheduler: Any,
        tile: Any,
        thread: Int32,
        stores: Boolean,
    ) -> Any:
        """Run quack's epilogue on a tile's sums; where k is split in one launch, the last split's runs, on all sums.

        Returns the state of the residual's pipeline.
        """
        (atom, d, stages, residual), (parameters, epilogue_smem, lengths) = product, epilogue
        batch = tile[3]
        if const_expr(self.split_k > 1 and self.split_k_mode == SplitKMode.SEPARATE):
            batch = scheduler.get_combined_batch_idx(batch, tile[2])
        copy, _, _ = self.epilog_gmem_copy_and_partition(
            atom, d[None, None, batch], self.cta_tile_shape_mnk[:2], self.epi_tile, stages, tile
        )
        to_stages, values, targets = self.epilog_smem_store_and_partition(
            tiled_mma, self.d_layout, self.d_dtype, stages, thread
        )
        read_sums = partial(self.epi_load_acc_subtile, self.epi_retile_acc(sums, values, to_stages))
        self.epi_visit_acc(parameters, sums, tiled_mma, tile, thread)
        to_registers, added, copied, sources = self.view_residual(tiled_mma, residual, values, thread)
        # Of the residual's pipeline; the loading warp has its own state of the producer.
        states = (of_residual, make_pipeline_state(PipelineUserType.Producer, 0))
        run = partial(
            self.epilogue,
            parameters,
            epilogue_smem,
            residual.pipeline if const_expr(self.has_residual) else None,
            store_pipeline,
            *states,
            self.epi_tile,
            tRS_rD=values,
            tRS_rC=added,
            tiled_copy_t2r=None,
            tiled_copy_r2s=to_stages,
            tRS_sD=targets,
            tiled_copy_s2r=to_registers,
            tSR_rC=copied,
            tSR_sC=sources,
            copy_D=copy,
            copy_C=None,
            tile_coord_mnkl=tile,
            varlen_manager=lengths,
            epilogue_barrier=self.epilogue_barrier,
            tile_scheduler=scheduler,
            tidx=thread,
            is_tma_warp=stores,
        )
        barrier = self.epilogue_barrier
        return self.epilogue_split_k(
            parameters, run, read_sums, values, self.epi_tile, *states, store_pipeline, tile, barrier, thread, stores
        )[0]

    @cute.jit
    def _next_tile(
        self, lengths: Any, all_k_tiles: Int32, state: Any, of_residual: Any, scheduler: Any, work: Any
    ) -> Any:
        """Take the next tile of this group of warps. Returns both pipelines' states, the scheduler and the tile."""
        if const_expr(self.pingpong and self.split_k == 1):
            state.advance_iters(all_k_tiles)
            of_residual = self.skip_residual(of_residual, work.tile_idx)
            scheduler.advance_to_next_work(advance_count=self.mma_warp_groups)
            work = scheduler.get_current_work()
        else:
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
            if const_expr(self.pingpong):  # noqa: SIM102 - known while tracing, the next is not
                if work.is_valid_tile:
                    state, of_residual, scheduler, work = self._skip_tile(
                        lengths, all_k_tiles, state, of_residual, scheduler, work
                    )
        return state, of_residual, scheduler, work

    @cute.jit
    def _skip_tile(
        self, lengths: Any, all_k_tiles: Int32, state: Any, of_residual: Any, scheduler: Any, work: Any
    ) -> Any:
        """Leave a tile and its stages to the other group of warps. Returns as `_next_tile` does."""
        k_tiles = all_k_tiles
        if const_expr(self.split_k > 1):
            _, k_tiles = self.range_of_k_tiles(lengths, scheduler, work)
        state.advance_iters(k_tiles)
        of_residual = self.skip_residual(of_residual, work.tile_idx)
        scheduler.advance_to_next_work()
        work = scheduler.get_current_work()
        return state, of_residual, scheduler, work
