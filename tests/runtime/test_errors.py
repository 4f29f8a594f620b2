"""Codes and messages of the C API, exactly; and what the library says of itself."""

from __future__ import annotations

import ctypes

import pytest

from tests.runtime.host import BIAS, CALLS, FIRST_OPERATION, problem

OVERLAP = "overlaps itself; expected distinct elements; give D storage of its own"
CASES = [
    (
        problem(16, 16, 16, dtype=7),
        2,
        "operation 65543 is unknown; expected a number that aot_gemm_operation returned in this process",
    ),
    (
        problem(16, 16, 16, dtype=-65536),
        2,
        "operation 0 is unknown; expected a number that aot_gemm_operation returned in this process",
    ),
    (
        problem(16, 16, 16, bias=BIAS),
        1,
        "got a bias, which operation bf16 does not take; expected null, or another operation",
    ),
    (problem(16, 16, 16, dtype=2, bias=(0, (0, 1))), 1, "`bias.data` is null; expected an address"),
    (
        problem(16, 8, 16, dtype=2, bias=(BIAS, (0, 2))),
        4,
        "the bias of 8 elements has the stride 2; expected 1, elements that are adjacent; copy it",
    ),
    (
        problem(16, 8, 16, dtype=2, bias=(3 << 40) + 128),
        4,
        (
            "D at address 0x30000000000 overlaps the bias at address 0x30000000080; expected a D that shares no "
            "element with an operand, which would be overwritten while it is read; give D storage of its own"
        ),
    ),
    (
        problem(16, 8, 16, dtype=2, bias=2**64 - 8),
        4,
        (
            "the bias (1, 8) with strides (0, 1) at address 0xfffffffffffffff8 reaches past the end of the address "
            "space; mend its strides"
        ),
    ),
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
    assert fresh_library.error() == (
        "operation 65537 is unknown; expected a number that aot_gemm_operation returned in this process"
    )


def test_an_operation_is_asked_for_by_its_tag(library, fresh_library):
    ask = library.c.aot_gemm_operation
    assert [ask(tag.encode()) for tag in CALLS] == [FIRST_OPERATION + i for i in range(3)]
    assert [fresh_library.c.aot_gemm_operation(tag.encode()) for tag in CALLS] == [FIRST_OPERATION, -2, -2]
    assert fresh_library.error() == 'there is no operation "bf16_bias" in this library; it has bf16'
    for tag in ("", "bf16_kk", "fp16_bias", "BF16", "bf16 ", "%n%s" * 40):
        assert ask(tag.encode()) == -2
        assert library.error() == f'there is no operation "{tag[:64]}" in this library; it has bf16, fp16, bf16_bias'
    assert ask(None) == -1
    assert library.error() == '`tag` is null; expected such as "bf16"'


def test_a_named_kernel_refuses_what_it_cannot_take(library, manifest):
    names = [x.name for x in manifest.kernels]
    assert library.launch_kernel(len(names), problem(16, 16, 16)) == 1
    assert library.error() == f"kernel index is {len(names)}; expected 0 to {len(names) - 1}"
    assert library.launch_kernel(1, problem(16, 16, 16, dtype=1)) == 2
    assert library.error() == f"kernel {names[1]} is for bf16; the problem is fp16"
    for stated in (problem(16, 16, 17), problem(16, 16, 16, layout="mn"), problem(16, 16, 0)):
        assert library.launch_kernel(1, stated) == 4
        assert library.error() == (
            f"kernel {names[1]} cannot take these operands; expected A contiguous along k, B along k, addresses and "
            "leading strides of both multiples of 16 bytes, those of D and its rows of 16, k above 0; use "
            "aot_gemm_launch"
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
