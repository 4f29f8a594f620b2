"""NVIDIA's low-latency Blackwell GEMM (TGV, nvidia-cutlass-operators): one tile a CTA, made for few rows of A.

The kernel computes the transpose: its tile_m runs along n, its tile_n along m, so every candidate has `swap_ab`.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of `entry` as they are.
"""

from collections.abc import Iterator

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import Layout, Operation
from aot.core.target import Target
from aot.core.types import BF16, FP16
from aot.families import Defaults, Entry
from aot.families._split_k import order_of_splits
from aot.families._tcgen05 import BARRIER_BYTES

TILE_M = 64
"""The one tile_m whose epilogue the kernel has. Source: `TgvGemmOperator._valid_metadata`."""

TILES_N = (8, 16, 32)
"""Source: the same."""

TILE_K = 128
"""Elements of k in a stage. Source: the same."""

STAGES = (4, 6, 8, 10, 12)

NUM_THREADS = 256
"""Eight warps: A, B, MMA, one idle, four epilogue. Source: `TgvGemmKernel.__init__`."""

TMEM_COLUMNS = 256
"""Columns that the kernel allocates whatever its tile: half of them all, so that two CTAs share an SM. Source:
`TgvGemmKernel.mma_warp`."""


class Sm100Tgv(Defaults):
    """The family `sm100_tgv`."""

    name = "sm100_tgv"
    needs = (Feature.TCGEN05, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    types = (BF16, FP16)
    epilogues = (Epilogue.NONE,)
    layouts = (Layout.KK,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles and pipeline depths; not every depth fits every tile."""
        del operation, target
        for tile_n in TILES_N:
            for num_stages in STAGES:
                yield gemm_candidate(
                    family=self.name,
                    tile_m=TILE_M,
                    tile_n=tile_n,
                    num_stages=num_stages,
                    swap_ab=True,
                    use_tma_store=False,
                )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the operator's own limits on tile and cluster."""
        del operation, target
        if candidate.gemm.tile_m != TILE_M or candidate.gemm.tile_n not in TILES_N:
            text = f"TGV has tiles {TILE_M} by {TILES_N}, got {candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
            return Rejected(Reason.TILE, text)
        single = (candidate.gemm.cluster_m, candidate.gemm.cluster_n, candidate.gemm.use_2cta) == (1, 1, False)
        if not single or not candidate.gemm.swap_ab or SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE:
            return Rejected(Reason.COMBINATION, "TGV is one CTA to a cluster, swapped, without split-K")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count stages of A and B; the epilogue stores from registers."""
        del target
        stage_bytes = (candidate.gemm.tile_m + candidate.gemm.tile_n) * TILE_K * operation.a.element.num_bytes
        return Resources(
            smem_bytes=BARRIER_BYTES + candidate.gemm.num_stages * stage_bytes,
            stage_bytes=stage_bytes,
            num_threads=NUM_THREADS,
            num_stages=candidate.gemm.num_stages,
            tmem_columns=TMEM_COLUMNS,
        )

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all: the store is predicated."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands, and a D, as TMA does."""
        del candidate
        return Alignment()

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `tcgen05.mma`, which no device has shown to be that of other kernels."""
        return order_of_splits(self.name, candidate)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Configure the kernel and make its entry."""
        from cuda.bindings import driver as cuda
        from cutlass import Float32, cute

        from aot.families import signature
        from aot.families._arguments import aligned_arguments, batched, transpose
        from aot.families._tgv_kernel import GemmTgvSm100

        del target
        # Programmatic dependent launch stays off: the kernel would read the weight before it waits for its predecessor.
        gemm = GemmTgvSm100(Float32, candidate.gemm.tile_m, candidate.gemm.tile_n, TILE_K, candidate.gemm.num_stages)

        @cute.jit
        def entry(
            a: cute.Tensor,
            b: cute.Tensor,
            d: cute.Tensor,
            _bias: None,
            _workspace: None,
            _prefetch_b: None,
            _tile_order: None,
            stream: cuda.CUstream,
        ) -> None:
            # The kernel takes the weight (n, k, 1), x (m, k, 1) and the transpose of D (n, m, 1).
            gemm(batched(b), batched(a), batched(transpose(d)), stream)

        return Entry(entry, aligned_arguments(signature(KernelKey(operation, candidate)), operation))


FAMILY = Sm100Tgv()
