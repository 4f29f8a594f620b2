"""quack's Hopper GEMM with loads that end at the operands' last row: partial tiles cost no more than whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.candidate import Candidate, Reason, Rejected
from aot.families.sm90_quack import Sm90Quack
from aot.problem import Layout

if TYPE_CHECKING:
    from aot.problem import Operation
    from aot.target import Target

BOX_ROWS = (8, *range(16, 128, 16), *range(128, 257, 32))
"""Rows of the boxes in which a partial tile may be loaded. Source: measured on an H200, 2026-11-20: steps of 8 were no
faster than 16; steps of 32 below 128 rows were slower, by up to a quarter with 64x128 tiles. Each size is a descriptor
that the host writes at every launch. All are multiples of the 8 rows after which the layout of a k-major stage repeats
(PTX ISA, 128-byte swizzling) and at most the 256 of a box (CUDA driver API, cuTensorMapEncodeTiled)."""


def box_rows(tile: int) -> tuple[int, ...]:
    """List the rows of the boxes in which a partial tile of `tile` rows may be loaded, ascending; never none."""
    return tuple(rows for rows in BOX_ROWS if rows < tile)


class Sm90Bounded(Sm90Quack):
    """The family `sm90_bounded`: the space, limits and resources of `sm90_quack`, k-major operands only."""

    name = "sm90_bounded"
    loads_outside = False

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply `sm90_quack`'s limits; ask for operands whose rows are contiguous along k, and for clusters of one row.

        Source: docs/safety.md, "Clusters". In a cluster of several rows and columns a CTA tells its row and its column
        that a stage is free, not its diagonal neighbour; the counts are right only while every load is shared with a
        neighbour, and partial tiles are loaded without.
        """
        if operation.layout is not Layout.KK:
            return Rejected(Reason.LAYOUT, f"boxes are cut between rows along k, got {operation.layout.value}")
        if candidate.cluster_m > 1 and candidate.cluster_n > 1:
            cluster = f"{candidate.cluster_m}x{candidate.cluster_n}"
            text = "partial tiles are not shared in a cluster, whose stages then count as free too early"
            return Rejected(Reason.COMBINATION, f"{text}; got a cluster of {cluster}, expected 1 x n or n x 1")
        return super().check(candidate, operation, target)

    def gemm_class(self) -> Any:
        """Give the class that `entry` configures: quack's, with bounded loads."""
        from aot.families._bounded_kernel import GemmBoundedSm90

        return GemmBoundedSm90


FAMILY = Sm90Bounded()
