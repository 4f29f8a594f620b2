"""A Hopper GEMM whose loads end at the operands' last row: partial tiles cost no more than whole ones."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.operation import Layout
from aot.core.types import BF16, FP16, Types
from aot.families._ragged import STEP
from aot.families._sm90_smem import EpilogueSmem
from aot.families._sm90_tiles import COOPERATIVE3, PINGPONG, large_shapes
from aot.families.sm90_quack import TILE_K_BYTES, Sm90Quack, bytes_for_stages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target


MIN_STAGES_BESIDE_WHOLE_TILE = 4
"""Fewest stages of A and B beside which a tile is stored through memory for all of it. Source: an H200, 26 problems of
1024 to 8192 rows: with four stages of five 128x176 and 128x192 were 1.06 to 1.09 times as fast so, with three of four
256x96 was 0.98 to 1.02 times (research/log/2026-11-30-fp8-overlap.md)."""


class Sm90PartialTile(Sm90Quack):
    """The family `sm90_partial_tile`: the space and limits of `sm90_quack`, and large tiles; k-major operands only.

    Its resources are those too, but for FP8 whose tiles are stored through shared memory for all of them. Its tiles
    grow in steps of 8 columns, of which quack's own kernel takes every second.
    """

    name = "sm90_partial_tile"
    loads_outside = False
    widens_fp8 = False
    peak_share = 1.0
    tile_n_step = STEP
    types: tuple[Types, ...] = (BF16, FP16)
    epilogues: tuple[Epilogue, ...] = (Epilogue.NONE, Epilogue.BIAS)
    groupings: tuple[Grouping, ...] = (Grouping.DENSE,)
    layouts = (Layout.KK,)
    """Boxes are cut between rows along k."""

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the tiles of `sm90_quack`, and larger ones without splits."""
        yield from super().candidates(operation, target)
        for (schedule, *tile), cluster, swap_ab in product(large_shapes(), target.clusters, (False, True)):
            yield gemm_candidate(self.name, *tile, *cluster, schedule, swap_ab=swap_ab)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply `sm90_quack`'s limits; ask for clusters of one row.

        Source: docs/safety.md, "Clusters". In a cluster of several rows and columns a CTA tells its row and its column
        that a stage is free, not its diagonal neighbour; the counts are right only while every load is shared with a
        neighbour, and partial tiles are loaded without.
        """
        if candidate.gemm.cluster_m > 1 and candidate.gemm.cluster_n > 1:
            cluster = f"{candidate.gemm.cluster_m}x{candidate.gemm.cluster_n}"
            text = "partial tiles are not shared in a cluster, whose stages then count as free too early"
            return Rejected(Reason.COMBINATION, f"{text}; got a cluster of {cluster}, expected 1 x n or n x 1")
        return super().check(candidate, operation, target)

    def overlaps_tiles(self, candidate: Candidate, operation: Operation) -> bool:
        """Say whether a tile is begun before the one in front is stored: promoted sums, without pingpong and splits.

        In pingpong the other warpgroup multiplies meanwhile, and of a split of k the number of stages, which may be
        none, is not known before its tile.
        """
        return operation.types.is_promoted and candidate.gemm.schedule != PINGPONG and candidate.gemm.split_k == 1

    def stores_whole_tiles(self, candidate: Candidate, operation: Operation, target: Target) -> bool:
        """Say whether a tile is stored through shared memory for all of it: one that overlaps, where there is room.

        Of 16 bits that was 0.99 times as fast, for a stage fewer (research/log/2026-11-30-fp8-overlap.md).
        """
        if not self.overlaps_tiles(candidate, operation):
            return False
        stage_bytes = (candidate.gemm.tile_m + candidate.gemm.tile_n) * TILE_K_BYTES
        left = bytes_for_stages(EpilogueSmem.of(candidate, operation, is_whole=True), target)
        return left >= MIN_STAGES_BESIDE_WHOLE_TILE * stage_bytes

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls: our own, whose loads end at the last row."""
        from aot.families._partial_tile_kernel import GemmPartialTileSm90

        return partial(GemmPartialTileSm90, **self.options(candidate, operation, target))

    def options(self, candidate: Candidate, operation: Operation, target: Target) -> dict[str, Any]:
        """Return what our kernels are told beside what quack's are."""
        stages = None
        if self.stores_whole_tiles(candidate, operation, target):
            epilogue = EpilogueSmem.of(candidate, operation, is_whole=True)
            stages = self.resources(candidate, operation, target).num_stages, epilogue.d_stages, epilogue.c_stages
        return {
            "three_by_rows": candidate.gemm.schedule == COOPERATIVE3,
            "overlaps_tiles": self.overlaps_tiles(candidate, operation),
            "whole_tile_stages": stages,
        }


FAMILY = Sm90PartialTile()
