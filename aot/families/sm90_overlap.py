"""quack's bounded Hopper GEMM that begins to load B while the kernel in front still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.families.sm90_bounded import Sm90Bounded

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.problem import Operation
    from aot.core.target import Target
    from aot.families import Entry


class Sm90Overlap(Sm90Bounded):
    """The family `sm90_overlap`: the space, limits and resources of `sm90_bounded`."""

    name = "sm90_overlap"
    reads_b_early = True

    def gemm_class(self) -> Any:
        """Give the class that `entry` configures: quack's, with bounded loads that begin early."""
        from aot.families._overlap_kernel import GemmOverlapSm90

        return GemmOverlapSm90

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry, which takes `b_constant` before the stream."""
        from aot.families._overlap_kernel import overlap_entry

        gemm = self.configure(candidate, operation)
        gemm.constant = 0 if candidate.swap_ab else 1
        gemm.num_sms = target.num_sms
        return overlap_entry(gemm, self.entry_of(gemm, candidate, operation, target))


FAMILY = Sm90Overlap()
