"""What a CTA of `gemv` computes, and how its warps share it. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = 2
"""Bytes of an element of A and B."""

PIECE_BYTES = 16
"""Bytes of a load, of whose multiples its address is one. Source: PTX ISA, ld.global.v4.b32."""

PIECE = PIECE_BYTES // ITEM_BYTES
"""Elements of a load. As many rows on, whatever their stride, a row begins as far behind a multiple of 16 bytes."""

IN_FLIGHT = 8
"""Loads that a thread has under way at once: 32 registers. An SM of an H200 needs 25 KB under way for its share of the
memory's 4.8 TB/s at some 700 ns, which is 200 threads of this."""

WARP = 32


@dataclass(frozen=True)
class Tile:
    """The columns of D that a CTA computes for one row of A; they are rows of B, which is (n, k)."""

    columns: int
    """Columns of D: of a B that is contiguous along n those that `lanes` give."""
    along_k: int
    """Warps that share k."""
    at_once: int = 1
    """Rows of B that a thread multiplies by what it loaded of A, where B is contiguous along k."""
    lanes_along_k: int = WARP
    """Lanes of a warp that share a row of B, where it is contiguous along k."""
    splits: int = 1
    """CTAs of a cluster that share k, where B is contiguous along n."""
    b_is_k_major: bool = True

    @property
    def lanes(self) -> int:
        """Lanes of a warp along a row of B, as it lies in memory.

        Where that is along n, one more than the columns would fill: most rows begin between two multiples of 16 bytes.
        """
        return self.lanes_along_k if self.b_is_k_major else self.columns // PIECE + 1

    @property
    def groups(self) -> int:
        """Rows of B, as they lie in memory, that a warp loads pieces of at once; `at_once` times as many along k."""
        return WARP // self.lanes

    @property
    def along_n(self) -> int:
        """Warps that have rows of B of their own, where it is contiguous along k."""
        return self.columns // (self.at_once * self.groups) if self.b_is_k_major else 1

    @property
    def num_threads(self) -> int:
        """Threads of a CTA."""
        return WARP * self.along_n * self.along_k

    @property
    def turns_at_once(self) -> int:
        """Pieces of a row that a thread has under way at once."""
        return IN_FLIGHT // self.at_once

    @property
    def row_floats(self) -> int:
        """Floats of a warp's sums in shared memory.

        Where B is contiguous along n, with those in front of the first column and behind the last, which pieces hold.
        """
        return self.columns if self.b_is_k_major else (self.lanes + 1) * PIECE

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA: the sums of each warp along k, and behind them those of all, for the cluster."""
        rows = self.along_k * self.row_floats if self.along_k > 1 else 0
        return 4 * (rows + (self.columns if self.splits > 1 else 0))
