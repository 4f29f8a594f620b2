"""The Hopper GEMM of `sm90_partial_tile` that begins to load B while the kernel in front still runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aot.families._sm90_tiles import COOPERATIVE3
from aot.families.sm90_partial_tile import Sm90PartialTile

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.target import Target


class Sm90PrefetchB(Sm90PartialTile):
    """The family `sm90_prefetch_b`: the space, limits and resources of `sm90_partial_tile`."""

    name = "sm90_prefetch_b"
    prefetches_b = True

    def gemm_class(self, candidate: Candidate, target: Target) -> Any:
        """Return the class that `configure` calls: our own, with a loading warp for each operand."""
        from aot.families._prefetch_b_kernel import GemmPrefetchBSm90

        return partial(
            GemmPrefetchBSm90,
            prefetched=0 if candidate.swap_ab else 1,
            num_sms=target.num_sms,
            three_by_rows=candidate.schedule == COOPERATIVE3,
        )


FAMILY = Sm90PrefetchB()
