"""The launch of cuda_entry.cc over a CUDA runtime that records: what the driver is told, and when it is not asked.

What a graph then has is tried on a GPU, by tests/device/test_edges.py.
"""

from __future__ import annotations

import _ctypes
import ctypes
from pathlib import Path

import pytest

from aot.core.target import load_target
from aot.package.toolchain import fetch_toolchain
from tests import native

pytestmark = pytest.mark.package

ROOT = Path(__file__).parents[2]
MEMSET, FOREIGN = 1, 2
"""Nodes of cuda_runtime.cc: no kernel, and a kernel of another's."""
STREAM, LEGACY, PER_THREAD = 0x1230, 1, 2
NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED = 3, 201, 709


@pytest.fixture
def runtime(tmp_path):
    """Build it, load a copy of its own for each test; calls of the runtime that no launch makes stay unresolved."""
    source, include = ROOT / "templates" / "src", fetch_toolchain(load_target("h200")).cuda_dir / "include"
    flags = ["-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-isystem{include}"]
    files = [source / f"{x}.cc" for x in ("cuda_entry", "graph_edge", "grid", "spread")]
    files.append(Path(__file__).with_name("cuda_runtime.cc"))
    library = native.link(files, tmp_path / "launch.so", native.GCC, flags, ["-shared", "-Wl,-z,lazy"], [source])
    return ctypes.CDLL(str(library), mode=1)  # RTLD_LAZY


def test_the_driver_is_told_what_the_runtime_would_be(runtime):
    runtime.fake_set(1, 0)
    runtime.fake_set_context(ctypes.c_ulonglong(7))
    capture(runtime, captured=False)
    assert [runtime.fake_launch(0) for _ in range(3)] == [0, 0, 0]
    assert (runtime.fake_driver_calls(), runtime.fake_runtime_calls(), runtime.fake_searches()) == (3, 0, 4)


def test_the_runtime_is_told_that_an_image_stays_where_it_is(runtime):
    """Else it keeps a copy of it in host memory, which on a Jetson is the GPU's."""
    host_table, preserved = 0, 1  # cudaLibraryOption of driver_types.h
    assert runtime.fake_load(0) == 100 + preserved
    assert runtime.fake_load(1) == 100 + host_table  # what a kernel's object asks for goes along as it is


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


def capture(runtime, *nodes, captured=True, graphs=True):
    runtime.fake_capture(captured, graphs, len(nodes), (ctypes.c_size_t * 4)(*nodes))


@pytest.fixture
def graphs(runtime):
    """The runtime, with kernels of ours that a graph already has: 0, whose node is given."""
    runtime.fake_node.restype = ctypes.c_size_t
    runtime.fake_set(1, 0)
    capture(runtime)
    assert runtime.fake_programmatic(0, STREAM) == 0  # nothing is in front
    return runtime, runtime.fake_node()


def test_a_captured_launch_is_programmatic_behind_a_kernel_that_lets_it_begin(graphs):
    runtime, ours = graphs
    for nodes, programmatic in (
        ((ours,), 1),
        ((ours, ours), 1),
        ((FOREIGN,), 0),
        ((MEMSET,), 0),
        ((ours, FOREIGN), 0),
        ((MEMSET, ours), 0),
        ((), 0),
    ):
        capture(runtime, *nodes)
        assert runtime.fake_programmatic(1, STREAM) == programmatic, nodes


def test_a_kernel_of_ours_is_known_that_was_launched_ordinarily(graphs):
    runtime, _ = graphs
    capture(runtime, FOREIGN)
    assert runtime.fake_programmatic(1, STREAM) == 0
    capture(runtime, runtime.fake_node())
    assert runtime.fake_programmatic(2, PER_THREAD) == 1


def test_what_is_not_captured_stays_programmatic(graphs):
    runtime, _ = graphs
    capture(runtime, FOREIGN, captured=False)
    assert runtime.fake_programmatic(1, STREAM) == 1
    capture(runtime, FOREIGN)
    assert [runtime.fake_programmatic(1, stream) for stream in (0, LEGACY)] == [1, 1]
    assert runtime.fake_capture_queries() == 0


