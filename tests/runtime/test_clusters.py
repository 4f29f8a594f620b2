"""The query of active clusters: through a kernel's own host code, and nothing is launched or cleared."""

from __future__ import annotations

import ctypes

from tests.runtime.host import names_of, problem

ARGUMENT = 1
RECORDED_CLUSTERS = 7
WORKSPACE = 0x700000


def ask(library, kernel, stated, num_bytes):
    count = ctypes.c_int32(-5)
    arguments = (ctypes.c_void_p(WORKSPACE), ctypes.c_size_t(num_bytes), ctypes.byref(count))
    return library.c.aot_gemm_kernel_max_active_clusters(kernel, ctypes.byref(stated), *arguments), count.value


def test_nothing_is_launched_or_cleared(library, manifest):
    for index, kernel in enumerate(manifest.kernels):
        stated = problem(256, 512, 64, **names_of(kernel.operation))
        num_bytes = library.workspace_bytes(stated, index)
        assert ask(library, index, stated, num_bytes) == (0, RECORDED_CLUSTERS), library.error()
        assert (library.fake_launches(), library.clears()) == ([], [])
        assert library.launch_kernel(index, stated, WORKSPACE, num_bytes, 0x50) == 0
        assert len(library.fake_launches()) == 1
        library.c.recorder_reset()


def test_a_call_that_is_refused_ends_the_query(library, manifest):
    stated = problem(256, 512, 64, **names_of(manifest.kernels[0].operation))
    assert ask(library, len(manifest.kernels), stated, 0)[0] == ARGUMENT
    assert library.launch_kernel(0, stated, WORKSPACE, 0, 0x50) == 0
    assert len(library.fake_launches()) == 1
    null = library.c.aot_gemm_kernel_max_active_clusters(0, ctypes.byref(stated), None, ctypes.c_size_t(0), None)
    assert null == ARGUMENT
