"""A Hopper GEMM that splits the tiles of its last, partial wave along k. Imports CUTLASS and quack.

Each split of a tile but the last writes its sums to a region of its own in the workspace, and counts in the tile's flag
that they are there. The last one waits until all are, adds them in order to its own, and stores the tile. Nothing else
waits, and what is waited for has a lower work index: CTAs take work in ascending order and are all resident, so that
the least unfinished item never waits for one that has not begun.

The flags must be zero when the GEMM begins. A kernel of one warp in front of it sees to that, launched with
programmatic stream serialization as the GEMM is: a memset would keep the GEMM's CTAs from starting early.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

import dataclasses
from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, const_expr, cute
from quack.sync import Semaphore

from aot.families._partial_tile_kernel import GemmPartialTileSm90
from aot.families._stream_k_scheduler import TailArguments, TailScheduler, count_splits

VECTOR = 4
"""Float32 that a thread moves at once: 16 bytes."""

REGISTERS = {True: 112, False: 208}
"""Registers for a thread's own sums and for those on their way to be added to them, where three warpgroups multiply
and where fewer do. Source: with them ptxas 13.4 compiles 192x200 of three warpgroups and 256x192 of two without spills
(nvidia-cutlass-dsl 4.8.1, 2026-11-22)."""

MIN_LOADED = 16
"""Partial sums, at the fewest, that a thread has on their way at once."""


@cute.kernel
def _clear(flags: cute.Tensor) -> None:
    """Set the flags to zero, in one warp.

    The next kernel is always the GEMM, which waits for this one before it touches anything, and lets another kernel
    start only after that. So it may start at once: its wait is one for the kernel in front of this one, too.
    """
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    thread, _, _ = cute.arch.thread_idx()
    for first in cutlass.range_constexpr(0, cute.size(flags), cute.arch.WARP_SIZE):
        if first + thread < cute.size(flags):
            flags[first + thread] = Int32(0)


@cute.jit
def _clear_where_split(flags: cute.Tensor, splits: Int32, stream: Any) -> None:
    if splits > 1:
        _clear(flags).launch(grid=(1, 1, 1), block=(cute.arch.WARP_SIZE, 1, 1), stream=stream, use_pdl=True)


class GemmStreamKSm90(GemmPartialTileSm90):
    """`GemmPartialTileSm90` whose whole waves run unsplit; `split_k` is the most splits of another tile."""

    def __call__(
        self,
        a: Any,
        b: Any,
        d: Any,
        c: Any,
        epilogue: Any,
        scheduler: Any,
        varlen: Any,
        stream: Any,
        prefetch_b: Any = None,
    ) -> None:
        """Clear the flags where a tail is split, and launch as `MainloopSm90` does."""
        rows, columns = (
            cute.ceil_div(cute.ceil_div(cute.size(x, mode=[0]), self.cta_tile_shape_mnk[i]), self.cluster_shape_mnk[i])
            for i, x in enumerate((a, b))
        )
        clusters = scheduler.max_active_clusters
        splits = count_splits(rows * columns % clusters, clusters, self.split_k)
        _clear_where_split(epilogue.split_k_semaphore, splits, stream)
        super().__call__(a, b, d, c, epilogue, scheduler, varlen, stream, prefetch_b)

    def get_scheduler_class(self, varlen_m: bool = False) -> Any:
        """Return the class of schedulers that splits the last wave."""
        del varlen_m
        return TailScheduler

    def get_scheduler_arguments(
        self, a: Any, b: Any, d: Any, scheduler_args: Any, varlen_args: Any, epilogue_args: Any
    ) -> Any:
        """Return quack's arguments, without splits, and those of the tail."""
        quacks = super().get_scheduler_arguments(a, b, d, scheduler_args, varlen_args, epilogue_args)
        whole = dataclasses.replace(quacks, num_split_k=1)
        return TailArguments(whole, scheduler_args.max_active_clusters, self.split_k)

    def range_of_k_tiles(self, lengths: Any, scheduler: Any, work: Any) -> Any:
        """Return the first k tile of an item, and how many it has."""
        _, _, item, batch = work.tile_idx
        return scheduler.range_of_k_tiles(self._count_k_tiles(lengths.len_k(batch)), item)

    def epilogue_split_k(self, parameters: Any, run: Any, read_sums: Any, *others: Any) -> Any:
        """Run the epilogue: `_run_epilogue` has seen to the splits."""
        del parameters, others
        return run(read_sums)

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
        """Write the sums of a split to the workspace; add all to those of the last split, and run its epilogue.

        Returns `of_residual` as it is: there is no residual here.
        """
        parameters = epilogue[0]
        cluster_size = self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1]
        cta = cute.arch.block_idx_in_cluster() if const_expr(cluster_size > 1) else Int32(0)
        item = scheduler.find_item(tile[2])
        flag = parameters.split_k_semaphore.iterator + (item.tile * cluster_size + cta)
        semaphore = Semaphore(flag, thread, sync=self.epilogue_barrier)
        if item.split < item.last:
            self._write_sums(self._region(parameters, item.tile, item.last, item.split, cta), sums, thread)
            semaphore.release_add()
            # An item that stores nothing is counted as if it did, and the next epilogue's stages begin behind it: they
            # must be free.
            if const_expr(not self.pingpong):  # noqa: SIM102 - known while tracing, the next is not
                if stores:
                    store_pipeline.producer_tail()
        else:
            if item.last > 0:
                semaphore.wait_eq(item.last)
                for split in cutlass.range(item.last, unroll=1):
                    self._add_sums(self._region(parameters, item.tile, item.last, split, cta), sums, thread)
            GemmPartialTileSm90._run_epilogue(  # noqa: SLF001 - `super()` is not known where the DSL traces this
                self, tiled_mma, sums, product, epilogue, store_pipeline, of_residual, scheduler, tile, thread, stores
            )
        return of_residual

    def _region(self, parameters: Any, tile: Any, last: Any, split: Any, cta: Any) -> Any:
        """Return where the sums of a split lie: those of a tile side by side, each with its cluster's CTAs together."""
        cluster_size = self.cluster_shape_mnk[0] * self.cluster_shape_mnk[1]
        place = ((tile * last + split) * cluster_size + cta) * (self.cta_tile_shape_mnk[0] * self.cta_tile_shape_mnk[1])
        return parameters.split_k_workspace.iterator + cute.assume(place, divby=VECTOR)

    def _vector(self, region: Any, i: int, thread: Int32) -> Any:
        """View the i-th vector of a thread's sums in a region: those of neighbouring threads are neighbours."""
        num_threads = self.num_epi_warps * cute.arch.WARP_SIZE
        start = region + cute.assume((thread + i * num_threads) * VECTOR, divby=VECTOR)
        return cute.make_tensor(start, cute.make_layout(VECTOR))

    @cute.jit
    def _write_sums(self, region: Any, sums: Any, thread: Int32) -> None:
        """Write a thread's sums to a region."""
        for i in cutlass.range_constexpr(cute.size(sums) // VECTOR):
            part = cute.make_tensor(sums.iterator + i * VECTOR, cute.make_layout(VECTOR))
            cute.autovec_copy(part, self._vector(region, i, thread))

    @cute.jit
    def _add_sums(self, region: Any, sums: Any, thread: Int32) -> None:
        """Add a region to a thread's sums, a few vectors at a time."""
        size = cute.size(sums)
        most = max((REGISTERS[self.mma_warp_groups == 3] - size) // VECTOR * VECTOR, MIN_LOADED)
        for start in cutlass.range_constexpr(0, size, most):
            count = min(most, size - start)
            loaded = cute.make_rmem_tensor(cute.make_layout(count), Float32)
            for i in cutlass.range_constexpr(count // VECTOR):
                part = cute.make_tensor(loaded.iterator + i * VECTOR, cute.make_layout(VECTOR))
                cute.autovec_copy(self._vector(region, start // VECTOR + i, thread), part)
            own = cute.make_tensor(sums.iterator + start, cute.make_layout(count))
            own.store(own.load() + loaded.load())
