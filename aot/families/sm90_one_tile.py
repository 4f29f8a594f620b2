"""A Hopper GEMM of our own for one wave of tiles: a CTA computes one tile of D and ends.

The fixed cost of a kernel counts where its tiles fill one wave or less. This one has no scheduler, begins to load as
soon as its barriers are there, fills the shared memory with stages and lays D over them in the end. Its loads,
multiplication, epilogues and stores are those of `sm90_cluster_split_k`.

A kernel of the schedule `widths` computes tiles of four widths, the one of its name and 8, 16 and 24 columns less, and
is told at launch which. No search times it: it stands for up to four kernels that a selection has beside each other.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected, changed, gemm_candidate
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.families._epilogue import has_own_epilogue
from aot.families._sm90_split_tile import GROUP, NUM_WIDTHS, OneTile, ScaledOneTile, Tile, WidthsTile
from aot.families.sm90_cluster_split_k import (
    ELEMENTS,
    WARPGROUPS,
    Sm90ClusterSplitK,
    are_k_major,
    check_schedule,
    check_tile,
    filled,
    schedules,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target

TILE_N = tuple(range(16, 257, GROUP))

WIDTHS = "widths"
"""The schedule of a kernel of several widths."""

WIDTHS_ROWS = (64, 128, 192)
"""Rows of a tile whose kernels may have several widths. Source: with 256 rows such a kernel takes 1.23 times as long as
one of a single width, with these at most 1.009 times (research/log/2026-11-24-gpcs.md)."""


class Sm90OneTile(Sm90ClusterSplitK):
    """The family `sm90_one_tile`."""

    name = "sm90_one_tile"
    orders_tiles = True
    own_clusters = ((2, 2), (4, 2), (2, 4))

    def tile(self, candidate: Candidate, operation: Operation, target: Target) -> Tile:
        """Return a candidate's tile."""
        sizes = candidate.gemm.tile_m, candidate.gemm.tile_n, 1, WARPGROUPS.get(candidate.gemm.tile_m, 1), 0
        cluster = candidate.gemm.cluster_m, candidate.gemm.cluster_n
        bare: Tile = OneTile(*sizes, *cluster)
        if operation.types.is_scaled:
            bare = ScaledOneTile(*sizes, *cluster, candidate.gemm.swap_ab)
        elif candidate.gemm.schedule == WIDTHS:
            bare = WidthsTile(*sizes, *cluster)
        return filled(bare, candidate, target)

    def kernel_classes(self, candidate: Candidate) -> tuple[Any, Any, Any]:
        """Return the classes of kernels with a bias at most, with more of an epilogue, and of FP8 with factors."""
        from aot.families._sm90_element_store import ElementEpilogueOneTileGemmSm90, ElementOneTileGemmSm90
        from aot.families._sm90_one_tile_kernel import (
            EpilogueOneTileGemmSm90,
            OneTileGemmSm90,
            ScaledOneTileGemmSm90,
        )
        from aot.families._sm90_widths_kernel import WidthsGemmSm90

        if candidate.gemm.schedule == ELEMENTS:
            return ElementOneTileGemmSm90, ElementEpilogueOneTileGemmSm90, None
        plain = WidthsGemmSm90 if candidate.gemm.schedule == WIDTHS else OneTileGemmSm90
        return plain, EpilogueOneTileGemmSm90, ScaledOneTileGemmSm90

    def class_of_parts(self) -> Any:
        """Return the class of kernels of several weights."""
        from aot.families._sm90_parts_kernel import PartsOneTileGemmSm90

        return PartsOneTileGemmSm90

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and swap, and those that store D by elements."""
        clusters = (*target.clusters, *self.own_clusters)
        for tile_m, (cluster_m, cluster_n), swap_ab in product(WARPGROUPS, clusters, (False, True)):
            for schedule, tile_n in schedules(operation, TILE_N):
                yield gemm_candidate(
                    self.name, tile_m, tile_n, cluster_m, cluster_n, schedule, swap_ab=swap_ab, use_tma_store=False
                )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on cluster, tile, registers, stages and layout."""
        is_split = SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE or candidate.gemm.split_k != 1
        if (
            candidate.gemm.use_2cta
            or candidate.gemm.use_tma_store
            or candidate.gemm.schedule not in ("", WIDTHS, ELEMENTS)
            or is_split
        ):
            text = f"{self.name} computes a tile in a CTA, of all of k, and stores without TMA"
            return Rejected(Reason.COMBINATION, text)
        tile = self.tile(candidate, operation, target)
        fault = check_schedule(candidate, operation) or check_tile(tile, candidate, operation)
        if fault is None and candidate.gemm.schedule == WIDTHS:
            fault = _check_widths(tile, candidate, operation)
        if fault is None and tile.num_stages * tile.stage_bytes < tile.stored_bytes:
            text = f"{tile.num_stages} stages have no room for the tile; it takes {tile.stored_bytes} bytes to store"
            return Rejected(Reason.COMBINATION, text)
        return fault

    def of_widths(self, candidate: Candidate) -> tuple[Candidate, int]:
        """Return the kernel of several widths that has a candidate's tiles, and how many groups of 8 it is wider."""
        step = GROUP * NUM_WIDTHS
        widest = -(-candidate.gemm.tile_n // step) * step
        return changed(candidate, tile_n=widest, schedule=WIDTHS), (widest - candidate.gemm.tile_n) // GROUP


def _check_widths(tile: Tile, candidate: Candidate, operation: Operation) -> Rejected | None:
    """Apply the further limits of kernels of several widths."""
    if has_own_epilogue(operation) or operation.has_parts or operation.grouping is not Grouping.DENSE:
        text = f"kernels of the schedule {WIDTHS} compute one product of 16-bit operands, with a bias at most"
        return Rejected(Reason.COMBINATION, text)
    if tile.rows not in WIDTHS_ROWS or tile.columns % (GROUP * NUM_WIDTHS):
        rows = ", ".join(map(str, WIDTHS_ROWS))
        text = f"a tile of several widths has {rows} rows, and columns in steps of {GROUP * NUM_WIDTHS}"
        return Rejected(Reason.TILE, f"{text}, got {tile.rows}x{tile.columns}")
    if not are_k_major(candidate, operation)[1]:
        text = f"kernels of the schedule {WIDTHS} load columns that are contiguous along k"
        return Rejected(Reason.LAYOUT, text)
    return None


FAMILY = Sm90OneTile()
