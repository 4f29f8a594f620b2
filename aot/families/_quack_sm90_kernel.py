"""quack's Hopper GEMM: a wait where nothing is loaded, and stages of FP8 freed at once. Imports CUTLASS and quack.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Int32, const_expr, cute
from cutlass.cute.nvgpu import warpgroup
from quack.gemm_default_epi import GemmDefaultSm90


class GemmSplitSm90(GemmDefaultSm90):
    """`GemmDefaultSm90` whose splits without k tiles wait for the kernel in front before they touch the workspace.

    quack's warps that multiply wait for it through the loads, which begin after it. A split beyond the last k tile has
    no loads: its epilogue would read flags and write partial sums while the kernel in front may still use that memory.
    """

    def mma(self, *args: Any, **kwargs: Any) -> Any:
        """Multiply as quack does, after a wait of the multiplying warps' own where there are splits."""
        if self.split_k > 1:
            cute.arch.griddepcontrol_wait()
        return self._add_stages(*args, **kwargs) if self.fp8_slow_accum else super().mma(*args, **kwargs)

    @cute.jit
    def _add_stages(
        self,
        pipeline: Any,
        state: Any,
        multiply_stage: Any,
        sums: Any,
        promoted: Any,
        k_tiles: Int32,
        group: Int32,
    ) -> Any:
        """Multiply the stages of a tile of FP8, and add each stage's product to sums in float32.

        A stage is freed as soon as it is multiplied. quack frees the one before, after the additions, so that one
        stage fewer is on its way: kernels of few stages take up to 1.05 times as long.
        """
        is_full = Boolean(True)
        if k_tiles > 0:
            is_full = pipeline.consumer_try_wait(state)
        promoted.fill(0.0)
        state = self.add_stages_from(0, pipeline, state, is_full, multiply_stage, sums, promoted, k_tiles)
        if const_expr(self.pingpong):
            self.pingpong_barrier_arrive(1 - group, stage="mma")
        sums.store(promoted.load())
        return state

    @cute.jit
    def add_stages_from(
        self,
        first: Constexpr[int],
        pipeline: Any,
        state: Any,
        is_full: Boolean,
        multiply_stage: Any,
        sums: Any,
        promoted: Any,
        k_tiles: Int32,
    ) -> Any:
        """Multiply the stages of a tile from one on, and add each stage's product to sums in float32.

        Args:
            first: the stage's number in the tile.
            pipeline: of the stages.
            state: its, at that stage.
            is_full: whether that stage was seen to be there.
            multiply_stage: begins to multiply a stage into `sums`.
            sums: registers of a stage's product.
            promoted: those that it is added to.
            k_tiles: the tile's stages.

        Returns:
            The pipeline's state behind the tile.
        """
        for k_tile in cutlass.range(first, k_tiles, 1, unroll=1):
            pipeline.consumer_wait(state, is_full)
            multiply_stage(A_idx=state.index, B_idx=state.index, zero_init=Boolean(True))
            warpgroup.wait_group(0)
            pipeline.consumer_release(state)
            state.advance()
            is_full = Boolean(True)
            if k_tile + 1 < k_tiles:
                is_full = pipeline.consumer_try_wait(state)
            promoted.store(promoted.load() + sums.load())
        return state
