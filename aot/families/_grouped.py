"""What kernels over groups take, on any architecture. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.grouping import Grouping
from aot.core.knobs import SplitK

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation

GROUPINGS = (Grouping.GROUPED, Grouping.GATHERED, Grouping.K_GROUPED)
"""The groupings whose groups are found by offsets on the device."""


def grouped_fault(candidate: Candidate, operation: Operation) -> str | None:
    """Say why a kernel over groups cannot be built of a candidate."""
    if candidate.gemm.swap_ab:
        return f"{operation.grouping.value} rows are the kernel's rows; take no swap"
    if SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE:
        return f"the kernel has no {SplitK(candidate.gemm.split_k_mode).value} split-K of groups; take no split"
    if operation.grouping is Grouping.GATHERED and candidate.gemm.cluster_n > 1:
        cluster = f"{candidate.gemm.cluster_m}x{candidate.gemm.cluster_n}"
        return (
            f"each CTA gathers its own rows of A, which a cluster of {cluster} would share; take one of a single column"
        )
    return None
