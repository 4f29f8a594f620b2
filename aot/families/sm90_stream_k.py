"""The Hopper GEMM of `sm90_partial_tile` whose last, partial wave of tiles is split along k, so that it fills the SMs.

Where tiles do not fill their last wave, most SMs have nothing to do in it. Here whole waves run as they do without
splits, and only the tiles that are left over are split. How many splits each gets is decided at launch, up to the
candidate's `split_k`. The splits are brought together in the same launch (`_stream_k_kernel.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected, changed, gemm_candidate
from aot.core.knobs import SplitK
from aot.families._ragged import STEP
from aot.families._sm90_tiles import COOPERATIVE3, is_large, shapes, warpgroup_grid
from aot.families._split_k import split_k_workspace
from aot.families.sm90_partial_tile import Sm90PartialTile
from aot.families.sm90_quack import MAX_WAITING_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Workspace
    from aot.core.operation import Operation
    from aot.core.target import Target

SPLITS = (2, 4, 8)
"""Most splits of a tile of the last wave."""

NUM_SMS = 132
"""SMs that a wave fills: the workspace is counted without knowing the device. Source: NVIDIA H100 SXM and H200 data
sheets."""

MAX_ACCUMULATORS = 192
"""Float32 accumulators a thread can hold beside partial sums that are to be added. Source: ptxas 13.4 compiles 128x192
and 256x192 without spills; 128x208, 256x200 and 320x160 need 8 to 16 bytes of stack (nvidia-cutlass-dsl 4.8.1,
2026-11-22)."""


def _num_clusters(candidate: Candidate) -> int:
    return NUM_SMS // (candidate.gemm.cluster_m * candidate.gemm.cluster_n)


class Sm90StreamK(Sm90PartialTile):
    """The family `sm90_stream_k`: `sm90_partial_tile` with a split tail, always, and without large tiles."""

    name = "sm90_stream_k"
    orders_tiles = False
    own_clusters = ()

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate every tile, the schedules, the clusters that may wait for each other, swap and splits."""
        del operation
        clusters = [(m, n) for m, n in target.clusters if m * n <= MAX_WAITING_CLUSTER]
        for schedule, tile_m, tile_n in shapes(STEP):
            for cluster_m, cluster_n in clusters:
                for swap_ab in (False, True):
                    for split_k in SPLITS:
                        yield gemm_candidate(
                            family=self.name,
                            tile_m=tile_m,
                            tile_n=tile_n,
                            cluster_m=cluster_m,
                            cluster_n=cluster_n,
                            schedule=schedule,
                            swap_ab=swap_ab,
                            split_k=split_k,
                            split_k_mode=SplitK.TAIL,
                        )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm90_partial_tile` without splits; ask for a split tail, and for the SMs of a wave."""
        if SplitK(candidate.gemm.split_k_mode) is not SplitK.TAIL:
            text = f"only the tiles of the last wave are split: expected split_k_mode {SplitK.TAIL.value}"
            return Rejected(Reason.COMBINATION, f"{text}, got {candidate.gemm.split_k_mode}")
        cluster = candidate.gemm.cluster_m * candidate.gemm.cluster_n
        if cluster > MAX_WAITING_CLUSTER:
            text = "splits wait for CTAs that must all be resident"
            return Rejected(Reason.COMBINATION, f"{text}; clusters of {cluster} do not fill the device")
        if target.num_sms != NUM_SMS:
            text = f"waves are counted for {NUM_SMS} SMs"
            return Rejected(Reason.COMBINATION, f"{text}, {target.name} has {target.num_sms}")
        if is_large(candidate):
            tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
            return Rejected(Reason.TILE, f"large tiles are computed whole, got {tile}; take sm90_partial_tile")
        fault = super().check(changed(candidate, split_k=1, split_k_mode=SplitK.NONE), operation, target)
        accumulators = candidate.gemm.tile_m * candidate.gemm.tile_n // (math.prod(warpgroup_grid(candidate)) * 128)
        if fault is None and accumulators > MAX_ACCUMULATORS:
            text = (
                f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n} needs {accumulators} accumulator registers a thread"
            )
            return Rejected(Reason.REGISTERS, f"{text}; {MAX_ACCUMULATORS} fit beside partial sums")
        return fault

    def workspace(self, candidate: Candidate) -> Workspace:
        """Return a flag for each CTA of a wave, and a float32 region for each split but a tile's last."""
        return replace(split_k_workspace(candidate, candidate.gemm.tile_m), num_clusters=_num_clusters(candidate))

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls: our own, which splits the last wave."""
        del operation, target
        from aot.families._stream_k_kernel import GemmStreamKSm90

        return partial(GemmStreamKSm90, three_by_rows=candidate.gemm.schedule == COOPERATIVE3)


FAMILY = Sm90StreamK()
