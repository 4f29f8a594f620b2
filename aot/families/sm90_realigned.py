"""The Hopper GEMM of `sm90_cluster_split_k` of copies of A and B whose rows TMA takes.

Rows that begin at multiples of 16 bytes are what TMA loads. Operands that have others, as those with an odd k have, are
copied by a kernel in front to a workspace, in the same call: a copy reads and writes an operand once, and where many
tiles read it, that costs less than multiplying without TMA and wgmma. Operands that need no copy are read in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Workspace
from aot.core.epilogue import WITHOUT_GATE
from aot.core.types import BF16, FP16
from aot.families.sm90_cluster_split_k import ELEMENTS, Sm90ClusterSplitK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry


class Sm90Realigned(Sm90ClusterSplitK):
    """The family `sm90_realigned`: the kernels of `sm90_cluster_split_k` that store D by elements, without gates.

    A gate's rows of B lie in two places, of which the copy knows nothing.
    """

    name = "sm90_realigned"
    loads_outside = False
    prefetches_b = False
    types = (BF16, FP16)
    epilogues = WITHOUT_GATE

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and swap."""
        return (x for x in super().candidates(operation, target) if x.gemm.schedule == ELEMENTS)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm90_cluster_split_k` to kernels that store D by elements."""
        if candidate.gemm.schedule != ELEMENTS:
            text = f"{self.name} has kernels of the schedule {ELEMENTS} alone, got {candidate.gemm.schedule!r}"
            return Rejected(Reason.COMBINATION, text)
        return super().check(candidate, operation, target)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need room for a copy of A and of B."""
        del candidate
        return Workspace(copies=True)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any operands; what TMA takes, others load at once."""
        del candidate
        return Alignment(loads=2, stores=1, only_unaligned=True)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernels and their entry."""
        from aot.families import signature
        from aot.families._realign_kernel import realigned_entry

        gemm, has_vectors = self.of_16_bits(candidate, operation, target)
        return realigned_entry(gemm, signature(KernelKey(operation, candidate)), operation, has_vectors=has_vectors)


FAMILY = Sm90Realigned()
