"""How the CTAs of `mma_sync` bring a part of an operand to shared memory, and read it as matrices. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims

from aot.families._mma_sync_tile import ITEM_BYTES, PAD
from aot.families._pieces import SEGMENT, SEGMENT_BYTES, shifted, words_at


class Cursor(NamedTuple):
    """Where a thread's first piece of an operand's part lies.

    A row is one as it lies in memory: of k where the operand is contiguous along k, else of m or n.
    """

    begin: Int64
    """Address of the piece's row, in the first block of k."""
    row: Int32
    """That row, among those of the part."""
    inner: Int32
    """Elements from the beginning of a row to the piece."""
    length: Int32
    """Elements of a row, from the part's first on."""
    num_left: Int32
    """Rows of the operand from `row` on."""


class Lines(NamedTuple):
    """Where a thread's pieces of an operand's part lie, worked out once for all blocks of k.

    A block of k is a whole number of 16 bytes wide, and as many rows of them high, and rows a multiple of 8 behind each
    other begin as many bytes behind a multiple of 16: so `starts` stand for all pieces of all blocks.
    """

    pieces: Cursor
    """The first of the pieces, which lie `Side.step_rows` rows apart."""
    ends: Cursor
    """The last piece of a row, where rows are shifted; these lie `Side.num_threads` rows apart."""
    starts: tuple[Any, ...]
    """Addresses of the first pieces in the first block of k, up to one whose row begins as that of the first does; and
    of `ends`. Int64."""
    behind: tuple[Any, ...]
    """Elements of their rows in front of these; less than none where a row begins inside. Int32."""
    fronts: tuple[Any, ...]
    """Of each start, whether it lies in front of the operand. Boolean."""


class Piece(NamedTuple):
    """One of a thread's pieces."""

    first: Cursor
    """The thread's first."""
    skipped: int
    """Rows that it lies behind that one."""
    has_rows: bool
    """Whether the part has such a row for all threads."""
    is_front: Any
    """Whether it lies in front of the operand; None where it cannot."""


