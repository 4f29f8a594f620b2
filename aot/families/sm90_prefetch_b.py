"""quack's bounded Hopper GEMM that begins to load B while the kernel in front still runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.families.sm90_partial_tile import Sm90PartialTile

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry


class Sm90PrefetchB(Sm90PartialTile):
    """The family `sm90_prefetch_b`: the space, limits and resources of `sm90_partial_tile`."""

    name = "sm90_prefetch_b"
    prefetches_b = True

    def gemm_class(self) -> Any:
        """Give the class that `entry` configures: quack's, with bounded loads that begin early."""
        from aot.families._prefetch_b_kernel import GemmPrefetchBSm90

        return GemmPrefetchBSm90

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        gemm = self.configure(candidate, operation)
        gemm.constant = 0 if candidate.swap_ab else 1
        gemm.num_sms = target.num_sms
        return self.entry_of(gemm, candidate, operation, target)


FAMILY = Sm90PrefetchB()
