"""Kernels of FP8 of the families whose clusters share k, or that are of one tile: operations and candidates."""

from __future__ import annotations

from aot.core.candidate import gemm_candidate
from aot.core.operation import Operation as Op


def key(operation, tile_m, tile_n, split_k=1, **fields):
    mode = "none" if split_k == 1 else "cluster"
    plain = {"split_k": split_k, "split_k_mode": mode, "use_tma_store": False}
    return (operation, gemm_candidate("sm90_cluster_split_k", tile_m, tile_n, **plain, **fields))


def alone(operation, tile_m, tile_n, **fields):
    return (operation, gemm_candidate("sm90_one_tile", tile_m, tile_n, use_tma_store=False, **fields))


LAUNCHED = [
    alone(Op.E4M3_BF16_KK, 128, 120, swap_ab=True),
    alone(Op.E4M3_BF16_KK_SWIGLU, 64, 128, cluster_m=2, cluster_n=2),
    alone(Op.E4M3_E4M3_KK, 192, 80),
    key(Op.E4M3_BF16_KK, 64, 160, swap_ab=True),
    key(Op.E4M3_FP32_KK, 192, 80, swap_ab=True),
    key(Op.E4M3_E4M3_KK, 192, 112, 4),
    key(Op.E4M3E5M2_BF16_KK, 128, 64, 2, cluster_m=2),
    key(Op.E4M3_BF16_KK_SWIGLU, 128, 160, 4),
    key(Op.E4M3_BF16_KK_RESIDUAL, 128, 128, 2, swap_ab=True),
]
"""Kernels of each kind of operands, with as many sums as fit."""
MORE = [
    key(Op.E5M2E4M3_BF16_KK, 256, 80, 2, swap_ab=True),
    key(Op.E4M3_BF16_KK_SWIGLU, 128, 128, swap_ab=True),
    key(Op.E4M3_BF16_KK, 64, 192, 2),
    key(Op.E4M3_BF16_KK, 128, 128),
    key(Op.E4M3_FP16_KK, 128, 96, cluster_n=2),
    key(Op.E4M3_BF16_KK_GELU_TANH, 128, 128),
    key(Op.E4M3_BF16_KK_SILU, 128, 160, 4, swap_ab=True),
    key(Op.E4M3_BF16_FAST_KK, 192, 128, 4),
    alone(Op.E4M3_FP32_KK, 128, 128, cluster_n=4),
    alone(Op.E4M3_BF16_FAST_KK, 256, 64, cluster_m=2),
    alone(Op.E4M3_BF16_KK_SILU, 64, 96, swap_ab=True),
    key(Op.E4M3_BF16_KK_RELU, 64, 160, swap_ab=True),
    key(Op.E4M3_BF16_KK_GELU, 256, 80, 2, swap_ab=True),
    key(Op.E4M3_BF16_KK_GEGLU, 64, 192, 2),
    key(Op.E4M3_BF16_KK_RESIDUAL, 128, 104),
    alone(Op.E4M3_BF16_KK_RESIDUAL, 64, 160, cluster_m=2),
    alone(Op.E4M3_BF16_KK_RESIDUAL, 192, 72),
    alone(Op.E4M3_BF16_KK_GELU, 128, 128, cluster_n=4),
    alone(Op.E4M3_BF16_KK_GEGLU, 128, 64, swap_ab=True),
]
"""Kernels of the other operations of FP8, and of other limits."""
