"""A Hopper GEMM of our own for one wave of tiles: a CTA computes one tile of D and ends.

The fixed cost of a kernel counts where its tiles fill one wave or less. This one has no scheduler, begins to load as
soon as its barriers are there, fills the shared memory with stages and lays D over them in the end. Its loads,
multiplication, epilogues and stores are those of `sm90_cluster_split_k`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected, SplitK
from aot.families._sm90_split_tile import GROUP, OneTile, ScaledOneTile, Tile
from aot.families.sm90_cluster_split_k import WARPGROUPS, Sm90ClusterSplitK, check_tile, filled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target

TILE_N = tuple(range(16, 257, GROUP))


class Sm90OneTile(Sm90ClusterSplitK):
    """The family `sm90_one_tile`."""

    name = "sm90_one_tile"
    orders_tiles = True
    own_clusters = ((2, 2), (4, 2), (2, 4))

    def tile(self, candidate: Candidate, operation: Operation, target: Target) -> Tile:
        """Return a candidate's tile."""
        sizes = candidate.tile_m, candidate.tile_n, 1, WARPGROUPS.get(candidate.tile_m, 1), 0
        cluster = candidate.cluster_m, candidate.cluster_n
        bare: Tile = OneTile(*sizes, *cluster)
        if operation.types.is_scaled:
            bare = ScaledOneTile(*sizes, *cluster, candidate.swap_ab)
        return filled(bare, candidate, target)

    def kernel_classes(self) -> tuple[Any, Any, Any]:
        """Return the classes of kernels with a bias at most, with more of an epilogue, and of FP8 with factors."""
        from aot.families._sm90_one_tile_kernel import (
            EpilogueOneTileGemmSm90,
            OneTileGemmSm90,
            ScaledOneTileGemmSm90,
        )

        return OneTileGemmSm90, EpilogueOneTileGemmSm90, ScaledOneTileGemmSm90

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and swap."""
        del operation
        for tile_m in WARPGROUPS:
            for tile_n in TILE_N:
                for cluster_m, cluster_n in (*target.clusters, *self.own_clusters):
                    for swap_ab in (False, True):
                        yield Candidate(
                            self.name, tile_m, tile_n, cluster_m, cluster_n, swap_ab=swap_ab, use_tma_store=False
                        )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on cluster, tile, registers, stages and layout."""
        is_split = SplitK(candidate.split_k_mode) is not SplitK.NONE or candidate.split_k != 1
        if candidate.use_2cta or candidate.use_tma_store or candidate.schedule or is_split:
            text = f"{self.name} computes a tile in a CTA, of all of k, and stores without TMA"
            return Rejected(Reason.COMBINATION, text)
        tile = self.tile(candidate, operation, target)
        fault = check_tile(tile, candidate, operation)
        if fault is None and tile.num_stages * tile.stage_bytes < tile.stored_bytes:
            text = f"{tile.num_stages} stages have no room for the tile; it takes {tile.stored_bytes} bytes to store"
            return Rejected(Reason.COMBINATION, text)
        return fault


FAMILY = Sm90OneTile()
