"""The stages that installed kernels give themselves, as JSON: [library, case, [of A and B, of D, of C, tile_k]] a line.

The first lines are ["capacity", architecture, bytes a block].

`python real_stages.py tcgen05 STEP` or `warp STEP`, which sets up one case in STEP, in a process of its own: CuTe DSL
reads the architecture once, from the environment. The kernels' own `_setup_attributes` run while an empty function is
traced: nothing of them is repeated here, and no GPU is needed. A case is the arguments of `aot.space.smem.Kernel`
after the architecture.
"""

import json
import sys
from functools import partial
from itertools import islice, product

import cutlass
from cutlass import Float32, cute
from cutlass.cute.nvgpu import OperandMajorMode
from cutlass.memory import get_smem_capacity_in_bytes
from cutlass.operators.providers.cutedsl.gemm.implementations import (
    sm100_dense_blockscaled_static_persistent_impl as scaled_impl,
)
from cutlass.operators.providers.cutedsl.gemm.implementations import sm100_persistent_impl as dense_impl
from cutlass.operators.providers.cutedsl.gemm.implementations.operator_helpers import PersistentTileSchedulerType
from cutlass.tensor_utils import LayoutEnum
from quack.gemm_default_epi import GemmDefaultSm100, GemmDefaultSm120
from quack.varlen_utils import VarlenArguments

TYPES = {
    "nvfp4": cutlass.Float4E2M1FN,
    "mxfp4": cutlass.Float4E2M1FN,
    "mxfp8": cutlass.Float8E4M3FN,
    "fp8": cutlass.Float8E5M2,
    "fp16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "tf32": cutlass.TFloat32,
}
OUTPUTS = {"fp32": Float32, "bf16": cutlass.BFloat16, "fp8": cutlass.Float8E4M3FN}
VECTORS = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
SCALES = {"nvfp4": cutlass.Float8E4M3FN, "mxfp4": cutlass.Float8E8M0FNU, "mxfp8": cutlass.Float8E8M0FNU}
ROW = LayoutEnum.ROW_MAJOR


def nvidia(element, tile_m, tile_n, use_2cta, output):
    """Set up one of NVIDIA's two persistent kernels."""
    cluster = (2 if use_2cta else 1, 1)
    if element in VECTORS:
        gemm = scaled_impl.PersistentDenseBlockScaledGemmKernel(VECTORS[element], (tile_m, tile_n), cluster)
        gemm.sf_dtype = SCALES[element]
        gemm.smem_alloc_a_dtype = gemm.smem_alloc_b_dtype = TYPES[element]
    else:
        static = PersistentTileSchedulerType.STATIC_PERSISTENT
        gemm = dense_impl.PersistentDenseGemmKernel(
            Float32, use_2cta, (tile_m, tile_n), cluster, True, static, lambda x: x
        )
    gemm.a_dtype = gemm.b_dtype = TYPES[element]
    gemm.c_dtype, gemm.c_layout = OUTPUTS[output], ROW
    gemm.a_major_mode = gemm.b_major_mode = OperandMajorMode.K
    gemm._setup_attributes()
    return gemm.num_ab_stage, gemm.num_c_stage, 0, gemm.mma_tiler[2]


def quack(kind, element, tile_m, tile_n, use_2cta, output, source, k_bytes):
    """Set up quack's kernel for tcgen05 or for the warp mma."""
    tile = (tile_m, tile_n, k_bytes * 8 // TYPES[element].width)
    gemm = kind(Float32, TYPES[element], tile, (2 if use_2cta else 1, 1, 1), sf_vec_size=VECTORS.get(element))
    gemm.a_dtype = gemm.b_dtype = gemm.a_smem_dtype = gemm.b_smem_dtype = TYPES[element]
    gemm.a_mma_dtype = gemm.b_mma_dtype = TYPES[element]
    gemm.a_major_mode = gemm.b_major_mode = OperandMajorMode.K
    gemm.a_layout = gemm.b_layout = gemm.d_layout = ROW
    gemm.d_dtype, gemm.sf_dtype = OUTPUTS[output], SCALES.get(element)
    gemm.c_dtype, gemm.c_layout = (OUTPUTS[source], ROW) if source else (None, None)
    if kind is GemmDefaultSm100:
        gemm._setup_attributes(gemm.EpilogueArguments(), VarlenArguments())
        return gemm.ab_stage, gemm.epi_stage, gemm.epi_c_stage, gemm.mma_tiler[2]
    try:
        gemm._setup_attributes(gemm.EpilogueArguments())
    except ValueError:  # no layout of 0 stages; the count is made by then
        assert gemm.ab_stage < 1
    return gemm.ab_stage, gemm.epi_stage, gemm.epi_c_stage, gemm.cta_tile_shape_mnk[2]


def tcgen05():
    """Give the cases of sm_100, whose capacity is Thor's."""
    dense = [
        (m, n, two) for m, two in ((64, False), (128, False), (128, True), (256, True)) for n in (32, 96, 128, 224)
    ]
    dense += [(128, 256, False), (256, 256, True)]
    scaled = [(m, n, m == 256) for m in (128, 256) for n in (64, 128, 192, 256)]
    for element in TYPES:
        for tile, output in product(scaled if element in VECTORS else dense, OUTPUTS):
            yield "nvidia", (element, *tile, output, "", 128), partial(nvidia, element, *tile, output)
            for source, k_bytes in (("", 128), ("bf16", 128), ("", 256)):
                case = (element, *tile, output, source, k_bytes)
                yield "quack", case, partial(quack, GemmDefaultSm100, *case)
        for tile, output in product([(128, 96, False), (128, 256, False), (128, 32, True)], ("fp32", "fp8")):
            if element not in VECTORS:
                case = (element, *tile, output, "fp32", 128)
                yield "quack", case, partial(quack, GemmDefaultSm100, *case)


def warp():
    """Give the cases of sm_120, whose capacity is sm_121's."""
    for element in TYPES:
        if element == "tf32":  # quack has no such kernel
            continue
        scaled = ((128, 256), (128, 256))
        rows, columns = scaled if element in VECTORS else ((64, 128, 256), (32, 96, 128, 256))
        cases = [(element, m, n, False, *rest, 128) for m, n, *rest in product(rows, columns, OUTPUTS, ("", "bf16"))]
        for case in (*cases, (element, 256, 256, False, "bf16", "", 256)):
            yield "quack", case, partial(quack, GemmDefaultSm120, *case)


def run():
    for arch in ("sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"):
        print(json.dumps(["capacity", arch, get_smem_capacity_in_bytes(arch)]))
    cases = {"tcgen05": tcgen05, "warp": warp}[sys.argv[1]]()
    for library, case, stages in islice(cases, 0, None, int(sys.argv[2])):
        print(json.dumps([library, case, stages()]))


@cute.jit
def trace():
    run()


cute.compile(trace)
