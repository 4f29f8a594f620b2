"""NVIDIA's low-latency Blackwell GEMM (TGV) that frees tensor memory after its last use. Imports CUTLASS.

The barrier `tmem_alloc_result_bar` of `TgvGemmKernel` has two phases: the MMA warp and the epilogue's warps arrive once
when tensor memory is allocated, and once more when it may be freed. The MMA warp arrives the second time without having
awaited the first phase, and then waits for parity 1. A barrier whose first phase is not complete says of parity 1 that
it is complete, too (PTX ISA, mbarrier.test_wait: the phase in front of the current one). So where an epilogue warp has
not arrived at all when the last product is issued, tensor memory is freed while products write it, and before it is
read. Here the MMA warp awaits the first phase before it arrives again. See research/tgv_tensor_memory.md.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cutlass import cute
from cutlass.operators.providers.cutedsl.gemm.implementations.sm100_tgv_gemm_impl import TgvGemmKernel

REPLACED = {
    "mma_warp": [
        "self",
        "tma_mma_full_bar",
        "tma_mma_empty_bar",
        "mma_epilog_full_bar",
        "tmem_alloc_result_bar",
        "tiled_mma",
        "sA",
        "sB",
        "tmem_base_smem_ptr",
        "mma_tile_coord_v",
        "k_tile_count",
    ]
}
"""The method of `TgvGemmKernel` that is overridden here, with its parameters."""

BARRIER_USES = ("mbarrier_arrive", "mbarrier_arrive", "mbarrier_wait")
"""What `mma_warp` does with the barrier of the allocation, in its order. `tests/unit/families/test_tgv_kernel.py` fails
where a release does otherwise."""


class AwaitedBarrier:
    """An mbarrier whose first phase a warp awaits before it arrives the second time."""

    def __init__(self, barrier: Any) -> None:
        """Keep the pointer to the barrier, at which the warp has not arrived yet."""
        self.barrier = barrier
        self.num_uses = 0

    def to_llvm_ptr(self, **options: Any) -> Any:
        """Return the pointer for the next of BARRIER_USES, as an instruction asks for it."""
        if self.num_uses == 1:
            cute.arch.mbarrier_wait(self.barrier, 0)
        self.num_uses += 1
        return self.barrier.to_llvm_ptr(**options)


class GemmTgvSm100(TgvGemmKernel):
    """`TgvGemmKernel` whose MMA warp awaits the allocation's phase before it arrives for the release."""

    def mma_warp(self, *args: Any, **kwargs: Any) -> None:
        """Multiply as NVIDIA's kernel does."""
        place = REPLACED["mma_warp"].index("tmem_alloc_result_bar") - 1
        super().mma_warp(*args[:place], AwaitedBarrier(args[place]), *args[place + 1 :], **kwargs)
