"""How `sm90_shifted` copies an operand's part of a tile, and moves it to where `wgmma` reads it. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cutlass import Constexpr, Int32, Int64, Uint32, const_expr, cute, range_constexpr

from aot.families._mma_sync_loads import Cursor, Side
from aot.families._mma_sync_tile import ITEM_BYTES, PAD
from aot.families._pieces import SEGMENT, SEGMENT_BYTES, shifted, words_at
from aot.families._sm90_shifted_tile import BLOCK_K, NUM_MOVING_WARPS
from aot.families._sm90_split_tile import SWIZZLED

LANES_OF_ROW = 32 // SEGMENT
"""Lanes that share a row of a group of 8 that a warp moves."""

MOVED_ROWS = SEGMENT * NUM_MOVING_WARPS
"""Rows that all warps move at once."""


class Lines(NamedTuple):
    """Where a copying thread's pieces of an operand's part lie."""

    pieces: Cursor
    """The first, and its row."""
    ends: Cursor
    """The last piece of a row."""
    starts: tuple[Any, ...]
    """Addresses of the first pieces in the first block of k, multiples of 16 bytes, up to one 8 rows behind the first;
    then that of `ends`. Int64."""


@dataclass(frozen=True)
class ShiftedSide(Side):
    """An operand's part in a tile, moved to the swizzled rows that `wgmma` reads.

    Rows 8 behind each other begin as many bytes behind a multiple of 16: so do a thread's pieces in all blocks of k.
    """

    @property
    def num_starts(self) -> int:
        """Pieces of a thread until one that is 8 rows behind the first."""
        return max(SEGMENT // self.step_rows, 1)

    @property
    def per_lane(self) -> int:
        """Pieces of a row that a lane moves, of four: it reads one more."""
        return self.per_row // LANES_OF_ROW

    @property
    def num_moves(self) -> int:
        """Groups of 8 rows that a moving warp has, at most."""
        return -(-self.num_rows // MOVED_ROWS)

    def has_all(self, turn: int) -> bool:
        """Say whether all moving warps have a group in one of their turns."""
        return (turn + 1) * MOVED_ROWS <= self.num_rows

    def moved_place(self, row: Any, inner: Any) -> Any:
        """Return where a piece lies in a stage: rows of 128 bytes, whose pieces change places with their number."""
        chunk = inner % SWIZZLED // SEGMENT ^ row % SEGMENT
        return (inner // SWIZZLED * self.num_rows + row) * SWIZZLED + chunk * SEGMENT

    def lines(self, source: cute.Tensor, first_row: Int32, thread: Int32) -> Lines:
        """Work out where a copying thread's pieces lie; to be called while tracing."""
        pieces, ends = self.cursors(source, first_row, thread)
        step = self.step_bytes(source, self.step_rows)
        starts = [
            (pieces.begin + i * step & -SEGMENT_BYTES) + pieces.inner * ITEM_BYTES for i in range(self.num_starts)
        ]
        starts.append((ends.begin & -SEGMENT_BYTES) + ends.inner * ITEM_BYTES)
        return Lines(pieces, ends, tuple(starts))

    @cute.jit
    def bring(self, lines: Any, source: cute.Tensor, stage: cute.Tensor, block: Int32) -> None:
        """Copy a block of k asynchronously, as `Side.copy` does."""
        if self._has_whole(lines.pieces, block * self.block_k):
            far = Int64(block) * (BLOCK_K * ITEM_BYTES if self.is_k_major else self.step_bytes(source, BLOCK_K))
            count, rows = const_expr(self.num_starts), const_expr(self.num_starts * self.step_rows)
            for turn in range_constexpr(self.num_turns):
                address = lines.starts[turn % count] + far + self.step_bytes(source, turn // count * rows)
                self.copy_there(lines.pieces, source, stage, address, turn * self.step_rows)
            for turn in range_constexpr(-(-self.num_rows // self.num_threads)):
                skipped = const_expr(turn * self.num_threads)
                address = lines.starts[count] + far + self.step_bytes(source, skipped)
                self.copy_there(lines.ends, source, stage, address, skipped)
        else:
            self._copy_all(self._copy_turn, (lines.pieces, lines.ends), source, stage, block)

    @cute.jit
    def copy_there(
        self, cursor: Cursor, source: cute.Tensor, stage: cute.Tensor, address: Int64, skipped: Constexpr[int]
    ) -> None:
        """Copy a piece at an address, `skipped` rows behind a thread's first, if there is such a row."""
        is_there = skipped < cursor.num_left if const_expr(self.is_k_major) else True
        if is_there & (cursor.row + skipped < self.num_rows):
            target = stage.iterator + ((cursor.row + skipped) * (self.row_length + PAD) + cursor.inner)
            self._copy_piece(source, target, address, None)

    @cute.jit
    def move(self, begin: Int32, stage: cute.Tensor, target: cute.Tensor, warp: Int32) -> None:
        """Write a warp's groups of 8 rows to a stage, moved to where the rows begin.

        All are read before the first is written. Lanes beside each other have rows beside each other, so that what they
        read and write lies in different banks.

        Args:
            begin: the last bits of the address at which the lane's rows begin.
            stage: the part as it was copied.
            target: a stage that `wgmma` reads.
            warp: the warp among those that move.
        """
        lane = cute.arch.lane_idx()
        row, inner = warp * SEGMENT + lane % SEGMENT, lane // SEGMENT * (self.per_lane * SEGMENT)
        found = []
        for turn in range_constexpr(self.num_moves):
            words = cute.make_rmem_tensor((4, self.per_lane + 1), Uint32)
            if const_expr(self.has_all(turn)) or row + turn * MOVED_ROWS < self.num_rows:
                self._read(stage, words, row + turn * MOVED_ROWS, inner)
            found.append(words)
        for turn in range_constexpr(self.num_moves):
            if const_expr(self.has_all(turn)) or row + turn * MOVED_ROWS < self.num_rows:
                self._write(target, found[turn], begin, row + turn * MOVED_ROWS, inner)

    def _read(self, stage: cute.Tensor, words: cute.Tensor, row: Any, inner: Any) -> None:
        """Read a lane's pieces of a row, and one more; to be called while tracing."""
        for i in range(self.per_lane + 1):
            place = row * (self.row_length + PAD) + inner + i * SEGMENT
            cute.autovec_copy(words_at(stage, place), words[None, i])

    def _write(self, target: cute.Tensor, words: cute.Tensor, begin: Any, row: Any, inner: Any) -> None:
        """Write a lane's pieces of a row, moved to where it begins; to be called while tracing."""
        for i in range(self.per_lane):
            piece = shifted([words[j % 4, i + j // 4] for j in range(8)], begin)
            cute.autovec_copy(piece, words_at(target, self.moved_place(row, inner + i * SEGMENT)))
