"""The C++ workspace formula against aot.core.candidate.Workspace, and how the workspace reaches CUDA."""

from __future__ import annotations

import ctypes
import random

import pytest

from tests.runtime.host import names_of, problem

WORKSPACE = 0x700000


def split_kernels(manifest, mode):
    return [i for i, x in enumerate(manifest.kernels) if x.workspace.mode == mode]


def test_equals_the_python_formula(library, manifest):
    rng = random.Random(3)
    for index, kernel in enumerate(manifest.kernels):
        for _ in range(200):
            m, n = (8 * rng.randint(1, rng.choice((4, 1000))) for _ in range(2))
            m, n = m * kernel.m_multiple, n * kernel.n_multiple
            stated = problem(m, n, 64, **names_of(kernel.operation))
            assert library.workspace_bytes(stated, index) == kernel.workspace.num_bytes(m, n, 64)


@pytest.mark.parametrize("mode", ["none", "serial", "parallel", "separate", "tail"])
def test_reaches_the_kernel_and_is_cleared(library, manifest, mode):
    for index in split_kernels(manifest, mode):
        kernel = manifest.kernels[index]
        library.c.recorder_reset()
        stated = problem(256, 512, 64, **names_of(kernel.operation))
        num_bytes = library.workspace_bytes(stated, index)
        assert library.launch_kernel(index, stated, WORKSPACE, num_bytes, 0x50) == 0, library.error()
        (launch,) = library.fake_launches()
        assert launch.kernel == index
        assert launch.num_arguments == 1 + len(kernel.signature)
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


def tuned(manifest, library, *, needs_workspace):
    """Give a tuned problem of the first section whose kernel does or does not need a workspace."""
    shapes = [problem(m, x.n, x.k) for x in manifest.tables[0].table.sections[0].ladders for m in x.m_edges]
    return next(x for x in shapes if (library.workspace_bytes(x) > 0) == needs_workspace)


def test_a_launch_asks_for_its_workspace_once(library, manifest):
    stated, asked = tuned(manifest, library, needs_workspace=True), []

    def allocate(*arguments):
        asked.append(arguments)
        return WORKSPACE

    assert library.launch_allocating(stated, allocate, 0x50) == 0, library.error()
    assert asked == [(0xC0, library.workspace_bytes(stated))]
    (launch,) = library.fake_launches()
    assert (launch.workspace, launch.stream, launch.workspace_floats * 4) == (WORKSPACE, 0x50, asked[0][1])
    assert launch.kernel == library.select(stated)[1].kernel


def test_a_launch_without_workspace_asks_for_none(library, manifest):
    stated = tuned(manifest, library, needs_workspace=False)
    assert library.launch_allocating(stated, lambda *_: pytest.fail("asked")) == 0
    assert len(library.fake_launches()) == 1
    assert library.launch_allocating(problem(0, 64, 64), lambda *_: pytest.fail("asked")) == 0
    assert len(library.fake_launches()) == 1


def test_a_workspace_that_is_not_given_is_an_error(library, manifest):
    stated = tuned(manifest, library, needs_workspace=True)
    assert library.launch_allocating(stated, lambda *_: None) == 8
    assert "got 0 bytes at (nil)" in library.error()
    assert library.launch_allocating(problem(-1, 64, 64), lambda *_: pytest.fail("asked")) == 3
    assert library.c.aot_gemm_launch_allocating(ctypes.byref(stated), None, None, None) == 1
    assert library.error() == "`allocate` is null; expected an address"
    assert library.fake_launches() == []


def test_more_than_can_be_addressed_is_an_error(library, manifest):
    index = split_kernels(manifest, "separate")[0]
    assert library.launch_kernel(index, problem(2**20, 2**20, 64), WORKSPACE, 2**60) == 3
    assert library.error() == (
        f"kernel {manifest.kernels[index].name} would need a workspace of {3 * 2**42} bytes for m 1048576 n 1048576; "
        "at most 8 GiB can be addressed; split the problem"
    )
