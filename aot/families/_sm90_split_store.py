"""How `SplitGemmSm90` stores a warp's sums: by way of shared memory, in pieces of 16 bytes. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, cute, range_constexpr

from aot.families._sm90_split_tile import GROUP, MMA_M, VECTOR_BYTES, Tile

WARP_ROWS = 16
"""Rows of a warp's part of 64. Source: PTX ISA, wgmma, registers of the accumulator."""

CHUNK = 8
"""Elements of D that a thread stores at once: 16 bytes."""


@dataclass(frozen=True)
class StoreSplitSm90:
    """What stores the columns of a tile that a CTA has added up."""

    element: Any
    """CUTLASS's type of A, B, D and the bias."""
    tile: Tile
    swap_ab: bool
    """Whether the tile's rows are rows of B, so that it is the transpose of a tile of D."""

    @cute.jit
    def store(self, own: cute.Tensor, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store a warp's sums, 16 rows of each step, by way of shared memory in which a row of a group is a chunk.

        The rows of a group are rotated by the group, so that neighbouring lanes meet different banks both ways.
        """
        tile = self.tile
        lane = cute.arch.lane_idx()
        num_vectors = tile.num_vectors
        pairs = _of_warp(memory, tile, (2, 4, WARP_ROWS))
        for v in range_constexpr(num_vectors):
            for half in range_constexpr(2):
                pair = cute.make_rmem_tensor(2, self.element)
                for e in range_constexpr(2):
                    pair[e] = own[2 * half + e, v].to(self.element)
                cute.autovec_copy(pair, pairs[None, lane % 4, 8 * half + (lane // 4 + v) % 8, warp, v])
        cute.arch.sync_warp()
        chunks = _of_warp(memory, tile, (CHUNK, WARP_ROWS))
        target = _chunks_of(d)
        for q in range_constexpr(-(-num_vectors * WARP_ROWS // 32)):
            index = lane + 32 * q
            v, row = index % num_vectors, index // num_vectors
            group = first + v % tile.share
            m = origin[0] + v // tile.share * (MMA_M * tile.num_warpgroups) + row
            n = origin[1] + group * GROUP
            if index < num_vectors * WARP_ROWS and group < tile.num_groups and m < d.shape[0] and n < d.shape[1]:
                chunk = cute.make_rmem_tensor(CHUNK, self.element)
                cute.autovec_copy(chunks[None, row // 8 * 8 + (row + v) % 8, warp, v], chunk)
                cute.autovec_copy(chunk, target[None, n // CHUNK, m])

    @cute.jit
    def store_transposed(
        self, own: cute.Tensor, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor
    ) -> None:
        """Store a warp's sums likewise where columns of the tile are rows of D: a column of a group is two chunks."""
        tile = self.tile
        lane = cute.arch.lane_idx()
        num_chunks = tile.num_vectors * WARP_ROWS
        elements = _of_warp(memory, tile, (WARP_ROWS, GROUP))
        for v in range_constexpr(tile.num_vectors):
            for e in range_constexpr(4):
                elements[lane // 4 + e // 2 * 8, lane % 4 * 2 + e % 2, warp, v] = own[e, v].to(self.element)
        cute.arch.sync_warp()
        chunks = _of_warp(memory, tile, (CHUNK, 2, GROUP))
        target = _chunks_of(d)
        for q in range_constexpr(-(-num_chunks // 32)):
            index = lane + 32 * q
            half, column, v = index % 2, index // 2 % GROUP, index // WARP_ROWS
            group = first + v % tile.share
            m = origin[1] + group * GROUP + column
            n = origin[0] + v // tile.share * (MMA_M * tile.num_warpgroups) + half * CHUNK
            if index < num_chunks and group < tile.num_groups and m < d.shape[0] and n < d.shape[1]:
                chunk = cute.make_rmem_tensor(CHUNK, self.element)
                cute.autovec_copy(chunks[None, half, column, warp, v], chunk)
                cute.autovec_copy(chunk, target[None, n // CHUNK, m])


def _of_warp(memory: Any, tile: Tile, shape: tuple[int, ...]) -> Any:
    """View, as 128 elements of a shape, the places of the sums that a warp received first: (*shape, warp, vector)."""
    count = 32 * VECTOR_BYTES // 2
    strides = tuple(cute.size(shape[:i]) if i else 1 for i in range(len(shape)))
    num_warps = tile.num_multiplying // 32
    layout = cute.make_layout((*shape, num_warps, tile.num_vectors), stride=(*strides, count, count * num_warps))
    return cute.make_tensor(memory, layout)


def _chunks_of(d: cute.Tensor) -> Any:
    """View D as (elements of a chunk, chunks of a row, rows)."""
    shape = (CHUNK, d.shape[1] // CHUNK, d.shape[0])
    return cute.make_tensor(d.iterator, cute.make_layout(shape, stride=(1, CHUNK, d.stride[0])))
