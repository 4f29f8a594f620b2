"""Shared memory of quack's epilogues. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import SplitK

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation


def bias_bytes(candidate: Candidate, operation: Operation, cta_m: int) -> int:
    """Count the bytes of the piece of a bias that a CTA's tile needs.

    In separate split-K the reduction adds the bias, from global memory. Source: quack epilogue/ops.py, `VecLoad`.

    Args:
        candidate: tile, swap and split.
        operation: what has the bias.
        cta_m: rows of a tile that one CTA holds.
    """
    if not operation.has_bias or candidate.split_k_mode == SplitK.SEPARATE:
        return 0
    return operation.d.size_of(cta_m if candidate.swap_ab else candidate.tile_n)