def test_a_tunings_launch_stays_programmatic(graphs):
    runtime, _ = graphs
    capture(runtime, FOREIGN)
    runtime.fake_stay(1)
    assert runtime.fake_programmatic(1, STREAM) == 1
    runtime.fake_stay(0)
    assert runtime.fake_programmatic(1, STREAM) == 0


SMEM = 96 * 1024
"""Dynamic shared memory of kernels of which an SM of the fake device, an H200's, holds two."""


def spread(runtime, kernel, num_ctas, smem_bytes=SMEM, cluster=1, major=9):
    return runtime.fake_spread(kernel, STREAM, num_ctas, smem_bytes, cluster, major)


def ctas_of_an_sm(smem_bytes):
    return 228 * 1024 // (smem_bytes + 1024)


def test_a_launch_that_begins_early_takes_no_more_of_an_sm_than_an_even_share(graphs):
    runtime, ours = graphs
    capture(runtime, ours)
    for num_ctas, cluster, share in ((1, 1, 1), (64, 1, 1), (132, 1, 1), (130, 2, 1), (128, 4, 1)):
        found = spread(runtime, 1, num_ctas, cluster=cluster)
        assert (ctas_of_an_sm(found), ctas_of_an_sm(found - 128)) == (share, share + 1)
    for cluster in (1, 2, 4):
        small = spread(runtime, 1, 256, 70 * 1024, cluster)
        assert (ctas_of_an_sm(small), ctas_of_an_sm(small - 128)) == (2, 3)
    assert runtime.fake_most_smem() >= spread(runtime, 1, 1)  # what the kernel may ask for is raised first


def test_a_launch_stays_as_it_is_where_no_sm_would_have_more_than_its_share(graphs):
    runtime, ours = graphs
    capture(runtime, ours)
    assert spread(runtime, 1, 133) == SMEM  # two on one SM at least
    assert spread(runtime, 1, 132, cluster=2) == SMEM  # clusters do not find a place on every SM
    assert spread(runtime, 1, 64, 120 * 1024) == 120 * 1024  # an SM holds one
    assert spread(runtime, 1, 64, major=11) == SMEM  # not measured there


def test_a_launch_is_not_spread_where_it_does_not_begin_early(graphs):
    runtime, ours = graphs
    for nodes in ((FOREIGN,), (ours, FOREIGN), (ours, ours), ()):
        capture(runtime, *nodes)
        assert spread(runtime, 1, 64) == SMEM
    capture(runtime, ours, captured=False)
    assert spread(runtime, 1, 64) == SMEM
    capture(runtime, ours)
    runtime.fake_stay(1)  # as a tuning launches
    assert spread(runtime, 1, 64) == SMEM
    runtime.fake_stay(0)
    assert spread(runtime, 1, 64) > SMEM


def test_a_kernel_behind_itself_is_spread_only_where_the_one_in_front_is(graphs):
    runtime, _ = graphs
    capture(runtime, FOREIGN)
    assert spread(runtime, 1, 64) == SMEM
    capture(runtime, runtime.fake_node())
    assert spread(runtime, 1, 64) == SMEM
    capture(runtime, runtime.fake_node())
    wide = spread(runtime, 2, 64)
    assert wide > SMEM
    capture(runtime, runtime.fake_node())
    assert spread(runtime, 2, 64) == wide


def test_without_the_drivers_answers_a_launch_stays_programmatic(runtime):
    runtime.fake_set(1, 0)
    capture(runtime, FOREIGN, graphs=False)
    assert runtime.fake_programmatic(1, STREAM) == 1


@pytest.mark.parametrize("captured", [False, True])
def test_a_library_of_which_a_graph_has_kernels_stays_loaded(runtime, captured):
    path = runtime._name
    runtime.fake_set(1, 0)
    capture(runtime, captured=captured)
    assert runtime.fake_programmatic(0, STREAM) >= 0
    Path(path).unlink()  # as the removal of the package does
    handle = runtime._handle
    del runtime
    _ctypes.dlclose(handle)
    assert (path in Path("/proc/self/maps").read_text()) == captured
