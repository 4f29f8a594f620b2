"""The tiles of `sm90_shifted`, and what they take. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aot.families._mma_sync_tile import ITEM_BYTES, PAD
from aot.families._sm90_split_tile import BARRIER_BYTES, ROW_BYTES, SWIZZLED, OneTile, Tile

NUM_MOVING = 128
"""Threads that move rows to where `wgmma` reads them."""

NUM_MOVING_WARPS = NUM_MOVING // 32

NUM_COPYING = 64
"""Threads that copy operands as they lie in memory. They are others than those that move: a thread that lets wgmma see
what it wrote waits until all that it has under way has arrived (MEMBAR.ALL.CTA, nvidia-cutlass-dsl 4.8.1)."""

NUM_LOADING = NUM_MOVING + NUM_COPYING + 32
"""All threads that do not multiply: those, and a warp for what TMA loads."""

BLOCK_K = ROW_BYTES // ITEM_BYTES
"""Elements of k in a stage."""

MIN_STAGES, MAX_STAGES = 2, 3
"""Stages that are multiplied: while one is, the next is written. A third is what a load by TMA is ahead."""

MIN_RAW, MAX_RAW = 3, 6
"""Blocks of k that are under way, as they lie in memory."""


def raw_bytes(extent: int, *, is_k_major: bool) -> int:
    """Count the bytes of an operand's block of k as it lies in memory, with the piece more in which each row ends."""
    rows, length = (extent, BLOCK_K) if is_k_major else (BLOCK_K, extent)
    return rows * (length + PAD) * ITEM_BYTES


@dataclass(frozen=True)
class ShiftedTile(Tile):
    """A tile whose operands are copied as they lie in memory, and moved to the stages."""

    are_k_major: tuple[bool, bool] = (True, True)
    """Whether the operand of the rows is contiguous along k, and whether that of the columns is."""
    num_raw: int = MIN_RAW

    @property
    def num_threads(self) -> int:
        """Threads of a CTA: those that multiply, and those that load."""
        return self.num_multiplying + NUM_LOADING

    @property
    def num_filling(self) -> int:
        """Arrivals at a stage's barrier that say that it is full: one of each warp that moves, and one of TMA's."""
        return NUM_MOVING_WARPS + 1

    @property
    def raw_parts(self) -> tuple[int, int]:
        """Bytes of a block of k of the rows' operand as it lies in memory, and of the columns'."""
        of_rows, of_columns = self.are_k_major
        return raw_bytes(self.rows, is_k_major=of_rows), raw_bytes(self.columns, is_k_major=of_columns)

    @property
    def raw_bytes(self) -> int:
        """Bytes of a block of k of both."""
        return sum(self.raw_parts)

    @property
    def fixed_bytes(self) -> int:
        """Bytes beside the stages."""
        return super().fixed_bytes + self.num_raw * (self.raw_bytes + 2 * BARRIER_BYTES)


@dataclass(frozen=True)
class ShiftedOneTile(ShiftedTile, OneTile):
    """The same of one CTA, stored by way of its stages."""


def filled(bare: ShiftedTile, smem_bytes: int) -> ShiftedTile:
    """Give a tile of `MIN_STAGES` and `MIN_RAW` what fits: the blocks under way, of the rest the stages."""
    for stages in range(MAX_STAGES, MIN_STAGES, -1):
        tile = replace(bare, num_stages=stages)
        if tile.smem_bytes <= smem_bytes:
            break
    else:
        tile = bare
    left = (smem_bytes - tile.smem_bytes) // (tile.raw_bytes + 2 * BARRIER_BYTES)
    return replace(tile, num_raw=max(MIN_RAW, min(MIN_RAW + left, MAX_RAW)))


def takes(extent: int, *, is_k_major: bool) -> bool:
    """Say whether an operand's side of a tile is moved by whole warps: rows of 1, 2 or 4 times 128 bytes."""
    return is_k_major or extent in (SWIZZLED, 2 * SWIZZLED, 4 * SWIZZLED)
