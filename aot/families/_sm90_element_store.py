"""How `SplitGemmSm90` ends where rows of D begin at any address. Imports CUTLASS.

TMA loads A and B, which need rows that begin at multiples of 16 bytes. D need not: a weight of an odd number of rows,
such as a vocabulary's, makes rows of D that begin at any element. Of such a row pieces of 16 bytes are stored at
addresses that are multiples of as many, each taken out of two pieces where the warps laid the results in shared memory,
and the rest of it by elements. A residual is read by elements.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr

from aot.families._mma_sync_tile import ITEM_BYTES
from aot.families._pieces import SEGMENT_BYTES, shifted, words_at
from aot.families._sm90_one_tile_kernel import EpilogueOneTileGemmSm90, OneTileGemmSm90
from aot.families._sm90_split_epilogue import EpilogueSplitGemmSm90
from aot.families._sm90_split_kernel import SplitGemmSm90
from aot.families._sm90_split_store import CHUNK, WARP_ROWS, StoreSplitSm90
from aot.families._sm90_split_tile import GROUP, MMA_M

UNROLLED = 4
"""Elements, or pieces, that a lane has under way at once."""

LEFT = 2 * CHUNK
"""Lanes that store what is in no whole piece of a row: those of a piece what is in front, and those of another what is
behind. Each is fewer than a piece."""


class Rows(NamedTuple):
    """Rows of D that lie in shared memory, in pieces of 8 elements."""

    count: int
    """Rows that there is room for."""
    pieces: int
    """Pieces of a row that there is room for."""
    num_rows: Any
    """Rows that there are."""
    length: Any
    """Elements of each that there are."""
    corner: Any
    """The row and the column of D that they begin at."""
    row_of: Any
    """A function of a row's number: how many rows of D it lies behind the corner."""


