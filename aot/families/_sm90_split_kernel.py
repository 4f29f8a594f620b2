"""A Hopper GEMM in which the CTAs of a cluster share the k of one tile. Imports CUTLASS and quack.

Each CTA multiplies its blocks of k into a ring of stages of its own: two warps load, one for each operand, and one or
more warpgroups multiply. Then every CTA sends each other CTA the sums that this one stores, through distributed shared
memory, adds what it receives to its own, in the order of the CTAs, and stores its columns of the tile. A thread sends
to the thread of the same number, so that the sums stay in the registers' order and no thread reads another's.

Two tiles may lie in a cluster, one beside the other. Then each CTA loads half of what both tiles read, for both. The
clusters of a batch's products follow each other.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator
from cutlass.utils.hopper_helpers import make_trivial_tiled_mma
from quack import sm90_utils as quack_sm90

from aot.families._grid import along_x
from aot.families._next_start import AFTER_LOADS, await_front, clock, next_start, num_bytes, num_ctas
from aot.families._sm90_split_loads import MODES_OF_A_BATCH, Sharers, barriers, load_block
from aot.families._sm90_split_operands import OperandsSplitSm90
from aot.families._sm90_split_tile import ALIGN_BYTES, MMA_M, VECTOR_BYTES, WARPGROUP
from aot.families._waits import await_phase


@dataclass(frozen=True)
class SplitGemmSm90(OperandsSplitSm90):
    """The kernel of one candidate."""

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        vectors: Any,
        prefetch_b: Int32,
        stream: cuda.CUstream,
        tile_order: Int32 | None = None,
    ) -> None:
        """Make the descriptors and launch a cluster for each tile of D, all along x; to be called while tracing.

        Of a batch A, B and D have its products in front; with a gate B is ((2, n), k). `vectors` is what the epilogue
        reads: the bias (n), or None.
        """
        tile = self.tile
        counts = [d.shape[0]] if cute.rank(d) == MODES_OF_A_BATCH else []
        extents = tile.rows, self.width(tile_order)
        layouts, loads = [], []
        for side, operand in enumerate((b, a) if self.swap_ab else (a, b)):
            layout, load, extent = self.prepare_side(side, operand)
            layouts.append(layout)
            loads.append(load)
            across = tile.num_tiles // tile.sharing[side]
            counts.append(cute.ceil_div(extent, extents[side] * across))
        self.launch_clusters(loads, layouts, d, vectors, counts, num_bytes(a, b), (prefetch_b, tile_order), stream)

    def launch_clusters(
        self,
        loads: list[Any],
        layouts: list[Any],
        d: cute.Tensor,
        vectors: Any,
        counts: list[Any],
        bytes_read: Any,
        promise_and_order: tuple[Int32, Int32 | None],
        stream: cuda.CUstream,
    ) -> None:
        """Launch the clusters, `counts` of them along each mode of their grid; to be called while tracing.

        Args:
            loads: what loads the rows of a tile, and its columns.
            layouts: the stages of both.
            d: D, of a batch with its products in front.
            vectors: what the epilogue reads.
            counts: products of a batch, if it is one, then clusters along the tile's rows and along its columns.
            bytes_read: those of A and B.
            promise_and_order: whether B may be read before the kernel in front has ended; the order of the tiles, or
                None.
            stream: where the kernel is launched.
        """
        tile, (prefetch_b, tile_order) = self.tile, promise_and_order
        mma = self.make_mma(tile.columns)
        grid, order = self.place_tiles(counts, tile_order)
        starts = prefetch_b, next_start(self.places, num_ctas(counts, tile.num_ctas), bytes_read, prefetch_b)
        self.kernel(mma, loads[0], loads[1], tuple(layouts), d, vectors, starts, order).launch(
            grid=grid,
            block=(tile.num_threads, 1, 1),
            cluster=(tile.num_ctas, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=True,
        )

    def place_tiles(self, counts: list[Any], tile_order: Any) -> tuple[Any, Any]:
        """Return the grid, of products and clusters along a tile's rows and columns, and what else the kernel needs."""
        del tile_order
        return along_x(*counts, self.tile.num_ctas), None

    def width(self, tile_order: Any) -> Any:
        """Return the columns of a tile: those that there is room for, in whatever order the tiles are taken."""
        del tile_order
        return self.tile.columns

    def make_mma(self, columns: int) -> Any:
        """Make what multiplies a tile of so many columns."""
        major_r, major_c = (OperandMajorMode.K if x else OperandMajorMode.MN for x in self.are_k_major)
        return make_trivial_tiled_mma(
            *self.multiplied,
            major_r,
            major_c,
            Float32,
            atom_layout_mnk=(self.tile.num_warpgroups, 1, 1),
            tiler_mn=(MMA_M, columns),
        )

    def _shared_memory(self) -> Any:
        """Describe a CTA's shared memory: the stages, what the cluster sends, factors, and the barriers."""
        tile = self.tile

        def stages(element: Any, extent: int) -> Any:
            count = extent * self.block_k * tile.num_stages
            return cute.struct.Align[cute.struct.MemRange[element, count], ALIGN_BYTES]

        fields = {
            "rows": stages(self.multiplied[0], tile.rows),
            "columns": stages(self.multiplied[1], tile.columns),
            **self.fields_beside_stages(),
            **({"factors": cute.struct.MemRange[Float32, tile.num_factors]} if tile.num_factors else {}),
            "barriers": cute.struct.MemRange[cutlass.Int64, tile.num_barriers],
        }
        return cute.struct(type("SharedMemory", (), {"__annotations__": fields}))

    def fields_beside_stages(self) -> dict[str, Any]:
        """Describe the shared memory for what the cluster sends."""
        count = self.tile.received_bytes // 4
        return {"received": cute.struct.Align[cute.struct.MemRange[Float32, count], VECTOR_BYTES]}

    def init_barriers_beside(self, storage: Any) -> None:
        """Initialise barriers beside those of the stages; in one thread, while tracing. Here there are none."""
        del storage

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        load_rows: Any,
        load_columns: Any,
        layouts: Any,
        d: cute.Tensor,
        vectors: Any,
        starts: Any,
        _order: None,
    ) -> None:
        """Compute a share of a tile of D: see the module."""
        tile = self.tile
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        block, _, _ = cute.arch.block_idx()
        place, index = block % tile.num_ctas, block // tile.num_ctas
        rank, peer = place // tile.num_tiles, place % tile.num_tiles
        storage = SmemAllocator().allocate(self._shared_memory())
        if warp == 0:
            self._init_barriers(storage, rank)
        if warp == tile.num_multiplying // 32:  # which waits in any case
            for descriptor in self.descriptors((load_rows, load_columns)):
                cpasync.prefetch_descriptor(descriptor)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.cluster_arrive_relaxed()
        stages = self.stages_in(storage, layouts)
        clusters_r = self.count_clusters_of_rows(load_rows, vectors)
        if const_expr(cute.rank(d) == MODES_OF_A_BATCH):
            clusters = clusters_r * cute.ceil_div(cute.size(load_columns[1], mode=[0]), tile.columns * tile.cluster_n)
            product, index = index // clusters, index % clusters
            load_rows, load_columns = (self.of_product(x, product) for x in (load_rows, load_columns))
            d = d[product, None, None]
        tile_r = index % clusters_r * tile.cluster_m + peer % tile.cluster_m
        tile_c = index // clusters_r * tile.cluster_n + peer // tile.cluster_m
        (load_rows, load_columns), d, vectors, (tile_r, tile_c) = self.part_of(
            (load_rows, load_columns), d, vectors, (tile_r, tile_c)
        )
        num_k_blocks = self.count_k_blocks((load_rows, load_columns))
        if warp >= tile.num_multiplying // 32:
            first = rank * tile.num_tiles
            copies = (
                self.copy_rows(load_rows, stages[0], (tile.rows, tile_r), Sharers(tile.sharing[0], first, peer)),
                self.copy_columns(
                    load_columns, stages[1], (tile.columns, tile_c), Sharers(tile.sharing[1], first, peer)
                ),
            )
            if const_expr(tile.num_tiles > 1):
                cute.arch.cluster_wait()  # the others' barriers are there
            self._load(copies, storage, warp, rank, num_k_blocks, starts)
        if warp < tile.num_multiplying // 32:
            fetched = self.fetch(vectors, storage, warp, rank, (tile_r, tile_c))
            sums = self.multiply(mma, stages, storage, warp, rank, num_k_blocks)
            corner = (tile_r * tile.rows, tile_c * tile.columns)
            self._finish(sums, fetched, storage, warp, (rank, peer), corner, d, vectors)
        if const_expr(tile.num_tiles > 1):
            cute.arch.cluster_wait()  # what each CTA loaded for others has arrived there

    @cute.jit
    def _init_barriers(self, storage: Any, rank: Int32) -> None:
        """Initialise a CTA's barriers, and announce all that it will receive; in one warp."""
        tile = self.tile
        full, empty, received = barriers(storage, tile)
        groups = cutlass.min(tile.num_groups - rank * tile.share, tile.share)
        vectors = (tile.splits - 1) * tile.num_steps * tile.num_multiplying
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(full + s, tile.num_filling)
                cute.arch.mbarrier_init(empty + s, tile.num_multiplying // 32 * tile.num_tiles)
            self.init_barriers_beside(storage)
            cute.arch.mbarrier_init(received, 1)
            cute.arch.mbarrier_arrive_and_expect_tx(received, groups * (vectors * VECTOR_BYTES))

    @cute.jit
    def _load(self, copies: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32, starts: Any) -> None:
        """Load the CTA's blocks of k, and stay until what others need of this CTA is no longer needed."""
        self.load_operands(copies, storage, warp, rank, num_k_blocks, starts)
        if const_expr(self.tile.num_tiles > 1):
            cute.arch.cluster_arrive_relaxed()
        else:
            cute.arch.cluster_wait()

    @cute.jit
    def load_operands(
        self, copies: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32, starts: Any
    ) -> None:
        """Load the CTA's blocks of k, in each loading warp one operand's.

        The next kernel may start once this one has seen the end of the one in front, and when `starts` says so: it is
        whether B may be loaded before that, and when the next one may start (`next_start`).
        """
        prefetch_b, next_one = starts
        copy_a, copy_b = (copies[1], copies[0]) if const_expr(self.swap_ab) else copies
        num_bytes = copy_a.num_bytes + copy_b.num_bytes
        if warp == self.tile.num_multiplying // 32:
            if prefetch_b == 0:
                cute.arch.griddepcontrol_wait()
            self._load_operand(copy_b, storage, rank, num_k_blocks, num_bytes)
            if next_one == AFTER_LOADS:
                cute.arch.griddepcontrol_wait()
                cute.arch.griddepcontrol_launch_dependents()
        else:
            await_front(next_one, clock(next_one))
            self._load_operand(copy_a, storage, rank, num_k_blocks, None)

    @cute.jit
    def _load_operand(
        self, copy: Constexpr[Any], storage: Any, rank: Int32, num_k_blocks: Int32, announced: Constexpr[Any]
    ) -> None:
        """Load one operand's blocks of k; B's warp announces the bytes of both, if it is told how many.

        A's may arrive before they are announced: a stage is not full before its one announcement, and until then its
        count of pending bytes may be below zero (PTX ISA, mbarrier, tx-count).
        """
        tile = self.tile
        full, empty, _ = barriers(storage, tile)
        stage, phase = Int32(0), Int32(1)
        for k_block in cutlass.range(rank, num_k_blocks, tile.splits, unroll=1):
            await_phase(empty + stage, phase)
            if const_expr(announced is not None):
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, announced)
            load_block(copy, k_block, stage, full + stage)
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1

    @cute.jit
    def multiply(
        self, mma: cute.TiledMma, stages: Any, storage: Any, warp: Int32, rank: Int32, num_k_blocks: Int32
    ) -> Any:
        """Multiply the CTA's blocks of k and return a thread's sums, zero where there are no blocks.

        A stage is released when the next one's instructions have been issued: the tensor cores always have some. It is
        released only where it is loaded again: so the loading warps wait for every release, and no other CTA arrives at
        the barrier of one that has ended.
        """
        tile = self.tile
        full, _, _ = barriers(storage, tile)
        sums, fragments_r, fragments_c = self.fragments(mma, stages, warp)
        sums.fill(0.0)
        stage, phase, previous = Int32(0), Int32(0), Int32(0)
        for k_block in cutlass.range(rank, num_k_blocks, tile.splits, unroll=1):
            await_phase(full + stage, phase)
            quack_sm90.gemm_w_idx(mma, sums, fragments_r, fragments_c, False, stage, stage, wg_wait=1)
            if k_block >= tile.splits and k_block + (tile.num_stages - 1) * tile.splits < num_k_blocks:
                self.release(storage, previous, rank)
            previous = stage
            stage += 1
            if stage == tile.num_stages:
                stage = Int32(0)
                phase ^= 1
        warpgroup.wait_group(0)
        return sums

    def fragments(self, mma: cute.TiledMma, stages: Any, warp: Int32) -> Any:
        """Make a thread's sums, and what its warpgroup multiplies of the stages: their rows, and their columns."""
        tile, columns = self.tile, cute.size(stages[1], mode=[0])
        groups = cute.make_layout(tile.num_warpgroups, stride=WARPGROUP)
        part = mma.get_slice(groups(cute.arch.make_warp_uniform(warp // 4)))
        return quack_sm90.partition_fragment_ABC(part, (tile.rows, columns, self.block_k), *stages)

    @cute.jit
    def release(self, storage: Any, stage: Int32, rank: Int32) -> None:
        """Tell the loading warps, also those of the cluster that load it for this CTA, that a stage is free."""
        tile = self.tile
        _, empty, _ = barriers(storage, tile)
        with cute.arch.elect_one():
            if const_expr(tile.num_tiles == 1):
                cute.arch.mbarrier_arrive(empty + stage)
            else:
                for peer in range_constexpr(tile.num_tiles):
                    cute.arch.mbarrier_arrive(empty + stage, rank * tile.num_tiles + peer)

    @cute.jit
    def _finish(
        self,
        sums: cute.Tensor,
        fetched: Any,
        storage: Any,
        warp: Int32,
        place: Any,
        corner: Any,
        d: cute.Tensor,
        vectors: Any,
    ) -> None:
        """Exchange the sums, add up and store this CTA's columns of the tile, in each multiplying warp."""
        tile, (rank, peer) = self.tile, place
        thread, _, _ = cute.arch.thread_idx()
        received = storage.received.get_tensor(
            cute.make_layout((4, tile.num_multiplying, tile.num_vectors, max(tile.splits - 1, 1)))
        )
        cute.arch.griddepcontrol_wait()
        cute.arch.cluster_wait()
        if const_expr(tile.num_tiles > 1):
            cute.arch.cluster_arrive_relaxed()
        own = self.exchange(sums, received, storage, thread, rank, peer)
        origin = (self.row(warp, corner), corner[1])
        first = rank * tile.share
        fetched = self.fetch_late(fetched, vectors, first, origin)
        self.add_received(own, received, storage, thread)
        memory = cute.recast_ptr(storage.received.data_ptr(), dtype=self.element)
        results = self.complete(own, fetched, memory, warp)
        self.store(results, memory, warp, first, origin, d)
