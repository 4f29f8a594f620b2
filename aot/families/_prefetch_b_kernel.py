"""A Hopper GEMM with a loading warp for each operand, B's ahead of A's. Imports CUTLASS and quack.

By programmatic dependent launch a kernel's CTAs start as soon as those of the kernel in front make room. With one
loading warp they would wait there for that kernel to end before they load anything. Here one warp loads B at once and
another waits, then loads A, so that the memory is busy while the kernel in front drains. Two warps also issue loads
twice as fast, which is what bounds small problems.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Int32, const_expr, cute
from quack import copy_utils

from aot.families._boxes import box_rows
from aot.families._next_start import AFTER_LOADS, Places, await_front, clock, next_start, num_bytes, num_ctas
from aot.families._partial_tile_kernel import Box, GemmPartialTileSm90
from aot.families._sm90_mainloop import Source


class GemmPrefetchBSm90(GemmPartialTileSm90):
    """`GemmPartialTileSm90` whose first loads of B need not wait for the kernel in front."""

    def __init__(self, *args: Any, prefetched: int, places: Places, has_residual: bool = False, **kwargs: Any) -> None:
        """Configure as quack does, with a loading warp for each operand, and one for a residual.

        Args:
            args: as in quack's `GemmSm90`, and `kwargs`.
            prefetched: which of the kernel's operands the entry's B is: 0 where A and B are swapped, else 1.
            places: of the device.
            has_residual: whether the operation has one.
        """
        super().__init__(*args, **kwargs)
        self.has_residual = has_residual
        self.num_ab_load_warps = 2 + has_residual
        self.prefetched = prefetched
        self.places = places

    def make_load_arguments(self, operands: Any, stages: Any, prefetch_b: Any) -> Any:
        """Make the atoms of all sizes of boxes, and say when the next kernel may start; on the host."""
        boxes, extents, _ = super().make_load_arguments(operands, stages, prefetch_b)
        clusters = [cute.ceil_div(extents[i], self.cta_tile_shape_mnk[i] * self.cluster_shape_mnk[i]) for i in range(2)]
        count = num_ctas([*clusters, self.split_k], self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1])
        return boxes, extents, (prefetch_b, next_start(self.places, count, num_bytes(*operands), prefetch_b))

    def begin_loads(self) -> None:
        """Wait for nothing yet: `load_tile` waits, in each warp for what it loads."""

    @cute.jit
    def end_loads(self, prepared: Any) -> None:
        """Let the next kernel start after a CTA's last load of B, where it is to start then.

        Each loading warp waits for the kernel in front before it does so. B's warp may not have waited yet, and one
        thread's trigger is its CTA's: were the next kernel let start before this one has seen the end of the one in
        front, the two would run at once, and the next could read what the one in front has still to write.
        """
        _, (_, next_one) = prepared
        if next_one == AFTER_LOADS:
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()

    def end_multiplication(self) -> None:
        """Leave the start of the next kernel to the loading warps."""

    @cute.jit
    def load_tile(
        self, sources: Any, prepared: Any, pipeline: Any, state: Any, k_tiles: Int32, first_k_tile: Any
    ) -> Any:
        """Load the stages of a tile: one operand's, that of the warp which calls.

        The next kernel may start once this one has seen the end of the one in front: so whatever that one writes is
        complete when the next reads early. `next_start` says when it does.
        """
        boxes, (prefetch_b, next_one) = prepared
        counts = [self._count_rows_kept_in_step(sources[i], boxes[i], i) for i in range(2)]
        num_bytes = self.count_bytes(counts)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == self.ab_load_warp_id:
            if prefetch_b == 0:
                cute.arch.griddepcontrol_wait()
            state = self._load_operand(
                sources, boxes, self.prefetched, counts, num_bytes, pipeline, state, k_tiles, first_k_tile
            )
        else:
            await_front(next_one, clock(next_one))
            state = self._load_operand(
                sources, boxes, 1 - self.prefetched, counts, num_bytes, pipeline, state, k_tiles, first_k_tile
            )
        return state

    @cute.jit
    def _count_rows_kept_in_step(self, source: Source, box: Box, i: int) -> Any:
        """Count the rows to load of a tile; of A, the least box where a cluster reaches past the last tile.

        Were A's warp to load nothing there, nothing would keep it in step with B's and the multiplying warps: a whole
        round of the stages behind them, it would wait for a stage to become free that is.
        """
        count = self.count_rows(source, box, i)
        if const_expr(i != self.prefetched):  # noqa: SIM102 - known while tracing, the next is not
            if count == 0:
                count = Int32(box_rows(self.cta_tile_shape_mnk[i])[0])
        return count

    @cute.jit
    def _load_operand(
        self,
        sources: Any,
        boxes: Any,
        i: Constexpr[int],
        counts: Any,
        num_bytes: Int32,
        pipeline: Any,
        state: Any,
        k_tiles: Int32,
        first_k_tile: Any,
    ) -> Any:
        """Load operand `i` of a tile's stages, in a loop for a whole tile or one for a partial."""
        if counts[i] == self.cta_tile_shape_mnk[i]:
            state = self._load_stages(
                sources[i], boxes[i], (i, True), counts[i], num_bytes, pipeline, state, k_tiles, first_k_tile
            )
        else:
            state = self._load_stages(
                sources[i], boxes[i], (i, False), counts[i], num_bytes, pipeline, state, k_tiles, first_k_tile
            )
        return state

    @cute.jit
    def _load_stages(
        self,
        source: Source,
        box: Box,
        what: Constexpr[tuple[int, bool]],
        count: Int32,
        num_bytes: Int32,
        pipeline: Any,
        state: Any,
        k_tiles: Int32,
        first_k_tile: Any,
    ) -> Any:
        """Load operand `what[0]` of a tile's stages, whole or by boxes; B's warp announces the bytes of both operands.

        A's may arrive before they are announced: a stage is not full before its one announcement, and until then its
        count of pending bytes may be below zero (PTX ISA, mbarrier, tx-count).
        """
        i, whole = what
        copy = source.copy
        address = box.address
        if count == box_rows(self.cta_tile_shape_mnk[i])[0]:
            address = copy_utils.get_tma_desc_addr(box.least).toint()
        is_free = Boolean(True)
        if k_tiles > 0:
            is_free = pipeline.producer_try_acquire(state)
        for k_tile in cutlass.range(k_tiles, unroll=1):
            if not is_free:
                pipeline.sync_object_empty.wait(state.index, state.phase)
            if const_expr(i == self.prefetched):
                pipeline.sync_object_full.arrive_and_expect_tx(state.index, num_bytes)
            barrier = pipeline.producer_get_barrier(state)
            if const_expr(whole):
                copy(first_k_tile + k_tile, state.index, tma_bar_ptr=barrier)
            elif self.has_box(count):
                self.load_box(source, box.least, address, i, first_k_tile + k_tile, state.index, barrier)
            state.advance()
            is_free = Boolean(True)
            if k_tile + 1 < k_tiles:
                is_free = pipeline.producer_try_acquire(state)
        return state
