"""quack's Blackwell GEMM over groups: of rows, as a mixture of experts has them, or of k, as its gradients do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.types import BF16, E4M3_BF16, FP16
from aot.families._grouped import GROUPINGS, grouped_fault
from aot.families._tcgen05 import ALIGNMENT_BYTES, CLC, STATIC, TILE_M, shape_of
from aot.families.sm100_quack import NUM_THREADS, Sm100Quack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

GATHER_THREADS = 128
"""Threads that gathering adds: three warps more that load, and one that reads the index. Source: quack gemm_sm100.py,
`GemmSm100.__init__`."""

INDEX_STAGES = 2
"""Stages of the index in shared memory. Source: quack gemm_sm100.py, `_compute_stages`."""


class Sm100Grouped(Sm100Quack):
    """The family `sm100_grouped`: tiles, schedulers and clusters of `sm100_quack`, without swap and split.

    Its tiles are of one group each. Where the ends of the groups lie is read on the device. Rows are gathered by TMA,
    which reads a row that A does not have as zeros.
    """

    name = "sm100_grouped"
    orders_tiles = False
    own_clusters = ()
    types = (BF16, FP16, E4M3_BF16)
    epilogues = (Epilogue.NONE, Epilogue.SWIGLU)
    groupings = GROUPINGS

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and both schedulers; quack takes two CTAs where the tile allows."""
        del operation
        for tile_m in sorted({*TILE_M[False], *TILE_M[True]}):
            for tile_n in range(32, 257, 32):
                for cluster_m, cluster_n in target.clusters:
                    for schedule in (STATIC, CLC):
                        yield gemm_candidate(
                            family=self.name,
                            tile_m=tile_m,
                            tile_n=tile_n,
                            cluster_m=cluster_m,
                            cluster_n=cluster_n,
                            schedule=schedule,
                            use_2cta=cluster_m % 2 == 0 and tile_m in TILE_M[True],
                        )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm100_quack`, of groups and of gathering."""
        fault = grouped_fault(candidate, operation)
        if fault:
            return Rejected(Reason.COMBINATION, fault)
        return super().check(candidate, operation, target)

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count as `sm100_quack` does; gathering takes more warps, and the index is in front of aligned stages."""
        counted = super().resources(candidate, operation, target)
        if operation.grouping is not Grouping.GATHERED:
            return counted
        padding = -_index_bytes(candidate) % ALIGNMENT_BYTES
        threads = NUM_THREADS + GATHER_THREADS
        return dataclasses.replace(counted, num_threads=threads, smem_bytes=counted.smem_bytes + padding)

    def barrier_bytes(self, candidate: Candidate, operation: Operation) -> int:
        """Count the part of the index that a tile needs too, in two stages, where rows are gathered."""
        is_gathered = operation.grouping is Grouping.GATHERED
        return super().barrier_bytes(candidate, operation) + (_index_bytes(candidate) if is_gathered else 0)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        del target
        from aot.families._arguments import cutlass_type
        from aot.families._grouped_kernel import GemmGroupedSm100

        is_gathered = operation.grouping is Grouping.GATHERED
        return GemmGroupedSm100(
            cutlass_type(operation.accumulator),
            cutlass_type(operation.a.element),
            (candidate.gemm.tile_m, candidate.gemm.tile_n),
            (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1),
            operation=operation,
            swap_ab=False,
            element_b=cutlass_type(operation.b.element),
            use_clc_persistence=candidate.gemm.schedule == CLC,
            gather_A=is_gathered,
            use_tma_gather=is_gathered,
        )

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._grouped_entry import grouped_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return grouped_entry(gemm, KernelKey(operation, candidate), clusters)


def _index_bytes(candidate: Candidate) -> int:
    """Count the bytes of a tile's part of the index, in all of its stages."""
    return INDEX_STAGES * ElementType.INT32.size_of(shape_of(candidate).cta_m)


FAMILY = Sm100Grouped()
