"""How `sm90_shifted` copies an operand's part of a tile, and moves it to where `wgmma` reads it. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32, Uint32, const_expr, cute, range_constexpr

from aot.families._mma_sync_loads import Side
from aot.families._mma_sync_tile import PAD
from aot.families._pieces import SEGMENT, shifted, words_at
from aot.families._sm90_shifted_tile import NUM_MOVING_WARPS
from aot.families._sm90_split_tile import SWIZZLED

LANES_OF_ROW = 32 // SEGMENT
"""Lanes that share a row of a group of 8 that a warp moves."""

MOVED_ROWS = SEGMENT * NUM_MOVING_WARPS
"""Rows that all warps move at once."""


@dataclass(frozen=True)
class ShiftedSide(Side):
    """An operand's part in a tile, moved to the swizzled rows that `wgmma` reads.

    Rows 8 behind each other begin as many bytes behind a multiple of 16: so do a thread's pieces in all blocks of k.
    """

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
