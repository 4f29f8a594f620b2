"""quack's bounded Hopper GEMM that begins to load B while the kernel in front still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.candidate import Candidate, Reason, Rejected
from aot.families.sm90_bounded import Sm90Bounded

if TYPE_CHECKING:
    from aot.families import Entry
    from aot.problem import Operation
    from aot.target import Target


class Sm90Overlap(Sm90Bounded):
    """The family `sm90_overlap`: the space and resources of `sm90_bounded`, and its limits but for clusters."""

    name = "sm90_overlap"
    reads_b_early = True

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply `sm90_bounded`'s limits; refuse clusters that share both operands.

        Source: an H200, 2026-11-21: of 46 kernels in clusters of 2x2 one, 64x32 pingpong, hung at m 1, n 3584,
        k 18944; why was not found. In clusters of 4x1 and 1x4 only split-K that waits did, which `sm90_quack`'s limits
        refuse; smaller clusters never, in 40,000 timings.
        """
        if candidate.cluster_m > 1 and candidate.cluster_n > 1:
            cluster = f"{candidate.cluster_m}x{candidate.cluster_n}"
            return Rejected(Reason.COMBINATION, f"a kernel of this family hung in clusters of 2x2, got {cluster}")
        return super().check(candidate, operation, target)

    def gemm_class(self) -> Any:
        """Give the class that `entry` configures: quack's, with bounded loads that begin early."""
        from aot.families._overlap_kernel import GemmOverlapSm90

        return GemmOverlapSm90

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry, which takes `b_ready` before the stream."""
        from aot.families._overlap_kernel import overlap_entry

        gemm = self.configure(candidate, operation)
        gemm.constant = 0 if candidate.swap_ab else 1
        gemm.num_sms = target.num_sms
        return overlap_entry(gemm, self.entry_of(gemm, candidate, operation, target))


FAMILY = Sm90Overlap()
