"""Products of a warpgroup: numbers, and what is missing around them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from tests.unit.emulate.layouts.cute_layout import Layout
from tests.unit.emulate.snippets import SCHEDULES, run
from tests.unit.emulate.units.asynchronous import FIRST, HEADER, copy_in

RNG = np.random.default_rng(3)
M, N, K = 64, 16, 16
A_BYTES, B_BYTES = 2 * M * K, 2 * N * K
# Core matrices of 8 rows of 16 bytes; those along k follow each other: leading 128, stride 256 bytes.
CORES = {rows: Layout(((8, rows // 8), (8, 2)), ((8, 128), (1, 64))) for rows in (M, N)}
A = RNG.integers(-8, 9, (M, K))
B = RNG.integers(-8, 9, (N, K))
D = [f"%r{10 + i}" for i in range(8)]
FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"
DESCRIPTOR = 128 >> 4 << 16 | 256 >> 4 << 32


def image(dtype=ml_dtypes.bfloat16):
    found = np.zeros((A_BYTES + B_BYTES) // 2 + 768, dtype)  # a multiple of what 128 threads copy
    for matrix, start in ((A, 0), (B, A_BYTES // 2)):
        layout = CORES[len(matrix)]
        for index, x in np.ndenumerate(matrix):
            found[start + layout(*index)] = x
    return found


def multiply(accumulate=1):
    return (
        f"setp.ne.b32 %p5, {accumulate}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{', '.join(D)}}}, %rd10, %rd11, %p5, 1, 1, 0, 0;\n"
    )


BEGIN = (
    FIRST
    + copy_in("%rd0", 4096, threads=128)
    + f"""
fence.proxy.async; bar.sync 0;
shr.u32 %r2, %r1, 4; cvt.u64.u32 %rd10, %r2; or.b64 %rd10, %rd10, {DESCRIPTOR};
add.s64 %rd11, %rd10, {A_BYTES >> 4};
"""
    + "".join(f"mov.b32 {x}, 0x40000000;\n" for x in D)
)
STORE = "mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd1, %rd20;\n" + "".join(
    f"st.global.b32 [%rd21+{512 * i}], {x};\n" for i, x in enumerate(D)
)


def run_group(body, schedule=None):
    out = np.zeros((8, 128), np.float32)
    return run(body, image(), out, header=HEADER, smem=8192, block=128, schedule=schedule)


def result(found):
    """Thread 32 w + 4 g + t has rows 16 w + g (+ 8) and columns 2 t (+ 1) (+ 8). Source: PTX ISA, wgmma, fragment D."""
    matrix = np.zeros((M, N))
    for i in range(8):
        for t in range(128):
            lane = t % 32
            row, column = 16 * (t // 32) + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2
            matrix[row, column] = found.arrays[1][i, t]
    return matrix


@pytest.mark.parametrize(("accumulate", "start"), [(0, 0), (1, 2)])
def test_products_are_right_under_every_schedule(accumulate, start):
    body = BEGIN + FENCE + multiply(accumulate) + multiply() + COMMIT + WAIT + STORE
    for schedule in SCHEDULES:
        found = run_group(body, schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(result(found), 2 * (A @ B.T) + start), schedule


def test_a_register_that_is_used_before_the_wait_is_a_fault():
    body = BEGIN + FENCE + multiply(0) + COMMIT + STORE + WAIT
    found = run_group(body)
    assert found.fault.kind is FaultKind.REGISTERS
    assert "before wgmma.wait_group" in found.fault.text
    late = BEGIN + FENCE + multiply(0) + COMMIT + WAIT.replace(" 0", " 1") + STORE + WAIT
    assert run_group(late).fault.kind is FaultKind.REGISTERS


def test_registers_that_are_written_behind_the_fence_are_a_fault():
    assert "no wgmma.fence before" in run_group(BEGIN + multiply()).fault.text
    body = BEGIN + FENCE + "mov.b32 %r10, 0;\n" + multiply() + COMMIT + WAIT
    assert "written since the last wgmma.fence" in run_group(body).fault.text


def test_operands_that_were_not_fenced_are_found():
    body = BEGIN.replace("fence.proxy.async;", "") + FENCE + multiply(0) + COMMIT + WAIT
    assert run_group(body).kinds == {FindingKind.PROXY_FENCE}


def test_operands_may_be_overwritten_only_behind_the_wait():
    again = "st.shared.b32 [%r1], %r0;\n"
    assert run_group(BEGIN + FENCE + multiply(0) + COMMIT + WAIT + "bar.sync 0;\n" + again).report is not None
    found = run_group(BEGIN + FENCE + multiply(0) + COMMIT + again + WAIT)
    assert FindingKind.WRITE_BEFORE_READ in found.kinds


def test_warps_of_a_group_that_differ_and_exits_with_products_in_flight_are_faults():
    differs = "setp.lt.u32 %p6, %r0, 32;\n@%p6 add.s64 %rd11, %rd11, 8;\n"
    assert run_group(BEGIN + differs + FENCE + multiply(0) + COMMIT + WAIT).fault.kind is FaultKind.DIVERGENCE
    assert run_group(BEGIN + FENCE + multiply(0) + COMMIT).fault.kind is FaultKind.EXITED


def test_a_may_be_in_registers():
    registers = "{%r20, %r21, %r22, %r23}"
    words = "mov.b32 %r20, 0x3f803f80; mov.b32 %r21, 0x40004000; mov.b32 %r22, 0x3f803f80; mov.b32 %r23, 0x40004000;\n"
    product = (
        f"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{', '.join(D)}}}, {registers}, %rd11, %p5, 1, 1, 0;\n"
    )
    body = BEGIN + words + "setp.ne.b32 %p5, 0, 0;\n" + FENCE + product + COMMIT + WAIT + STORE
    found = run_group(body)
    assert found.kinds == set(), found.texts
    # Rows g of each warp are ones, rows g + 8 twos.
    rows = np.where(np.arange(M) % 16 < 8, 1, 2)[:, None] * np.ones((1, K))
    assert np.array_equal(result(found), rows @ B.T)
