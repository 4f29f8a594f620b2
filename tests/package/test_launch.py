"""The launch of cuda_entry.cc over a CUDA runtime that records: what the driver is told, and when it is not asked."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from aot.core.target import load_target
from aot.package.toolchain import fetch_toolchain
from tests import native

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED = 3, 201, 709


@pytest.fixture
def runtime(tmp_path):
    """Build it, load a copy of its own for each test; calls of the runtime that no launch makes stay unresolved."""
    source, include = ROOT / "templates" / "src", fetch_toolchain(load_target("h200")).cuda_dir / "include"
    flags = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-isystem{include}"]
    files = [source / "cuda_entry.cc", source / "grid.cc", Path(__file__).with_name("cuda_runtime.cc")]
    library = native.link(files, tmp_path / "launch.so", native.GCC, flags, ["-shared", "-Wl,-z,lazy"], [source])
    return ctypes.CDLL(str(library), mode=1)  # RTLD_LAZY


def test_the_driver_is_told_what_the_runtime_would_be(runtime):
    runtime.fake_set(1, 0)
    runtime.fake_set_context(ctypes.c_ulonglong(7))
    assert [runtime.fake_launch(0) for _ in range(3)] == [0, 0, 0]
    assert (runtime.fake_driver_calls(), runtime.fake_runtime_calls(), runtime.fake_searches()) == (3, 0, 3)


def test_a_kernels_function_is_asked_for_once_in_each_context(runtime):
    runtime.fake_set(1, 0)
    queries = []
    for context, kernel in ((7, 0), (7, 0), (8, 0), (8, 0), (8, 1), (8, 1), (8, 0), (7, 0), (7, 1), (7, 1)):
        runtime.fake_set_context(ctypes.c_ulonglong(context))
        assert runtime.fake_launch(kernel) == 0  # the function given is the kernel's in that context
        queries.append(runtime.fake_function_queries())
    assert queries == [1, 1, 2, 2, 3, 3, 3, 3, 4, 4]


def test_more_kernels_than_are_remembered_are_asked_for_again_and_are_right(runtime):
    runtime.fake_set(1, 0)
    for _ in range(2):
        for context in range(1, 41):
            runtime.fake_set_context(ctypes.c_ulonglong(context))
            assert [runtime.fake_launch(kernel) for kernel in range(16)] == [0] * 16
    assert 40 * 16 + (40 * 16 - 128) <= runtime.fake_function_queries() <= 2 * 40 * 16


def test_a_kernel_goes_as_it_is_where_the_driver_gives_no_function(runtime):
    runtime.fake_set(1, 0)
    assert runtime.fake_launch(0) == 0  # a driver without the calls
    runtime.fake_set_context(ctypes.c_ulonglong(0))
    assert runtime.fake_launch(0) == 0  # a thread without a context
    assert (runtime.fake_driver_calls(), runtime.fake_function_queries()) == (2, 0)


@pytest.mark.parametrize("error", [NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED])
def test_without_a_context_the_runtime_launches(runtime, error):
    runtime.fake_set(1, error)
    assert runtime.fake_launch(0) == 0
    assert (runtime.fake_driver_calls(), runtime.fake_runtime_calls()) == (1, 1)


def test_other_errors_of_the_driver_are_the_launchs(runtime):
    runtime.fake_set(1, 719)
    assert (runtime.fake_launch(0), runtime.fake_runtime_calls()) == (719, 0)


def test_without_the_drivers_function_the_runtime_launches(runtime):
    runtime.fake_set(0, 0)
    assert runtime.fake_launch(0) == 0
    assert (runtime.fake_driver_calls(), runtime.fake_runtime_calls()) == (0, 1)
    runtime.fake_set(1, 0)
    assert runtime.fake_launch(0) == 0
    assert (runtime.fake_driver_calls(), runtime.fake_runtime_calls()) == (1, 0)
