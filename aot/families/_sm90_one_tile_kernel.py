"""A Hopper GEMM in which a CTA computes one tile of D and ends. Imports CUTLASS and quack.

It is for products of one wave of tiles, where what a kernel takes beside its multiplication is a large part of its
time. It has no scheduler. All of the shared memory holds stages, and D is laid over them once they are read. The warp
that loads B also initialises the barriers: without a cluster it begins to load before the other warps are told.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from quack.fast_math import FastDivmod

from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_kernel import SplitGemmSm90, barriers, keep
from aot.families._sm90_split_loads import MODES_OF_A_BATCH, make_copy
from aot.families._sm90_split_scaled import ScaledSplitGemmSm90

BARRIERS_ARE_THERE = 3
"""The named barrier of all warps of a CTA; 1 is that of `ScaledSplitGemmSm90`."""
STAGES_ARE_READ = 2
"""The named barrier of the warps that multiply."""


@dataclass(frozen=True)
class OneTileGemmSm90(SplitGemmSm90):
    """The kernel of one candidate."""

    def fields_beside_stages(self) -> dict[str, Any]:
        """Describe the shared memory for what other CTAs send: none do."""
        return {}

    def make_divisors(self, counts: list[Any]) -> Any:
        """Make on the host what finds a cluster's place: divisors by the clusters along the rows, and of a product.

        A quotient is then a multiplication and a shift. Source: quack's `FastDivmod`, exact to 2^31, as grids are.
        """
        *products, clusters_r, clusters_c = counts
        if products:
            return FastDivmod(clusters_r), FastDivmod(clusters_r * clusters_c)
        return (FastDivmod(clusters_r),)

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_rows: Any,
        load_columns: Any,
        layouts: Any,
        d: Any,
        vectors: Any,
        prefetch_b: Int32,
        divisors: Any,
    ) -> None:
        """Compute a tile of D: see the module."""
        tile = self.tile
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = SmemAllocator().allocate(self._shared_memory())
        if warp == tile.num_multiplying // 32:
            cpasync.prefetch_descriptor(load_rows[0])
            cpasync.prefetch_descriptor(load_columns[0])
            self._make_barriers(storage)
        block, _, _ = cute.arch.block_idx()
        peer, index = block % tile.num_tiles, block // tile.num_tiles
        stages = [
            memory.get_tensor(layout.outer, swizzle=layout.inner)
            for memory, layout in zip((storage.rows, storage.columns), layouts, strict=True)
        ]
        if const_expr(cute.rank(d) == MODES_OF_A_BATCH):
            product, index = divmod(index, divisors[1])
            load_rows, load_columns = (
                (atom, operand[None, None, product]) for atom, operand in (load_rows, load_columns)
            )
            d = d[product, None, None]
        cluster_c, cluster_r = divmod(index, divisors[0])
        tile_r = cluster_r * tile.cluster_m + peer % tile.cluster_m
        tile_c = cluster_c * tile.cluster_n + peer // tile.cluster_m
        num_k_blocks = cute.ceil_div(load_rows[1].shape[1], self.block_k)
        self._await_barriers(warp)
        if warp >= tile.num_multiplying // 32:
            shared_r, shared_c = tile.sharers(peer)
            copies = (
                make_copy(load_rows, stages[0], (tile.rows, tile_r), *shared_r),
                make_copy(load_columns, stages[1], (tile.columns, tile_c), *shared_c),
            )
            self.load_operands(copies, storage, warp, Int32(0), num_k_blocks, prefetch_b)
            if const_expr(tile.num_tiles > 1):
                cute.arch.cluster_arrive_relaxed()
        if warp < tile.num_multiplying // 32:
            fetched = self.fetch(vectors, storage, warp, Int32(0), (tile_r, tile_c))
            sums = self.multiply(mma, stages, storage, warp, Int32(0), num_k_blocks)
            corner = (tile_r * tile.rows, tile_c * tile.columns)
            self._finish_tile(sums, fetched, storage, warp, corner, d, vectors)
        if const_expr(tile.num_tiles > 1):
            cute.arch.cluster_wait()  # what each CTA loaded for others has arrived there

    @cute.jit
    def _make_barriers(self, storage: Any) -> None:
        """Initialise a CTA's barriers; in one warp."""
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(full + s, 1)
                cute.arch.mbarrier_init(empty + s, tile.num_multiplying // 32 * tile.num_tiles)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()

    @cute.jit
    def _await_barriers(self, warp: Int32) -> None:
        """Wait until the barriers of all CTAs that load for each other are there; the warp that made them need not."""
        if const_expr(self.tile.num_tiles > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        elif warp == self.tile.num_multiplying // 32:
            cute.arch.barrier_arrive(barrier_id=BARRIERS_ARE_THERE, number_of_threads=self.tile.num_threads)
        else:
            cute.arch.barrier(barrier_id=BARRIERS_ARE_THERE, number_of_threads=self.tile.num_threads)

    @cute.jit
    def _finish_tile(
        self,
        sums: cute.Tensor,
        fetched: Any,
        storage: Any,
        warp: Int32,
        corner: Any,
        d: cute.Tensor,
        vectors: Any,
    ) -> None:
        """Complete and store the tile by way of the stages, in each multiplying warp.

        All loads have arrived by then: each stage that is loaded was waited for. No CTA loads into another's stages any
        more, since both have the same blocks of k.
        """
        tile = self.tile
        cute.arch.griddepcontrol_wait()
        if const_expr(tile.num_tiles > 1):
            cute.arch.cluster_arrive_relaxed()
        origin = (self.row(warp, corner), corner[1])
        fetched = self.fetch_late(fetched, vectors, Int32(0), origin)
        values = cute.make_tensor(sums.iterator, cute.make_layout((4, tile.num_groups, tile.num_steps)))
        own = cute.make_rmem_tensor((4, tile.num_vectors), Float32)
        places = [(j, i) for i in range(tile.num_steps) for j in range(tile.num_groups)]
        keep(own, values, 0, places, tile.share)
        cute.arch.barrier(barrier_id=STAGES_ARE_READ, number_of_threads=tile.num_multiplying)
        memory = cute.recast_ptr(storage.rows.data_ptr(), dtype=self.element)
        results = self.complete(own, fetched, memory, warp)
        self.store(results, memory, warp, Int32(0), origin, d)


@dataclass(frozen=True)
class EpilogueOneTileGemmSm90(OneTileGemmSm90, EpilogueSplitGemmSm90):
    """The kernel of one candidate with more of an epilogue than a bias."""


@dataclass(frozen=True)
class ScaledOneTileGemmSm90(OneTileGemmSm90, ScaledSplitGemmSm90):
    """The kernel of one candidate of FP8 operands with scale factors."""
