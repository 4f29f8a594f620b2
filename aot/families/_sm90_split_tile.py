"""What the kernel of `sm90_cluster_split_k` works on, and what it takes. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ROW_BYTES = 128
"""Bytes of k in a stage, the widest rows that TMA swizzles. Source: PTX ISA, swizzling modes."""

SWIZZLED = 64
"""Elements of a swizzled row along the tile, where an operand is not contiguous along k: 128 bytes, as along k."""

MMA_M = 64
"""Rows that a warpgroup multiplies at once. Source: PTX ISA, wgmma."""

GROUP = 8
"""Columns in which a tile grows: a thread holds two neighbouring columns of two rows. Source: PTX ISA, wgmma."""

NUM_WIDTHS = 4
"""Widths of tile, 8 columns apart, that a kernel of several widths computes."""

WARPGROUP = 128
"""Threads of a warpgroup."""

NUM_LOAD_WARPS = 2
"""A loading warp for each operand."""

VECTOR_BYTES = 16
"""Bytes of a thread's four sums of a group, which travel together."""

BARRIER_BYTES = 8
"""Source: PTX ISA, mbarrier: 64 bits."""

ALIGN_BYTES = 1024
"""Alignment of the stages: the 128-byte swizzle repeats after as much. Source: PTX ISA, swizzling modes."""


@dataclass(frozen=True)
class Tile:
    """A tile of the product, and how the CTAs of a cluster share it, and others beside it; sizes in elements."""

    rows: int
    columns: int
    splits: int
    """CTAs that share k."""
    num_warpgroups: int
    """Warpgroups of a CTA that multiply; they share the rows."""
    num_stages: int
    cluster_m: int = 1
    """Tiles of a cluster along the rows, which share their columns."""
    cluster_n: int = 1
    """Tiles of a cluster along the columns, which share their rows."""

    @property
    def num_tiles(self) -> int:
        """Tiles of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def num_ctas(self) -> int:
        """CTAs of a cluster. Those that share k lie `num_tiles` apart."""
        return self.num_tiles * self.splits

    @property
    def sharing(self) -> tuple[int, int]:
        """Tiles that share a load of the rows, and of the columns."""
        return self.cluster_n, self.cluster_m

    @property
    def takes_turns(self) -> tuple[bool, bool]:
        """Say of the rows and of the columns whether tiles that share them load whole stages in turns, not parts."""
        return False, False

    @property
    def num_groups(self) -> int:
        """Groups of columns."""
        return self.columns // GROUP

    @property
    def share(self) -> int:
        """Groups of columns that a CTA stores of its tile; the last CTA may store fewer."""
        return -(-self.num_groups // self.splits)

    @property
    def num_steps(self) -> int:
        """Times that a warpgroup's 64 rows fit the rows that it multiplies."""
        return self.rows // (MMA_M * self.num_warpgroups)

    @property
    def num_vectors(self) -> int:
        """Vectors of four sums that a thread receives from each other CTA of the tile."""
        return self.share * self.num_steps

    @property
    def num_multiplying(self) -> int:
        """Threads that multiply."""
        return WARPGROUP * self.num_warpgroups

    @property
    def num_threads(self) -> int:
        """Threads of a CTA."""
        return self.num_multiplying + 32 * NUM_LOAD_WARPS

    @property
    def num_filling(self) -> int:
        """Arrivals at a stage's barrier that say that it is full, beside the bytes that TMA brings."""
        return 1

    @property
    def num_accumulators(self) -> int:
        """Accumulator registers of a multiplying thread."""
        return self.rows * self.columns // self.num_multiplying

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage, all of which TMA brings."""
        return (self.rows + self.columns) * ROW_BYTES

    @property
    def received_bytes(self) -> int:
        """Bytes that a CTA has room for from the others of its tile, and in any case for its own sums, to be stored."""
        return max(self.splits - 1, 1) * self.stored_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes that a CTA needs for its own sums while they are stored: a place of four for each vector."""
        return self.num_vectors * self.num_multiplying * VECTOR_BYTES

    @property
    def num_barriers(self) -> int:
        """Barriers of a CTA: two for each stage, and one for what it receives."""
        return 2 * self.num_stages + 1

    @property
    def num_factors(self) -> int:
        """Floats that a CTA keeps for finishing what it stores: none, a bias alone is read when it is needed."""
        return 0

    @property
    def fixed_bytes(self) -> int:
        """Bytes beside the stages: what is received, the barrier for it, factors, and what aligns the stages."""
        return ALIGN_BYTES + self.received_bytes + VECTOR_BYTES + 4 * self.num_factors

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.fixed_bytes + (self.stage_bytes + 2 * BARRIER_BYTES) * self.num_stages


@dataclass(frozen=True)
class ScaledTile(Tile):
    """The same where the sums have factors and perhaps a bias."""

    swap_ab: bool = False
    """Whether the tile's rows are rows of B, which have the bias."""

    @property
    def side(self) -> int:
        """Columns of the tile that a CTA stores, and perhaps some behind them."""
        return self.share * GROUP

    @property
    def num_factors(self) -> int:
        """Floats that a CTA keeps for what it stores: factors of its rows, of its columns, and the bias of B's side."""
        return self.rows + self.side + (self.rows if self.swap_ab else self.side)


@dataclass(frozen=True)
class OneTile(Tile):
    """A tile that one CTA computes, and stores by way of its stages."""

    @property
    def takes_turns(self) -> tuple[bool, bool]:
        """Say so of an operand that has no equal parts for all that share it."""
        rows, columns = (
            x % (GROUP * sharing) != 0 for x, sharing in zip((self.rows, self.columns), self.sharing, strict=True)
        )
        return rows, columns

    def sharers(self, peer: Any) -> tuple[tuple[int, Any, Any, int], tuple[int, Any, Any, int]]:
        """Say with which CTAs of the cluster one shares the loads of its rows, and of its columns.

        Args:
            peer: number of the CTA in its cluster, an int or CUTLASS's Int32; the tiles along the rows come first.

        Returns:
            For each operand how many CTAs share it, the first of them, which of its parts is this CTA's, and the
            distance from one of them to the next.
        """
        row, column = peer % self.cluster_m, peer // self.cluster_m
        return (self.cluster_n, row, column, self.cluster_m), (self.cluster_m, peer - row, row, 1)

    @property
    def received_bytes(self) -> int:
        """Bytes beside the stages for what others send: none."""
        return 0

    @property
    def num_barriers(self) -> int:
        """Barriers of a CTA: two for each stage."""
        return 2 * self.num_stages

    @property
    def fixed_bytes(self) -> int:
        """Bytes beside the stages: what aligns them, and factors."""
        return ALIGN_BYTES + 4 * self.num_factors


@dataclass(frozen=True)
class WidthsTile(OneTile):
    """The widest tile of a kernel of several widths, and the room that all of them have."""

    @property
    def takes_turns(self) -> tuple[bool, bool]:
        """Say so of the columns wherever they are shared: not every width has equal parts."""
        rows, _ = super().takes_turns
        return rows, self.sharing[1] > 1


@dataclass(frozen=True)
class ScaledOneTile(OneTile, ScaledTile):
    """The same where the sums have factors and perhaps a bias."""