@dataclass(frozen=True)
class Side:
    """An operand's part in a CTA's tile: `extent` of its rows by a block of k."""

    extent: int
    block_k: int
    is_k_major: bool
    loads: int
    num_threads: int
    loads_own: bool = False
    """Whether it is loaded by 16 bytes where its rows begin at multiples of them: see `Side.wide`."""
    moves_few: bool = False
    """Whether rows that the operand does not have are not moved: they reach nothing but rows of D that it has not."""

    def __post_init__(self) -> None:
        """Refuse rows of more pieces than there are threads for two of them (ValueError)."""
        if self.step_rows == 0:
            raise ValueError(
                f"{self.num_threads} threads cannot share pairs of rows of {self.per_row} pieces; expected "
                f"{2 * self.per_row} threads at least"
            )

    @property
    def wide(self) -> "Side":
        """Return the same part, loaded by 16 bytes."""
        return replace(self, loads=SEGMENT_BYTES, loads_own=False)

    @property
    def row_length(self) -> int:
        """Elements of the part that are neighbours in memory: along k, or along the operand's rows."""
        return self.block_k if self.is_k_major else self.extent

    @property
    def num_rows(self) -> int:
        """Rows of the part, as they lie in memory."""
        return self.extent if self.is_k_major else self.block_k

    @property
    def is_shifted(self) -> bool:
        """Whether rows may begin at any element, so that they are copied from an aligned address in front of them."""
        return self.loads == ITEM_BYTES

    @property
    def piece(self) -> int:
        """Elements of a copy."""
        return SEGMENT if self.is_shifted else self.loads // ITEM_BYTES

    @property
    def per_row(self) -> int:
        """Pieces of a row, without the one more that a shifted row ends in."""
        return self.row_length // self.piece

    @property
    def step_rows(self) -> int:
        """Rows from one piece of a thread to its next: an even number, so that these lie in the same half of a gate."""
        return self.num_threads // (2 * self.per_row) * 2

    @property
    def is_even(self) -> bool:
        """Whether all threads have pieces."""
        return self.step_rows * self.per_row == self.num_threads

    @property
    def num_turns(self) -> int:
        """Pieces of a thread, at most."""
        return -(-self.num_rows // self.step_rows)

    @property
    def layout(self) -> Any:
        """Lay (row, k) out in shared memory."""
        stride = (self.row_length + PAD, 1) if self.is_k_major else (1, self.row_length + PAD)
        return cute.make_layout((self.extent, self.block_k), stride=stride)

    def step_bytes(self, source: cute.Tensor, num_rows: int) -> Any:
        """Return the bytes from a row to the one that lies `num_rows` behind it; to be called while tracing.

        The rows of a gate's B are pairs, ((2, n), k): an even number of rows on lies the same half of a later pair.
        """
        stride = source.stride[0 if self.is_k_major else 1]
        if isinstance(stride, tuple):
            return Int64(stride[1]) * (num_rows // 2 * ITEM_BYTES)
        return Int64(stride) * (num_rows * ITEM_BYTES)

    def start(self, source: cute.Tensor, first_row: Int32, index: Int32, inner: Int32) -> Cursor:
        """Work out where the pieces of a thread lie; to be called while tracing.

        Args:
            source: the operand, (rows, k).
            first_row: its row that the part begins with.
            index: the row of the part that the thread's first piece is in, as rows lie in memory.
            inner: elements from the beginning of a row to the piece.
        """
        rows, depth = Int32(cute.size(source, mode=[0])) - first_row, Int32(cute.size(source, mode=[1]))
        place = (first_row + index, Int32(0)) if self.is_k_major else (first_row, index)
        begin = (source.iterator + cute.crd2idx(place, source.layout)).toint()
        if self.is_k_major:
            return Cursor(begin, index, inner, depth, rows - index)
        return Cursor(begin, index, inner, rows, depth - index)

    def num_starts(self, source: cute.Tensor) -> int:
        """Count a thread's pieces until one whose row begins as that of the first does; to be called while tracing.

        It lies 8 rows behind; of a gate's B, whose rows are pairs, 8 pairs. Rows that are not shifted begin alike.
        """
        if not self.is_shifted:
            return 1
        stride = source.stride[0 if self.is_k_major else 1]
        alike = 2 * SEGMENT if isinstance(stride, tuple) else SEGMENT
        return min(alike // math.gcd(alike, self.step_rows), self.num_turns)

    def lines(self, source: cute.Tensor, first_row: Int32, thread: Int32) -> Lines:
        """Work out where a thread's pieces lie; to be called while tracing.

        A thread without pieces is said to be behind the part's last row.
        """
        inner = thread % self.per_row * self.piece
        row = thread // self.per_row
        if not self.is_even:
            row = cutlass.select_(row < self.step_rows, row, Int32(self.num_rows))
        pieces = self.start(source, first_row, row, inner)
        ends = self.start(source, first_row, thread, Int32(self.row_length)) if self.is_shifted else pieces
        steps = [self.step_bytes(source, i * self.step_rows) for i in range(self.num_starts(source))]
        begins = [(pieces.begin + step, inner) for step in steps] + [(ends.begin, ends.inner)]
        starts, behind = zip(*(self._start(begin, inner) for begin, inner in begins), strict=True)
        first = first_byte(source)
        return Lines(pieces, ends, starts, behind, tuple(start < first for start in starts))

    def _start(self, begin: Any, inner: Any) -> tuple[Any, Any]:
        """Return the address of a piece, and the elements of its row in front of it; to be called while tracing."""
        if not self.is_shifted:
            return begin + inner * ITEM_BYTES, inner
        shift = Int32(begin) & (SEGMENT_BYTES - 1)
        return begin - shift + inner * ITEM_BYTES, inner - shift // ITEM_BYTES

    def is_wide(self, source: cute.Tensor) -> Any:
        """Say whether an operand's rows begin at multiples of 16 bytes; to be called while tracing."""
        stride = source.stride[0 if self.is_k_major else 1]
        return ((Int32(source.iterator.toint()) | Int32(Int64(stride) * ITEM_BYTES)) & (SEGMENT_BYTES - 1)) == 0

    def own_lines(self, source: cute.Tensor, first_row: Int32, thread: Int32, is_wide: Any) -> Lines:
        """Return where pieces of the width lie by which an operand is loaded; to be called while tracing."""
        found = self.lines(source, first_row, thread)
        if self.is_shifted:  # whose pieces are as wide
            return found
        wide = self.wide.lines(source, first_row, thread)

        def either(x: Any, y: Any) -> Any:
            if isinstance(x, tuple):
                parts = [either(*both) for both in zip(x, y, strict=True)]
                return type(x)(*parts) if isinstance(x, Cursor | Lines) else tuple(parts)
            return cutlass.select_(is_wide, x, y)

        lines: Lines = either(wide, found)
        return lines

    @cute.jit
    def copy_own(self, lines: Lines, source: cute.Tensor, stage: cute.Tensor, block: Int32, is_wide: Any) -> None:
        """Copy a block of k as `copy` does, by 16 bytes where the operand's rows begin at multiples of them."""
        if is_wide:
            self.wide.copy(lines, source, stage, block)
        else:
            self.copy(lines, source, stage, block)

    @cute.jit
    def copy(self, lines: Lines, source: cute.Tensor, stage: cute.Tensor, block: Int32) -> None:
        """Copy a block of k asynchronously: the bytes of each piece that the operand has, and zeros behind them.

        Rows that the operand does not have are left as they are where a row is one of k, since they reach nothing but
        rows of D that are not there either; else they are zeros. Where rows are shifted, what lies in front of one in
        its first piece is of the row before; `write_moved` leaves it out. In front of the operand's first element
        nothing is read: such a piece is loaded element by element.
        """
        first_k, count = block * self.block_k, const_expr(self.num_starts(source))
        far = Int64(block) * (self.block_k * ITEM_BYTES if self.is_k_major else self.step_bytes(source, self.block_k))
        along = lines.pieces.length - (first_k if self.is_k_major else 0)
        sizes = [cutlass.max(cutlass.min(along - x, Int32(self.piece)), Int32(0)) * ITEM_BYTES for x in lines.behind]
        for turn in range_constexpr(self.num_turns):
            start, skipped = const_expr(turn % count), const_expr(turn * self.step_rows)
            has_rows = const_expr(self.is_even and skipped + self.step_rows <= self.num_rows)
            can_be_front = const_expr(self.is_shifted and turn < count)
            is_front = lines.fronts[start] & (block == 0) if const_expr(can_be_front) else None
            address = lines.starts[start] + far + self.step_bytes(source, skipped - start * self.step_rows)
            piece = Piece(lines.pieces, skipped, has_rows, is_front)
            self._copy_there(piece, source, stage, address, sizes[start], first_k)
        for turn in range_constexpr(-(-self.num_rows // self.num_threads) if self.is_shifted else 0):
            skipped = const_expr(turn * self.num_threads)
            piece = Piece(lines.ends, skipped, const_expr(skipped + self.num_threads <= self.num_rows), None)
            address = lines.starts[-1] + far + self.step_bytes(source, skipped)
            self._copy_there(piece, source, stage, address, sizes[-1], first_k)

    @cute.jit
    def _copy_there(
        self,
        piece: Constexpr[Piece],
        source: cute.Tensor,
        stage: cute.Tensor,
        address: Int64,
        num_bytes: Int32,
        first_k: Int32,
    ) -> None:
        """Copy a piece, of which `num_bytes` lie in front of the end of its row, if there is such a row."""
        first, skipped = piece.first, const_expr(piece.skipped)
        is_there = Boolean(True) if const_expr(piece.has_rows) else first.row + skipped < self.num_rows
        if const_expr(self.is_k_major):
            is_there = is_there & (skipped < first.num_left)
        else:
            num_bytes = cutlass.select_(skipped < first.num_left - first_k, num_bytes, Int32(0))
        if is_there:
            target = stage.iterator + ((first.row + skipped) * (self.row_length + PAD) + first.inner)
            if const_expr(piece.is_front is None):
                self._copy_piece(source, target, address, num_bytes)
            elif piece.is_front:
                self._copy_front(source, target, address, num_bytes)
            else:
                self._copy_piece(source, target, address, num_bytes)

    def _copy_piece(self, source: cute.Tensor, target: Any, address: Any, num_bytes: Any) -> None:
        """Copy the first `num_bytes` bytes of a piece asynchronously, with zeros behind; to be called while tracing."""
        size = self.piece * ITEM_BYTES
        piece = cute.make_ptr(source.element_type, address, cute.AddressSpace.gmem, assumed_align=size)
        modifier = prims.LoadCacheModifier.CG if size == SEGMENT_BYTES else prims.LoadCacheModifier.CA
        prims.cp_async_shared_global(target.to_llvm_ptr(), piece.to_llvm_ptr(), size, modifier, cp_size=num_bytes)

    @cute.jit
    def _copy_front(self, source: cute.Tensor, target: Any, address: Int64, num_bytes: Int32) -> None:
        """Copy the piece in which an operand begins, of which `num_bytes` lie in front of the end of its row."""
        start = first_byte(source)
        values = cute.make_tensor(target, cute.make_layout(SEGMENT))
        for e in cutlass.range(SEGMENT, unroll=1):
            place = address + e * ITEM_BYTES
            value = source.element_type(0)
            if place >= start and e * ITEM_BYTES < num_bytes:
                one = cute.make_ptr(source.element_type, place, cute.AddressSpace.gmem, assumed_align=ITEM_BYTES)
                value = cute.make_tensor(one, cute.make_layout(1))[0]
            values[e] = value

    @cute.jit
    def write_moved(self, lines: Lines, source: cute.Tensor, stage: cute.Tensor, target: cute.Tensor) -> None:
        """Write a thread's pieces of a shifted part to another stage, moved to where its rows begin."""
        first = lines.pieces
        begin, step = Int32(first.begin), Int32(self.step_bytes(source, self.step_rows))
        for turn in range_constexpr(self.num_turns):
            is_there = turn * self.step_rows < first.num_left if const_expr(self.moves_few) else True
            if is_there & (first.row + turn * self.step_rows < self.num_rows):
                place = (first.row + turn * self.step_rows) * (self.row_length + PAD) + first.inner
                two = cute.make_rmem_tensor((4, 2), Uint32)
                for half in range_constexpr(2):
                    cute.autovec_copy(words_at(stage, place + half * SEGMENT), two[None, half])
                words = shifted([two[i % 4, i // 4] for i in range(8)], begin + turn * step)
                cute.autovec_copy(words, words_at(target, place))

    @cute.jit
    def matrices(self, stage: cute.Tensor, row: Int32, k: Int32, rows_first: Constexpr[bool]) -> Any:
        """Read 16 rows by 16 of k as four matrices of 8 by 8, two elements of each a lane.

        Args:
            stage: the part in shared memory.
            row: the first row.
            k: the first of k.
            rows_first: whether the second matrix has the next rows, as `mma` has A, or the next of k, as it has B.
        """
        lane = cute.arch.lane_idx()
        second, third = lane // SEGMENT % 2 * SEGMENT, lane // (2 * SEGMENT) * SEGMENT
        of_rows, of_k = (second, third) if const_expr(rows_first) else (third, second)
        line = lane % SEGMENT
        if const_expr(self.is_k_major):
            of_rows += line
        else:
            of_k += line
        operation = warp.LdMatrix8x8x16bOp(transpose=not self.is_k_major, num_matrices=4)
        address = stage.iterator + cute.assume(cute.crd2idx((row + of_rows, k + of_k), stage.layout), divby=SEGMENT)
        found = cute.make_rmem_tensor(4 * 2, stage.element_type)
        cute.copy(
            cute.make_copy_atom(operation, stage.element_type),
            cute.make_tensor(address.align(SEGMENT * ITEM_BYTES), cute.make_layout(4 * 2)),
            found,
        )
        return found


def first_byte(source: cute.Tensor) -> Any:
    """Return the address at which an operand begins: that of a gate's linear half, where it lies in front."""
    address = source.iterator.toint()
    if isinstance(source.stride[0], tuple):
        address += cutlass.min(Int64(source.stride[0][0]), Int64(0)) * ITEM_BYTES
    return address
