"""A Hopper GEMM in which a CTA computes one tile of D and ends. Imports CUTLASS and quack.

It is for products of one wave of tiles, where what a kernel takes beside its multiplication is a large part of its
time. It has no scheduler. All of the shared memory holds stages, and D is laid over them once they are read. The warp
that loads B also initialises the barriers: without a cluster it begins to load before the other warps are told.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Constexpr, Float32, Int32, const_expr, cute, range_constexpr, select_
from cutlass.cute import ceil_div
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator
from quack.fast_math import FastDivmod

from aot.core.tile_order import DEFAULT_GROUP, GROUPS, HEURISTIC
from aot.families._grid import along_x
from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_loads import MODES_OF_A_BATCH, Sharers, barriers
from aot.families._sm90_split_scaled import ScaledSplitGemmSm90
from aot.families._sm90_split_store import keep

MAX_YZ = 65535
"""Blocks along y, and along z. Source: CUDA C++ Programming Guide, technical specifications."""

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

    def place_tiles(self, counts: list[Any], tile_order: Any) -> tuple[Any, Any]:
        """Return the grid in which the device takes the clusters in an order, and what tells a CTA its tile.

        Along x lie the clusters of a group, and of a batch the products; along y the steps of a group, and along z the
        groups. So no CTA divides to find its tile, but of a batch and of a last group that is narrower than the others:
        there places without a tile come last. Where they lay between those with one, a wave of few tiles waited for
        CTAs that do nothing: 0.3 to 0.7 us (research/log/2026-11-26-cold-start.md). Where steps or groups are more than
        y and z take, all clusters of the other side lie along x.

        Args:
            counts: products, if there are several; clusters along the tile's rows, and along its columns.
            tile_order: Int32 of `aot.core.tile_order`.
        """
        *products, rows, columns = (Int32(x) for x in counts)
        is_told = tile_order != HEURISTIC
        group = Int32(select_(is_told, Int32(1) << ((tile_order - 1) & 3), Int32(DEFAULT_GROUP)))
        fewer = ceil_div(columns, DEFAULT_GROUP) <= ceil_div(rows, DEFAULT_GROUP)
        along_columns = Boolean(select_(is_told, tile_order > len(GROUPS), fewer))
        is_long = select_(along_columns, rows, columns) > MAX_YZ
        along_columns = Boolean(select_(is_long, select_(along_columns, Boolean(False), Boolean(True)), along_columns))
        count = Int32(select_(along_columns, columns, rows))
        steps = Int32(select_(along_columns, rows, columns))
        width = Int32(select_(is_long, count, cutlass.min(group, count)))
        width = Int32(select_(ceil_div(count, width) > MAX_YZ, count, width))
        x, _, _ = along_x(width, *products, self.tile.num_ctas)
        groups = ceil_div(count, width)
        grid = x, cutlass.min(steps, Int32(MAX_YZ + 1)), groups
        last = FastDivmod(count - (groups - 1) * width)
        return grid, (Int32(along_columns), last, *([FastDivmod(width)] if products else []))

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_rows: Any,
        load_columns: Any,
        layouts: Any,
        d: Any,
        vectors: Any,
        starts: Any,
        places: Any,
    ) -> None:
        """Compute a tile of D: see the module. The last CTAs of the last group may have no tile; they do nothing."""
        along_columns, last = places[0], places[1]
        x, y, z = cute.arch.block_idx()
        width, steps, groups = cute.arch.grid_dim()
        peer, place, width = x % self.tile.num_tiles, x // self.tile.num_tiles, width // self.tile.num_tiles
        if const_expr(cute.rank(d) == MODES_OF_A_BATCH):
            product, place = divmod(place, places[2])
            width = Int32(places[2].divisor)
            load_rows, load_columns = (self.of_product(x, product) for x in (load_rows, load_columns))
            d = d[product, None, None]
        step = y
        if z == groups - 1 and width != Int32(last.divisor):
            step, place = divmod(y * width + place, last)
        is_there = step < steps
        place += z * width
        step = select_(z % 2 == 0, step, steps - 1 - step)
        cluster_r = Int32(select_(along_columns != 0, step, place))
        cluster_c = Int32(select_(along_columns != 0, place, step))
        if is_there:
            loads, cluster = (load_rows, load_columns), (cluster_r, cluster_c)
            self._compute(mma, loads, layouts, d, vectors, starts, cluster, peer, self.columns_of(places))

    @cute.jit
    def _compute(
        self,
        mma: cute.TiledMma,
        loads: Any,
        layouts: Any,
        d: cute.Tensor,
        vectors: Any,
        starts: Any,
        cluster: Any,
        peer: Int32,
        columns: Constexpr[Any],
    ) -> None:
        """Compute the tile of one of a cluster's CTAs, `peer`; it has so many columns."""
        tile = self.tile
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        storage = SmemAllocator().allocate(self._shared_memory())
        if warp == tile.num_multiplying // 32:
            self._make_barriers(storage)
        self._announce_barriers(warp)
        if warp > tile.num_multiplying // 32:  # which waits in any case
            for descriptor in self.descriptors(loads):
                cpasync.prefetch_descriptor(descriptor)
        stages = self.stages_in(storage, layouts)
        tile_r = cluster[0] * tile.cluster_m + peer % tile.cluster_m
        tile_c = cluster[1] * tile.cluster_n + peer // tile.cluster_m
        loads, d, vectors, (tile_r, tile_c) = self.part_of(loads, d, vectors, (tile_r, tile_c))
        num_k_blocks = self.count_k_blocks(loads)
        self._await_barriers(warp)
        if warp >= tile.num_multiplying // 32:
            shared_r, shared_c = (
                Sharers(*shared, in_turns=in_turns)
                for shared, in_turns in zip(tile.sharers(peer), tile.takes_turns, strict=True)
            )
            copies = (
                self.copy_rows(loads[0], stages[0], (tile.rows, tile_r), shared_r),
                self.copy_columns(loads[1], stages[1], (columns, tile_c), shared_c),
            )
            self.load_operands(copies, storage, warp, Int32(0), num_k_blocks, starts)
            if const_expr(tile.num_tiles > 1):
                cute.arch.cluster_arrive_relaxed()
        if warp < tile.num_multiplying // 32:
            fetched = self.fetch(vectors, storage, warp, Int32(0), (tile_r, tile_c))
            sums = self.multiply_tile(mma, stages, storage, warp, num_k_blocks, columns)
            corner = (tile_r * tile.rows, tile_c * columns)
            self._finish_tile(sums, fetched, storage, warp, corner, self.stored_part(d, corner, columns), vectors)
        if const_expr(tile.num_tiles > 1):
            cute.arch.cluster_wait()  # what each CTA loaded for others has arrived there

    def columns_of(self, places: Any) -> Any:
        """Return the columns of a tile, which a launch may tell beside the tiles' places."""
        del places
        return self.tile.columns

    def multiply_tile(
        self, mma: cute.TiledMma, stages: Any, storage: Any, warp: Int32, num_k_blocks: Int32, columns: Any
    ) -> Any:
        """Multiply a tile of so many columns and return a thread's sums."""
        del columns
        return self.multiply(mma, stages, storage, warp, Int32(0), num_k_blocks)

    def stored_part(self, d: cute.Tensor, corner: Any, columns: Any) -> Any:
        """View the part of D that a tile may store, which begins at a corner: here all."""
        del corner, columns
        return d

    @cute.jit
    def _make_barriers(self, storage: Any) -> None:
        """Initialise a CTA's barriers; in one warp."""
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(full + s, tile.num_filling)
                cute.arch.mbarrier_init(empty + s, tile.num_multiplying // 32 * tile.num_tiles)
            self.init_barriers_beside(storage)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()

    @cute.jit
    def _announce_barriers(self, warp: Int32) -> None:
        """Say that this warp's barriers are there, if it made them; the CTAs of a cluster hear from all warps."""
        if const_expr(self.tile.num_tiles > 1):
            cute.arch.cluster_arrive_relaxed()
        elif warp == self.tile.num_multiplying // 32:
            cute.arch.barrier_arrive(barrier_id=BARRIERS_ARE_THERE, number_of_threads=self.tile.num_threads)

    @cute.jit
    def _await_barriers(self, warp: Int32) -> None:
        """Wait until the barriers of all CTAs that load for each other are there; the warp that made them need not."""
        if const_expr(self.tile.num_tiles > 1):
            cute.arch.cluster_wait()
        elif warp != self.tile.num_multiplying // 32:
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
