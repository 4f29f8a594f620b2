"""What quack's split-K needs of its caller, for every architecture alike. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Workspace
from aot.core.knobs import SplitK

if TYPE_CHECKING:
    from aot.core.candidate import Candidate

REDUCE_VECTOR = 4
"""Elements that a thread of the separate reduction moves at once; n must be a multiple."""


def split_k_workspace(candidate: Candidate, cta_m: int) -> Workspace:
    """Return the flags and float32 regions, or the partials, of a candidate.

    Args:
        candidate: how k is split, if it is.
        cta_m: rows of a tile that one CTA holds, which are those of a region.
    """
    if candidate.gemm.split_k == 1:
        return Workspace()
    return Workspace(
        candidate.gemm.split_k_mode,
        candidate.gemm.split_k,
        cta_m,
        candidate.gemm.tile_n,
        candidate.gemm.cluster_m,
        candidate.gemm.cluster_n,
        candidate.gemm.swap_ab,
    )


def split_k_multiples(candidate: Candidate) -> tuple[int, int]:
    """Ask for an n that the separate reduction can move REDUCE_VECTOR at a time; otherwise take all."""
    return (1, REDUCE_VECTOR) if SplitK(candidate.gemm.split_k_mode) is SplitK.SEPARATE else (1, 1)


def order_of_splits(instruction: str, candidate: Candidate) -> str:
    """Name the order in which products are added up where an instruction goes along k, of a whole tile or a split.

    Where splits add as they arrive there is none, and where only the tiles of the last wave are split it depends on m.
    """
    mode = SplitK(candidate.gemm.split_k_mode)
    if mode in (SplitK.PARALLEL, SplitK.TAIL):
        return ""
    return instruction if mode is SplitK.NONE else f"{instruction}, {mode.value} split-K of {candidate.gemm.split_k}"
