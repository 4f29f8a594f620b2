"""The C++ workspace formula against aot.candidate.Workspace, and how the workspace reaches CUDA."""

from __future__ import annotations

import random

import pytest

from tests.runtime.host import problem

WORKSPACE = 0x700000


def split_kernels(manifest, mode):
    return [i for i, x in enumerate(manifest.kernels) if x.workspace.mode == mode]


def test_equals_the_python_formula(library, manifest):
    rng = random.Random(3)
    for index, kernel in enumerate(manifest.kernels):
        for _ in range(200):
            m, n = (8 * rng.randint(1, rng.choice((4, 1000))) for _ in range(2))
            m, n = m * kernel.m_multiple, n * kernel.n_multiple
            stated = problem(m, n, 64, dtype=kernel.operation.dtype.code, layout=kernel.operation.layout_name)
            assert library.workspace_bytes(stated, index) == kernel.workspace.num_bytes(m, n)


@pytest.mark.parametrize("mode", ["none", "serial", "parallel", "separate"])
def test_reaches_the_kernel_and_is_cleared(library, manifest, mode):
    for index in split_kernels(manifest, mode):
        kernel = manifest.kernels[index]
        library.c.recorder_reset()
        stated = problem(256, 512, 64, dtype=kernel.operation.dtype.code, layout=kernel.operation.layout_name)
        num_bytes = library.workspace_bytes(stated, index)
        assert library.launch_kernel(index, stated, WORKSPACE, num_bytes, 0x50) == 0, library.error()
        (launch,) = library.fake_launches()
        assert launch.kernel == index
        assert launch.num_arguments == 5 + (mode != "none") + kernel.reads_b_early
        assert launch.workspace_floats * 4 == num_bytes
        zero_bytes = kernel.workspace.num_zero_bytes(256, 512)
        cleared = [(x.data, x.num_bytes, x.stream) for x in library.clears()]
        assert cleared == ([(WORKSPACE, zero_bytes, 0x50)] if zero_bytes else [])


def test_too_small_missing_or_unaligned_is_an_error(library, manifest):
    index = split_kernels(manifest, "separate")[0]
    name = manifest.kernels[index].name
    stated = problem(16, 16, 64)
    for workspace, num_bytes, place in (
        (WORKSPACE, 3071, "0x700000"),
        (0, 9999, "(nil)"),
        (WORKSPACE + 8, 9999, "0x700008"),
    ):
        assert library.launch_kernel(index, stated, workspace, num_bytes) == 8
        assert library.error() == (
            f"kernel {name} needs a workspace of 3072 bytes, 16-byte aligned, for m 16 n 16; got {num_bytes} bytes at "
            f"{place}; ask aot_gemm_workspace_bytes"
        )
    assert library.fake_launches() == []


def test_more_than_can_be_addressed_is_an_error(library, manifest):
    index = split_kernels(manifest, "separate")[0]
    assert library.launch_kernel(index, problem(2**20, 2**20, 64), WORKSPACE, 2**60) == 3
    assert library.error() == (
        f"kernel {manifest.kernels[index].name} would need a workspace of {3 * 2**42} bytes for m 1048576 n 1048576; "
        "at most 8 GiB can be addressed; split the problem"
    )