@cute.jit
def store_shifted(
    rows: Constexpr[Rows], piece: Constexpr[Any], d: cute.Tensor, thread: Uint32, num_threads: Constexpr[int]
) -> None:
    """Store rows of D by 16 bytes at addresses that are multiples of as many, the rest by elements.

    A row of D begins so many elements in front of such an address. Each piece that is stored there is taken out of two
    in shared memory. Threads next to each other store pieces next to each other.

    Args:
        rows: the rows.
        piece: a function of a row's number and a piece's, which returns the piece in shared memory.
        d: D.
        thread: the thread among those that store them.
        num_threads: how many these are.
    """
    width = cutlass.min(d.shape[1] - rows.corner[1], rows.length)
    num_turns = const_expr(-(-rows.count * rows.pieces // num_threads))
    if const_expr(num_turns <= UNROLLED):
        _store_pieces(rows, piece, d, thread, num_threads, width, num_turns)
    else:
        for turn in cutlass.range(0, num_turns, UNROLLED, unroll=1):
            _store_pieces(rows, piece, d, thread + Uint32(turn) * num_threads, num_threads, width, UNROLLED)
    step = const_expr(num_threads // LEFT)
    row, number = Int32(thread // LEFT), Int32(thread % LEFT)
    for turn in cutlass.range(-(-rows.count // step), unroll=UNROLLED):
        _store_left(rows, piece, d, row + turn * step, number, width)


def _store_pieces(
    rows: Rows, piece: Any, d: cute.Tensor, index: Any, num_threads: int, width: Any, num_turns: int
) -> None:
    """Store a thread's pieces of some turns, all of which are read before the first is stored; while tracing."""
    turns = [_stored_piece(rows, piece, d, index + q * num_threads, width) for q in range(num_turns)]
    for words, address, is_whole in turns:
        _store_words(words, address, is_whole)


def _place(rows: Rows, d: cute.Tensor, row: Any) -> Any:
    """Return a row's number in D, where it begins, and how many elements in front of a multiple of 16 bytes."""
    m = rows.corner[0] + rows.row_of(row)
    address = (d.iterator + cute.crd2idx((m, rows.corner[1]), d.layout)).toint()
    return m, address, (-Int32(address) // ITEM_BYTES) & (CHUNK - 1)


@cute.jit
def _stored_piece(rows: Constexpr[Rows], piece: Constexpr[Any], d: cute.Tensor, index: Uint32, width: Int32) -> Any:
    """Return what a thread stores in one of its turns, as 4 words, where, and whether there is such a piece."""
    row, number = Int32(index // rows.pieces), Int32(index % rows.pieces)
    m, address, front = _place(rows, d, row)
    begin = front + number * CHUNK
    is_whole = (row < rows.num_rows) & (m < d.shape[0]) & (begin + CHUNK <= width)
    words = cute.make_rmem_tensor((4, 2), Uint32)
    if is_whole:
        for half in range_constexpr(2):
            behind = cutlass.min(number + half, Int32(rows.pieces - 1))
            cute.autovec_copy(words_at(piece(row, behind), Int32(0)), words[None, half])
    moved = shifted([words[i % 4, i // 4] for i in range(8)], front * ITEM_BYTES)
    return moved, address + Int64(begin) * ITEM_BYTES, is_whole


@cute.jit
def _store_words(words: cute.Tensor, address: Int64, is_there: Any) -> None:
    """Store 16 bytes, if they are there to be stored."""
    if is_there:
        target = cute.make_ptr(Uint32, address, cute.AddressSpace.gmem, assumed_align=SEGMENT_BYTES)
        cute.autovec_copy(words, cute.make_tensor(target, cute.make_layout(4)))


@cute.jit
def _store_left(
    rows: Constexpr[Rows], piece: Constexpr[Any], d: cute.Tensor, row: Int32, number: Int32, width: Int32
) -> None:
    """Store one of the elements of a row that are in no piece of 16 bytes, if there is such a one.

    The numbers of those in front are below `CHUNK`.
    """
    m, _, front = _place(rows, d, row)
    behind = front + (cutlass.max(width - front, 0) & -CHUNK) + number - CHUNK
    element = cutlass.select_(number < CHUNK, number, behind)
    end = cutlass.select_(number < CHUNK, cutlass.min(front, width), width)
    if (element < end) & (row < rows.num_rows) & (m < d.shape[0]):
        d[m, rows.corner[1] + element] = piece(row, element // CHUNK)[element % CHUNK]


@dataclass(frozen=True)
class ElementStoreSm90(StoreSplitSm90):
    """What stores the columns of a tile that a CTA has added up, an element a lane."""

    @cute.jit
    def _store_chunks(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store a warp's part of D from its part of shared memory."""
        if const_expr(self.takes_matrices):
            self._store_pieces(memory, warp, first, origin, d)
        else:
            self._store_elements(memory, warp, first, origin, d)

    @cute.jit
    def _store_pieces(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store it in pieces of 16 bytes, and what is left of each row by elements."""
        tile = self.tile
        groups = cutlass.min(tile.num_groups - first, Int32(tile.share))
        corner = origin[0], origin[1] + first * GROUP

        def piece(row: Any, place: Any) -> Any:
            return self.place_of_chunk(memory, warp, row // WARP_ROWS * tile.share + place, row % WARP_ROWS)

        def row_of(row: Any) -> Any:
            return row // WARP_ROWS * (MMA_M * tile.num_warpgroups) + row % WARP_ROWS

        count = WARP_ROWS * tile.num_steps
        rows = Rows(count, tile.share, Int32(count), groups * GROUP, corner, row_of)
        store_shifted(rows, piece, d, Uint32(cute.arch.lane_idx()), 32)

    @cute.jit
    def _store_elements(self, memory: Any, warp: Int32, first: Int32, origin: Any, d: cute.Tensor) -> None:
        """Store it by elements: of a gate, whose results are fewer."""
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
        thread = cute.arch.lane_idx() + 32 * warp
        groups = cutlass.min(tile.num_groups - first, Int32(tile.share))
        corner = origin[1] + first * GROUP, origin[0] - self.row(warp, (0,))

        def piece(row: Any, place: Any) -> Any:
            v = place // (2 * num_warps) * tile.share + row // GROUP
            return self._place_of_piece(memory, place // 2 % num_warps, v, place % 2, row % GROUP)

        rows = Rows(tile.share * GROUP, tile.rows // CHUNK, groups * GROUP, Int32(tile.rows), corner, lambda row: row)
        store_shifted(rows, piece, d, Uint32(thread), tile.num_multiplying)


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
