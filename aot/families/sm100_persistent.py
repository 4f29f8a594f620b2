"""NVIDIA's persistent Blackwell GEMM (nvidia-cutlass-operators), over the auto-tuning guide's search space.

mma_tiler_mn, cluster_shape_mn, use_2cta_instrs and use_tma_store, with static or dynamic (CLC) scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Alignment, Candidate, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16
from aot.families import Defaults
from aot.families._split_k import order_of_splits
from aot.families._tcgen05 import BARRIER_BYTES, CLC, STATIC, TILE_M, shape_of, stages_that_fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

NUM_WARPS = {STATIC: 6, CLC: 7}
"""Four epilogue warps, the MMA, the loads; CLC adds a scheduler. Source: `PersistentDenseGemmKernel.__init__`."""

MAX_CLUSTER = 16
"""CTAs in a cluster. Source: the same class's documented constraints."""


class Sm100Persistent(Defaults):
    """The family `sm100_persistent`."""

    name = "sm100_persistent"
    needs = (Feature.TCGEN05, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    types = (BF16, FP16)
    epilogues = (Epilogue.NONE,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the guide's four parameters, both schedulers, and swap."""
        del operation
        for use_2cta in (False, True):
            for tile_m in (64, 128, 256):
                for tile_n in range(32, 257, 32):
                    for cluster_m, cluster_n in target.clusters:
                        for schedule in (STATIC, CLC):
                            for use_tma_store in (True, False):
                                for swap_ab in (False, True):
                                    yield gemm_candidate(
                                        family=self.name,
                                        tile_m=tile_m,
                                        tile_n=tile_n,
                                        cluster_m=cluster_m,
                                        cluster_n=cluster_n,
                                        schedule=schedule,
                                        swap_ab=swap_ab,
                                        use_2cta=use_2cta,
                                        use_tma_store=use_tma_store,
                                    )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the constraints that the kernel's documentation states."""
        del operation, target
        if candidate.gemm.num_stages:
            return Rejected(
                Reason.COMBINATION, f"num_stages is {candidate.gemm.num_stages}; the kernel fills the block, give 0"
            )
        if SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE:
            return Rejected(Reason.COMBINATION, "the kernel has no split-K")
        if candidate.gemm.tile_m not in TILE_M[candidate.gemm.use_2cta]:
            text = f"tcgen05 takes tile_m {TILE_M[candidate.gemm.use_2cta]} with use_2cta={candidate.gemm.use_2cta}"
            return Rejected(Reason.TILE, f"{text}, got {candidate.gemm.tile_m}")
        if candidate.gemm.use_2cta and candidate.gemm.cluster_m % 2:
            return Rejected(Reason.CLUSTER, f"use_2cta needs an even cluster_m, got {candidate.gemm.cluster_m}")
        if candidate.gemm.cluster_m * candidate.gemm.cluster_n > MAX_CLUSTER:
            text = f"{candidate.gemm.cluster_m}x{candidate.gemm.cluster_n} CTAs in a cluster; {MAX_CLUSTER} at most"
            return Rejected(Reason.CLUSTER, text)
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count as the kernel's `_compute_stages` does: no epilogue buffer without the TMA store."""
        shape = shape_of(candidate)
        epilogue_bytes = shape.epilogue_elements(operation.d.num_bytes) * operation.d.num_bytes
        fixed = BARRIER_BYTES + (2 * epilogue_bytes if candidate.gemm.use_tma_store else 0)
        limit = target.smem_bytes_per_block
        num_stages = candidate.gemm.num_stages or stages_that_fit(limit, fixed, shape.stage_bytes)
        used = fixed + num_stages * shape.stage_bytes
        if candidate.gemm.use_tma_store:
            used += max(limit - used, 0) // epilogue_bytes * epilogue_bytes
        return Resources(
            smem_bytes=used,
            stage_bytes=shape.stage_bytes,
            num_threads=32 * NUM_WARPS.get(candidate.gemm.schedule, NUM_WARPS[CLC]),
            num_stages=num_stages,
            tmem_columns=shape.tmem_columns(num_accumulators=2),
        )

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Ask for whole clusters of tiles without the TMA store: the direct store is not predicated."""
        if candidate.gemm.use_tma_store:
            return 1, 1
        rows = shape_of(candidate).cta_m * candidate.gemm.cluster_m
        columns = candidate.gemm.tile_n * candidate.gemm.cluster_n
        return (columns, rows) if candidate.gemm.swap_ab else (rows, columns)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands, and a D, as TMA does."""
        del candidate
        return Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `tcgen05.mma`, which no device has shown to be that of other kernels."""
        return order_of_splits(self.name, candidate)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure `PersistentDenseGemmKernel` and make its entry."""
        from aot.families._nvidia import persistent_entry

        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return persistent_entry(candidate, operation, clusters, dynamic=candidate.gemm.schedule == CLC)


FAMILY = Sm100Persistent()
