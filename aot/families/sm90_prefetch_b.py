"""The Hopper GEMM of `sm90_partial_tile` that begins to load B while the kernel in front still runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected
from aot.core.epilogue import GATES, Epilogue, Step
from aot.core.grouping import Grouping
from aot.core.types import BF16, FP16
from aot.families._epilogue import FP8, has_own_epilogue
from aot.families._ragged import MATRIX_COLUMNS, STEP
from aot.families._sm90_tiles import has_ragged_tile
from aot.families.sm90_partial_tile import Sm90PartialTile

if TYPE_CHECKING:
    from aot.core.operation import Operation
    from aot.core.target import Target


class Sm90PrefetchB(Sm90PartialTile):
    """The family `sm90_prefetch_b`: the space, limits and resources of `sm90_partial_tile`, with other epilogues too.

    A gate stores half as many columns as these kernels do. A residual goes with tiles that are stored in equal pieces.
    """

    name = "sm90_prefetch_b"
    prefetches_b = True
    types = (BF16, FP16, *FP8)
    epilogues = tuple(x for x in Epilogue if not {Step.MANY, *GATES} & {*x.steps})
    groupings = (Grouping.DENSE,)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm90_partial_tile`; matrices of 8 columns are stored as 16 bits only.

        The pieces of a ragged tile begin at columns of their own, at which nothing loads a residual yet.
        """
        if candidate.gemm.tile_n == STEP and operation.d.bits != 16:
            text = f"a tile of {STEP} columns is stored by matrices of 16-bit elements"
            return Rejected(Reason.TILE, f"{text}, got a D of {operation.d.value}; take a tile_n of {2 * STEP} or more")
        if operation.has_residual and has_ragged_tile(candidate):
            text = "a residual is loaded in the pieces of a tile, which overlap where tile_n"
            steps = f"in steps of {MATRIX_COLUMNS}, of {2 * MATRIX_COLUMNS} where warpgroups share the columns"
            return Rejected(Reason.TILE, f"{text} is {candidate.gemm.tile_n}; take a tile_n {steps}")
        return super().check(candidate, operation, target)

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls: our own, with a loading warp for each operand."""
        from aot.families._next_start import Places

        options: dict[str, Any] = {
            "prefetched": 0 if candidate.gemm.swap_ab else 1,
            "places": Places.of(target, candidate.gemm.cluster_m * candidate.gemm.cluster_n),
            **self.options(candidate, operation, target),
        }
        if has_own_epilogue(operation):
            from aot.families._prefetch_b_epilogue_kernel import GemmPrefetchBEpilogueSm90

            options["has_residual"] = operation.has_residual
            return partial(GemmPrefetchBEpilogueSm90, operation=operation, swap_ab=candidate.gemm.swap_ab, **options)
        from aot.families._prefetch_b_kernel import GemmPrefetchBSm90

        return partial(GemmPrefetchBSm90, **options)


FAMILY = Sm90PrefetchB()
