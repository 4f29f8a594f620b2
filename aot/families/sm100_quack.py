"""quack's Blackwell GEMM (`GemmDefaultSm100`): TMA, tcgen05, static or dynamic (CLC) persistent tiles, split-K."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, gemm_candidate
from aot.core.element import BYTE_BITS
from aot.core.epilogue import OF_ONE_WEIGHT, Epilogue
from aot.core.feature import Feature
from aot.core.grouping import Grouping
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16, TF32, Types
from aot.families import Defaults
from aot.families._epilogue import FP8, INT8, has_own_epilogue
from aot.families._quack_smem import epilogue_fault, vector_bytes, wide_fault
from aot.families._split_k import order_of_splits, split_k_multiples, split_k_workspace
from aot.families._tcgen05 import ALIGNMENT_BYTES, BARRIER_BYTES, CLC, STATIC, TILE_M, shape_of, stages_that_fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Workspace
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry
    from aot.families._tcgen05 import Shape

SPLITS = (2, 4, 8)

NUM_THREADS = 256
"""Four epilogue warps, and one each for the MMA, the loads, C and the scheduler. Source: quack gemm_sm100.py."""


GATE_D_BYTES = 2
"""Bytes of an element of D for which quack chooses the pieces that are stored, where D is half as wide as the kernel.
Source: quack gemm_sm100.py, `_setup_attributes`."""


def _gate_fault(candidate: Candidate, operation: Operation) -> str | None:
    """Say why a tile cannot be stored at half its columns. Source: quack epilogue/ops.py, `_make_tiled_copy_r2s`."""
    if operation.gate is None or candidate.gemm.use_2cta or candidate.gemm.tile_m == 128:
        return None
    text = "each thread of the epilogue stores a row"
    return f"{operation.gate.value} takes tile_m 128 without two CTAs, since {text}; got {candidate.gemm.tile_m}"


class Sm100Quack(Defaults):
    """The family `sm100_quack`."""

    name = "sm100_quack"
    needs: tuple[Feature, ...] = (Feature.TCGEN05, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    orders_tiles = True
    types: tuple[Types, ...] = (BF16, FP16, *FP8, *INT8, TF32)
    epilogues: tuple[Epilogue, ...] = OF_ONE_WEIGHT
    groupings: tuple[Grouping, ...] = (Grouping.DENSE, Grouping.BATCHED)
    split_modes: tuple[SplitK, ...] = (SplitK.SERIAL, SplitK.SEPARATE)

    def _tiles(self) -> Iterator[tuple[int, int]]:
        """List the tiles, (tile_m, tile_n)."""
        return product(sorted({*TILE_M[False], *TILE_M[True]}), range(32, 257, 32))

    def _takes_two_ctas(self, tile_m: int, cluster_m: int) -> bool:
        """Say whether two CTAs share a tile: quack has them do so wherever they can."""
        return cluster_m % 2 == 0 and tile_m in TILE_M[True]

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters, both schedulers, swap, and split-K."""
        del operation
        splits = [(1, SplitK.NONE), *((split, mode) for mode in self.split_modes for split in SPLITS)]
        points = product(self._tiles(), target.clusters, (STATIC, CLC), (False, True), splits)
        for (tile_m, tile_n), (cluster_m, cluster_n), schedule, swap_ab, (split_k, mode) in points:
            yield gemm_candidate(
                family=self.name,
                tile_m=tile_m,
                tile_n=tile_n,
                cluster_m=cluster_m,
                cluster_n=cluster_n,
                schedule=schedule,
                swap_ab=swap_ab,
                use_2cta=self._takes_two_ctas(tile_m, cluster_m),
                split_k=split_k,
                split_k_mode=mode,
            )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the MMA's tiles, quack's own rule for two CTAs, and what goes with the epilogue."""
        del target
        if candidate.gemm.num_stages:
            return Rejected(
                Reason.COMBINATION, f"num_stages is {candidate.gemm.num_stages}; the kernel fills the block, give 0"
            )
        if SplitK(candidate.gemm.split_k_mode) is SplitK.TAIL:
            return Rejected(Reason.COMBINATION, f"the kernel has no {SplitK.TAIL.value} split-K")
        if candidate.gemm.tile_m not in TILE_M[candidate.gemm.use_2cta]:
            text = f"tcgen05 takes tile_m {TILE_M[candidate.gemm.use_2cta]} with use_2cta={candidate.gemm.use_2cta}"
            return Rejected(Reason.TILE, f"{text}, got {candidate.gemm.tile_m}")
        for reason, fault in (
            (Reason.TILE, _gate_fault(candidate, operation)),
            (Reason.TILE, wide_fault(operation, candidate.gemm.tile_n // (2 if candidate.gemm.use_2cta else 1))),
            (Reason.COMBINATION, epilogue_fault(candidate, operation)),
        ):
            if fault:
                return Rejected(reason, fault)
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count as `GemmSm100._compute_stages` does: the epilogue first, A/B stages in what is left of a block."""
        shape = shape_of(candidate)
        epilogue_bytes, c_stage_bytes = self.epilogue_bytes(candidate, operation, shape)
        vectors = vector_bytes(candidate, operation, shape.cta_m)
        padding = -vectors % ALIGNMENT_BYTES
        if has_own_epilogue(operation):  # counted before quack fills the rest (`GemmEpilogueSm100.epi_smem_bytes`)
            vectors, padding = vectors + padding, 0
        fixed = self.barrier_bytes(candidate, operation) + 2 * (epilogue_bytes + c_stage_bytes) + vectors
        limit, factors = target.smem_bytes_per_block, self.factor_bytes(shape, operation)
        stage_bytes = shape.stage_bytes + sum(factors)
        num_stages = candidate.gemm.num_stages or stages_that_fit(limit, fixed, stage_bytes)
        spare = max(limit - fixed - num_stages * stage_bytes, 0) // epilogue_bytes
        padding += sum(-num_stages * x % ALIGNMENT_BYTES for x in factors)  # which quack does not count
        return Resources(
            smem_bytes=fixed + padding + num_stages * stage_bytes + spare * epilogue_bytes,
            stage_bytes=stage_bytes,
            num_threads=NUM_THREADS,
            num_stages=num_stages,
            tmem_columns=self.tmem_columns(shape),
        )

    def epilogue_bytes(self, candidate: Candidate, operation: Operation, shape: Shape) -> tuple[int, int]:
        """Count the bytes of D in one stage of the epilogue, and those of what is added to D from global memory."""
        is_separate = SplitK(candidate.gemm.split_k_mode) is SplitK.SEPARATE
        d_bytes = max((operation.accumulator if is_separate else operation.d).bits // BYTE_BITS, 1)
        c_bytes = operation.d.num_bytes if operation.has_residual else 0
        elements = shape.epilogue_elements(GATE_D_BYTES if operation.gate else d_bytes, c_bytes)
        return elements * d_bytes // (2 if operation.gate else 1), elements * c_bytes

    def factor_bytes(self, shape: Shape, operation: Operation) -> tuple[int, ...]:
        """Count the bytes of factors of A and of B in a stage of one CTA: none are loaded with the operands."""
        del shape, operation
        return ()

    def tmem_columns(self, shape: Shape) -> int:
        """Count the columns of tensor memory: two accumulators, one of which is stored while the other is summed."""
        return shape.tmem_columns(num_accumulators=2)

    def barrier_bytes(self, candidate: Candidate, operation: Operation) -> int:
        """Count what is set aside beside the stages of all operands."""
        del candidate, operation
        return BARRIER_BYTES

    def workspace(self, candidate: Candidate) -> Workspace:
        """Return split-K's flags and float32 regions, or partials; with two CTAs a region is one CTA's."""
        return split_k_workspace(candidate, shape_of(candidate).cta_m)

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Ask for what the separate reduction needs; otherwise take all."""
        return split_k_multiples(candidate)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands, and a D, as TMA does."""
        del candidate
        return Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `tcgen05.mma`, 32 bytes of k at a time, from the first to the last, within a split."""
        return order_of_splits("tcgen05", candidate)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the GEMM and make its entry."""
        from aot.families._epilogue_entry import epilogue_entry
        from aot.families._quack import quack_entry

        gemm = self.configure(candidate, operation, target)
        clusters = target.num_clusters(candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        make = epilogue_entry if has_own_epilogue(operation) else quack_entry
        return make(gemm, KernelKey(operation, candidate), self.workspace(candidate), clusters)

    def configure(self, candidate: Candidate, operation: Operation, target: Target) -> Any:
        """Make the GEMM that a candidate describes."""
        del target
        from aot.families._arguments import cutlass_type
        from aot.families._quack import quack_split_k
        from aot.families._quack_classes import sm100_class

        a = operation.b if candidate.gemm.swap_ab else operation.a
        return sm100_class(operation, swap_ab=candidate.gemm.swap_ab)(
            cutlass_type(operation.accumulator),
            cutlass_type(a.element),
            (candidate.gemm.tile_m, candidate.gemm.tile_n),
            (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1),
            use_clc_persistence=candidate.gemm.schedule == CLC,
            **quack_split_k(candidate),
        )


FAMILY = Sm100Quack()
