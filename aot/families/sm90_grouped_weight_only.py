"""Many rows of x by packed weights of their own groups, as experts have them: `sm90_weight_only` over groups of rows.

A CTA computes a tile of one group: rows of the group's weight by rows of x. Where groups end is read on the device, so
that there are as many CTAs as groups of any sizes may need; those behind the last tile end. Few rows of a group are
`weight_only`'s, whose tiles are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected
from aot.core.grouping import Grouping
from aot.families.sm90_weight_only import Sm90WeightOnly, tile_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

STORES = 16
"""Bytes of which the rows of D begin at multiples: what a thread stores at once."""


class Sm90GroupedWeightOnly(Sm90WeightOnly):
    """The family `sm90_grouped_weight_only`: tiles of `sm90_weight_only`, each computed by a CTA alone."""

    name = "sm90_grouped_weight_only"
    groupings = (Grouping.GROUPED,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, and whether warpgroups take turns, where sums are promoted."""
        for candidate in super().candidates(operation, target):
            if candidate.gemm.cluster_m == candidate.gemm.split_k == 1:
                yield candidate

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm90_weight_only`, and have a CTA compute its tile alone."""
        gemm = candidate.gemm
        if gemm.cluster_m * gemm.cluster_n * gemm.split_k > 1:
            text = f"a cluster of {gemm.cluster_m}x{gemm.cluster_n} whose k is split in {gemm.split_k}"
            return Rejected(Reason.CLUSTER, f"{text}; expected 1x1 and no split: a CTA computes a group's tile alone")
        return super().check(candidate, operation, target)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import Entry
        from aot.families._arguments import cutlass_type
        from aot.families._next_start import Places
        from aot.families._sm90_packed_groups import PackedGroupsSm90
        from aot.families._weight_only_groups import grouped_entry

        tile = tile_of(candidate, operation, target)
        places = Places.of(target, tile.num_ctas)
        gemm: Any = PackedGroupsSm90(
            cutlass_type(operation.d), tile, swap_ab=True, places=places, are_k_major=(True, True)
        )
        function, arguments = grouped_entry(gemm, is_scaled=operation.types.is_scaled, is_gathered=False, stores=STORES)
        return Entry(function, arguments)


FAMILY = Sm90GroupedWeightOnly()
