"""quack's Blackwell GEMM over groups of rows, of narrow operands whose blocks along k have factors.

These are NVFP4, MXFP4, MXFP8, and A in MXFP8 by experts in MXFP4, whose elements TMA loads with gaps. A group's rows of
A are multiplied by a B of its own, an expert's weight. The factors of each group's rows begin with an atom of their
own, so that TMA brings those of a tile whichever row of A the group starts at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey, Reason, Rejected, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.types import (
    MXFP4_BF16,
    MXFP4_MXFP4,
    MXFP8_BF16,
    MXFP8_MXFP4_BF16,
    MXFP8_MXFP8,
    NVFP4_BF16,
    NVFP4_NVFP4,
)
from aot.families._grouped import grouped_fault
from aot.families._tcgen05 import CLC, STATIC
from aot.families.sm100_block_scale import Sm100BlockScale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry


class Sm100GroupedBlockScale(Sm100BlockScale):
    """The family `sm100_grouped_block_scale`: tiles, schedulers and clusters of `sm100_block_scale`, without swap.

    Its tiles are of one group each. Where the ends of the groups lie is read on the device.
    """

    name = "sm100_grouped_block_scale"
    orders_tiles = False
    own_clusters = ()
    types = (NVFP4_BF16, MXFP4_BF16, MXFP8_BF16, MXFP8_MXFP4_BF16, NVFP4_NVFP4, MXFP4_MXFP4, MXFP8_MXFP8)
    epilogues = (Epilogue.NONE, Epilogue.SWIGLU)
    groupings = (Grouping.GROUPED,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters and both schedulers."""
        del operation
        for tile_m, tile_n in self._tiles():
            for cluster_m, cluster_n in target.clusters:
                for schedule in (STATIC, CLC):
                    yield gemm_candidate(
                        family=self.name,
                        tile_m=tile_m,
                        tile_n=tile_n,
                        cluster_m=cluster_m,
                        cluster_n=cluster_n,
                        schedule=schedule,
                        use_2cta=self._takes_two_ctas(tile_m, cluster_m),
                    )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of groups, and those of `sm100_block_scale`."""
        fault = grouped_fault(candidate, operation)
        if fault:
            return Rejected(Reason.COMBINATION, fault)
        return super().check(candidate, operation, target)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        del target
        from aot.families._arguments import cutlass_type
        from aot.families._grouped_kernel import GemmGroupedSm100
        from aot.families._padded_grouped_kernel import GemmPaddedGroupedSm100
        from aot.families._quantized_grouped_kernel import GemmQuantizedGroupedSm100

        knobs, scale = candidate.gemm, operation.a.scale
        if scale is None:
            raise ValueError(f"{operation.tag} has no scale factors; expected one of {[x.tag for x in self.types]}")
        element_a, element_b = cutlass_type(operation.a.element), cutlass_type(operation.b.element)
        class_of = GemmPaddedGroupedSm100 if operation.b.is_padded else GemmGroupedSm100
        if operation.factors_of_d is not None:
            class_of = GemmQuantizedGroupedSm100
        return class_of(
            cutlass_type(operation.accumulator),
            element_a,
            (knobs.tile_m, knobs.tile_n),
            (knobs.cluster_m, knobs.cluster_n, 1),
            operation=operation,
            swap_ab=False,
            element_b=element_b,
            sf_vec_size=scale.block_k,
            a_mma_dtype=element_a,
            b_mma_dtype=element_b,
            use_clc_persistence=knobs.schedule == CLC,
        )

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._grouped_entry import grouped_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return grouped_entry(gemm, KernelKey(operation, candidate), clusters)


FAMILY = Sm100GroupedBlockScale()
