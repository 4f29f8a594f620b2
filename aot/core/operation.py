"""Everything about a product but its sizes: the catalogue of operations that kernels are made for.

D (m, n) = epilogue(A (m, k) @ B (n, k)^T), accumulated in float32 and rounded once. B is held (n, k), as
torch.nn.Linear holds a weight. One launch may compute several such products: a batch, or groups.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product

from aot.core import types as t
from aot.core.element import ElementType
from aot.core.epilogue import ACTIVATIONS, GATES, Epilogue
from aot.core.grouping import Grouping
from aot.core.product import KIND, Layout, Product
from aot.core.types import Types

__all__ = ("ELEMENTS", "KIND", "Layout", "Operation")

_GROUPED = (Layout.KK, Epilogue.NONE, Grouping.GROUPED)
_GROUPED_SWIGLU = (Layout.KK, Epilogue.SWIGLU, Grouping.GROUPED)
_GATHERED = (Layout.KK, Epilogue.NONE, Grouping.GATHERED)
_GATHERED_SWIGLU = (Layout.KK, Epilogue.SWIGLU, Grouping.GATHERED)


class Operation(Product):
    """One section of the dispatch table, by its stable tag, such as `bf16_kk` or `bf16_kk_bias`.

    This is a catalogue, not a cross product: what is listed is meant. Which lines a wheel has kernels for is said where
    it is built; which of them have run on a device is said in docs/operations.md. A line has the tag, the types, the
    layout, the epilogue and the grouping.
    """

    BF16_KK = "bf16_kk", t.BF16, Layout.KK
    BF16_KN = "bf16_kn", t.BF16, Layout.KN
    BF16_MK = "bf16_mk", t.BF16, Layout.MK
    BF16_MN = "bf16_mn", t.BF16, Layout.MN
    FP16_KK = "fp16_kk", t.FP16, Layout.KK
    FP16_KN = "fp16_kn", t.FP16, Layout.KN
    FP16_MK = "fp16_mk", t.FP16, Layout.MK
    FP16_MN = "fp16_mn", t.FP16, Layout.MN
    BF16_KK_BIAS = "bf16_kk_bias", t.BF16, Layout.KK, Epilogue.BIAS
    FP16_KK_BIAS = "fp16_kk_bias", t.FP16, Layout.KK, Epilogue.BIAS
    BF16_KK_RELU = "bf16_kk_relu", t.BF16, Layout.KK, Epilogue.RELU
    BF16_KK_GELU = "bf16_kk_gelu", t.BF16, Layout.KK, Epilogue.GELU
    BF16_KK_GELU_TANH = "bf16_kk_gelu_tanh", t.BF16, Layout.KK, Epilogue.GELU_TANH
    BF16_KK_SILU = "bf16_kk_silu", t.BF16, Layout.KK, Epilogue.SILU
    BF16_KK_RESIDUAL = "bf16_kk_residual", t.BF16, Layout.KK, Epilogue.RESIDUAL
    BF16_KK_SWIGLU = "bf16_kk_swiglu", t.BF16, Layout.KK, Epilogue.SWIGLU
    BF16_KK_GEGLU = "bf16_kk_geglu", t.BF16, Layout.KK, Epilogue.GEGLU
    FP16_KK_RELU = "fp16_kk_relu", t.FP16, Layout.KK, Epilogue.RELU
    FP16_KK_GELU = "fp16_kk_gelu", t.FP16, Layout.KK, Epilogue.GELU
    FP16_KK_GELU_TANH = "fp16_kk_gelu_tanh", t.FP16, Layout.KK, Epilogue.GELU_TANH
    FP16_KK_SILU = "fp16_kk_silu", t.FP16, Layout.KK, Epilogue.SILU
    FP16_KK_RESIDUAL = "fp16_kk_residual", t.FP16, Layout.KK, Epilogue.RESIDUAL
    FP16_KK_SWIGLU = "fp16_kk_swiglu", t.FP16, Layout.KK, Epilogue.SWIGLU
    FP16_KK_GEGLU = "fp16_kk_geglu", t.FP16, Layout.KK, Epilogue.GEGLU
    BF16_KK_MANY = "bf16_kk_many", t.BF16, Layout.KK, Epilogue.MANY
    FP16_KK_MANY = "fp16_kk_many", t.FP16, Layout.KK, Epilogue.MANY
    E4M3_BF16_KK = "e4m3_bf16_kk", t.E4M3_BF16, Layout.KK
    E4M3_FP16_KK = "e4m3_fp16_kk", t.E4M3_FP16, Layout.KK
    E4M3_FP32_KK = "e4m3_fp32_kk", t.E4M3_FP32, Layout.KK
    E4M3_E4M3_KK = "e4m3_e4m3_kk", t.E4M3_E4M3, Layout.KK
    E5M2E4M3_BF16_KK = "e5m2e4m3_bf16_kk", t.E5M2E4M3_BF16, Layout.KK
    E4M3E5M2_BF16_KK = "e4m3e5m2_bf16_kk", t.E4M3E5M2_BF16, Layout.KK
    E4M3_BF16_FAST_KK = "e4m3_bf16_fast_kk", t.E4M3_BF16_FAST, Layout.KK
    E4M3_BF16_BLOCK_KK = "e4m3_bf16_block_kk", t.E4M3_BF16_BLOCK, Layout.KK
    E4M3_BF16_KK_RELU = "e4m3_bf16_kk_relu", t.E4M3_BF16, Layout.KK, Epilogue.RELU
    E4M3_BF16_KK_GELU = "e4m3_bf16_kk_gelu", t.E4M3_BF16, Layout.KK, Epilogue.GELU
    E4M3_BF16_KK_GELU_TANH = "e4m3_bf16_kk_gelu_tanh", t.E4M3_BF16, Layout.KK, Epilogue.GELU_TANH
    E4M3_BF16_KK_SILU = "e4m3_bf16_kk_silu", t.E4M3_BF16, Layout.KK, Epilogue.SILU
    E4M3_BF16_KK_RESIDUAL = "e4m3_bf16_kk_residual", t.E4M3_BF16, Layout.KK, Epilogue.RESIDUAL
    E4M3_BF16_KK_SWIGLU = "e4m3_bf16_kk_swiglu", t.E4M3_BF16, Layout.KK, Epilogue.SWIGLU
    E4M3_BF16_KK_GEGLU = "e4m3_bf16_kk_geglu", t.E4M3_BF16, Layout.KK, Epilogue.GEGLU
    INT8_INT32_KK = "int8_int32_kk", t.INT8_INT32, Layout.KK
    INT8_BF16_KK = "int8_bf16_kk", t.INT8_BF16, Layout.KK
    INT8_FP16_KK = "int8_fp16_kk", t.INT8_FP16, Layout.KK
    TF32_KK = "tf32_kk", t.TF32, Layout.KK
    FP32_KK = "fp32_kk", t.FP32, Layout.KK
    BF16_KK_BATCHED = "bf16_kk_batched", t.BF16, Layout.KK, Epilogue.NONE, Grouping.BATCHED
    BF16_KN_BATCHED = "bf16_kn_batched", t.BF16, Layout.KN, Epilogue.NONE, Grouping.BATCHED
    BF16_MK_BATCHED = "bf16_mk_batched", t.BF16, Layout.MK, Epilogue.NONE, Grouping.BATCHED
    BF16_MN_BATCHED = "bf16_mn_batched", t.BF16, Layout.MN, Epilogue.NONE, Grouping.BATCHED
    FP16_KK_BATCHED = "fp16_kk_batched", t.FP16, Layout.KK, Epilogue.NONE, Grouping.BATCHED
    FP16_KN_BATCHED = "fp16_kn_batched", t.FP16, Layout.KN, Epilogue.NONE, Grouping.BATCHED
    FP16_MK_BATCHED = "fp16_mk_batched", t.FP16, Layout.MK, Epilogue.NONE, Grouping.BATCHED
    FP16_MN_BATCHED = "fp16_mn_batched", t.FP16, Layout.MN, Epilogue.NONE, Grouping.BATCHED
    BF16_KK_GROUPED = "bf16_kk_grouped", t.BF16, *_GROUPED
    BF16_KN_GROUPED = "bf16_kn_grouped", t.BF16, Layout.KN, Epilogue.NONE, Grouping.GROUPED
    BF16_KK_GROUPED_SWIGLU = "bf16_kk_grouped_swiglu", t.BF16, *_GROUPED_SWIGLU
    BF16_KK_GATHERED = "bf16_kk_gathered", t.BF16, *_GATHERED
    BF16_KK_GATHERED_SWIGLU = "bf16_kk_gathered_swiglu", t.BF16, *_GATHERED_SWIGLU
    BF16_MN_KGROUPED = "bf16_mn_kgrouped", t.BF16, Layout.MN, Epilogue.NONE, Grouping.K_GROUPED
    FP16_KK_GROUPED = "fp16_kk_grouped", t.FP16, *_GROUPED
    FP16_KN_GROUPED = "fp16_kn_grouped", t.FP16, Layout.KN, Epilogue.NONE, Grouping.GROUPED
    FP16_KK_GROUPED_SWIGLU = "fp16_kk_grouped_swiglu", t.FP16, *_GROUPED_SWIGLU
    FP16_KK_GATHERED = "fp16_kk_gathered", t.FP16, *_GATHERED
    FP16_KK_GATHERED_SWIGLU = "fp16_kk_gathered_swiglu", t.FP16, *_GATHERED_SWIGLU
    FP16_MN_KGROUPED = "fp16_mn_kgrouped", t.FP16, Layout.MN, Epilogue.NONE, Grouping.K_GROUPED
    E4M3_BF16_KK_GROUPED = "e4m3_bf16_kk_grouped", t.E4M3_BF16, *_GROUPED
    E4M3_BF16_KK_GROUPED_SWIGLU = "e4m3_bf16_kk_grouped_swiglu", t.E4M3_BF16, *_GROUPED_SWIGLU
    E4M3_BF16_KK_GATHERED = "e4m3_bf16_kk_gathered", t.E4M3_BF16, *_GATHERED
    E4M3_BF16_KK_GATHERED_SWIGLU = "e4m3_bf16_kk_gathered_swiglu", t.E4M3_BF16, *_GATHERED_SWIGLU
    E4M3_BF16_BLOCK_KK_GROUPED = "e4m3_bf16_block_kk_grouped", t.E4M3_BF16_BLOCK, *_GROUPED
    E4M3_BF16_BLOCK_KK_GROUPED_SWIGLU = "e4m3_bf16_block_kk_grouped_swiglu", t.E4M3_BF16_BLOCK, *_GROUPED_SWIGLU
    E4M3_BF16_BLOCK_KK_GATHERED = "e4m3_bf16_block_kk_gathered", t.E4M3_BF16_BLOCK, *_GATHERED
    E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU = "e4m3_bf16_block_kk_gathered_swiglu", t.E4M3_BF16_BLOCK, *_GATHERED_SWIGLU

    NVFP4_BF16_KK = "nvfp4_bf16_kk", t.NVFP4_BF16, Layout.KK
    MXFP4_BF16_KK = "mxfp4_bf16_kk", t.MXFP4_BF16, Layout.KK
    MXFP8_BF16_KK = "mxfp8_bf16_kk", t.MXFP8_BF16, Layout.KK
    NVFP4_FP16_KK = "nvfp4_fp16_kk", t.NVFP4_FP16, Layout.KK
    MXFP8_FP16_KK = "mxfp8_fp16_kk", t.MXFP8_FP16, Layout.KK
    MXFP4_FP16_KK = "mxfp4_fp16_kk", t.MXFP4_FP16, Layout.KK
    MXFP8_MXFP4_BF16_KK = "mxfp8mxfp4_bf16_kk", t.MXFP8_MXFP4_BF16, Layout.KK
    MXFP8_MXFP4_FP16_KK = "mxfp8mxfp4_fp16_kk", t.MXFP8_MXFP4_FP16, Layout.KK
    NVFP4_BF16_KK_BIAS = "nvfp4_bf16_kk_bias", t.NVFP4_BF16, Layout.KK, Epilogue.BIAS
    NVFP4_BF16_KK_RELU = "nvfp4_bf16_kk_relu", t.NVFP4_BF16, Layout.KK, Epilogue.RELU
    NVFP4_BF16_KK_GELU = "nvfp4_bf16_kk_gelu", t.NVFP4_BF16, Layout.KK, Epilogue.GELU
    NVFP4_BF16_KK_GELU_TANH = "nvfp4_bf16_kk_gelu_tanh", t.NVFP4_BF16, Layout.KK, Epilogue.GELU_TANH
    NVFP4_BF16_KK_SILU = "nvfp4_bf16_kk_silu", t.NVFP4_BF16, Layout.KK, Epilogue.SILU
    NVFP4_BF16_KK_RESIDUAL = "nvfp4_bf16_kk_residual", t.NVFP4_BF16, Layout.KK, Epilogue.RESIDUAL
    NVFP4_BF16_KK_SWIGLU = "nvfp4_bf16_kk_swiglu", t.NVFP4_BF16, Layout.KK, Epilogue.SWIGLU
    NVFP4_BF16_KK_GEGLU = "nvfp4_bf16_kk_geglu", t.NVFP4_BF16, Layout.KK, Epilogue.GEGLU
    MXFP4_BF16_KK_BIAS = "mxfp4_bf16_kk_bias", t.MXFP4_BF16, Layout.KK, Epilogue.BIAS
    MXFP4_BF16_KK_RELU = "mxfp4_bf16_kk_relu", t.MXFP4_BF16, Layout.KK, Epilogue.RELU
    MXFP4_BF16_KK_GELU = "mxfp4_bf16_kk_gelu", t.MXFP4_BF16, Layout.KK, Epilogue.GELU
    MXFP4_BF16_KK_GELU_TANH = "mxfp4_bf16_kk_gelu_tanh", t.MXFP4_BF16, Layout.KK, Epilogue.GELU_TANH
    MXFP4_BF16_KK_SILU = "mxfp4_bf16_kk_silu", t.MXFP4_BF16, Layout.KK, Epilogue.SILU
    MXFP4_BF16_KK_RESIDUAL = "mxfp4_bf16_kk_residual", t.MXFP4_BF16, Layout.KK, Epilogue.RESIDUAL
    MXFP4_BF16_KK_SWIGLU = "mxfp4_bf16_kk_swiglu", t.MXFP4_BF16, Layout.KK, Epilogue.SWIGLU
    MXFP4_BF16_KK_GEGLU = "mxfp4_bf16_kk_geglu", t.MXFP4_BF16, Layout.KK, Epilogue.GEGLU
    MXFP8_BF16_KK_BIAS = "mxfp8_bf16_kk_bias", t.MXFP8_BF16, Layout.KK, Epilogue.BIAS
    MXFP8_BF16_KK_RELU = "mxfp8_bf16_kk_relu", t.MXFP8_BF16, Layout.KK, Epilogue.RELU
    MXFP8_BF16_KK_GELU = "mxfp8_bf16_kk_gelu", t.MXFP8_BF16, Layout.KK, Epilogue.GELU
    MXFP8_BF16_KK_GELU_TANH = "mxfp8_bf16_kk_gelu_tanh", t.MXFP8_BF16, Layout.KK, Epilogue.GELU_TANH
    MXFP8_BF16_KK_SILU = "mxfp8_bf16_kk_silu", t.MXFP8_BF16, Layout.KK, Epilogue.SILU
    MXFP8_BF16_KK_RESIDUAL = "mxfp8_bf16_kk_residual", t.MXFP8_BF16, Layout.KK, Epilogue.RESIDUAL
    MXFP8_BF16_KK_SWIGLU = "mxfp8_bf16_kk_swiglu", t.MXFP8_BF16, Layout.KK, Epilogue.SWIGLU
    MXFP8_BF16_KK_GEGLU = "mxfp8_bf16_kk_geglu", t.MXFP8_BF16, Layout.KK, Epilogue.GEGLU
    MXFP8_MXFP4_BF16_KK_BIAS = "mxfp8mxfp4_bf16_kk_bias", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.BIAS
    MXFP8_MXFP4_BF16_KK_RELU = "mxfp8mxfp4_bf16_kk_relu", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.RELU
    MXFP8_MXFP4_BF16_KK_GELU = "mxfp8mxfp4_bf16_kk_gelu", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.GELU
    MXFP8_MXFP4_BF16_KK_GELU_TANH = "mxfp8mxfp4_bf16_kk_gelu_tanh", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.GELU_TANH
    MXFP8_MXFP4_BF16_KK_SILU = "mxfp8mxfp4_bf16_kk_silu", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.SILU
    MXFP8_MXFP4_BF16_KK_RESIDUAL = "mxfp8mxfp4_bf16_kk_residual", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.RESIDUAL
    MXFP8_MXFP4_BF16_KK_SWIGLU = "mxfp8mxfp4_bf16_kk_swiglu", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.SWIGLU
    MXFP8_MXFP4_BF16_KK_GEGLU = "mxfp8mxfp4_bf16_kk_geglu", t.MXFP8_MXFP4_BF16, Layout.KK, Epilogue.GEGLU
    NVFP4_BF16_KK_GROUPED = "nvfp4_bf16_kk_grouped", t.NVFP4_BF16, *_GROUPED
    NVFP4_BF16_KK_GROUPED_SWIGLU = "nvfp4_bf16_kk_grouped_swiglu", t.NVFP4_BF16, *_GROUPED_SWIGLU
    MXFP4_BF16_KK_GROUPED = "mxfp4_bf16_kk_grouped", t.MXFP4_BF16, *_GROUPED
    MXFP4_BF16_KK_GROUPED_SWIGLU = "mxfp4_bf16_kk_grouped_swiglu", t.MXFP4_BF16, *_GROUPED_SWIGLU
    MXFP8_BF16_KK_GROUPED = "mxfp8_bf16_kk_grouped", t.MXFP8_BF16, *_GROUPED
    MXFP8_BF16_KK_GROUPED_SWIGLU = "mxfp8_bf16_kk_grouped_swiglu", t.MXFP8_BF16, *_GROUPED_SWIGLU
    MXFP8_MXFP4_BF16_KK_GROUPED = "mxfp8mxfp4_bf16_kk_grouped", t.MXFP8_MXFP4_BF16, *_GROUPED
    MXFP8_MXFP4_BF16_KK_GROUPED_SWIGLU = "mxfp8mxfp4_bf16_kk_grouped_swiglu", t.MXFP8_MXFP4_BF16, *_GROUPED_SWIGLU

    NVFP4_NVFP4_KK = "nvfp4_nvfp4_kk", t.NVFP4_NVFP4, Layout.KK
    NVFP4_NVFP4_KK_BIAS = "nvfp4_nvfp4_kk_bias", t.NVFP4_NVFP4, Layout.KK, Epilogue.BIAS
    NVFP4_NVFP4_KK_RELU = "nvfp4_nvfp4_kk_relu", t.NVFP4_NVFP4, Layout.KK, Epilogue.RELU
    NVFP4_NVFP4_KK_GELU = "nvfp4_nvfp4_kk_gelu", t.NVFP4_NVFP4, Layout.KK, Epilogue.GELU
    NVFP4_NVFP4_KK_GELU_TANH = "nvfp4_nvfp4_kk_gelu_tanh", t.NVFP4_NVFP4, Layout.KK, Epilogue.GELU_TANH
    NVFP4_NVFP4_KK_SILU = "nvfp4_nvfp4_kk_silu", t.NVFP4_NVFP4, Layout.KK, Epilogue.SILU
    NVFP4_NVFP4_KK_SWIGLU = "nvfp4_nvfp4_kk_swiglu", t.NVFP4_NVFP4, Layout.KK, Epilogue.SWIGLU
    NVFP4_NVFP4_KK_GEGLU = "nvfp4_nvfp4_kk_geglu", t.NVFP4_NVFP4, Layout.KK, Epilogue.GEGLU
    MXFP4_MXFP4_KK = "mxfp4_mxfp4_kk", t.MXFP4_MXFP4, Layout.KK
    MXFP4_MXFP4_KK_BIAS = "mxfp4_mxfp4_kk_bias", t.MXFP4_MXFP4, Layout.KK, Epilogue.BIAS
    MXFP4_MXFP4_KK_RELU = "mxfp4_mxfp4_kk_relu", t.MXFP4_MXFP4, Layout.KK, Epilogue.RELU
    MXFP4_MXFP4_KK_GELU = "mxfp4_mxfp4_kk_gelu", t.MXFP4_MXFP4, Layout.KK, Epilogue.GELU
    MXFP4_MXFP4_KK_GELU_TANH = "mxfp4_mxfp4_kk_gelu_tanh", t.MXFP4_MXFP4, Layout.KK, Epilogue.GELU_TANH
    MXFP4_MXFP4_KK_SILU = "mxfp4_mxfp4_kk_silu", t.MXFP4_MXFP4, Layout.KK, Epilogue.SILU
    MXFP4_MXFP4_KK_SWIGLU = "mxfp4_mxfp4_kk_swiglu", t.MXFP4_MXFP4, Layout.KK, Epilogue.SWIGLU
    MXFP4_MXFP4_KK_GEGLU = "mxfp4_mxfp4_kk_geglu", t.MXFP4_MXFP4, Layout.KK, Epilogue.GEGLU
    MXFP8_MXFP8_KK = "mxfp8_mxfp8_kk", t.MXFP8_MXFP8, Layout.KK
    MXFP8_MXFP8_KK_BIAS = "mxfp8_mxfp8_kk_bias", t.MXFP8_MXFP8, Layout.KK, Epilogue.BIAS
    MXFP8_MXFP8_KK_RELU = "mxfp8_mxfp8_kk_relu", t.MXFP8_MXFP8, Layout.KK, Epilogue.RELU
    MXFP8_MXFP8_KK_GELU = "mxfp8_mxfp8_kk_gelu", t.MXFP8_MXFP8, Layout.KK, Epilogue.GELU
    MXFP8_MXFP8_KK_GELU_TANH = "mxfp8_mxfp8_kk_gelu_tanh", t.MXFP8_MXFP8, Layout.KK, Epilogue.GELU_TANH
    MXFP8_MXFP8_KK_SILU = "mxfp8_mxfp8_kk_silu", t.MXFP8_MXFP8, Layout.KK, Epilogue.SILU
    MXFP8_MXFP8_KK_SWIGLU = "mxfp8_mxfp8_kk_swiglu", t.MXFP8_MXFP8, Layout.KK, Epilogue.SWIGLU
    MXFP8_MXFP8_KK_GEGLU = "mxfp8_mxfp8_kk_geglu", t.MXFP8_MXFP8, Layout.KK, Epilogue.GEGLU
    NVFP4_NVFP4_KK_GROUPED = "nvfp4_nvfp4_kk_grouped", t.NVFP4_NVFP4, *_GROUPED
    NVFP4_NVFP4_KK_GROUPED_SWIGLU = "nvfp4_nvfp4_kk_grouped_swiglu", t.NVFP4_NVFP4, *_GROUPED_SWIGLU
    MXFP4_MXFP4_KK_GROUPED = "mxfp4_mxfp4_kk_grouped", t.MXFP4_MXFP4, *_GROUPED
    MXFP4_MXFP4_KK_GROUPED_SWIGLU = "mxfp4_mxfp4_kk_grouped_swiglu", t.MXFP4_MXFP4, *_GROUPED_SWIGLU
    MXFP8_MXFP8_KK_GROUPED = "mxfp8_mxfp8_kk_grouped", t.MXFP8_MXFP8, *_GROUPED
    MXFP8_MXFP8_KK_GROUPED_SWIGLU = "mxfp8_mxfp8_kk_grouped_swiglu", t.MXFP8_MXFP8, *_GROUPED_SWIGLU

    BF16_INT4_G128_KK = "bf16xint4g128_bf16_kk", t.BF16_INT4_G128, Layout.KK
    BF16_INT4_G128_ZEROS_KK = "bf16xint4g128z_bf16_kk", t.BF16_INT4_G128_ZEROS, Layout.KK
    BF16_NVFP4_KK = "bf16xnvfp4_bf16_kk", t.BF16_NVFP4, Layout.KK
    BF16_MXFP4_KK = "bf16xmxfp4_bf16_kk", t.BF16_MXFP4, Layout.KK
    BF16_INT8_KK = "bf16xint8_bf16_kk", t.BF16_INT8, Layout.KK
    FP16_INT4_G128_KK = "fp16xint4g128_fp16_kk", t.FP16_INT4_G128, Layout.KK
    FP16_INT4_G128_ZEROS_KK = "fp16xint4g128z_fp16_kk", t.FP16_INT4_G128_ZEROS, Layout.KK
    FP16_NVFP4_KK = "fp16xnvfp4_fp16_kk", t.FP16_NVFP4, Layout.KK
    FP16_MXFP4_KK = "fp16xmxfp4_fp16_kk", t.FP16_MXFP4, Layout.KK
    FP16_INT8_KK = "fp16xint8_fp16_kk", t.FP16_INT8, Layout.KK
    BF16_INT4_G64_KK = "bf16xint4g64_bf16_kk", t.BF16_INT4_G64, Layout.KK
    BF16_INT4_G64_ZEROS_KK = "bf16xint4g64z_bf16_kk", t.BF16_INT4_G64_ZEROS, Layout.KK
    BF16_INT4_G32_KK = "bf16xint4g32_bf16_kk", t.BF16_INT4_G32, Layout.KK
    BF16_INT4_G32_ZEROS_KK = "bf16xint4g32z_bf16_kk", t.BF16_INT4_G32_ZEROS, Layout.KK
    BF16_E4M3_KK = "bf16xe4m3_bf16_kk", t.BF16_E4M3, Layout.KK
    FP16_INT4_G64_KK = "fp16xint4g64_fp16_kk", t.FP16_INT4_G64, Layout.KK
    FP16_INT4_G64_ZEROS_KK = "fp16xint4g64z_fp16_kk", t.FP16_INT4_G64_ZEROS, Layout.KK
    FP16_INT4_G32_KK = "fp16xint4g32_fp16_kk", t.FP16_INT4_G32, Layout.KK
    FP16_INT4_G32_ZEROS_KK = "fp16xint4g32z_fp16_kk", t.FP16_INT4_G32_ZEROS, Layout.KK
    FP16_E4M3_KK = "fp16xe4m3_fp16_kk", t.FP16_E4M3, Layout.KK

    BF16_NVFP4_ROWS_KK = "bf16xnvfp4rows_bf16_kk", t.BF16_NVFP4_ROWS, Layout.KK
    FP16_NVFP4_ROWS_KK = "fp16xnvfp4rows_fp16_kk", t.FP16_NVFP4_ROWS, Layout.KK
    BF16_MXFP4_ROWS_KK = "bf16xmxfp4rows_bf16_kk", t.BF16_MXFP4_ROWS, Layout.KK

    BF16_INT4_G128_KK_SWIGLU = "bf16xint4g128_bf16_kk_swiglu", t.BF16_INT4_G128, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G128_KK_GEGLU = "bf16xint4g128_bf16_kk_geglu", t.BF16_INT4_G128, Layout.KK, Epilogue.GEGLU
    BF16_INT4_G128_ZEROS_KK_SWIGLU = "bf16xint4g128z_bf16_kk_swiglu", t.BF16_INT4_G128_ZEROS, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G128_ZEROS_KK_GEGLU = "bf16xint4g128z_bf16_kk_geglu", t.BF16_INT4_G128_ZEROS, Layout.KK, Epilogue.GEGLU
    BF16_NVFP4_KK_SWIGLU = "bf16xnvfp4_bf16_kk_swiglu", t.BF16_NVFP4, Layout.KK, Epilogue.SWIGLU
    BF16_NVFP4_KK_GEGLU = "bf16xnvfp4_bf16_kk_geglu", t.BF16_NVFP4, Layout.KK, Epilogue.GEGLU
    BF16_MXFP4_KK_SWIGLU = "bf16xmxfp4_bf16_kk_swiglu", t.BF16_MXFP4, Layout.KK, Epilogue.SWIGLU
    BF16_MXFP4_KK_GEGLU = "bf16xmxfp4_bf16_kk_geglu", t.BF16_MXFP4, Layout.KK, Epilogue.GEGLU
    BF16_INT8_KK_SWIGLU = "bf16xint8_bf16_kk_swiglu", t.BF16_INT8, Layout.KK, Epilogue.SWIGLU
    BF16_INT8_KK_GEGLU = "bf16xint8_bf16_kk_geglu", t.BF16_INT8, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G128_KK_SWIGLU = "fp16xint4g128_fp16_kk_swiglu", t.FP16_INT4_G128, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G128_KK_GEGLU = "fp16xint4g128_fp16_kk_geglu", t.FP16_INT4_G128, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G128_ZEROS_KK_SWIGLU = "fp16xint4g128z_fp16_kk_swiglu", t.FP16_INT4_G128_ZEROS, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G128_ZEROS_KK_GEGLU = "fp16xint4g128z_fp16_kk_geglu", t.FP16_INT4_G128_ZEROS, Layout.KK, Epilogue.GEGLU
    FP16_NVFP4_KK_SWIGLU = "fp16xnvfp4_fp16_kk_swiglu", t.FP16_NVFP4, Layout.KK, Epilogue.SWIGLU
    FP16_NVFP4_KK_GEGLU = "fp16xnvfp4_fp16_kk_geglu", t.FP16_NVFP4, Layout.KK, Epilogue.GEGLU
    FP16_MXFP4_KK_SWIGLU = "fp16xmxfp4_fp16_kk_swiglu", t.FP16_MXFP4, Layout.KK, Epilogue.SWIGLU
    FP16_MXFP4_KK_GEGLU = "fp16xmxfp4_fp16_kk_geglu", t.FP16_MXFP4, Layout.KK, Epilogue.GEGLU
    FP16_INT8_KK_SWIGLU = "fp16xint8_fp16_kk_swiglu", t.FP16_INT8, Layout.KK, Epilogue.SWIGLU
    FP16_INT8_KK_GEGLU = "fp16xint8_fp16_kk_geglu", t.FP16_INT8, Layout.KK, Epilogue.GEGLU
    BF16_INT4_G64_KK_SWIGLU = "bf16xint4g64_bf16_kk_swiglu", t.BF16_INT4_G64, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G64_KK_GEGLU = "bf16xint4g64_bf16_kk_geglu", t.BF16_INT4_G64, Layout.KK, Epilogue.GEGLU
    BF16_INT4_G64_ZEROS_KK_SWIGLU = "bf16xint4g64z_bf16_kk_swiglu", t.BF16_INT4_G64_ZEROS, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G64_ZEROS_KK_GEGLU = "bf16xint4g64z_bf16_kk_geglu", t.BF16_INT4_G64_ZEROS, Layout.KK, Epilogue.GEGLU
    BF16_INT4_G32_KK_SWIGLU = "bf16xint4g32_bf16_kk_swiglu", t.BF16_INT4_G32, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G32_KK_GEGLU = "bf16xint4g32_bf16_kk_geglu", t.BF16_INT4_G32, Layout.KK, Epilogue.GEGLU
    BF16_INT4_G32_ZEROS_KK_SWIGLU = "bf16xint4g32z_bf16_kk_swiglu", t.BF16_INT4_G32_ZEROS, Layout.KK, Epilogue.SWIGLU
    BF16_INT4_G32_ZEROS_KK_GEGLU = "bf16xint4g32z_bf16_kk_geglu", t.BF16_INT4_G32_ZEROS, Layout.KK, Epilogue.GEGLU
    BF16_E4M3_KK_SWIGLU = "bf16xe4m3_bf16_kk_swiglu", t.BF16_E4M3, Layout.KK, Epilogue.SWIGLU
    BF16_E4M3_KK_GEGLU = "bf16xe4m3_bf16_kk_geglu", t.BF16_E4M3, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G64_KK_SWIGLU = "fp16xint4g64_fp16_kk_swiglu", t.FP16_INT4_G64, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G64_KK_GEGLU = "fp16xint4g64_fp16_kk_geglu", t.FP16_INT4_G64, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G64_ZEROS_KK_SWIGLU = "fp16xint4g64z_fp16_kk_swiglu", t.FP16_INT4_G64_ZEROS, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G64_ZEROS_KK_GEGLU = "fp16xint4g64z_fp16_kk_geglu", t.FP16_INT4_G64_ZEROS, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G32_KK_SWIGLU = "fp16xint4g32_fp16_kk_swiglu", t.FP16_INT4_G32, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G32_KK_GEGLU = "fp16xint4g32_fp16_kk_geglu", t.FP16_INT4_G32, Layout.KK, Epilogue.GEGLU
    FP16_INT4_G32_ZEROS_KK_SWIGLU = "fp16xint4g32z_fp16_kk_swiglu", t.FP16_INT4_G32_ZEROS, Layout.KK, Epilogue.SWIGLU
    FP16_INT4_G32_ZEROS_KK_GEGLU = "fp16xint4g32z_fp16_kk_geglu", t.FP16_INT4_G32_ZEROS, Layout.KK, Epilogue.GEGLU
    FP16_E4M3_KK_SWIGLU = "fp16xe4m3_fp16_kk_swiglu", t.FP16_E4M3, Layout.KK, Epilogue.SWIGLU
    FP16_E4M3_KK_GEGLU = "fp16xe4m3_fp16_kk_geglu", t.FP16_E4M3, Layout.KK, Epilogue.GEGLU
    BF16_NVFP4_ROWS_KK_SWIGLU = "bf16xnvfp4rows_bf16_kk_swiglu", t.BF16_NVFP4_ROWS, Layout.KK, Epilogue.SWIGLU
    BF16_NVFP4_ROWS_KK_GEGLU = "bf16xnvfp4rows_bf16_kk_geglu", t.BF16_NVFP4_ROWS, Layout.KK, Epilogue.GEGLU
    FP16_NVFP4_ROWS_KK_SWIGLU = "fp16xnvfp4rows_fp16_kk_swiglu", t.FP16_NVFP4_ROWS, Layout.KK, Epilogue.SWIGLU
    FP16_NVFP4_ROWS_KK_GEGLU = "fp16xnvfp4rows_fp16_kk_geglu", t.FP16_NVFP4_ROWS, Layout.KK, Epilogue.GEGLU

    BF16_INT4_G128_KK_GROUPED = "bf16xint4g128_bf16_kk_grouped", t.BF16_INT4_G128, *_GROUPED
    BF16_INT4_G128_KK_GATHERED = "bf16xint4g128_bf16_kk_gathered", t.BF16_INT4_G128, *_GATHERED
    BF16_INT4_G128_ZEROS_KK_GROUPED = "bf16xint4g128z_bf16_kk_grouped", t.BF16_INT4_G128_ZEROS, *_GROUPED
    BF16_INT4_G128_ZEROS_KK_GATHERED = "bf16xint4g128z_bf16_kk_gathered", t.BF16_INT4_G128_ZEROS, *_GATHERED
    BF16_NVFP4_KK_GROUPED = "bf16xnvfp4_bf16_kk_grouped", t.BF16_NVFP4, *_GROUPED
    BF16_NVFP4_KK_GATHERED = "bf16xnvfp4_bf16_kk_gathered", t.BF16_NVFP4, *_GATHERED
    BF16_MXFP4_KK_GROUPED = "bf16xmxfp4_bf16_kk_grouped", t.BF16_MXFP4, *_GROUPED
    BF16_MXFP4_KK_GATHERED = "bf16xmxfp4_bf16_kk_gathered", t.BF16_MXFP4, *_GATHERED
    BF16_INT8_KK_GROUPED = "bf16xint8_bf16_kk_grouped", t.BF16_INT8, *_GROUPED
    BF16_INT8_KK_GATHERED = "bf16xint8_bf16_kk_gathered", t.BF16_INT8, *_GATHERED
    FP16_INT4_G128_KK_GROUPED = "fp16xint4g128_fp16_kk_grouped", t.FP16_INT4_G128, *_GROUPED
    FP16_INT4_G128_KK_GATHERED = "fp16xint4g128_fp16_kk_gathered", t.FP16_INT4_G128, *_GATHERED
    FP16_INT4_G128_ZEROS_KK_GROUPED = "fp16xint4g128z_fp16_kk_grouped", t.FP16_INT4_G128_ZEROS, *_GROUPED
    FP16_INT4_G128_ZEROS_KK_GATHERED = "fp16xint4g128z_fp16_kk_gathered", t.FP16_INT4_G128_ZEROS, *_GATHERED
    FP16_NVFP4_KK_GROUPED = "fp16xnvfp4_fp16_kk_grouped", t.FP16_NVFP4, *_GROUPED
    FP16_NVFP4_KK_GATHERED = "fp16xnvfp4_fp16_kk_gathered", t.FP16_NVFP4, *_GATHERED
    FP16_MXFP4_KK_GROUPED = "fp16xmxfp4_fp16_kk_grouped", t.FP16_MXFP4, *_GROUPED
    FP16_MXFP4_KK_GATHERED = "fp16xmxfp4_fp16_kk_gathered", t.FP16_MXFP4, *_GATHERED
    FP16_INT8_KK_GROUPED = "fp16xint8_fp16_kk_grouped", t.FP16_INT8, *_GROUPED
    FP16_INT8_KK_GATHERED = "fp16xint8_fp16_kk_gathered", t.FP16_INT8, *_GATHERED
    BF16_INT4_G64_KK_GROUPED = "bf16xint4g64_bf16_kk_grouped", t.BF16_INT4_G64, *_GROUPED
    BF16_INT4_G64_KK_GATHERED = "bf16xint4g64_bf16_kk_gathered", t.BF16_INT4_G64, *_GATHERED
    BF16_INT4_G64_ZEROS_KK_GROUPED = "bf16xint4g64z_bf16_kk_grouped", t.BF16_INT4_G64_ZEROS, *_GROUPED
    BF16_INT4_G64_ZEROS_KK_GATHERED = "bf16xint4g64z_bf16_kk_gathered", t.BF16_INT4_G64_ZEROS, *_GATHERED
    BF16_INT4_G32_KK_GROUPED = "bf16xint4g32_bf16_kk_grouped", t.BF16_INT4_G32, *_GROUPED
    BF16_INT4_G32_KK_GATHERED = "bf16xint4g32_bf16_kk_gathered", t.BF16_INT4_G32, *_GATHERED
    BF16_INT4_G32_ZEROS_KK_GROUPED = "bf16xint4g32z_bf16_kk_grouped", t.BF16_INT4_G32_ZEROS, *_GROUPED
    BF16_INT4_G32_ZEROS_KK_GATHERED = "bf16xint4g32z_bf16_kk_gathered", t.BF16_INT4_G32_ZEROS, *_GATHERED
    BF16_E4M3_KK_GROUPED = "bf16xe4m3_bf16_kk_grouped", t.BF16_E4M3, *_GROUPED
    BF16_E4M3_KK_GATHERED = "bf16xe4m3_bf16_kk_gathered", t.BF16_E4M3, *_GATHERED
    FP16_INT4_G64_KK_GROUPED = "fp16xint4g64_fp16_kk_grouped", t.FP16_INT4_G64, *_GROUPED
    FP16_INT4_G64_KK_GATHERED = "fp16xint4g64_fp16_kk_gathered", t.FP16_INT4_G64, *_GATHERED
    FP16_INT4_G64_ZEROS_KK_GROUPED = "fp16xint4g64z_fp16_kk_grouped", t.FP16_INT4_G64_ZEROS, *_GROUPED
    FP16_INT4_G64_ZEROS_KK_GATHERED = "fp16xint4g64z_fp16_kk_gathered", t.FP16_INT4_G64_ZEROS, *_GATHERED
    FP16_INT4_G32_KK_GROUPED = "fp16xint4g32_fp16_kk_grouped", t.FP16_INT4_G32, *_GROUPED
    FP16_INT4_G32_KK_GATHERED = "fp16xint4g32_fp16_kk_gathered", t.FP16_INT4_G32, *_GATHERED
    FP16_INT4_G32_ZEROS_KK_GROUPED = "fp16xint4g32z_fp16_kk_grouped", t.FP16_INT4_G32_ZEROS, *_GROUPED
    FP16_INT4_G32_ZEROS_KK_GATHERED = "fp16xint4g32z_fp16_kk_gathered", t.FP16_INT4_G32_ZEROS, *_GATHERED
    FP16_E4M3_KK_GROUPED = "fp16xe4m3_fp16_kk_grouped", t.FP16_E4M3, *_GROUPED
    FP16_E4M3_KK_GATHERED = "fp16xe4m3_fp16_kk_gathered", t.FP16_E4M3, *_GATHERED
    BF16_NVFP4_ROWS_KK_GROUPED = "bf16xnvfp4rows_bf16_kk_grouped", t.BF16_NVFP4_ROWS, *_GROUPED
    BF16_NVFP4_ROWS_KK_GATHERED = "bf16xnvfp4rows_bf16_kk_gathered", t.BF16_NVFP4_ROWS, *_GATHERED
    FP16_NVFP4_ROWS_KK_GROUPED = "fp16xnvfp4rows_fp16_kk_grouped", t.FP16_NVFP4_ROWS, *_GROUPED
    FP16_NVFP4_ROWS_KK_GATHERED = "fp16xnvfp4rows_fp16_kk_gathered", t.FP16_NVFP4_ROWS, *_GATHERED
    BF16_MXFP4_ROWS_KK_GROUPED = "bf16xmxfp4rows_bf16_kk_grouped", t.BF16_MXFP4_ROWS, *_GROUPED
    BF16_MXFP4_ROWS_KK_GATHERED = "bf16xmxfp4rows_bf16_kk_gathered", t.BF16_MXFP4_ROWS, *_GATHERED

    @staticmethod
    def of(element: ElementType, layout: Layout = Layout.KK, epilogue: Epilogue = Epilogue.NONE) -> Operation:
        """Return the operation whose operands and D are all of one element type.

        Raises:
            ValueError: the catalogue has none.
        """
        if (found := _find(Types(element, element, element), layout, epilogue)) is not None:
            return found
        text = f"no operation of {element.value}, {layout.value} and {epilogue}"
        raise ValueError(f"{text}; there are: {', '.join(Operation)}")

    @cached_property
    def position(self) -> int:
        """Return the place in the catalogue, which orders the sections of a table."""
        return list(Operation).index(self)

    @cached_property
    def layouts(self) -> tuple[Operation, ...]:
        """Return the operations that differ in the layout alone, this one included."""
        return tuple(x for x in Operation if x.call == self.call)

    @cached_property
    def equivalents(self) -> tuple[Operation, ...]:
        """Return the operations whose times may be imputed to this one after levelling, the nearest first.

        Types of equal sizes run at one rate (bf16 and fp16; e4m3 and e5m2), so that a twin with the same epilogue is
        the nearest; an epilogue reads little more than the same product without. A gate is nearer to another gate: many
        kernels that are fast without one have none. Rows that an index names are those of the same product in order,
        but for how they are loaded. A packed weight whose groups are of another size is the last.
        """
        gates = [] if self.gate is None else [x for x in Epilogue if any(step in GATES for step in x.steps)]
        epilogues = (*sorted(gates, key=lambda x: x is not self.epilogue), Epilogue.NONE)
        alike = (self.types, *self._alike)
        groupings = (self.grouping, *((Grouping.GROUPED,) if self.grouping is Grouping.GATHERED else ()))
        near = (_find(x, self.layout, y, grouping) for grouping, y, x in product(groupings, epilogues, alike))
        found = dict.fromkeys((*self.twins, *near, *self._of_other_groups))
        return tuple(operation for operation in found if operation is not None and operation is not self)

    @cached_property
    def _alike(self) -> tuple[Types, ...]:
        return self.types.alike(_all_types())

    @cached_property
    def plain(self) -> Operation:
        """Return the operation without its epilogue."""
        return _find(self.types, self.layout, Epilogue.NONE, self.grouping) or self

    @cached_property
    def dense(self) -> Operation | None:
        """Return the operation that each product of this one is, or None where the catalogue has none."""
        return _find(self.types, self.layout, self.epilogue, Grouping.DENSE)

    @cached_property
    def twins(self) -> tuple[Operation, ...]:
        """Return the operations that differ in the element types alone, of the same sizes and rates.

        They share their kernels: what is the fastest for one is for the other, but for noise.
        """
        found = (_find(types, self.layout, self.epilogue, self.grouping) for types in self._alike)
        return tuple(operation for operation in found if operation is not None)

    @cached_property
    def siblings(self) -> tuple[Operation, ...]:
        """Return the operations whose kernels are the same code but for a type or an activation, the nearest first.

        That is the twins, then those with another activation or another gate, then the twins of these. Such kernels
        move the same bytes and multiply as much, so that one rank of them serves all. Last are those whose packed
        weight has groups of another size, which is 1 to 15% of its bytes, or zero points.
        """
        kinds = next((x for x in (ACTIVATIONS, GATES) if set(x) & set(self.epilogue.steps)), ())
        others = [x for x in Epilogue if x is not self.epilogue and set(x.steps) & set(kinds)]
        near = (_find(types, self.layout, x, self.grouping) for types in (self.types, *self._alike) for x in others)
        found = dict.fromkeys((*self.twins, *near, *self._of_other_groups))
        return tuple(operation for operation in found if operation is not None)

    @cached_property
    def _of_other_groups(self) -> tuple[Operation | None, ...]:
        near = self.types.of_other_groups(_all_types())
        return tuple(_find(x, self.layout, self.epilogue, self.grouping) for x in near)


def _all_types() -> tuple[Types, ...]:
    return tuple(dict.fromkeys(x.types for x in Operation))


def _find(types: Types, layout: Layout, epilogue: Epilogue, grouping: Grouping = Grouping.DENSE) -> Operation | None:
    """Return a line of the catalogue, or None where it has none."""
    asked = (types, layout, epilogue, grouping)
    return next((x for x in Operation if (x.types, x.layout, x.epilogue, x.grouping) == asked), None)


ELEMENTS = (ElementType.BFLOAT16, ElementType.FLOAT16)
"""The element types of which there is a product in every layout, whose operands and D are all of that type."""
