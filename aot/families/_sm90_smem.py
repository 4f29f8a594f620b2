"""Shared memory of the epilogues of quack's Hopper GEMM and ours. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.knobs import SplitK
from aot.families._quack_smem import vector_bytes
from aot.families._sm90_tiles import epilogue_tile

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation

ALIGNMENT_BYTES = 1024
"""Alignment of the stages of A and B, and what quack leaves for it where something else than stages of D lies in front.
Source: gemm_sm90.py, `_compute_stages` and `buffer_align_bytes`."""


@dataclass(frozen=True)
class EpilogueSmem:
    """The shared memory of an epilogue, in bytes of one stage, and the fewest stages; all of them where `is_whole`."""

    d_bytes: int
    d_stages: int
    c_bytes: int
    c_stages: int
    most_c_stages: int
    vector_bytes: int
    is_whole: bool
    """Whether D has a stage for each piece of a tile."""
    padding: int
    """What quack leaves for the alignment of the stages of A and B, where something else than D's and C's lies before
    them."""

    @staticmethod
    def of(candidate: Candidate, operation: Operation, *, is_whole: bool = False) -> EpilogueSmem:
        """Count as `GemmSm90._compute_stages` does before it fills what is left.

        Args:
            candidate: tile and schedule.
            operation: with its types and epilogue.
            is_whole: whether D has a stage for each piece of a tile.
        """
        is_separate = SplitK(candidate.gemm.split_k_mode) is SplitK.SEPARATE
        d = operation.accumulator if is_separate else operation.d
        rows, columns = epilogue_tile(candidate, 16 if operation.gate else d.bits)
        num_tiles = candidate.gemm.tile_m * candidate.gemm.tile_n // (rows * columns)
        num_pieces = candidate.gemm.tile_m // rows * -(-candidate.gemm.tile_n // columns)
        vectors = vector_bytes(candidate, operation, candidate.gemm.tile_m)
        return EpilogueSmem(
            d_bytes=d.size_of(rows * columns) // (2 if operation.gate else 1),
            d_stages=num_pieces if is_whole else min(num_tiles, 4 if columns <= 16 else 2),
            c_bytes=operation.d.size_of(rows * columns) if operation.has_residual else 0,
            c_stages=min(num_tiles, 4) if operation.has_residual else 0,
            most_c_stages=min(num_tiles, 5),
            vector_bytes=vectors,
            is_whole=is_whole,
            padding=ALIGNMENT_BYTES if vectors or operation.gate else 0,
        )

    def fill(self, num_bytes: int) -> int:
        """Return the bytes of all, aligned, where so many are left: stages of C first, then of D."""
        more_c = min(num_bytes // self.c_bytes, self.most_c_stages - self.c_stages) if self.c_bytes else 0
        more_c = 0 if self.is_whole else max(more_c, 0)
        more_d = 0 if self.is_whole else (num_bytes - more_c * self.c_bytes) // self.d_bytes
        aligned = -(-self.vector_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return aligned + self.c_bytes * (self.c_stages + more_c) + self.d_bytes * (self.d_stages + more_d)
