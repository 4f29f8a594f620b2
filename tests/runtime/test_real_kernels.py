"""Real sm_90a objects through the C API into the recorder: what the GPU would be told."""

from __future__ import annotations

import ctypes
import struct

import pytest

from tests.objects import BIG, EARLY, EARLY_SPLIT, SMALL, SPLIT, parameter_sizes, small_manifest
from tests.runtime.host import Library, compile_library, problem

A, B, D = 0x7F0000000000, 0x7F1000000000, 0x7F2000000000
WORKSPACE = 0x7F3000000000
STREAM = 0x1234560
NUM_SMS = 132
M, N, K = 304, 520, 264
CLUSTER, PROGRAMMATIC = 4, 6  # cudaLaunchAttributeID
DESCRIPTOR_BYTES = 128
B_CONSTANT = 1  # AOT_GEMM_B_CONSTANT


@pytest.fixture(scope="module")
def manifest():
    return small_manifest("h200")[0]


@pytest.fixture(scope="module")
def objects():
    return small_manifest("h200")[1]


@pytest.fixture(scope="module")
def real(manifest, objects, tmp_path_factory):
    return Library(compile_library(manifest, tmp_path_factory.mktemp("real"), list(objects.values())))


def launch(real, manifest, objects, candidate, stated, num_before=0, tile_order=0):
    """Launch one kernel, which may launch others before itself; gives the record and its parameters as bytes."""
    (index,) = [i for i, x in enumerate(manifest.kernels) if x.candidate == candidate]
    kernel = manifest.kernels[index]
    sizes = parameter_sizes(objects[kernel.name])
    real.c.recorder_reset()
    real.c.recorder_set_parameters((ctypes.c_int32 * len(sizes))(*sizes), len(sizes))
    real.c.recorder_leave_parameters(num_before)
    num_bytes = real.workspace_bytes(stated, index)
    workspace = WORKSPACE if num_bytes else 0
    assert real.launch_kernel(index, stated, workspace, num_bytes, STREAM, tile_order) == 0, real.error()
    *before, record = real.real_launches()
    assert len(before) == num_before
    content, parameters = bytes(record.parameters), []
    for size in sizes:
        parameters.append(content[:size])
        content = content[size:]
    return kernel, record, parameters


def attributes(record):
    return {record.attribute_ids[i]: tuple(record.attribute_values[i]) for i in range(record.num_attributes)}


def descriptors(parameters):
    """Give the addresses that the TMA descriptors among the parameters hold; the first 8 bytes of each."""
    return [struct.unpack_from("<Q", x)[0] for x in parameters if len(x) == DESCRIPTOR_BYTES]


@pytest.mark.parametrize("candidate", [BIG, SMALL, SPLIT, EARLY, EARLY_SPLIT])
def test_tma_kernels_get_addresses_grid_and_cluster(real, manifest, objects, candidate):
    kernel, record, parameters = launch(real, manifest, objects, candidate, problem(M, N, K, data=(A, B, D)))
    assert set(descriptors(parameters)) == {A, B, D}
    assert tuple(record.block) == (kernel.num_threads, 1, 1)
    assert record.smem_bytes <= kernel.smem_bytes
    assert record.stream == STREAM
    rows, columns = (N, M) if candidate.gemm.swap_ab else (M, N)
    tiles_m = -(-rows // (candidate.gemm.tile_m * candidate.gemm.cluster_m)) * candidate.gemm.cluster_m
    tiles_n = -(-columns // (candidate.gemm.tile_n * candidate.gemm.cluster_n)) * candidate.gemm.cluster_n
    num_blocks = record.grid[0] * record.grid[1] * record.grid[2]
    cluster = candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1
    persistent = (
        NUM_SMS
        // (candidate.gemm.cluster_m * candidate.gemm.cluster_n)
        * candidate.gemm.cluster_m
        * candidate.gemm.cluster_n
    )
    assert num_blocks == min(tiles_m * tiles_n * candidate.gemm.split_k, persistent)
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == cluster
    assert attributes(record).get(PROGRAMMATIC, (0,))[0] == 1


@pytest.mark.parametrize("candidate", [SPLIT, EARLY_SPLIT])
def test_split_k_gets_its_workspace_and_a_cleared_head(real, manifest, objects, candidate):
    kernel, _, parameters = launch(real, manifest, objects, candidate, problem(M, N, K, data=(A, B, D)))
    (cleared,) = real.clears()
    zero_bytes = kernel.workspace.num_zero_bytes(M, N)
    assert (cleared.data, cleared.num_bytes, cleared.stream) == (WORKSPACE, zero_bytes, STREAM)
    assert any(struct.pack("<Q", WORKSPACE) in x for x in parameters)


@pytest.mark.parametrize(("candidate", "count"), [(SMALL, 0), (EARLY, 1), (EARLY_SPLIT, 1)])
def test_only_a_kernel_that_reads_b_early_is_told_whether_it_may(real, manifest, objects, candidate, count):
    told = []
    for flags in (0, B_CONSTANT):
        stated = problem(M, N, K, data=(A, B, D), flags=flags)
        _, record, parameters = launch(real, manifest, objects, candidate, stated)
        assert attributes(record)[PROGRAMMATIC][0] == 1
        # A descriptor ends in what the stack held.
        told.append([x for x in parameters if len(x) != DESCRIPTOR_BYTES])
    changed = [pair for pair in zip(*told, strict=True) if pair[0] != pair[1]]
    assert changed == [(struct.pack("<i", 0), struct.pack("<i", B_CONSTANT))] * count


def test_the_fallback_gets_both_strides(real, manifest, objects):
    strides = ((3, 2 * M * 3), (1, 1000), (1, 999))
    stated = problem(M, N, K, data=(A + 2, B, D), strides=strides)
    _, record, parameters = launch(real, manifest, objects, manifest.kernels[0].candidate, stated)
    content = b"".join(parameters)
    for address in (A + 2, B, D):
        assert struct.pack("<Q", address) in content
    for pair in strides:
        for stride in pair:
            assert stride == 1 or struct.pack("<Q", stride) in content
    assert tuple(record.grid) == (-(-M // 64) * -(-N // 64), 1, 1)
    _, selection = real.select(stated)
    assert (selection.tier, selection.kernel) == (3, 0)


def test_a_grid_that_cuda_does_not_launch_is_refused(real, manifest, objects):
    most = problem(2**31 - 64, 4096, 16, data=(A, B, D))
    _, record, _ = launch(real, manifest, objects, manifest.kernels[0].candidate, most)
    assert tuple(record.grid) == ((2**25 - 1) * 64, 1, 1)
    real.c.recorder_reset()
    assert real.launch_kernel(0, problem(2**31 - 63, 4096, 16, data=(A, B, D))) == 3
    assert real.error() == (
        f"kernel {manifest.kernels[0].name} would need a grid of 2147483648 x 1 x 1 blocks for m 2147483585 n 4096; "
        "CUDA launches at most 2147483647 x 65535 x 65535; split the rows of A or of B"
    )
    assert real.real_launches() == []


def test_a_loaded_kernel_is_not_loaded_again(real, manifest, objects):
    for _ in range(2):
        launch(real, manifest, objects, BIG, problem(M, N, K, data=(A, B, D)))
    assert (real.count(0), real.count(1)) == (0, 0)
