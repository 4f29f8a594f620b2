"""A Hopper GEMM of FP8 operands with a float32 factor for each 128 of k of a row of A, and for 128 by 128 of B."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey, Reason, Rejected
from aot.core.epilogue import Epilogue
from aot.core.formats import SCALE_BLOCK
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import E4M3_BF16_BLOCK
from aot.families._sm90_tiles import is_large, warpgroup_grid
from aot.families._split_k import order_of_splits
from aot.families.sm90_partial_tile import Sm90PartialTile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry


MAX_SUMS = 192
"""Registers for sums that leave room for the factors. Source: ptxas 13.4 compiles 256x96 and 128x96 pingpong without
spills, and spills 56 bytes at 256x104 and 128x104 pingpong, of 208 (nvidia-cutlass-dsl 4.8.1, 2026-11-22)."""


LEAST_SUMS = 64 * 128
"""Sums of a warpgroup from which on a tile is begun before the one in front is stored."""


class Sm90BlockScale(Sm90PartialTile):
    """The family `sm90_block_scale`: the space, limits and resources of `sm90_partial_tile`.

    It has no swap, no splits and no large tiles. A tile has at most 128 columns, so that they lie in two blocks of
    B's factors at most.
    """

    name = "sm90_block_scale"
    orders_tiles = False
    own_clusters = ()
    types = (E4M3_BF16_BLOCK,)
    epilogues = (Epilogue.NONE,)
    groupings = (Grouping.DENSE,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate every tile of at most 128 columns, all schedules and the target's clusters."""
        for candidate in super().candidates(operation, target):
            if _fault(candidate) is None:
                yield candidate

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply `sm90_partial_tile`'s limits and the kernel's own."""
        fault = _fault(candidate)
        if fault:
            return Rejected(Reason.COMBINATION, fault)
        sums = 2 * candidate.gemm.tile_m * candidate.gemm.tile_n // (128 * math.prod(warpgroup_grid(candidate)))
        if sums > MAX_SUMS:
            tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
            text = f"{tile} needs {sums} registers a thread for the sums of a stage and of the tile"
            return Rejected(Reason.REGISTERS, f"{text}; {MAX_SUMS} fit beside the factors")
        return super().check(candidate, operation, target)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `wgmma` whose sums are scaled and added up every 128 of k."""
        return order_of_splits("wgmma by blocks", candidate)

    def overlaps_tiles(self, candidate: Candidate, operation: Operation) -> bool:
        """Say whether a tile is begun before the one in front is stored: one of as many sums as pay for it.

        Source: an H200, 15 problems of 128 to 4096 rows: 64x128, 128x128 and 256x64 were 1.03, 1.05 and 1.10 times as
        fast, and 64x64, 128x64, 128x96, 192x96 and 256x96 0.94, 0.95, 0.88, 0.96 and 0.98 times
        (research/log/2026-11-30-fp8-overlap.md).
        """
        sums = candidate.gemm.tile_m * candidate.gemm.tile_n // math.prod(warpgroup_grid(candidate))
        pays = sums >= LEAST_SUMS and SCALE_BLOCK % candidate.gemm.tile_n == 0
        return pays and super().overlaps_tiles(candidate, operation)

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls: our own, which multiplies each stage by its factors."""
        from aot.families._block_scale_kernel import GemmBlockScaleSm90

        return partial(GemmBlockScaleSm90, **self.options(candidate, operation, target))

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._block_scale_kernel import block_scale_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return block_scale_entry(gemm, KernelKey(operation, candidate), clusters)


def _fault(candidate: Candidate) -> str | None:
    """Say why the kernel cannot multiply a tile's stages by their factors."""
    if candidate.gemm.swap_ab:
        return "the kernel's rows are A's, which have a factor each; take no swap"
    if SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE:
        return f"the kernel has no {SplitK(candidate.gemm.split_k_mode).value} split-K; take no split"
    if candidate.gemm.tile_n > SCALE_BLOCK:
        return f"the kernel takes tile_n up to {SCALE_BLOCK}, got {candidate.gemm.tile_n}"
    if is_large(candidate):
        return f"the kernel takes tile_m up to 256, got {candidate.gemm.tile_m}"
    if warpgroup_grid(candidate)[1] > 1:
        tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
        return f"the kernel's warpgroups share rows of a tile, those of a {tile} tile its columns"
    return None


FAMILY = Sm90BlockScale()
