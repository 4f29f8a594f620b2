"""How `SplitGemmSm90` ends where rows of D begin at any address: D and the residual by elements. Imports CUTLASS.

TMA loads A and B, which need rows that begin at multiples of 16 bytes. D need not: a weight of an odd number of rows,
such as a vocabulary's, makes rows of D that begin at any element. Lanes next to each other then store elements next to
each other, from where the warps laid the results in shared memory.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute, range_constexpr

from aot.families._sm90_one_tile_kernel import EpilogueOneTileGemmSm90, OneTileGemmSm90
from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_store import CHUNK, WARP_ROWS, StoreSplitSm90
from aot.families._sm90_split_tile import GROUP, MMA_M

UNROLLED = 4
"""Elements that a lane has under way at once."""


@dataclass(frozen=True)
class ElementStoreSm90(StoreSplitSm90):
    """What stores the columns of a tile that a CTA has added up, an element a lane."""

    @cute.jit
    def _store_chunks(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store a warp's part of D from its part of shared memory."""
        lane = cute.arch.lane_idx()
        size = self.chunk_size
        for q in cutlass.range(-(-self.num_chunks * size // 32), unroll=UNROLLED):
            index = Int32(Uint32(lane + 32 * q) // size)
            element = Int32(Uint32(lane + 32 * q) % size)
            inner, v = self.split_number(index)
            group, m, n = self.find_chunk(inner, v, first, origin)
            is_inside = m < d.shape[0] and n + element < d.shape[1]
            if index < self.num_chunks and group < self.tile.num_groups and is_inside:
                d[m, n + element] = self.place_of_chunk(memory, warp, v, inner)[element]

    @cute.jit
    def _store_rows(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store what the warps wrote of the transpose of a tile of D, a row of D at once."""
        tile = self.tile
        num_warps = tile.num_multiplying // 32
        corner = origin[0] - self.row(warp, (0,))
        thread = cute.arch.lane_idx() + 32 * warp
        per_row, per_vector = WARP_ROWS * num_warps, WARP_ROWS * num_warps * GROUP
        for q in cutlass.range(tile.num_vectors * per_vector // tile.num_multiplying, unroll=UNROLLED):
            index = Uint32(thread + tile.num_multiplying * q)
            element, half = Int32(index % CHUNK), Int32(index // CHUNK % 2)
            writer, line = Int32(index // WARP_ROWS % num_warps), Int32(index // per_row % GROUP)
            v = Int32(index // per_vector)
            step, group = v // tile.share, v % tile.share
            m = origin[1] + (first + group) * GROUP + line
            n = self.row(writer, (corner,)) + half * CHUNK + element + step * MMA_M * tile.num_warpgroups
            if first + group < tile.num_groups and m < d.shape[0] and n < d.shape[1]:
                d[m, n] = self._place_of_piece(memory, writer, v, half, line)[element]


@dataclass(frozen=True)
class ElementSplitGemmSm90(ElementStoreSm90, SplitGemmSm90):
    """The kernel of one candidate whose k CTAs share."""


@dataclass(frozen=True)
class ElementOneTileGemmSm90(ElementStoreSm90, OneTileGemmSm90):
    """The kernel of one candidate that computes a tile in a CTA."""


@dataclass(frozen=True)
class ElementEpilogueSm90(ElementStoreSm90, EpilogueSplitGemmSm90):
    """What reads a residual by elements too."""

    @cute.jit
    def _read_chunks(self, residual: cute.Tensor, first: Int32, origin: Any) -> Any:
        """Read a thread's chunks of a residual, (elements of a chunk, turns), zero where they lie outside."""
        lane = cute.arch.lane_idx()
        chunks = cute.make_rmem_tensor((self.chunk_size, self.num_turns), self.element)
        chunks.fill(0.0)
        for q in range_constexpr(self.num_turns):
            index = lane + 32 * q
            inner, v = self.split_number(index)
            group, m, n = self.find_chunk(inner, v, first, origin)
            for e in range_constexpr(self.chunk_size):
                if self._is_inside(index, group, m, n + e, residual):
                    chunks[e, q] = residual[m, n + e]
        return chunks


@dataclass(frozen=True)
class ElementEpilogueSplitGemmSm90(ElementEpilogueSm90):
    """The kernel of one candidate whose k CTAs share, with more of an epilogue than a bias."""


@dataclass(frozen=True)
class ElementEpilogueOneTileGemmSm90(ElementEpilogueSm90, EpilogueOneTileGemmSm90):
    """The kernel of one candidate that computes a tile in a CTA, with more of an epilogue than a bias."""
