"""A Hopper GEMM over groups of rows, of FP8 operands with a float32 factor for each 128 of k of a row of A.

B has a factor for 128 by 128 of a group's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected
from aot.core.formats import SCALE_BLOCK
from aot.core.grouping import Grouping
from aot.core.types import E4M3_BF16_BLOCK
from aot.families._sm90_tiles import warpgroup_grid
from aot.families.sm90_block_scale import MAX_SUMS
from aot.families.sm90_grouped import Sm90Grouped

if TYPE_CHECKING:
    from aot.core.operation import Operation
    from aot.core.target import Target

GATED_TILE_N = (32, 64, 128)
"""Columns of a tile with a gate: half of them lie in one block of the gate's factors, half in one of the others."""


class Sm90GroupedBlockScale(Sm90Grouped):
    """The family `sm90_grouped_block_scale`: `sm90_grouped` with tiles of at most 128 columns."""

    name = "sm90_grouped_block_scale"
    types = (E4M3_BF16_BLOCK,)
    groupings = (Grouping.GROUPED, Grouping.GATHERED)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply `sm90_grouped`'s limits and the kernel's own."""
        tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
        if candidate.gemm.tile_n > SCALE_BLOCK:
            return Rejected(Reason.TILE, f"the kernel takes tile_n up to {SCALE_BLOCK}, got {tile}")
        if warpgroup_grid(candidate)[1] > 1:
            text = f"the kernel's warpgroups share rows of a tile, those of a {tile} tile its columns"
            return Rejected(Reason.TILE, text)
        if operation.gate is not None and candidate.gemm.tile_n not in GATED_TILE_N:
            takes = ", ".join(map(str, GATED_TILE_N))
            return Rejected(Reason.TILE, f"{operation.gate.value} takes tile_n {takes}, got {tile}")
        sums = 2 * candidate.gemm.tile_m * candidate.gemm.tile_n // (128 * math.prod(warpgroup_grid(candidate)))
        if sums > MAX_SUMS:
            text = f"{tile} needs {sums} registers a thread for the sums of a stage and of the tile"
            return Rejected(Reason.REGISTERS, f"{text}; {MAX_SUMS} fit beside the factors")
        return super().check(candidate, operation, target)

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls: our own, which multiplies each stage by its factors."""
        del candidate, operation, target
        from aot.families._grouped_block_kernel import GemmGroupedBlockSm90

        return GemmGroupedBlockSm90


FAMILY = Sm90GroupedBlockScale()
