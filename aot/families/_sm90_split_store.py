"""How `SplitGemmSm90` ends: with a bias, and stored by way of shared memory, in pieces of 16 bytes. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Constexpr, Float32, Int32, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp

from aot.families._sm90_split_loads import barriers
from aot.families._sm90_split_tile import GROUP, MMA_M, VECTOR_BYTES, Tile
from aot.families._waits import await_phase

WARP_ROWS = 16
"""Rows of a warp's part of 64. Source: PTX ISA, wgmma, registers of the accumulator."""

CHUNK = 8
"""Elements of D that a thread stores at once: 16 bytes."""

MATRIX_BITS = 16
"""Bits of an element that `stmatrix` takes on Hopper. Source: PTX ISA, stmatrix."""

RESULTS_ARE_THERE = 4
"""The named barrier of the warps that store each other's results; 1 to 3 are those of the kernels."""


@dataclass(frozen=True)
class StoreSplitSm90:
    """What completes and stores the columns of a tile that a CTA has added up.

    A warp's part of them passes through shared memory, where lanes write what they hold of D, and from where they store
    chunks of neighbouring elements. `first` is the first group of columns that the CTA stores of its tile; `origin` is
    the row of the product at which the warp's part begins, and the column at which the tile does.
    """

    element: Any
    """CUTLASS's type of D."""
    tile: Tile
    swap_ab: bool
    """Whether the tile's rows are rows of B, so that it is the transpose of a tile of D."""

    @property
    def num_halves(self) -> int:
        """Rows of B that make a column of D, which lie side by side: 2 with a gate."""
        return 1

    def fetch(self, vectors: Any, storage: Any, warp: Int32, rank: Int32, place: Any) -> Any:
        """Read before the multiplication what `complete` needs, by the tile's place among the tiles: nothing."""
        del vectors, storage, warp, rank, place

    @cute.jit
    def fetch_late(self, fetched: Any, vectors: Any, first: Int32, origin: Any) -> Any:
        """Read the bias, if there is one, while the other CTAs' sums arrive."""
        del fetched
        offsets = None
        if const_expr(vectors is not None):
            offsets = self.load_bias(vectors, origin[0], origin[1] + first * GROUP, range(self.num_pairs))
        return offsets

    @property
    def num_pairs(self) -> int:
        """Pairs of elements of a bias that a thread's sums need: of two rows of each step, or columns of each group."""
        return self.tile.num_steps if self.swap_ab else self.tile.share

    @cute.jit
    def load_bias(self, bias: cute.Tensor, row: Int32, column: Int32, pairs: Constexpr[range]) -> Any:
        """Load pairs of elements of the bias of a thread's sums, zero where the bias ends before them."""
        tile = self.tile
        lane = cute.arch.lane_idx()
        offsets = cute.make_rmem_tensor((2, len(pairs)), Float32)
        offsets.fill(0.0)
        for i in range_constexpr(len(pairs)):
            for e in range_constexpr(2):
                n = column + pairs[i] * GROUP + lane % 4 * 2 + e
                if const_expr(self.swap_ab):
                    n = row + pairs[i] * MMA_M * tile.num_warpgroups + lane // 4 + 8 * e
                if n < cute.size(bias):
                    offsets[e, i] = bias[n].to(Float32)
        return offsets

    @cute.jit
    def complete(self, own: cute.Tensor, offsets: Any, memory: Any, warp: Int32) -> Any:
        """Return what is to be rounded of a thread's sums: here the sums with the bias, if there is one."""
        del memory, warp
        if const_expr(offsets is not None):
            self.add_bias(own, offsets, range(self.num_pairs))
        return own

    @cute.jit
    def add_bias(self, own: cute.Tensor, offsets: cute.Tensor, pairs: Constexpr[range]) -> None:
        """Add pairs of elements of the bias to a thread's sums."""
        tile = self.tile
        for v in range_constexpr(tile.num_vectors):
            pair = v // tile.share if self.swap_ab else v % tile.share
            if const_expr(pair in pairs):
                for e in range_constexpr(4):
                    own[e, v] += offsets[e // 2 if self.swap_ab else e % 2, pair - pairs[0]]

    @property
    def takes_matrices(self) -> bool:
        """Whether lanes write whole matrices of 8 by 8 results at once: of 16 bits, each its sum's."""
        return self.num_halves == 1 and int(self.element.width) == MATRIX_BITS

    @cute.jit
    def store(self, results: cute.Tensor, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Round and store a warp's results, (results of a vector, vectors) in each lane, 16 rows of each step."""
        cute.arch.sync_warp()  # all of the warp's sums are read: their place is free
        if const_expr(self.takes_matrices):
            self._write_matrices(results, memory, warp)
        else:
            self._write_runs(results, memory, warp)
        if const_expr(self.takes_matrices and self.swap_ab):
            cute.arch.barrier(barrier_id=RESULTS_ARE_THERE, number_of_threads=self.tile.num_multiplying)
            self._store_rows(memory, warp, first, origin, d)
        else:
            cute.arch.sync_warp()
            self._store_chunks(memory, warp, first, origin, d)

    @cute.jit
    def _write_runs(self, results: cute.Tensor, memory: Any, warp: Int32) -> None:
        """Write a lane's results to the warp's part of shared memory, as many at once as are neighbours in D."""
        lane = cute.arch.lane_idx()
        for v in range_constexpr(self.tile.num_vectors):
            for i in range_constexpr(cute.size(results, mode=[0]) // self.run):
                run = cute.make_rmem_tensor(self.run, self.element)
                for e in range_constexpr(self.run):
                    run[e] = results[self.run * i + e, v].to(self.element)
                cute.autovec_copy(run, self.place_of_run(memory, warp, lane, v, i))

    @cute.jit
    def _write_matrices(self, results: cute.Tensor, memory: Any, warp: Int32) -> None:
        """Write a warp's results to its part of shared memory, two vectors at once: four matrices of 8 by 8.

        A lane says where a row of 8 of one of them goes: a column of the tile, where it is the transpose of one of D.
        """
        lane = cute.arch.lane_idx()
        half, line = lane // 8 & 1, lane & 7
        num_vectors = self.tile.num_vectors
        for v in range_constexpr(0, num_vectors, 2):
            count = min(2, num_vectors - v)
            store = StMatrix8x8x16bOp(transpose=self.swap_ab, num_matrices=2 * count)
            run = cute.make_rmem_tensor(4 * count, self.element)
            for e in range_constexpr(4 * count):
                run[e] = results[e % 4, v + e // 4].to(self.element)
            vector = v + (lane // 16 if count > 1 else 0)
            place = self._place_of_line(memory, warp, vector, half, line).iterator
            # As long as what a lane gives: where its line goes is all that the instruction takes of it.
            target = cute.make_tensor(place, cute.make_layout(4 * count))
            cute.copy(cute.make_copy_atom(store, self.element), run, target)

    @cute.jit
    def _store_chunks(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store a warp's part of D from its part of shared memory, of which all is read first."""
        lane = cute.arch.lane_idx()
        target = self.chunks_of(d)
        chunks = cute.make_rmem_tensor((self.chunk_size, self.num_turns), self.element)
        for q in range_constexpr(self.num_turns):
            index = lane + 32 * q
            inner, v = self.split_number(index)
            if index < self.num_chunks:
                cute.autovec_copy(self.place_of_chunk(memory, warp, v, inner), chunks[None, q])
        for q in range_constexpr(self.num_turns):
            index = lane + 32 * q
            inner, v = self.split_number(index)
            group, m, n = self.find_chunk(inner, v, first, origin)
            if index < self.num_chunks and group < self.tile.num_groups and m < d.shape[0] and n < d.shape[1]:
                cute.autovec_copy(chunks[None, q], target[None, Int32(Uint32(n) // self.chunk_size), m])

    @cute.jit
    def _store_rows(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store what the warps wrote of the transpose of a tile of D, so that lanes next to each other store a row.

        A warp has 16 columns of D, 32 bytes of a row: alone it would store a quarter of a line of 128 bytes.
        """
        tile, target = self.tile, self.chunks_of(d)
        num_warps = tile.num_multiplying // 32
        thread = Uint32(cute.arch.lane_idx() + 32 * warp)  # which is divided in fewer instructions than a signed number
        writer, half = Int32(thread // 2 % num_warps), Int32(thread % 2)
        line, odd = Int32(thread // (2 * num_warps) % GROUP), Int32(thread // (2 * num_warps * GROUP))
        column = self.row(writer, (origin[0] - self.row(warp, (0,)),)) + half * CHUNK
        num_turns = -(-tile.num_vectors // 2)
        chunks = cute.make_rmem_tensor((CHUNK, num_turns), self.element)
        for q in range_constexpr(num_turns):
            if 2 * q + odd < tile.num_vectors:
                cute.autovec_copy(self._place_of_piece(memory, writer, 2 * q + odd, half, line), chunks[None, q])
        for q in range_constexpr(num_turns):
            v = 2 * q + odd
            step, group = (v // tile.share, v % tile.share) if tile.num_steps > 1 else (0, v)
            m = origin[1] + (first + group) * GROUP + line
            n = column + step * MMA_M * tile.num_warpgroups
            is_inside = m < d.shape[0] and n < d.shape[1]
            if v < tile.num_vectors and first + group < tile.num_groups and is_inside:
                cute.autovec_copy(chunks[None, q], target[None, Int32(Uint32(n) // CHUNK), m])

    def _place_of_line(self, memory: Any, warp: Any, v: Any, half: Any, line: Any) -> Any:
        """View where a line of 8 results of a matrix goes, of the upper or lower half of a vector's rows."""
        if self.swap_ab:
            return self._place_of_piece(memory, warp, v, half, line)
        return self.place_of_chunk(memory, warp, v, CHUNK * half + line)

    def _place_of_piece(self, memory: Any, warp: Any, v: Any, half: Any, line: Any) -> Any:
        """View 8 results of a column of the tile in a warp's part of shared memory, a row of 8 of D.

        The columns are rotated by the warp and the half, so that lanes that read a row of D meet different banks.
        """
        turned = Int32(Uint32(line + 2 * warp + half) % GROUP)
        return self._of_warp(memory, (CHUNK, GROUP, WARP_ROWS // CHUNK))[(None, turned, half, warp, v)]

    def row(self, warp: Int32, corner: Any) -> Any:
        """Return the first row of a warp's part of the tile that begins at a corner."""
        return corner[0] + warp // 4 * MMA_M + warp % 4 * WARP_ROWS

    @property
    def run(self) -> int:
        """Neighbouring elements of a row of D that a lane holds."""
        return 1 if self.swap_ab else 2 // self.num_halves

    @property
    def chunk_size(self) -> int:
        """Elements that a lane stores at once: of a group's row those that there are."""
        return CHUNK if self.swap_ab else GROUP // self.num_halves

    @property
    def num_chunks_of_vector(self) -> int:
        """Chunks of a warp's part of a group: its rows, or twice its columns where these are rows of D."""
        return WARP_ROWS // self.num_halves if self.swap_ab else WARP_ROWS

    @property
    def num_chunks(self) -> int:
        """Chunks that a warp stores."""
        return self.tile.num_vectors * self.num_chunks_of_vector

    @property
    def num_turns(self) -> int:
        """Turns in which a warp's lanes store them."""
        return -(-self.num_chunks // 32)

    def split_number(self, index: Int32) -> Any:
        """Return which chunk of a vector has a number, and of which vector.

        Neighbouring lanes have neighbouring chunks of a row of D.
        """
        if self.swap_ab:
            per_column = self.num_chunks_of_vector // GROUP
            return (index % per_column, index // per_column % GROUP), index // self.num_chunks_of_vector
        v, row = index % self.tile.num_vectors, index // self.tile.num_vectors
        return row, v

    def find_chunk(self, inner: Any, v: Any, first: Int32, origin: Any) -> Any:
        """Return a chunk's group of columns of the tile, and its row and column of D."""
        tile = self.tile
        rows = MMA_M * tile.num_warpgroups
        group = first + v % tile.share
        if self.swap_ab:
            half, column = inner
            m = origin[1] + group * GROUP + column
            return group, m, self.column_of_d(origin[0] + v // tile.share * rows) + half * CHUNK
        m = origin[0] + v // tile.share * rows + inner
        return group, m, self.column_of_d(origin[1] + group * GROUP)

    def column_of_d(self, row_of_b: Any) -> Any:
        """Return the column of D that a row of B belongs to."""
        return row_of_b if self.num_halves == 1 else row_of_b // self.num_halves

    def locate_chunk(self, v: Any, inner: Any) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Return in what shape a vector lies in the warp's part of shared memory, and where in it a chunk does.

        The rows of a group are rotated by the group, so that neighbouring lanes meet different banks both ways.
        """
        if self.swap_ab:
            return (CHUNK, self.num_chunks_of_vector // GROUP, GROUP), (None, *inner)
        return (self.chunk_size, WARP_ROWS), (None, inner // 8 * 8 + (inner + v) % 8)

    def locate_run(self, lane: Any, v: int, i: int) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Return the same of a lane's i-th run of elements of a vector."""
        if self.swap_ab:
            row = lane // 4 + i // 2 * 8 if self.num_halves == 1 else lane // 8 + lane // 4 % 2 * 4
            return (1, WARP_ROWS // self.num_halves, GROUP), (None, row, lane % 4 * 2 + i % 2)
        return (self.run, 4, WARP_ROWS), (None, lane % 4, 8 * i + (lane // 4 + v) % 8)

    def place_of_chunk(self, memory: Any, warp: Int32, v: Any, inner: Any) -> Any:
        """View a chunk of a vector in the warp's part of shared memory."""
        shape, place = self.locate_chunk(v, inner)
        return self._of_warp(memory, shape)[(*place, warp, v)]

    def place_of_run(self, memory: Any, warp: Int32, lane: Int32, v: int, i: int) -> Any:
        """View a lane's i-th run of elements of a vector in the warp's part of shared memory."""
        shape, place = self.locate_run(lane, v, i)
        return self._of_warp(memory, shape)[(*place, warp, v)]

    def chunks_of(self, matrix: cute.Tensor) -> Any:
        """View D or a residual as (elements of a chunk, chunks of a row, rows)."""
        size = self.chunk_size
        shape = (size, matrix.shape[1] // size, matrix.shape[0])
        return cute.make_tensor(matrix.iterator, cute.make_layout(shape, stride=(1, size, matrix.stride[0])))

    @property
    def num_elements(self) -> int:
        """Elements of D that the place of a warp's vectors of sums has room for."""
        return 32 * VECTOR_BYTES * 8 // int(self.element.width)

    def _of_warp(self, memory: Any, shape: tuple[int, ...]) -> Any:
        """View, as elements of a shape, the places of the sums that a warp received first: (*shape, warp, vector)."""
        strides = tuple(cute.size(shape[:i]) if i else 1 for i in range(len(shape)))
        num_warps = self.tile.num_multiplying // 32
        strides = (*strides, self.num_elements, self.num_elements * num_warps)
        return cute.make_tensor(memory, cute.make_layout((*shape, num_warps, self.tile.num_vectors), stride=strides))

    @cute.jit
    def exchange(
        self, sums: cute.Tensor, received: cute.Tensor, storage: Any, thread: Int32, rank: Int32, peer: Int32
    ) -> Any:
        """Send the tile's other CTAs the sums that they store; return this CTA's own, (sums of a vector, vectors)."""
        tile = self.tile
        barrier = barriers(storage, tile)[2]
        shape = (4, tile.num_groups, tile.num_steps)
        values = cute.make_tensor(sums.iterator, cute.make_layout(shape))
        own = cute.make_rmem_tensor((4, tile.num_vectors), Float32)
        own.fill(0.0)
        for owner in range_constexpr(tile.splits):
            first = owner * tile.share
            vectors = [(j, i) for i in range(tile.num_steps) for j in range(tile.share) if first + j < tile.num_groups]
            if const_expr(tile.splits == 1):  # noqa: SIM114 - known while tracing, the next is not
                keep(own, values, first, vectors, tile.share)
            elif rank == owner:
                keep(own, values, first, vectors, tile.share)
            else:
                slot = rank
                if rank > owner:
                    slot = rank - 1
                for j, i in vectors:
                    words = tuple(values[e, first + j, i].bitcast(Int32) for e in range(4))
                    target = received[None, thread, j + tile.share * i, slot].iterator
                    cute.arch.store_async_dsmem(target, words, barrier, owner * tile.num_tiles + peer)
        return own

    @cute.jit
    def add_received(self, own: cute.Tensor, received: cute.Tensor, storage: Any, thread: Int32) -> None:
        """Add the other CTAs' sums to a thread's own, in the order of the CTAs, once all are there."""
        if const_expr(self.tile.splits > 1):
            await_phase(barriers(storage, self.tile)[2], 0)
        for slot in range_constexpr(self.tile.splits - 1):
            for v in range_constexpr(self.tile.num_vectors):
                part = cute.make_rmem_tensor(4, Float32)
                cute.autovec_copy(received[None, thread, v, slot], part)
                for e in range_constexpr(4):
                    own[e, v] += part[e]


def keep(own: cute.Tensor, values: cute.Tensor, first: int, vectors: list[tuple[int, int]], share: int) -> None:
    """Take a CTA's own columns, from the group `first` on, of a thread's sums."""
    for j, i in vectors:
        for e in range(4):
            own[e, j + share * i] = values[e, first + j, i]
