"""Codes and messages of the C API, exactly; and what the library says of itself."""

from __future__ import annotations

import ctypes

import pytest

from tests.runtime.host import problem

OVERLAP = "overlaps itself; expected distinct elements; give D storage of its own"
CASES = [
    (problem(16, 16, 16, dtype=7), 2, "element type 7 is unknown; expected 0 (bfloat16) or 1 (float16)"),
    (problem(-3, 16, 16), 3, "m is -3; expected 0 to 2147483647; split the problem"),
    (problem(16, 2**31, 16), 3, "n is 2147483648; expected 0 to 2147483647; split the problem"),
    (problem(16, 16, -1), 3, "k is -1; expected 0 to 2147483647; split the problem"),
    (
        problem(16, 16, 16, strides=((-16, 1), (16, 1), (16, 1))),
        4,
        "A (16, 16) has strides (-16, 1); expected none below 0; copy A",
    ),
    (
        problem(16, 8, 16, strides=((16, 1), (16, -1), (16, 1))),
        4,
        "B (8, 16) has strides (16, -1); expected none below 0; copy B",
    ),
    (problem(4, 8, 16, strides=((16, 1), (16, 1), (0, 1))), 4, f"D (4, 8) with strides (0, 1) {OVERLAP}"),
    (problem(4, 8, 16, strides=((16, 1), (16, 1), (4, 1))), 4, f"D (4, 8) with strides (4, 1) {OVERLAP}"),
    (problem(4, 8, 16, strides=((16, 1), (16, 1), (1, 1))), 4, f"D (4, 8) with strides (1, 1) {OVERLAP}"),
    (problem(16, 16, 16, data=(0, 0x1000, 0x2000)), 1, "`a.data` is null; expected an address"),
    (problem(16, 16, 16, data=(0x1000, 0, 0x2000)), 1, "`b.data` is null; expected an address"),
    (problem(16, 16, 0, data=(0, 0, 0)), 1, "`d.data` is null; expected an address"),
]


@pytest.mark.parametrize(("stated", "status", "message"), CASES)
def test_launch(library, stated, status, message):
    assert (library.launch(stated), library.error()) == (status, message)
    assert library.fake_launches() == []


def test_a_type_without_kernels(fresh_library):
    assert fresh_library.select(problem(16, 16, 16, dtype=1))[0] == 2
    assert fresh_library.error() == "no float16 kernels in this library; expected bfloat16"


def test_a_named_kernel_refuses_what_it_cannot_take(library, manifest):
    names = [x.name for x in manifest.kernels]
    assert library.launch_kernel(len(names), problem(16, 16, 16)) == 1
    assert library.error() == f"kernel index is {len(names)}; expected 0 to {len(names) - 1}"
    assert library.launch_kernel(1, problem(16, 16, 16, dtype=1)) == 2
    assert library.error() == f"kernel {names[1]} is for bfloat16; the problem is float16"
    for stated in (problem(16, 16, 17), problem(16, 16, 16, layout="mn"), problem(16, 16, 0)):
        assert library.launch_kernel(1, stated) == 4
        assert library.error() == (
            f"kernel {names[1]} cannot take these operands; expected A contiguous along k, B along k, addresses, "
            "leading strides and rows of D multiples of 16 bytes, k above 0; use aot_gemm_launch"
        )
    assert manifest.kernels[3].m_multiple == 256
    assert library.launch_kernel(3, problem(128, 16, 16)) == 3
    assert library.error() == (
        f"kernel {names[3]} takes whole tiles; expected m a multiple of 256 and n of 16, got m 128 n 16; "
        "use aot_gemm_launch"
    )
    assert library.launch_kernel(0, problem(16, 16, 17)) == 0


def test_null_arguments(library):
    assert library.c.aot_gemm_select(None, None) == 1
    assert library.error() == "`problem` is null; expected an address"
    assert library.c.aot_gemm_select(ctypes.byref(problem(1, 1, 1)), None) == 1
    assert library.error() == "`selection` is null; expected an address"


def test_names_and_versions(library, manifest):
    count = library.c.aot_gemm_num_kernels()
    assert [library.c.aot_gemm_kernel_name(i).decode() for i in range(count)] == [x.name for x in manifest.kernels]
    assert library.c.aot_gemm_kernel_name(count) is None
    assert library.c.aot_gemm_kernel_name(-1) is None
    assert (library.c.aot_gemm_version().decode(), library.c.aot_gemm_arch().decode()) == ("0.1.0", "sm_90a")
