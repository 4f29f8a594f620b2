"""quack's Hopper GEMM (`GemmDefaultSm90`): TMA, wgmma, persistent tiles, pingpong or cooperative warpgroups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, gemm_candidate
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16, TF32, Types
from aot.families import Defaults
from aot.families._epilogue import FP8, INT8, has_own_epilogue
from aot.families._quack_smem import epilogue_fault, wide_fault
from aot.families._ragged import MATRIX_COLUMNS
from aot.families._sm90_smem import EpilogueSmem
from aot.families._sm90_tiles import (
    PINGPONG,
    has_ragged_tile,
    register_fault,
    shapes,
    tile_fault,
    warpgroup_grid,
)
from aot.families._split_k import order_of_splits, split_k_multiples, split_k_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Workspace
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

TILE_K_BYTES = 128
"""Bytes of k a stage holds: four wgmma of 32 bytes. Source: quack gemm_sm90.py, `_setup_tiled_mma`."""

BARRIER_BYTES = 1024
"""Shared memory that quack sets aside for barriers and the scheduler. Source: gemm_sm90.py, `_compute_stages`."""

MIN_STAGES = 2
"""Fewest stages with which loads overlap the multiplication."""

MAX_WAITING_CLUSTER = 2
"""Largest cluster with which a persistent grid whose CTAs wait for each other is resident all at once. Source: an H200:
66 clusters of 2 fit its 132 SMs, but 30 of 4. 256x160 c2x2 and c4x1 serial4 hung (2026-11-20), 192x160 c4x1 and c1x4
parallel8 too, at m 1024 (2026-11-21), waiting for tiles of clusters that could not start. In either mode the last split
waits for the others (quack gemm_base.py, `epilogue_split_k`)."""

SPLITS = (2, 3, 4, 6, 8)

_SPLIT_MODES = (SplitK.SERIAL, SplitK.PARALLEL, SplitK.SEPARATE)


def _split_fault(candidate: Candidate) -> str | None:
    """Say why k cannot be split."""
    mode = SplitK(candidate.gemm.split_k_mode)
    if mode is SplitK.NONE:
        return None
    if mode not in _SPLIT_MODES:
        return f"the kernel has no {mode.value} split-K; expected {', '.join(x.value for x in _SPLIT_MODES)}"
    cluster = candidate.gemm.cluster_m * candidate.gemm.cluster_n
    if mode is not SplitK.SEPARATE and cluster > MAX_WAITING_CLUSTER:
        waits = f"{mode.value} split-K waits for CTAs that must all be resident"
        return f"{waits}; clusters of {cluster} do not fill the device"
    if has_ragged_tile(candidate):
        tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
        return f"the epilogue of a {tile} tile stores some columns twice, {mode.value} split-K sums; take no split"
    return None


def _gate_fault(candidate: Candidate, operation: Operation) -> str | None:
    """Say why a tile cannot be stored at half its columns."""
    if operation.gate is None:
        return None
    tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
    if candidate.gemm.tile_n % GATE_COLUMNS:
        return f"{operation.gate.value} takes tile_n in steps of {GATE_COLUMNS}, got {tile}"
    if warpgroup_grid(candidate)[1] > 1:
        # quack's shuffle gives each thread the neighbours of its columns; two warpgroups hold every second 8 of them.
        return f"{operation.gate.value} takes a tile whose columns one warpgroup holds, which two share of {tile}"
    return None


GATE_COLUMNS = 32
"""Columns of which a gated tile is a multiple. Source: quack epilogue/ops.py, `TileStore.to_params`."""


def bytes_for_stages(epilogue: EpilogueSmem, target: Target) -> int:
    """Return the bytes that an epilogue leaves for the stages of A and B."""
    left = target.smem_bytes_per_block - BARRIER_BYTES - epilogue.padding - epilogue.vector_bytes
    return left - epilogue.d_bytes * epilogue.d_stages - epilogue.c_bytes * epilogue.c_stages


class Sm90Quack(Defaults):
    """The family `sm90_quack`."""

    name = "sm90_quack"
    needs = (Feature.WGMMA, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    orders_tiles = True
    tile_n_step = MATRIX_COLUMNS
    """Columns in which a tile can grow."""
    types: tuple[Types, ...] = (BF16, FP16, *FP8, *INT8, TF32)
    epilogues: tuple[Epilogue, ...] = OF_ONE_WEIGHT
    groupings: tuple[Grouping, ...] = (Grouping.DENSE, Grouping.BATCHED)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate every tile, both schedules, the target's clusters, swap, and split-K where tile_n allows it."""
        del operation
        splits = [(1, SplitK.NONE), *((split, mode) for mode in _SPLIT_MODES for split in SPLITS)]
        for schedule, tile_m, tile_n in shapes(self.tile_n_step):
            for cluster_m, cluster_n in target.clusters:
                for swap_ab in (False, True):
                    for split_k, mode in splits[:1] if tile_n % MATRIX_COLUMNS else splits:
                        yield gemm_candidate(
                            family=self.name,
                            tile_m=tile_m,
                            tile_n=tile_n,
                            cluster_m=cluster_m,
                            cluster_n=cluster_n,
                            schedule=schedule,
                            swap_ab=swap_ab,
                            split_k=split_k,
                            split_k_mode=mode,
                        )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `GemmSm90.__init__`, of the epilogue and of the register file."""
        del target
        if candidate.gemm.num_stages:
            return Rejected(
                Reason.COMBINATION, f"num_stages is {candidate.gemm.num_stages}; the kernel fills the block, give 0"
            )
        for reason, fault in (
            (Reason.TILE, tile_fault(candidate, self.tile_n_step)),
            (Reason.TILE, _gate_fault(candidate, operation)),
            (Reason.TILE, wide_fault(operation, candidate.gemm.tile_n)),
            (Reason.COMBINATION, _split_fault(candidate) or epilogue_fault(candidate, operation)),
            (Reason.REGISTERS, register_fault(candidate, is_promoted=operation.types.is_promoted)),
        ):
            if fault:
                return Rejected(reason, fault)
        return None

    def stores_whole_tiles(self, candidate: Candidate, operation: Operation, target: Target) -> bool:
        """Say whether a tile is stored through shared memory for all of it."""
        del candidate, operation, target
        return False

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count as `GemmSm90._compute_stages` does: the epilogue first, A/B stages in what is left of a block."""
        is_whole = self.stores_whole_tiles(candidate, operation, target)
        epilogue = EpilogueSmem.of(candidate, operation, is_whole=is_whole)
        stage_bytes = (candidate.gemm.tile_m + candidate.gemm.tile_n) * TILE_K_BYTES
        left = bytes_for_stages(epilogue, target)
        num_stages = candidate.gemm.num_stages or max(left // stage_bytes, MIN_STAGES)
        before_stages = epilogue.fill(max(left - stage_bytes * num_stages, 0))
        warpgroups = 2 if candidate.gemm.schedule == PINGPONG else math.prod(warpgroup_grid(candidate))
        return Resources(
            smem_bytes=stage_bytes * num_stages + before_stages + BARRIER_BYTES,
            stage_bytes=stage_bytes,
            num_threads=128 * (warpgroups + 1),
            num_stages=num_stages,
        )

    def workspace(self, candidate: Candidate) -> Workspace:
        """Return split-K's flags and float32 regions, or partials."""
        return split_k_workspace(candidate, candidate.gemm.tile_m)

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Ask for what the separate reduction needs; otherwise take all."""
        return split_k_multiples(candidate)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands, and a D, as TMA does."""
        del candidate
        return Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `wgmma`, 32 bytes of k at a time, from the first to the last, within a split."""
        return order_of_splits("wgmma", candidate)

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls, for the operation's types and epilogue."""
        del target
        from aot.families._quack_classes import sm90_class

        return sm90_class(operation, swap_ab=candidate.gemm.swap_ab)

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        from aot.families._arguments import cutlass_type
        from aot.families._quack import ACCUMULATOR, quack_split_k

        a = operation.b if candidate.gemm.swap_ab else operation.a
        return self.gemm_class(candidate, operation, target)(
            ACCUMULATOR,
            cutlass_type(a.element),
            (candidate.gemm.tile_m, candidate.gemm.tile_n),
            (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1),
            pingpong=candidate.gemm.schedule == PINGPONG,
            is_persistent=True,
            fp8_fast_accum=not operation.types.is_promoted,
            **quack_split_k(candidate),
        )

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._epilogue_entry import epilogue_entry
        from aot.families._quack import quack_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        make = epilogue_entry if has_own_epilogue(operation) else quack_entry
        return make(gemm, KernelKey(operation, candidate), self.workspace(candidate), clusters)


FAMILY = Sm90Quack()
