"""quack's bounded Hopper GEMM with a loading warp for each operand, B's ahead of A's. Imports CUTLASS and quack.

By programmatic dependent launch a kernel's CTAs start as soon as those of the kernel in front make room. quack's wait
there for that kernel to end before they load anything. Here one warp loads B at once and another waits, then loads A,
so that the memory is busy while the kernel in front drains. Two warps also issue loads twice as fast, which is what
bounds small problems.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Int32, const_expr, cute
from quack import copy_utils

from aot.families._partial_tile_kernel import GemmPartialTileSm90


class GemmPrefetchBSm90(GemmPartialTileSm90):
    """`GemmPartialTileSm90` whose first loads of B do not wait for the kernel in front.

    The attributes below are set before it is called.
    """

    _extra_param_fields = (*GemmPartialTileSm90._extra_param_fields, ("b_constant", Any, None))  # noqa: SLF001 - as in its base

    constant: int
    """Which of the kernel's operands the entry's B is: 0 where A and B are swapped, else 1."""
    b_constant: Any
    """Run-time int32: nonzero if B may be loaded before the kernel in front has ended."""
    num_sms: int
    """SMs of the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Configure as quack does, with a loading warp for each operand."""
        super().__init__(*args, **kwargs)
        self.num_ab_load_warps = 2

    def epi_to_underlying_arguments(self, args: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """Send `b_constant` along with the epilogue's parameters."""
        params = super().epi_to_underlying_arguments(args, loc=loc, ip=ip)
        params.b_constant = self.b_constant
        return params

    def epi_get_smem_tensors(self, params: Any, storage: Any) -> Any:
        """Take `b_constant` from the parameters: called at the kernel's start."""
        self.b_constant = params.b_constant
        return super().epi_get_smem_tensors(params, storage)

    def kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Give quack's kernel, to be launched by this class."""
        return _Launcher(self, super().kernel(*args, **kwargs))

    def make_ab_pipeline(self, *args: Any, **kwargs: Any) -> Any:
        """Make quack's pipeline, whose tail, after a CTA's last load, lets the next kernel start.

        Each loading warp waits for the kernel in front before it does so. B's warp may not have waited yet, and one
        thread's trigger is its CTA's: were the next kernel let start before this one has seen the end of the one in
        front, the two would run at once, and the next could read what the one in front has still to write.
        """
        made = super().make_ab_pipeline(*args, **kwargs)
        quack_tail = made.producer_tail

        def producer_tail(*args: Any, **kwargs: Any) -> None:
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
            quack_tail(*args, **kwargs)

        object.__setattr__(made, "producer_tail", producer_tail)  # a frozen dataclass
        return made

    @cute.jit
    def load_tma(
        self, pipeline: Any, producer_state: Any, copy_fns: Any, k_tile_cnt: Int32, k_tile_start: Any = 0
    ) -> Any:
        """Load the stages of a tile: one operand's, that of the warp which calls.

        The next kernel may start once this one has seen the end of the one in front: so whatever that one writes is
        complete when the next reads early. Where much of the next one's grid would find room beside this one, it may
        start only after this one's last load (`make_ab_pipeline`), since its loads are in the way. At once against
        after the last load, on an H200, 2026-11-21, with one loading warp for both operands, m 1: 64 CTAs 11.6 and
        9.5 us (n 4096, k 4096), 86 CTAs 35.6 and 29.9 (n 4096, k 14336), but 96 CTAs 13.2 and 14.1 (n 6144, k 4096).
        """
        counts = [self._count_rows(copy_fns[i], i) for i in range(2)]
        num_bytes = (counts[0] + counts[1]) * (self.cta_tile_shape_mnk[2] * self.a_dtype.width // 8)
        k_tiles = (k_tile_start, k_tile_cnt)
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp == self.ab_load_warp_id:
            if self.b_constant == 0:
                cute.arch.griddepcontrol_wait()
            producer_state = self._load_operand(
                pipeline, producer_state, copy_fns, self.constant, counts, num_bytes, k_tiles
            )
        else:
            cute.arch.griddepcontrol_wait()
            grid = cute.arch.grid_dim()
            if 3 * grid[0] * grid[1] * grid[2] > 2 * self.num_sms:
                cute.arch.griddepcontrol_launch_dependents()
            producer_state = self._load_operand(
                pipeline, producer_state, copy_fns, 1 - self.constant, counts, num_bytes, k_tiles
            )
        return producer_state

    @cute.jit
    def _count_rows(self, copy_fn: Any, i: int) -> Any:
        """Count the rows to load of a tile; of A, the least box where a cluster reaches past the last tile.

        Were A's warp to load nothing there, nothing would keep it in step with B's and the multiplying warps: a whole
        round of the stages behind them, it would wait for a stage to become free that is.
        """
        count = super(GemmPrefetchBSm90, self)._count_rows(copy_fn, i)  # noqa: UP008 - traced code has no class cell
        if const_expr(i != self.constant):  # noqa: SIM102 - known while tracing, the next is not
            if count == 0:
                count = Int32(self._sizes[i][0])
        return count

    @cute.jit
    def _load_operand(
        self,
        pipeline: Any,
        producer_state: Any,
        copy_fns: Any,
        i: Constexpr[int],
        counts: Any,
        num_bytes: Int32,
        k_tiles: Any,
    ) -> Any:
        """Load operand `i` of a tile's stages, in a loop for a whole tile or one for a partial."""
        if counts[i] == self.cta_tile_shape_mnk[i]:
            producer_state = self._load_stages(
                pipeline, producer_state, copy_fns, (i, True), counts, num_bytes, k_tiles
            )
        else:
            producer_state = self._load_stages(
                pipeline, producer_state, copy_fns, (i, False), counts, num_bytes, k_tiles
            )
        return producer_state

    @cute.jit
    def _load_stages(
        self,
        pipeline: Any,
        producer_state: Any,
        copy_fns: Any,
        what: Constexpr[tuple[int, bool]],
        counts: Any,
        num_bytes: Int32,
        k_tiles: Any,
    ) -> Any:
        """Load operand `what[0]` of a tile's stages, whole or by boxes; B's warp announces the bytes of both operands.

        A's may arrive before they are announced: a stage is not full before its one announcement, and until then its
        count of pending bytes may be below zero (PTX ISA, mbarrier, tx-count).
        """
        i, whole = what
        k_tile_start, k_tile_cnt = k_tiles
        least = self._sizes[i][0]
        address = self._chosen[i][1]
        if counts[i] == least:
            address = copy_utils.get_tma_desc_addr(self._atoms[i]).toint()
        is_free = Boolean(True)
        if k_tile_cnt > 0:
            is_free = pipeline.producer_try_acquire(producer_state)
        for k_tile in cutlass.range(k_tile_cnt, unroll=1):
            if not is_free:
                pipeline.sync_object_empty.wait(producer_state.index, producer_state.phase)
            if const_expr(i == self.constant):
                pipeline.sync_object_full.arrive_and_expect_tx(producer_state.index, num_bytes)
            barrier = pipeline.producer_get_barrier(producer_state)
            if const_expr(whole):
                copy_fns[i](k_tile_start + k_tile, producer_state.index, tma_bar_ptr=barrier)
            elif self._has_box(counts[i]):
                self._load_box(copy_fns[i], i, k_tile_start + k_tile, producer_state.index, barrier, address)
            producer_state.advance()
            is_free = Boolean(True)
            if k_tile + 1 < k_tile_cnt:
                is_free = pipeline.producer_try_acquire(producer_state)
        return producer_state


class _Launcher:
    """Launch quack's kernel as it asks, but leave the waiting for the kernel in front to `GemmPrefetchBSm90`."""

    def __init__(self, gemm: GemmPrefetchBSm90, launcher: Any) -> None:
        self._gemm = gemm
        self._launcher = launcher

    def launch(self, **configuration: Any) -> None:
        """Trace and launch; `configuration` has asked for the dependency, and what is traced now must not."""
        self._gemm.use_pdl = False
        self._launcher.launch(**configuration)
