"""How the CTAs of `mma_sync` bring a part of an operand to shared memory, and read it as matrices. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cutlass
from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import warp
from cutlass.experimental import primitives as prims

from aot.families._mma_sync_tile import ITEM_BYTES, PAD
from aot.families._pieces import SEGMENT, SEGMENT_BYTES, by_words, words_at


class Cursor(NamedTuple):
    """Where a thread's pieces of an operand's part lie, worked out once for all blocks of k.

    A row is one as it lies in memory: of k where the operand is contiguous along k, else of m or n. A thread's pieces
    lie `Side.step_rows` rows apart.
    """

    begin: Int64
    """Address of the row of the thread's first piece, in the first block of k."""
    row: Int32
    """That row, among those of the part."""
    inner: Int32
    """Elements from the beginning of a row to a piece of the thread's."""
    length: Int32
    """Elements of a row, from the part's first on; none or less where the part begins behind the operand."""
    num_left: Int32
    """Rows of the operand from `row` on."""


@dataclass(frozen=True)
class Side:
    """An operand's part in a CTA's tile: `extent` of its rows by a block of k."""

    extent: int
    block_k: int
    is_k_major: bool
    loads: int
    num_threads: int
    takes_whole: bool = False
    """Whether blocks that lie inside of the operand are copied by instructions of their own, without limits."""
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
        return replace(self, loads=SEGMENT_BYTES, takes_whole=False, loads_own=False)

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

    def cursors(self, source: cute.Tensor, first_row: Int32, thread: Int32) -> tuple[Cursor, ...]:
        """Return where a thread's pieces lie, and of shifted rows where the last piece of each; while tracing.

        A thread without pieces is said to be behind the part's last row.
        """
        inner = thread % self.per_row * self.piece
        row = thread // self.per_row
        if not self.is_even:
            row = cutlass.select_(row < self.step_rows, row, Int32(self.num_rows))
        pieces = self.start(source, first_row, row, inner)
        return (pieces, self.start(source, first_row, thread, Int32(self.row_length))) if self.is_shifted else (pieces,)

    def is_wide(self, source: cute.Tensor) -> Any:
        """Say whether an operand's rows begin at multiples of 16 bytes; to be called while tracing."""
        stride = source.stride[0 if self.is_k_major else 1]
        return ((Int32(source.iterator.toint()) | Int32(Int64(stride) * ITEM_BYTES)) & (SEGMENT_BYTES - 1)) == 0

    def own_cursors(self, source: cute.Tensor, first_row: Int32, thread: Int32, is_wide: Any) -> tuple[Cursor, ...]:
        """Return the cursors of the width by which an operand is loaded; to be called while tracing."""
        found = self.cursors(source, first_row, thread)
        if self.is_shifted:  # whose pieces are as wide
            return found
        wide = self.wide.cursors(source, first_row, thread)[0]
        return (Cursor(*(cutlass.select_(is_wide, x, y) for x, y in zip(wide, found[0], strict=True))),)

    @cute.jit
    def copy_own(
        self, cursors: tuple[Cursor, ...], source: cute.Tensor, stage: cute.Tensor, block: Int32, is_wide: Any
    ) -> None:
        """Copy a block of k as `copy` does, by 16 bytes where the operand's rows begin at multiples of them."""
        if is_wide:
            self.wide.copy(cursors[:1], source, stage, block)
        else:
            self.copy(cursors, source, stage, block)

    def _has_whole(self, cursor: Cursor, first_k: Int32) -> Any:
        """Say whether all pieces of a block of k lie inside of their rows; to be called while tracing.

        The first block of shifted rows is said not to: a piece may lie in front of the operand.
        """
        behind = SEGMENT if self.is_shifted else 0
        if self.is_k_major:
            whole = first_k + self.block_k + behind <= cursor.length
        else:
            is_deep = first_k + self.block_k <= cursor.num_left + cursor.row
            whole = is_deep & (cursor.length >= self.row_length + behind)
        return whole & (first_k > 0) if self.is_shifted else whole

    @cute.jit
    def copy(self, cursors: tuple[Cursor, ...], source: cute.Tensor, stage: cute.Tensor, block: Int32) -> None:
        """Copy a block of k asynchronously: the bytes of each piece that the operand has, and zeros behind them.

        Where rows are shifted, what lies in front of one in its first piece is of the row before; `write_moved` leaves
        it out. In front of the operand's first element nothing is read: such a piece is loaded element by element.
        Where a block lies inside of the operand's rows, pieces are copied whole, and those of rows that the operand
        does not have are left as they are: they reach nothing but rows of D that are not there either.
        """
        if const_expr(self.takes_whole):
            if self._has_whole(cursors[0], block * self.block_k):
                self._copy_all(self._copy_whole, cursors, source, stage, block)
            else:
                self._copy_all(self._copy_turn, cursors, source, stage, block)
        else:
            self._copy_all(self._copy_turn, cursors, source, stage, block)

    def _copy_all(self, copy: Any, cursors: Any, source: cute.Tensor, stage: cute.Tensor, block: Int32) -> None:
        """Copy all pieces of a thread, one by one; to be called while tracing."""
        for turn in range(self.num_turns):
            copy(cursors[0], source, stage, block, turn, self.step_rows)
        if self.is_shifted:
            for turn in range(-(-self.num_rows // self.num_threads)):
                copy(cursors[1], source, stage, block, turn, self.num_threads)

    def _row_of(self, cursor: Cursor, source: cute.Tensor, block: Int32, skipped: int) -> Any:
        """Return the address of a row, `skipped` behind a thread's first, in a block of k; to be called while tracing.

        Of rows along k it is that of the block's first element.
        """
        if self.is_k_major:
            far = Int64(block * self.block_k) * ITEM_BYTES
        else:
            far = Int64(block) * self.step_bytes(source, self.block_k)
        return cursor.begin + far + self.step_bytes(source, skipped)

    @cute.jit
    def _copy_whole(
        self,
        cursor: Cursor,
        source: cute.Tensor,
        stage: cute.Tensor,
        block: Int32,
        turn: Constexpr[int],
        step_rows: Constexpr[int],
    ) -> None:
        """Copy one piece of a thread that lies inside of its row, if the operand has the row."""
        skipped = turn * step_rows
        begin = self._row_of(cursor, source, block, skipped)
        if const_expr(self.is_shifted):
            begin = begin & -SEGMENT_BYTES
        is_there = skipped < cursor.num_left if const_expr(self.is_k_major) else True
        if is_there & (cursor.row + skipped < self.num_rows):
            target = stage.iterator + ((cursor.row + skipped) * (self.row_length + PAD) + cursor.inner)
            self._copy_piece(source, target, begin + cursor.inner * ITEM_BYTES, None)

    @cute.jit
    def _copy_turn(
        self,
        cursor: Cursor,
        source: cute.Tensor,
        stage: cute.Tensor,
        block: Int32,
        turn: Constexpr[int],
        step_rows: Constexpr[int],
    ) -> None:
        """Copy one piece of a thread, `turn` times `step_rows` rows behind its first, as far as it is there."""
        first_k, skipped = block * self.block_k, turn * step_rows
        begin = self._row_of(cursor, source, block, skipped)
        along = cursor.length - first_k if const_expr(self.is_k_major) else cursor.length
        across = cursor.num_left if const_expr(self.is_k_major) else cursor.num_left - first_k
        shift = Int32(begin) & (SEGMENT_BYTES - 1) if const_expr(self.is_shifted) else Int32(0)
        address = begin - shift + cursor.inner * ITEM_BYTES
        left = cutlass.max(cutlass.min(along + shift // ITEM_BYTES - cursor.inner, Int32(self.piece)), Int32(0))
        # A row that begins behind the operand's extent has nothing, not even what its shift would reach back to.
        left = cutlass.select_((skipped < across) & (along > 0), left * ITEM_BYTES, Int32(0))
        if cursor.row + skipped < self.num_rows:
            target = stage.iterator + ((cursor.row + skipped) * (self.row_length + PAD) + cursor.inner)
            if const_expr(self.is_shifted and turn * step_rows < SEGMENT and step_rows != self.num_threads):
                if address >= first_byte(source):
                    self._copy_piece(source, target, address, left)
                else:
                    self._copy_front(source, target, address, left)
            else:
                self._copy_piece(source, target, address, left)

    def _copy_piece(self, source: cute.Tensor, target: Any, address: Any, num_bytes: Any) -> None:
        """Copy a piece asynchronously, whole or its first `num_bytes` bytes with zeros behind; called while tracing."""
        size = self.piece * ITEM_BYTES
        piece = cute.make_ptr(source.element_type, address, cute.AddressSpace.gmem, assumed_align=size)
        modifier = prims.LoadCacheModifier.CG if size == SEGMENT_BYTES else prims.LoadCacheModifier.CA
        prims.cp_async_shared_global(target.to_llvm_ptr(), piece.to_llvm_ptr(), size, modifier, cp_size=num_bytes)

    @cute.jit
    def _copy_front(self, source: cute.Tensor, target: Any, address: Int64, num_bytes: Int32) -> None:
        """Copy the piece in which an operand begins, of which `num_bytes` lie in front of the end of its row."""
        start = first_byte(source)
        values = cute.make_tensor(target, cute.make_layout(SEGMENT))
        for e in range_constexpr(SEGMENT):
            place = address + e * ITEM_BYTES
            value = source.element_type(0)
            if place >= start and e * ITEM_BYTES < num_bytes:
                one = cute.make_ptr(source.element_type, place, cute.AddressSpace.gmem, assumed_align=ITEM_BYTES)
                value = cute.make_tensor(one, cute.make_layout(1))[0]
            values[e] = value

    @cute.jit
    def write_moved(
        self, cursors: tuple[Cursor, ...], source: cute.Tensor, stage: cute.Tensor, target: cute.Tensor
    ) -> None:
        """Write a thread's pieces of a shifted part to another stage, moved to where its rows begin.

        A block of k is a whole number of 16 bytes wide, and as many rows of them high, so that all blocks have the
        shifts of the first.
        """
        begin, step = Int32(cursors[0].begin), Int32(self.step_bytes(source, self.step_rows))
        for turn in range_constexpr(self.num_turns):
            is_there = turn * self.step_rows < cursors[0].num_left if const_expr(self.moves_few) else True
            if is_there & (cursors[0].row + turn * self.step_rows < self.num_rows):
                place = (cursors[0].row + turn * self.step_rows) * (self.row_length + PAD) + cursors[0].inner
                two = cute.make_rmem_tensor((4, 2), Uint32)
                for half in range_constexpr(2):
                    cute.autovec_copy(words_at(stage, place + half * SEGMENT), two[None, half])
                shift = (begin + turn * step & (SEGMENT_BYTES - 1)) // ITEM_BYTES
                found = _shifted([two[i % 4, i // 4] for i in range(8)], shift)
                words = cute.make_rmem_tensor(4, Uint32)
                for i in range_constexpr(4):
                    words[i] = found[i]
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


def _shifted(words: list[Any], shift: Int32) -> list[Any]:
    """Take the 8 elements from the `shift`-th on, of 0 to 7, out of 16 in 8 words."""
    words = by_words(words, shift)
    is_odd = shift % 2 == 1
    return [cutlass.select_(is_odd, (words[i] >> 16 & 0xFFFF) | words[i + 1] << 16, words[i]) for i in range(4)]
