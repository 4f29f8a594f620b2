"""Objects of `cluster_split_k` through the C API into the recorder: grid, cluster, descriptors, prefetch of B."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey, gemm_candidate
from aot.core.operation import Operation
from aot.core.target import load_target
from tests.compiling import EVERY, compile_kernels, some
from tests.equivalence.descriptor import NUM_BYTES, decode
from tests.golden.manifest import as_compiled, round_trip
from tests.objects import BF16, small_manifest
from tests.runtime import test_operand_kernels as direct
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_real_kernels import (
    B_CONSTANT,
    CLUSTER,
    DESCRIPTOR_BYTES,
    PROGRAMMATIC,
    A,
    B,
    D,
    attributes,
    launch,
)

PLAIN = {"swap_ab": True, "use_tma_store": False}
ONE_ROW = gemm_candidate("cluster_split_k", 16, 1, schedule="warps8", num_stages=9, **PLAIN)
TWO_CTAS = gemm_candidate("cluster_split_k", 24, 8, 2, schedule="warps4", num_stages=3, **PLAIN)
FOUR_CTAS = gemm_candidate("cluster_split_k", 8, 32, 4, schedule="warps8", num_stages=3, **PLAIN)
CANDIDATES = (ONE_ROW, TWO_CTAS, FOUR_CTAS)
M, N, K = 35, 520, 264
WHOLE = gemm_candidate("cluster_split_k", 64, 64, schedule="warps4", num_stages=3, **PLAIN)
SOME = [
    KernelKey(Operation.E4M3_BF16_KK, TWO_CTAS),
    KernelKey(Operation.E4M3_FP32_KK, FOUR_CTAS),
    KernelKey(Operation.E4M3_BF16_KK_SWIGLU, TWO_CTAS),
    KernelKey(Operation.E4M3_BF16_KK_RESIDUAL, WHOLE),
    KernelKey(Operation.BF16_KK_RELU, FOUR_CTAS),
    KernelKey(Operation.FP16_KK_RESIDUAL, TWO_CTAS),
    KernelKey(Operation.BF16_KK_SWIGLU, ONE_ROW),
]
"""Kernels with factors, with epilogues and with gates, of each number of CTAs."""
MORE = [
    KernelKey(Operation.E4M3_BF16_KK_GEGLU, FOUR_CTAS),
    KernelKey(Operation.FP16_KK_GEGLU, FOUR_CTAS),
    KernelKey(Operation.BF16_KK_GELU_TANH, WHOLE),
    KernelKey(Operation.E4M3_BF16_KK_RELU, ONE_ROW),
    KernelKey(Operation.E4M3_BF16_KK_GELU, FOUR_CTAS),
    KernelKey(Operation.E4M3_BF16_KK_RESIDUAL, TWO_CTAS),
    KernelKey(Operation.E4M3_BF16_KK, ONE_ROW),
    KernelKey(Operation.E4M3_BF16_KK_SILU, TWO_CTAS),
    KernelKey(Operation.FP16_KK_GELU, ONE_ROW),
    KernelKey(Operation.FP16_KK_SILU, TWO_CTAS),
    KernelKey(Operation.BF16_KK_RESIDUAL, WHOLE),
    KernelKey(Operation.BF16_KK_SWIGLU, TWO_CTAS),
]
KEYS = SOME + MORE if EVERY else some(SOME, 4)
GATED = [x for x in KEYS if x.operation.gate is not None]


def compile_beside_others(candidates):
    """Compile candidates; gives a manifest that has them after other kernels, and all objects by name."""
    keys = [KernelKey(BF16, x) for x in candidates]
    artifacts = compile_kernels(keys, load_target("h200"))
    manifest, objects = small_manifest("h200")
    manifest = replace(manifest, kernels=(*manifest.kernels, *as_compiled(x.kernel for x in artifacts)))
    return round_trip(manifest), objects | {x.kernel.name: x.path for x in artifacts}


@pytest.fixture(scope="module")
def built():
    return compile_beside_others(CANDIDATES)


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("split"), list(objects.values())))


def stated(**change):
    return problem(M, N, K, data=(A, B, D), **change)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_cluster_takes_each_tile(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    tiles = -(-N // (candidate.gemm.tile_m * candidate.gemm.cluster_m)) * -(-M // candidate.gemm.tile_n)
    assert tuple(record.grid) == (tiles * candidate.gemm.cluster_m, 1, 1)
    assert tuple(record.block) == (kernel.num_threads, 1, 1)
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == (candidate.gemm.cluster_m, 1, 1)
    assert attributes(record)[PROGRAMMATIC][0] == 1


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_shared_memory_is_what_the_family_counts(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    assert record.smem_bytes <= kernel.smem_bytes <= record.smem_bytes + 1024


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_boxes_are_rows_of_128_bytes_of_the_tile_and_of_x(real, built, candidate):
    _, _, parameters = launch(real, *built, candidate, stated())
    maps = [decode(x[:NUM_BYTES]) for x in parameters if len(x) == DESCRIPTOR_BYTES]
    assert {x.address: (x.extents, x.box, x.swizzle) for x in maps} == {
        A: ((K, M), (64, candidate.gemm.tile_n), 3),
        B: ((K, N), (64, candidate.gemm.tile_m * candidate.gemm.cluster_m), 3),
    }


@pytest.mark.parametrize(("flags", "expected"), [(0, 0), (B_CONSTANT, 1)])
def test_b_is_prefetched_only_where_it_is_constant(real, built, flags, expected):
    _, _, parameters = launch(real, *built, TWO_CTAS, stated(flags=flags))
    assert parameters[-2] == struct.pack("<i", expected)


@pytest.fixture(scope="module")
def finished():
    """Compile kernels with epilogues, with a library over the recorder in which their entries are called."""
    artifacts = compile_kernels(KEYS, load_target("h200"))
    return {x.kernel.key: direct.Compiled(x.kernel, x.path, 132) for x in artifacts}


@pytest.fixture(scope="module")
def entries(finished, tmp_path_factory):
    return direct.recording(finished, tmp_path_factory.mktemp("finished"))


def boxes(parameters):
    """Give the extents, the box and the swizzle of each descriptor, by its address."""
    maps = [decode(x[:NUM_BYTES]) for x in parameters if len(x) == DESCRIPTOR_BYTES]
    return {x.address: (x.extents, x.box, x.swizzle) for x in maps}


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_boxes_are_of_both_halves_of_a_gate_and_of_128_bytes_of_k(finished, entries, key):
    record, parameters = direct.launch(entries, finished[key], direct.arguments(key.operation))
    rows, columns = key.candidate.gemm.tile_m * key.candidate.gemm.cluster_m, key.candidate.gemm.tile_n
    block_k = 128 // key.operation.b.element.num_bytes
    weight = ((direct.K, direct.N), (block_k, rows), 3)
    if key.operation.gate is not None:
        weight = ((direct.K, 2, direct.N), (block_k, 2, rows // 2), 3)
    assert boxes(parameters) == {direct.A: ((direct.K, direct.M), (block_k, columns), 3), direct.B: weight}
    tiles = -(-key.operation.num_rows_of_b(direct.N) // rows) * -(-direct.M // columns)
    assert tuple(record.grid) == (tiles * key.candidate.gemm.cluster_m, 1, 1)


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_shared_memory_with_vectors_is_what_the_family_counts_and_nothing_is_spilled(finished, entries, key):
    kernel = finished[key].kernel
    record, _ = direct.launch(entries, finished[key], direct.arguments(key.operation))
    assert record.smem_bytes <= kernel.smem_bytes <= record.smem_bytes + 1024
    assert (kernel.spill_bytes, tuple(record.block)) == (0, (kernel.num_threads, 1, 1))


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
@pytest.mark.parametrize("bias", [True, False])
def test_vectors_keep_their_strides_and_an_absent_bias_has_no_elements(finished, entries, key, bias):
    _, parameters = direct.launch(entries, finished[key], direct.arguments(key.operation, bias=bias))
    pair = () if key.operation.gate is None else (direct.N, direct.STEP_B)
    if key.operation.types.is_scaled:
        assert direct.vector(parameters, direct.SCALE_A) == (direct.M, (direct.STEP_A,))
        assert direct.vector(parameters, direct.SCALE_B) == (direct.N, pair or (direct.STEP_B,))
    strides = (direct.N, 1) if pair and bias else (0, 1) if pair else ()
    assert direct.vector(parameters, direct.BIAS if bias else 0) == (direct.N if bias else 0, strides)
    assert parameters[-2] == struct.pack("<i", 1)


@pytest.mark.parametrize("key", KEYS, ids=lambda x: x.name)
def test_a_residual_is_passed_where_the_operation_adds_one(finished, entries, key):
    _, parameters = direct.launch(entries, finished[key], direct.arguments(key.operation))
    residual = direct.struct_of(direct.RESIDUAL, (direct.M, direct.N), (direct.N,))
    assert (residual in parameters) == key.operation.has_residual


@pytest.mark.parametrize("key", GATED, ids=lambda x: x.name)
def test_rows_of_a_gate_may_alternate(finished, entries, key):
    _, parameters = direct.launch(entries, finished[key], direct.arguments(key.operation, halves=False))
    num_bytes = key.operation.b.element.num_bytes
    assert direct.maps(parameters)[direct.B][1] == (direct.K * num_bytes, 2 * direct.K * num_bytes)
    assert direct.vector(parameters, direct.BIAS) == (direct.N, (1, 2))


FOR_THOR = [Operation.E4M3_BF16_KK, Operation.BF16_KK_SWIGLU]
"""Of both widths of an operand, with factors and with a gate."""
MORE_FOR_THOR = [BF16, Operation.BF16_KK_RESIDUAL, Operation.FP16_KK_GELU]


@pytest.mark.parametrize("operation", FOR_THOR + MORE_FOR_THOR if EVERY else FOR_THOR)
def test_the_kernel_is_none_of_hopper_alone(operation):
    (artifact,) = compile_kernels([KernelKey(operation, TWO_CTAS)], load_target("thor"))
    assert artifact.kernel.spill_bytes == 0
