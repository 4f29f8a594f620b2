"""The entry of NVIDIA's persistent kernel from nvidia-cutlass-operators. Imports CUTLASS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda.bindings import driver as cuda
from cutlass import Float32, cute
from cutlass.operators.providers.cutedsl.gemm.implementations.operator_helpers import PersistentTileSchedulerType
from cutlass.operators.providers.cutedsl.gemm.implementations.sm100_persistent_impl import PersistentDenseGemmKernel

from aot.core.candidate import KernelKey
from aot.families import Entry, signature
from aot.families._arguments import aligned_arguments, transpose

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation


def persistent_entry(candidate: Candidate, operation: Operation, num_clusters: int, *, dynamic: bool) -> Entry:
    """Make the entry of `PersistentDenseGemmKernel`, which takes A (m, k), B (k, n) and C (m, n).

    Args:
        candidate: tile, cluster, store and swap.
        operation: element type and layout.
        num_clusters: clusters that the static scheduler keeps in flight.
        dynamic: whether tiles are handed out by cluster launch control (CLC).
    """
    scheduler = PersistentTileSchedulerType.CLC if dynamic else PersistentTileSchedulerType.STATIC_PERSISTENT
    gemm = PersistentDenseGemmKernel(
        Float32,
        candidate.gemm.use_2cta,
        (candidate.gemm.tile_m, candidate.gemm.tile_n),
        (candidate.gemm.cluster_m, candidate.gemm.cluster_n),
        candidate.gemm.use_tma_store,
        scheduler,
        lambda x: x,
    )
    clusters = None if dynamic else num_clusters

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
        if candidate.gemm.swap_ab:
            gemm(b, transpose(a), transpose(d), stream, clusters)
        else:
            gemm(a, transpose(b), d, stream, clusters)

    return Entry(entry, aligned_arguments(signature(KernelKey(operation, candidate)), operation))
