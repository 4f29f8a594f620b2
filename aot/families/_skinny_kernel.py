"""A GEMM for few rows of x that splits k over the warps of a CTA and the CTAs of a cluster. Imports CUTLASS.

It computes the transpose: the weight's rows are the 16-wide side of `mma.sync` m16n8k16, x's rows the 8-wide. Every
warp is a GEMM of its own: it loads its blocks of k by TMA into its own ring of stages and multiplies them, so that no
warp waits for another before the end. Then the warps' sums are added through shared memory, and the CTAs' through
distributed shared memory: each CTA of a cluster gets the sums of its share of the weight's rows and stores them.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.memory import SmemAllocator

from aot.families._grid import along_x
from aot.families._next_start import AT_ONCE, Places, await_front, clock, next_start, num_bytes, num_ctas
from aot.families._skinny_loads import WORDS, chunks, load_block, make_load, partition
from aot.families._skinny_storage import add_up, received_barrier, shared_memory
from aot.families._skinny_tile import CHUNK, MMA_M, MMA_N, PAD, ROW_BYTES, Tile
from aot.families._waits import await_phase


@dataclass(frozen=True)
class SplitGemm:
    """The kernel of one candidate, of operands of 16 bits."""

    element: Any
    """CUTLASS's type of A and B; of D and the bias too."""
    tile: Tile
    num_blocks_per_sm: int
    """CTAs that are to fit an SM at once."""
    places: Places
    """Of the device."""

    num_steps = 2
    """MMA instructions that a pair of chunks serves."""

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return 1

    @property
    def block_k(self) -> int:
        """Elements of k in a stage."""
        return ROW_BYTES * 8 // int(self.element.width)

    @property
    def multiplied(self) -> Any:
        """CUTLASS's type of the factors that MMA instructions take."""
        return self.element

    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        vectors: Any,
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Make the descriptors and launch a cluster for each tile of D, all along x; to be called while tracing.

        Args:
            a: A (m, k).
            b: B (n, k); with a gate ((2, n), k).
            d: D (m, n).
            vectors: what `_fetch` and `_finish` read: the bias (n), or None.
            prefetch_b: whether B may be read before the kernel in front has ended.
            stream: where the kernel is launched.
        """
        tile, layouts = self.tile, self._layouts()
        load_b = make_load(b, layouts[1], (tile.rows, self.block_k))
        load_a = make_load(a, layouts[0], (tile.columns, self.block_k))
        tiles = (
            cute.ceil_div(d.shape[0], tile.columns),
            cute.ceil_div(d.shape[1], tile.rows // self.num_halves),
        )
        self._launch((load_a, load_b), layouts, d, vectors, tiles, num_bytes(a, b), prefetch_b, stream)

    def _layouts(self) -> tuple[Any, Any]:
        """Return the layouts of the stages of A and of B; to be called while tracing."""
        tile = self.tile
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.element)
        num_stages = tile.num_warps * tile.num_stages
        layout_b = cute.tile_to_shape(atom, (tile.rows, self.block_k, num_stages), order=(0, 1, 2))
        layout_a = cute.tile_to_shape(atom, (tile.padded_columns, self.block_k, num_stages), order=(0, 1, 2))
        return layout_a, layout_b

    def _launch(
        self,
        loads: Any,
        layouts: Any,
        d: cute.Tensor,
        vectors: Any,
        tiles: Any,
        read_bytes: Any,
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch a cluster for each of (along m, along n) tiles, which read so many bytes; while tracing."""
        tile = self.tile
        count = num_ctas(tiles, tile.cluster)
        starts = prefetch_b, next_start(self.places, count, read_bytes, prefetch_b, later=AT_ONCE)
        self.kernel(*loads, layouts, d, vectors, starts).launch(
            grid=along_x(*tiles, tile.cluster),
            block=(tile.num_threads, 1, 1),
            cluster=(tile.cluster, 1, 1),
            stream=stream,
            min_blocks_per_mp=self.num_blocks_per_sm,
            preferred_smem_carveout=100,  # left out, the compiler asks a GPU how much there is
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        load_a: Any,
        load_b: Any,
        layouts: Any,
        d: cute.Tensor,
        vectors: Any,
        starts: Any,
    ) -> None:
        """Compute a share of a tile of D: see the module."""
        tile = self.tile
        warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        if warp_index == 0:
            cpasync.prefetch_descriptor(load_b[0])
            cpasync.prefetch_descriptor(load_a[0])
        storage = SmemAllocator().allocate(shared_memory(tile, self.element, self.block_k))
        barriers = storage.barriers.data_ptr() + warp_index * tile.num_stages
        with cute.arch.elect_one():
            for s in range_constexpr(tile.num_stages):
                cute.arch.mbarrier_init(barriers + s, 1)
            if const_expr(tile.cluster > 1):  # noqa: SIM102 - known while tracing, the next is not
                if warp_index == 0:  # its barrier is the CTA's
                    cute.arch.mbarrier_init(received_barrier(storage, tile), 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_warp()
        if const_expr(tile.cluster > 1):
            cute.arch.cluster_arrive_relaxed()
        block, _, _ = cute.arch.block_idx()
        rank, index = block % tile.cluster, block // tile.cluster
        tiles_m = cute.ceil_div(d.shape[0], tile.columns)
        tile_m, tile_n = Int32(0), index
        if tiles_m > 1:  # a division would delay the first load
            tile_m, tile_n = index % tiles_m, index // tiles_m
        pair_a = partition(load_a, storage.a, layouts[0], (tile.columns, self.block_k), tile_m)
        tile_n, d, vectors, addresses = self._part_of(tile_n, d, vectors)
        pair_b = (*partition(load_b, storage.b, layouts[1], (tile.rows, self.block_k), tile_n), *addresses)
        num_k_blocks = cute.ceil_div(load_b[1].shape[1], self.block_k)
        blocks = (rank * tile.num_warps + warp_index, num_k_blocks)
        first = tile_n * tile.rows + rank * tile.share
        share = (tile_m * tile.columns, first)
        sums, fetched = self._multiply((pair_a, pair_b), storage, barriers, warp_index, blocks, starts, vectors, share)
        origin = (share[0], first // self.num_halves)
        self._reduce(sums, fetched, storage, warp_index, rank, origin, d, vectors)

    def _part_of(self, tile_n: Any, d: Any, vectors: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """Return a tile's number among those of its weight, D and vectors of that, and the address of its descriptor.

        There is none of the last where it is that of the load: here all is of one weight.
        """
        return tile_n, d, vectors, ()

    @cute.jit
    def _multiply(
        self,
        pairs: Any,
        storage: Any,
        barriers: Any,
        warp_index: Int32,
        blocks: Any,
        starts: Any,
        vectors: Any,
        share: Any,
    ) -> Any:
        """Load and multiply a warp's blocks of k, from the first on in steps of the cluster's warps.

        `starts` is whether B may be loaded before the kernel in front has ended, and when the next one may start. By
        then all of a warp's first stages have been asked for.

        Returns:
            The warp's sums, and what `_fetch` has read for the CTA's share of the tile.
        """
        tile = self.tile
        pair_a, pair_b = pairs
        first, num_k_blocks = blocks
        num_stages, step = tile.num_stages, tile.num_warps * tile.cluster
        sums = cute.make_rmem_tensor(((2, 2), tile.rows // MMA_M, tile.padded_columns // MMA_N), Float32)
        sums.fill(0.0)
        first_stage = warp_index * num_stages
        prefetch_b, next_one = starts
        before = clock(next_one)
        if prefetch_b == 0:
            cute.arch.griddepcontrol_wait()
        num_first = cutlass.min(num_stages, cute.ceil_div(cutlass.max(num_k_blocks - first, 0), step))
        for s in cutlass.range(num_first, unroll=1):
            self._announce(barriers + s)
            load_block(pair_b, first + s * step, first_stage + s, barriers + s)
        await_front(next_one, before)
        for s in cutlass.range(num_first, unroll=1):
            load_block(pair_a, first + s * step, first_stage + s, barriers + s)
        fetched = self._fetch(vectors, share)
        stage, phase = Int32(0), Int32(0)
        for k_block in cutlass.range(first, num_k_blocks, step, unroll=1):
            await_phase(barriers + stage, phase)
            self._multiply_stage(sums, storage, first_stage + stage)
            cute.arch.sync_warp()
            following = k_block + num_stages * step
            if following < num_k_blocks:
                self._announce(barriers + stage)
                load_block(pair_b, following, first_stage + stage, barriers + stage)
                load_block(pair_a, following, first_stage + stage, barriers + stage)
            stage += 1
            if stage == num_stages:
                stage = Int32(0)
                phase ^= 1
        return sums, fetched

    @cute.jit
    def _announce(self, barrier: Any) -> None:
        """Announce the bytes of a stage, which TMA counts in full where a box reaches outside."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.tile.box_bytes)

    @cute.jit
    def _multiply_stage(self, sums: cute.Tensor, storage: Any, stage: Int32) -> None:
        """Add the product of a stage, a block of k of the weight's tile and of x's, to a warp's sums.

        MMA instructions have their k in an order of our own, the same for both operands, so that a lane's registers are
        chunks of 16 neighbouring bytes. Of each row's eight chunks the four lanes of a row take the even ones first,
        then the odd: by the 128-byte swizzle these fall into different banks for any two neighbouring rows.
        """
        tile = self.tile
        lane = cute.arch.lane_idx()
        row, column = lane // 4, lane % 4
        operation = warp.MmaF16BF16Op(self.multiplied, Float32, (MMA_M, MMA_N, 16))
        mma = cute.make_mma_atom(operation)
        rows, columns = tile.rows // MMA_M, tile.padded_columns // MMA_N
        chunks_b = chunks(storage.b, stage * (tile.rows * CHUNK) + row * CHUNK, tile.rows * CHUNK)
        chunks_a = chunks(storage.a, stage * (tile.padded_columns * CHUNK) + row * CHUNK, tile.padded_columns * CHUNK)
        for half in range_constexpr(2):
            chunk = (2 * column + half) ^ row
            words_b = cute.make_rmem_tensor((WORDS, 2, rows), Int32)
            words_a = cute.make_rmem_tensor((WORDS, columns), Int32)
            for i in range_constexpr(rows):
                for j in range_constexpr(2):
                    cute.autovec_copy(chunks_b[None, chunk + (2 * i + j) * 8 * CHUNK], words_b[None, j, i])
            for j in range_constexpr(columns):
                cute.autovec_copy(chunks_a[None, chunk + j * 8 * CHUNK], words_a[None, j])
            for step in range_constexpr(self.num_steps):
                fragments_b = cute.make_rmem_tensor(((2, 2, 2), rows), self.multiplied)
                fragments_a = cute.make_rmem_tensor(((2, 2), columns), self.multiplied)
                packed_b = cute.make_tensor(cute.recast_ptr(fragments_b.iterator, dtype=Int32), (4, rows))
                packed_a = cute.make_tensor(cute.recast_ptr(fragments_a.iterator, dtype=Int32), (2, columns))
                for i in range_constexpr(rows):
                    for j in range_constexpr(2):
                        packed_b[j, i], packed_b[2 + j, i] = self._unpack(words_b[None, j, i], step)
                for j in range_constexpr(columns):
                    packed_a[0, j], packed_a[1, j] = self._unpack(words_a[None, j], step)
                cute.gemm(mma, sums, fragments_b, fragments_a, sums)

    def _unpack(self, words: Any, step: int) -> tuple[Any, Any]:
        """Return the two words of factors that an MMA instruction takes of a chunk."""
        return words[2 * step], words[2 * step + 1]

    def _fetch(self, vectors: Any, share: Any) -> Any:
        """Read early what `_finish` needs for the CTA's share of a tile, by its first row of A and of B: nothing."""
        del vectors, share

    def _keep(self, fetched: Any, storage: Any, vectors: Any, origin: Any) -> Any:
        """Write what `_fetch` has read to shared memory, before the CTA's threads meet, return the rest: nothing."""
        del fetched, storage, vectors, origin

    @cute.jit
    def _reduce(
        self,
        sums: cute.Tensor,
        fetched: Any,
        storage: Any,
        warp_index: Int32,
        rank: Int32,
        origin: Any,
        d: cute.Tensor,
        vectors: Any,
    ) -> None:
        """Add the sums of the CTA's warps and of the cluster's CTAs, in order, and store this CTA's share of the tile.

        `origin` is where that share begins in D.

        The warps' sums lie where their stages were: each warp has received and read all that it has asked for.
        """
        tile = self.tile
        thread, _, _ = cute.arch.thread_idx()
        partial = cute.make_tensor(
            cute.recast_ptr(storage.b.data_ptr(), dtype=Float32),
            cute.make_layout(
                (tile.rows, tile.padded_columns, tile.num_warps),
                stride=(1, tile.rows + PAD, tile.num_stages * tile.rows * ROW_BYTES // 4),
            ),
        )
        self._write_sums(sums, partial, warp_index)
        kept = self._keep(fetched, storage, vectors, origin)
        cute.arch.sync_threads()
        columns = cutlass.min(d.shape[0] - origin[0], tile.columns)
        if const_expr(tile.cluster > 1):
            cute.arch.cluster_wait()
            if thread == 0:
                num_bytes = tile.cluster * tile.share * columns * (Float32.width // 8)
                cute.arch.mbarrier_arrive_and_expect_tx(received_barrier(storage, tile), num_bytes)
            for e in range_constexpr(-(-tile.rows * tile.columns // tile.num_threads)):
                element = thread + e * tile.num_threads
                row, column = element % tile.rows, element // tile.rows
                if column < columns:
                    self._send(add_up(partial, row, column), storage, row, column, rank)
            await_phase(received_barrier(storage, tile), 0)
            layout = cute.make_layout((tile.share, tile.columns, tile.cluster))
            self._store_share(storage.received.get_tensor(layout), kept, storage, columns, origin, d, vectors)
        else:
            self._store_share(partial, kept, storage, columns, origin, d, vectors)

    @cute.jit
    def _write_sums(self, sums: cute.Tensor, partial: cute.Tensor, warp_index: Int32) -> None:
        """Write a warp's sums to shared memory. Source: PTX ISA, mma.m16n8k16, registers of the accumulator."""
        lane = cute.arch.lane_idx()
        for i in range_constexpr(self.tile.rows // MMA_M):
            for j in range_constexpr(self.tile.padded_columns // MMA_N):
                for v in range_constexpr(4):
                    row, column = i * MMA_M + lane // 4 + v // 2 * 8, j * MMA_N + lane % 4 * 2 + v % 2
                    partial[row, column, warp_index] = sums[(v % 2, v // 2), i, j]

    @cute.jit
    def _send(self, value: Float32, storage: Any, row: Int32, column: Int32, rank: Int32) -> None:
        """Write a sum of this CTA's to the CTA of the cluster that stores the row, whose barrier counts its bytes."""
        share = self.tile.share
        offset = row % share + share * (column + self.tile.columns * rank)
        target = storage.received.data_ptr() + offset
        barrier = received_barrier(storage, self.tile)
        cute.arch.store_async_dsmem(target, value.bitcast(Int32), barrier, row // share)

    @cute.jit
    def _store_share(
        self, parts: cute.Tensor, kept: Any, storage: Any, columns: Int32, origin: Any, d: cute.Tensor, vectors: Any
    ) -> None:
        """Add up the parts of the sums, (row, column, part), of the CTA's share of the tile, and store it."""
        thread, _, _ = cute.arch.thread_idx()
        for e in range_constexpr(self.num_elements):
            row, column = self._place(thread, e)
            if column < columns:
                sums = [add_up(parts, self.num_halves * row + half, column) for half in range(self.num_halves)]
                m, n = origin[0] + column, origin[1] + row
                if n < d.shape[1]:
                    d[m, n] = self._finish(sums, e, kept, storage, (row, column), n, vectors).to(d.element_type)

    @property
    def num_elements(self) -> int:
        """Elements of D that a thread stores at most."""
        return -(-self.tile.share // self.num_halves * self.tile.columns // self.tile.num_threads)

    def _place(self, thread: Int32, e: int) -> tuple[Int32, Int32]:
        """Return where a thread's e-th element of D lies in the CTA's share: its column of D, and its row."""
        element, rows = thread + e * self.tile.num_threads, self.tile.share // self.num_halves
        return element % rows, element // rows

    def _finish(self, sums: Any, e: int, kept: Any, storage: Any, place: Any, n: Int32, vectors: Any) -> Any:
        """Return an element of D before it is rounded: here with the bias, which is read now.

        Args:
            sums: of the element; with a gate the gate's and the linear one.
            e: which of the thread's elements it is.
            kept: what `_keep` has returned.
            storage: the CTA's shared memory.
            place: as `_place` returns it.
            n: the element's column of D.
            vectors: as in `__call__`.
        """
        del e, kept, storage, place
        return sums[0] if vectors is None else sums[0] + vectors[n].to(Float32)
