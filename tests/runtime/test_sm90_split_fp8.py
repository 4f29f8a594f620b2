"""Objects of `sm90_cluster_split_k` and `sm90_one_tile` of FP8: what they launch, and that nothing is spilled."""

from __future__ import annotations

import struct

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation as Op
from aot.core.target import load_target
from tests.compiling import EVERY, compile_kernels
from tests.runtime import test_operand_kernels as direct
from tests.runtime.test_cluster_split_k import boxes
from tests.runtime.test_real_kernels import CLUSTER, PROGRAMMATIC, attributes
from tests.runtime.test_sm90_cluster_split_k import check_grid


def key(operation, tile_m, tile_n, split_k=1, **fields):
    mode = "none" if split_k == 1 else "cluster"
    plain = {"split_k": split_k, "split_k_mode": mode, "use_tma_store": False}
    return KernelKey(operation, gemm_candidate("sm90_cluster_split_k", tile_m, tile_n, **plain, **fields))


def alone(operation, tile_m, tile_n, **fields):
    return KernelKey(operation, gemm_candidate("sm90_one_tile", tile_m, tile_n, use_tma_store=False, **fields))


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
KEYS = LAUNCHED + MORE if EVERY else LAUNCHED


@pytest.fixture(scope="module")
def compiled():
    artifacts = compile_kernels(KEYS, load_target("h200"))
    return {x.kernel.key: direct.Compiled(x.kernel, x.path, 132) for x in artifacts}


@pytest.fixture(scope="module")
def library(compiled, tmp_path_factory):
    return direct.recording(compiled, tmp_path_factory.mktemp("fp8_splits"))


@pytest.fixture(params=KEYS, ids=lambda x: x.name)
def each(request, compiled):
    return compiled[request.param]


def test_every_operation_of_fp8_and_vectors_has_a_kernel_here():
    """Both operands are contiguous along k in all that the catalogue has, as wgmma takes FP8."""
    listed = [x for x in Op if x.types.a.bits == 8 and x.types.scaling == "vector" and x.grouping.value == "dense"]
    floats = {x for x in listed if x.accumulator.value == "float32"}
    assert {x.operation for x in LAUNCHED + MORE} == floats
    assert {x.layout.value for x in floats} == {"kk"}


def test_nothing_is_spilled_and_shared_memory_is_what_the_family_counts(each, library):
    kernel = each.kernel
    record, _ = direct.launch(library, each, direct.arguments(kernel.operation))
    assert (kernel.spill_bytes, tuple(record.block)) == (0, (kernel.num_threads, 1, 1))
    assert record.smem_bytes <= kernel.smem_bytes <= record.smem_bytes + 1024


def test_a_cluster_takes_each_tile(each, library):
    operation, candidate = each.kernel.operation, each.kernel.candidate
    record, _ = direct.launch(library, each, direct.arguments(operation))
    extents = direct.M, operation.num_rows_of_b(direct.N)
    rows, columns = extents[::-1] if candidate.gemm.swap_ab else extents
    along_rows = -(-rows // (candidate.gemm.tile_m * candidate.gemm.cluster_m))
    check_grid(record, candidate, along_rows, -(-columns // (candidate.gemm.tile_n * candidate.gemm.cluster_n)))
    num_ctas = candidate.gemm.cluster_m * candidate.gemm.cluster_n * candidate.gemm.split_k
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == (num_ctas, 1, 1)
    assert attributes(record)[PROGRAMMATIC][0] == 1


def test_boxes_are_of_128_of_k(each, library):
    operation, candidate = each.kernel.operation, each.kernel.candidate
    _, parameters = direct.launch(library, each, direct.arguments(operation))
    parts = candidate.gemm.tile_m // candidate.gemm.cluster_n, candidate.gemm.tile_n // candidate.gemm.cluster_m
    rows_a, rows_b = parts[:: -1 if candidate.gemm.swap_ab else 1]
    weight = ((direct.K, direct.N), (128, rows_b), 3)
    if operation.gate is not None:
        weight = ((direct.K, 2, direct.N), (128, 2, rows_b // 2), 3)
    assert boxes(parameters) == {direct.A: ((direct.K, direct.M), (128, rows_a), 3), direct.B: weight}


@pytest.mark.parametrize("bias", [True, False])
def test_factors_keep_their_strides_and_an_absent_bias_has_no_elements(each, library, bias):
    operation = each.kernel.operation
    _, parameters = direct.launch(library, each, direct.arguments(operation, bias=bias))
    pair = () if operation.gate is None else (direct.N, direct.STEP_B)
    assert direct.vector(parameters, direct.SCALE_A) == (direct.M, (direct.STEP_A,))
    assert direct.vector(parameters, direct.SCALE_B) == (direct.N, pair or (direct.STEP_B,))
    strides = (direct.N, 1) if pair and bias else (0, 1) if pair else ()
    assert direct.vector(parameters, direct.BIAS if bias else 0) == (direct.N if bias else 0, strides)
    assert (direct.struct_of(direct.SCALE_D, (1,), ())[:12] in [x[:12] for x in parameters]) == operation.types.scales_d
    place = -5 if each.kernel.candidate.family == "sm90_one_tile" else -1  # in front of what places tiles
    assert parameters[place] == struct.pack("<i", 1)
