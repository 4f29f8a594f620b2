"""quack's block-scaled GEMM over groups of rows, of operands of two widths. Imports CUTLASS and quack."""

from __future__ import annotations

from aot.families._grouped_kernel import GemmGroupedSm100
from aot.families._padded_block_kernel import GemmPaddedSm100


class GemmPaddedGroupedSm100(GemmGroupedSm100):
    """`GemmGroupedSm100` with elements of 8 bits in A and of 4 in B, each handed to quack as it is."""

    view_b = GemmPaddedSm100.view_b
    _setup_attributes = GemmPaddedSm100._setup_attributes  # noqa: SLF001 - one of ours
