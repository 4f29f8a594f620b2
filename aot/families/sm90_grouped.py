"""quack's Hopper GEMM over groups: of rows, as a mixture of experts has them, or of k, as its weight gradients do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey, Reason, Rejected, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.types import BF16, E4M3_BF16, FP16, Types
from aot.families._grouped import GROUPINGS, grouped_fault
from aot.families._sm90_tiles import PINGPONG, register_fault, shapes, warpgroup_grid
from aot.families.sm90_quack import Sm90Quack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

GATHER_ACCUMULATORS = 192
"""Float32 accumulators that a thread can hold in the 224 registers that quack gives a multiplying warpgroup beside four
warps that gather. Source: quack gemm_sm90.py, `GemmSm90.__init__`; ptxas 13.4 compiles 128x192 pingpong without spills
(nvidia-cutlass-dsl 4.8.1, 2026-11-22)."""

GATHER_TILE_M = 192
"""Most rows of a tile that are gathered: each thread keeps the indices of a sixteenth of them. Source: in the 56
registers of a warp that gathers ptxas 13.4 compiles 192 rows without spills, and spills 32 bytes at 256
(nvidia-cutlass-dsl 4.8.1, 2026-11-22)."""


class Sm90Grouped(Sm90Quack):
    """The family `sm90_grouped`: tiles, schedules and clusters of `sm90_quack`, without swap and split.

    Its tiles are of one group each. Where the ends of the groups lie is read on the device.
    """

    name = "sm90_grouped"
    orders_tiles = False
    own_clusters = ()
    types: tuple[Types, ...] = (BF16, FP16, E4M3_BF16)
    epilogues: tuple[Epilogue, ...] = (Epilogue.NONE, Epilogue.SWIGLU)
    groupings: tuple[Grouping, ...] = GROUPINGS

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate every tile, both schedules and the target's clusters."""
        del operation
        for schedule, tile_m, tile_n in shapes(self.tile_n_step):
            for cluster_m, cluster_n in target.clusters:
                yield gemm_candidate(
                    family=self.name,
                    tile_m=tile_m,
                    tile_n=tile_n,
                    cluster_m=cluster_m,
                    cluster_n=cluster_n,
                    schedule=schedule,
                )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the limits of `sm90_quack`, of groups and of gathering."""
        fault = grouped_fault(candidate, operation)
        if fault:
            return Rejected(Reason.COMBINATION, fault)
        if not operation.b.is_k_major and warpgroup_grid(candidate)[1] > 1:
            # Source: nvidia-cutlass-dsl 4.8.1 aborts on 192x160 and 320x32, and compiles all other tiles (2026-11-22).
            tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
            text = f"two warpgroups share the columns of a {tile} tile, which the compiler cannot have contiguous in B"
            return Rejected(Reason.LAYOUT, text)
        if operation.grouping is Grouping.GATHERED:
            if candidate.gemm.tile_m > GATHER_TILE_M:
                text = f"warps that gather keep an index of each row, of at most {GATHER_TILE_M} rows"
                return Rejected(Reason.REGISTERS, f"{text}; got tile_m {candidate.gemm.tile_m}")
            fault = register_fault(candidate, is_promoted=operation.types.is_promoted, most=GATHER_ACCUMULATORS)
            if fault:
                return Rejected(Reason.REGISTERS, f"{fault} beside warps that gather")
        return super().check(candidate, operation, target)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def gemm_class(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Return the class that `configure` calls."""
        del candidate, operation, target
        from aot.families._grouped_kernel import GemmGroupedSm90

        return GemmGroupedSm90

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        from aot.families._arguments import cutlass_type
        from aot.families._quack import ACCUMULATOR

        return self.gemm_class(candidate, operation, target)(
            ACCUMULATOR,
            cutlass_type(operation.a.element),
            (candidate.gemm.tile_m, candidate.gemm.tile_n),
            (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1),
            operation=operation,
            swap_ab=False,
            pingpong=candidate.gemm.schedule == PINGPONG,
            is_persistent=True,
            fp8_fast_accum=not operation.types.is_promoted,
            gather_A=operation.grouping is Grouping.GATHERED,
        )

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._grouped_entry import grouped_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        return grouped_entry(gemm, KernelKey(operation, candidate), clusters)


FAMILY = Sm90Grouped()
