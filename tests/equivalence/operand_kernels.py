"""Kernels of every kind of operation beside the plain product, whose launches are looked at.

Host code depends on the family, and on which operands there are, of which sizes of elements, strides and ranks. So
there is a kernel of each family for each kind of operands that it takes. Those for sm_90a are kernels of tests/runtime
where it has one, so that they are compiled once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.kernel import Kernel
from aot.core.operation import Operation as Op
from aot.core.signature import signature_of
from aot.core.target import load_target
from aot.families import rows_families_of
from aot.families.simt import FAMILY as FALLBACK
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.kinds.rows.kernel import RowKernel
from aot.package.manifest import device_table
from tests.compiling import EVERY, compile_kernels
from tests.emulated import target_of
from tests.equivalence import fp8_splits
from tests.equivalence.kernels import Compiled
from tests.golden.manifest import as_compiled, golden_manifest, round_trip, with_table
from tests.runtime import test_grouped_kernels as groups
from tests.runtime import test_operand_kernels as operands

SKINNY = gemm_candidate("cluster_split_k", 24, 8, 2, schedule="warps4", num_stages=3, swap_ab=True, use_tma_store=False)
SHARED_K = {"use_tma_store": False, "split_k_mode": "cluster"}
PAIR = {"cluster_m": 2, "use_2cta": True}
UNALIGNED = gemm_candidate("mma_sync", 16, 16, schedule="a2k4", split_k=2, **SHARED_K)


def in_atoms(tile_m, tile_n, schedule="clc", **fields):
    return gemm_candidate("sm100_block_scale", tile_m, tile_n, schedule=schedule, **fields)


def grouped_in_atoms(tile_m, tile_n, schedule="clc", **fields):
    return gemm_candidate("sm100_grouped_block_scale", tile_m, tile_n, schedule=schedule, **fields)


TARGETS = ("thor", "h200") if EVERY else ("thor",)
"""Whose kernels are looked at: those of an H200 are launched on one by tests/device besides."""

KERNELS = {
    "thor": [
        (Op.E4M3_BF16_KK, operands.sm100(128, 256, **PAIR)),
        (Op.INT8_FP16_KK, operands.sm100(64, 32, swap_ab=True)),
        (Op.BF16_KK_RESIDUAL, operands.sm100(128, 160, swap_ab=True)),
        (Op.E4M3_BF16_KK_SWIGLU, operands.sm100(128, 256)),
        (Op.BF16_MN_BATCHED, operands.sm100(64, 64, "static", swap_ab=True)),
        (Op.BF16_KN_GROUPED, groups.sm100(128, 256, **PAIR)),
        (Op.E4M3_BF16_KK_GATHERED_SWIGLU, groups.sm100(128, 128)),
        (Op.BF16_MN_KGROUPED, groups.sm100(128, 64, "static")),
        (Op.E4M3_BF16_KK, SKINNY),
        (Op.NVFP4_BF16_KK, in_atoms(128, 64, "static", cluster_m=2, swap_ab=True)),
        (Op.NVFP4_BF16_KK_SWIGLU, in_atoms(256, 128, **PAIR)),
        (Op.NVFP4_BF16_KK_GROUPED_SWIGLU, grouped_in_atoms(256, 128, **PAIR)),
    ],
    "h200": [
        (Op.E4M3_BF16_KK, operands.sm90(64, 16, swap_ab=True)),
        (Op.E4M3_BF16_KK, operands.early(64, 8, swap_ab=True)),
        (Op.E4M3_E4M3_KK, operands.sm90(64, 192, "cooperative")),
        (Op.INT8_INT32_KK, operands.sm90(64, 16, swap_ab=True)),
        (Op.TF32_KK, operands.sm90(192, 192, "cooperative", cluster_m=2)),
        (Op.BF16_KK_RESIDUAL, operands.sm90(128, 128, cluster_n=2)),
        (Op.BF16_KK_RESIDUAL, operands.early(128, 128, cluster_m=2)),
        (Op.BF16_KK_RESIDUAL, operands.early(256, 96, "cooperative", swap_ab=True)),
        (Op.E4M3_BF16_KK_RESIDUAL, operands.early(64, 64)),
        (Op.E4M3_BF16_KK_SWIGLU, operands.sm90(64, 64)),
        (Op.E4M3_BF16_BLOCK_KK, operands.sm90_block(128, 128, "cooperative")),
        (Op.BF16_KK_BATCHED, operands.sm90(128, 64)),
        (Op.BF16_KN_BATCHED, gemm_candidate("sm90_cluster_split_k", 128, 128, 2, split_k=2, **SHARED_K)),
        (Op.BF16_MN_BATCHED, gemm_candidate("sm90_cluster_split_k", 64, 64, split_k=4, swap_ab=True, **SHARED_K)),
        (Op.BF16_KN_BATCHED, gemm_candidate("sm90_one_tile", 128, 128, 4, use_tma_store=False)),
        (Op.BF16_KN_BATCHED, UNALIGNED),
        (Op.BF16_KK_BATCHED, gemm_candidate("sm90_one_tile", 64, 64, schedule="elements", use_tma_store=False)),
        (Op.BF16_MN_BATCHED, gemm_candidate("sm90_one_tile", 64, 64, 1, 2, swap_ab=True, use_tma_store=False)),
        (Op.BF16_KK_RESIDUAL, gemm_candidate("sm90_one_tile", 128, 56, 4, swap_ab=True, use_tma_store=False)),
        *fp8_splits.LAUNCHED,
        (Op.BF16_KK_GROUPED, groups.sm90(128, 256, "cooperative", cluster_m=2)),
        (Op.E4M3_BF16_KK_GATHERED_SWIGLU, groups.sm90(128, 128, "cooperative")),
        (Op.BF16_MN_KGROUPED, groups.sm90(128, 128)),
        (Op.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU, groups.block(64, 128)),
        (Op.E4M3_BF16_KK, SKINNY),
    ],
}
"""A kernel of each family for each kind of operands; each operation of these has the fallback too, or another of its
kind."""
MORE = {
    "thor": [
        (Op.TF32_KK, operands.sm100(256, 192, swap_ab=True, **PAIR)),
        (Op.BF16_KN_BATCHED, UNALIGNED),
        (Op.E4M3_E4M3_KK, operands.sm100(128, 64)),
        (Op.NVFP4_BF16_KK_RESIDUAL, in_atoms(256, 128, swap_ab=True, **PAIR)),
        (Op.MXFP8_BF16_KK_GELU_TANH, in_atoms(128, 64, swap_ab=True)),
        (Op.MXFP8_MXFP4_BF16_KK, in_atoms(256, 64, **PAIR)),
        (Op.NVFP4_BF16_KK_GROUPED, grouped_in_atoms(128, 64, "static", cluster_m=2)),
        (Op.MXFP8_BF16_KK_GROUPED, grouped_in_atoms(128, 192)),
        (Op.BF16_KK_SWIGLU, SKINNY),
        (Op.BF16_KK_BIAS, SKINNY),
        (Op.BF16_KK_BIAS, operands.sm100(256, 192, swap_ab=True, **PAIR)),
        (Op.BF16_KK_BIAS, UNALIGNED),
        (Op.INT8_INT32_KK, operands.sm100(256, 256, **PAIR)),
        (Op.BF16_KK_BATCHED, operands.sm100(128, 64)),
        (Op.BF16_KK_GROUPED, groups.sm100(128, 256, **PAIR)),
        (Op.BF16_KN_GROUPED, groups.sm100(128, 128)),
        (Op.NVFP4_BF16_KK, in_atoms(256, 128, "static", swap_ab=True, **PAIR)),
        (Op.NVFP4_BF16_KK, in_atoms(256, 192, "static", swap_ab=True, **PAIR)),
        (Op.NVFP4_BF16_KK, in_atoms(256, 192, **PAIR)),
        (Op.NVFP4_BF16_KK, in_atoms(128, 192)),
        (Op.MXFP4_BF16_KK, in_atoms(128, 128, cluster_n=2, swap_ab=True)),
        (Op.MXFP4_FP16_KK, in_atoms(256, 64, "static", **PAIR)),
        (Op.MXFP4_BF16_KK_GELU, in_atoms(256, 128, **PAIR)),
        (Op.MXFP4_BF16_KK_RESIDUAL, in_atoms(128, 64, "static", swap_ab=True)),
        (Op.MXFP4_BF16_KK_SWIGLU, in_atoms(128, 128)),
        (Op.MXFP4_BF16_KK_GROUPED, grouped_in_atoms(128, 64)),
        (Op.MXFP4_BF16_KK_GROUPED_SWIGLU, grouped_in_atoms(256, 64, **PAIR)),
        (Op.MXFP8_BF16_KK, in_atoms(256, 64, "static", swap_ab=True, **PAIR)),
        (Op.MXFP8_MXFP4_BF16_KK, in_atoms(128, 192, "static", swap_ab=True)),
        (Op.MXFP8_MXFP4_FP16_KK, in_atoms(256, 128, "static", swap_ab=True, **PAIR)),
        (Op.MXFP8_MXFP4_BF16_KK_BIAS, in_atoms(128, 64, cluster_n=2)),
        (Op.MXFP8_MXFP4_BF16_KK_SILU, in_atoms(256, 192, "static", **PAIR)),
        (Op.MXFP8_MXFP4_BF16_KK_RESIDUAL, in_atoms(256, 64, swap_ab=True, **PAIR)),
        (Op.MXFP8_MXFP4_BF16_KK_SWIGLU, in_atoms(128, 128)),
        (Op.NVFP4_FP16_KK, in_atoms(128, 192, "static")),
        (Op.MXFP8_FP16_KK, in_atoms(128, 128, cluster_n=2)),
        (Op.NVFP4_BF16_KK_BIAS, in_atoms(128, 128)),
        (Op.NVFP4_BF16_KK_SILU, in_atoms(256, 192, "static", swap_ab=True, **PAIR)),
        (Op.MXFP8_BF16_KK_BIAS, in_atoms(128, 192, swap_ab=True)),
        (Op.MXFP8_BF16_KK_RESIDUAL, in_atoms(256, 64, **PAIR)),
        (Op.NVFP4_BF16_KK_GEGLU, in_atoms(128, 192, "static")),
        (Op.MXFP8_BF16_KK_SWIGLU, in_atoms(128, 64, cluster_n=2)),
        (Op.NVFP4_BF16_KK_GROUPED, grouped_in_atoms(256, 192, **PAIR)),
        (Op.NVFP4_BF16_KK_GROUPED_SWIGLU, grouped_in_atoms(128, 128, cluster_n=2)),
        (Op.MXFP8_BF16_KK_GROUPED, grouped_in_atoms(256, 64, "static", **PAIR)),
        (Op.MXFP8_BF16_KK_GROUPED_SWIGLU, grouped_in_atoms(128, 64, "static")),
        (Op.MXFP8_MXFP4_BF16_KK_GROUPED, grouped_in_atoms(128, 64)),
        (Op.MXFP8_MXFP4_BF16_KK_GROUPED_SWIGLU, grouped_in_atoms(256, 128, "static", **PAIR)),
    ],
    "h200": [
        *fp8_splits.MORE,
        (Op.BF16_KK_RESIDUAL, gemm_candidate("sm90_cluster_split_k", 64, 96, split_k=2, **SHARED_K)),
        (Op.BF16_KK_RESIDUAL, gemm_candidate("sm90_cluster_split_k", 128, 64, 1, 2, swap_ab=True, use_tma_store=False)),
        (Op.BF16_KK_SWIGLU, SKINNY),
        (Op.BF16_KK_SWIGLU, gemm_candidate("sm90_cluster_split_k", 128, 64, 2, split_k=2, **SHARED_K)),
        (Op.BF16_KK_SWIGLU, gemm_candidate("sm90_one_tile", 128, 64, 1, 4, use_tma_store=False)),
        (Op.BF16_KK_SWIGLU, gemm_candidate("sm90_one_tile", 128, 112, 4, 1, use_tma_store=False)),
        (Op.BF16_KK_BATCHED, gemm_candidate("sm90_cluster_split_k", 64, 96, split_k=2, **SHARED_K)),
        (Op.BF16_KN_BATCHED, gemm_candidate("sm90_cluster_split_k", 64, 128, 1, 2, use_tma_store=False)),
        (Op.FP16_KK_GELU, gemm_candidate("sm90_cluster_split_k", 192, 64, split_k=4, swap_ab=True, **SHARED_K)),
        (Op.BF16_KK_SWIGLU, gemm_candidate("sm90_cluster_split_k", 64, 80, split_k=2, swap_ab=True, **SHARED_K)),
        (Op.BF16_KK_BATCHED, gemm_candidate("sm90_one_tile", 64, 88, use_tma_store=False)),
        (Op.FP16_KK_GELU, gemm_candidate("sm90_one_tile", 192, 64, 2, swap_ab=True, use_tma_store=False)),
    ],
}
"""Kernels of other layouts and epilogues, and of types and clusters whose operands others of their family have, which
`make walk` adds."""
FALLBACKS = (Op.E4M3_BF16_BLOCK_KK, Op.E4M3_BF16_BLOCK_KK_GATHERED_SWIGLU)
"""Of which every target has the fallback, and a Thor nothing else."""
MOST_OPERANDS = (Op.E4M3_BF16_KK_SWIGLU, Op.E4M3_BF16_KK_GATHERED_SWIGLU)
ROWS = {
    "bf16_rms_norm": ("row_registers_256x1_v8x2", "row_looped_512x1_v8x2"),
    "bf16_e4m3_layer_norm": ("row_registers_128x2_v8x4",),
    "bf16_silu_mul": ("row_registers_128x1_v8x2",),
    "fp16_rotary": ("row_rotary_8x16_v8x1",),
    "bf16_e4m3_block_quantize": ("row_registers_16x8_v8x1",),
    "bf16_nvfp4_quantize": ("row_registers_128x1_v8x2",),
    "bf16_mxfp8_quantize": ("row_registers_256x1_v8x1",),
    "bf16_nvfp4_rms_norm": ("row_registers_256x1_v8x2", "row_looped_512x1_v8x2"),
    "bf16_mxfp8_silu_mul": ("row_registers_128x1_v8x2",),
}
"""Candidates of operations on rows, beside the fallback of each."""
ROWS_OF_THOR = ("bf16_rms_norm", "fp16_rotary", "bf16_nvfp4_quantize")
"""Those of each family, with factors in rows and in atoms; of an H200 all are looked at, in the same entries."""


def kind(operation):
    """Give what the fallback's host code depends on: which operands there are, and of which strides.

    It passes addresses, and extents and strides in elements: how many bytes an element has, it is not told.
    """
    signature = signature_of(operation, has_workspace=False, prefetches_b=False)
    return (signature, operation.types.factors, operation.gate is None, operation.grouping)


def _of_each_kind(target, operations):
    """Choose an operation of each kind; of a Thor those of kinds that an H200 lacks, and those with most operands.

    The fallback's host code is made of one source, whatever the architecture: a kind's parameters are derived once.
    """
    found = {kind(x): x for x in operations}
    if target == "thor":
        of_h200 = {kind(x) for x in (*(x for x, _ in KERNELS["h200"]), *FALLBACKS)} - {*map(kind, MOST_OPERANDS)}
        found = {x: y for x, y in found.items() if x not in of_h200}
    return list(found.values())


def keys(target):
    """List the kernels of a target, with the fallback of each operation, or of each kind of operation."""
    device = load_target(target)
    kernels = KERNELS[target] + MORE[target] if EVERY else KERNELS[target]
    operations = dict.fromkeys((*(x for x, _ in kernels), *FALLBACKS))
    chosen = operations if EVERY else _of_each_kind(target, operations)
    fallbacks = [KernelKey(x, next(iter(FALLBACK.candidates(x, device)))) for x in chosen]
    return [*(KernelKey(*x) for x in kernels), *fallbacks]


def row_keys(target):
    """List the kernels of operations on rows, a fallback of each operation in front."""
    found = []
    for tag, names in ROWS.items():
        if target == "thor" and tag not in ROWS_OF_THOR and not EVERY:
            continue
        operation = row_operation(tag)
        families = rows_families_of(operation, load_target("h200"))
        candidates = [x for family in families for x in family.candidates(operation, None)]
        fallback = next(x for x in candidates if x.family == "row_scalar")
        found += [RowKernelKey(operation, x) for x in (fallback, *(x for x in candidates if x.name in names))]
    return found


def _sections(kernels):
    """Make the table of products: their fallbacks."""
    fallbacks = sorted((x.operation.position, x.operation, i) for i, x in enumerate(kernels) if x.num_strides == 2)
    return tuple(Section(x, (), Grid((1,), (1,), (Column((1,), (i,)),)), i) for _, x, i in fallbacks)


def _row_sections(kernels):
    """Make the table of operations on rows: their fallbacks."""
    found = [(x.operation, i) for i, x in enumerate(kernels) if x.candidate.family == "row_scalar"]
    found.sort(key=lambda x: x[0].position)
    return tuple(RowSection(x, (RowColumn(1, (RowStep(1, i, 0.0, "predicted"),)),), i) for x, i in found)


@cache
def compiled(target):
    """Compile a target's kernels for its own host with `make walk`, else for this one: the interpreter has them too."""
    host = load_target(target) if EVERY else target_of(target)
    artifacts = compile_kernels([*keys(target), *row_keys(target)], host)
    kernels = tuple(x.kernel for x in artifacts if isinstance(x.kernel, Kernel))
    on_rows = tuple(x.kernel for x in artifacts if isinstance(x.kernel, RowKernel))
    device = vars(device_table(host, DispatchTable(_sections(kernels))))
    manifest = with_table(golden_manifest(), kernels, device.pop("table"), **device)
    table = replace(manifest.tables[0], row_table=RowTable(_row_sections(on_rows)))
    manifest = replace(
        manifest, arch=host.arch, platform_tag=host.platform_tag, row_kernels=as_compiled(on_rows), tables=(table,)
    )
    return Compiled(host, round_trip(manifest), {x.kernel.name: x.path for x in artifacts})
