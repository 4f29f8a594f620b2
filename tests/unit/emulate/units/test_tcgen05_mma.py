"""Products in tensor memory: numbers, pairs of CTAs, scale factors of blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.emulate.faults import FindingKind
from tests.unit.emulate.layouts.cute_layout import Layout
from tests.unit.emulate.snippets import SCHEDULES, run
from tests.unit.emulate.units.asynchronous import HEADER
from tests.unit.emulate.units.tensor_products import (
    COMMIT,
    FREE,
    LOAD,
    RNG,
    STORE,
    WAIT,
    A,
    B,
    K,
    M,
    N,
    begin,
    image,
    multiply,
    run_products,
)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_products_are_right_under_every_schedule(count):
    body = begin() + multiply() + multiply(accumulate=1) * (count - 1) + COMMIT + WAIT + LOAD + STORE + FREE
    for schedule in SCHEDULES:
        found = run_products(body, schedule=schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(found.arrays[1].T, count * (A @ B.T)), schedule


def test_64_rows_take_16_lanes_of_each_warps_32():
    body = begin() + multiply(m=64, rows=64) + COMMIT + WAIT + LOAD + STORE + FREE
    found = run_products(body, a=A[:64])
    lanes = np.arange(64) // 16 * 32 + np.arange(64) % 16
    assert np.array_equal(found.arrays[1].T[lanes], A[:64] @ B.T)


def test_operands_that_were_not_fenced_are_found():
    body = begin().replace("fence.proxy.async;", "") + multiply() + COMMIT + WAIT + LOAD + FREE
    assert run_products(body).kinds == {FindingKind.PROXY_FENCE}


def test_several_lanes_must_not_issue_a_product():
    body = begin() + multiply().replace("@%p0 tcgen05.mma", "@%p1 tcgen05.mma") + COMMIT + WAIT
    assert "32 lanes issue; expected one" in run_products(body).fault.text


def test_a_pair_multiplies_its_halves():
    """M 256, N 16: each CTA has 128 rows of A and 8 of B, and gets its rows of D."""
    a, b = RNG.integers(-8, 9, (2, M, K)), RNG.integers(-8, 9, (2, 8, K))
    store = STORE.replace("add.s64 %rd21, %rd1, %rd20;", "add.s64 %rd21, %rd1, %rd20; mul.wide.u32 %rd22, %r8, 8192; "
                          "add.s64 %rd21, %rd21, %rd22;")  # fmt: skip
    body = (
        "mov.u32 %r8, %cluster_ctarank; mul.wide.u32 %rd23, %r8, 6144; add.s64 %rd0, %rd0, %rd23;\n"
        + begin(group=2)
        + "setp.eq.u32 %p2, %r8, 0; and.pred %p0, %p0, %p2; mov.b16 %rs1, 3;\n"
        + multiply(m=256, n=16, rows=M, group=2)
        + "@%p0 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r2], %rs1;\n"
        + WAIT
        + LOAD
        + store
        + "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
        + "@%p1 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r4, 32;\n"
    )
    images = np.stack([image(a[i], b[i]) for i in range(2)])
    for schedule in SCHEDULES:
        out = np.zeros((2, 16, 128), np.float32)
        found = run(body, images, out, header=HEADER, smem=8192, block=128, grid=2, cluster=2, schedule=schedule)
        assert found.kinds == set(), found.texts
        for i in range(2):
            assert np.array_equal(found.arrays[1][i].T, a[i] @ b.reshape(16, K).T), schedule


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.mark.parametrize("block", [16, 32])
def test_blocks_have_factors(block):
    """K is 64 codes of 4 bits; factors of blocks are copied from shared memory to columns 32 and 36."""
    codes = [RNG.integers(0, 16, (rows, 64)) for rows in (M, N)]
    if block == 16:
        factor_codes = [RNG.integers(0x28, 0x48, (rows, 4)).astype(np.uint8) for rows in (M, N)]
        factors = [x.view(ml_dtypes.float8_e4m3fn).astype(float) for x in factor_codes]
    else:
        factor_codes = [RNG.integers(125, 130, (rows, 2)).astype(np.uint8) for rows in (M, N)]
        factors = [2.0 ** (x.astype(float) - 127) for x in factor_codes]
    content = np.zeros(6144, np.uint8)
    for matrix, start in zip(codes, (0, 4096), strict=True):
        put(content, start, matrix[:, ::2] | matrix[:, 1::2] << 4)
    descriptor = 1 << 7 | 1 << 10 | N >> 3 << 17 | M >> 4 << 24 | (1 << 23 if block == 32 else 0)
    a, b = (E2M1[c] * np.repeat(f, block, axis=1) for c, f in zip(codes, factors, strict=True))
    check_blocks(f"mxf4nvf4.block_scale.block{block}", content, factor_codes, descriptor, a @ b.T)


def test_elements_of_4_bits_beside_others_are_padded_to_bytes():
    """A has 32 e4m3 a row, B 32 e2m1: 16 in the first 8 of 16 bytes, of which the others are of no value."""
    wide, codes = RNG.integers(0, 0x50, (M, 32)).astype(np.uint8), RNG.integers(0, 16, (N, 32))
    factor_codes = [RNG.integers(125, 130, (rows, 1)).astype(np.uint8) for rows in (M, N)]
    content = np.full(6144, 0xFF, np.uint8)
    put(content, 0, wide)
    padded = np.full((N, 32), 0x7F, np.uint8)
    for row, part, i in np.ndindex(N, 2, 8):
        first, second = codes[row, 16 * part + 2 * i], codes[row, 16 * part + 2 * i + 1]
        padded[row, 16 * part + i] = first | second << 4
    put(content, 4096, padded)
    descriptor = 5 << 10 | N >> 3 << 17 | 1 << 23 | M >> 4 << 24
    factors = [2.0 ** (x.astype(float) - 127) for x in factor_codes]
    a, b = wide.view(ml_dtypes.float8_e4m3fn).astype(float) * factors[0], E2M1[codes] * factors[1]
    check_blocks("mxf8f6f4.block_scale", content, factor_codes, descriptor, a @ b.T)


def put(content, start, matrix):
    """Put the bytes of a K-major operand without a swizzle to shared memory: 32 a row."""
    layout = Layout(((8, len(matrix) // 8), (16, 2)), ((16, 256), (1, 128)))
    for index, x in np.ndenumerate(matrix):
        content[start + layout(*index)] = x


def check_blocks(kind, content, factor_codes, descriptor, expected):
    """Multiply once by operands and factors in shared memory, under every schedule."""
    for matrix, start in zip(factor_codes, (4608, 5120), strict=True):
        for r, row in enumerate(matrix):
            content[start + 16 * (r % 32) + 4 * (r // 32) : start + 16 * (r % 32) + 4 * (r // 32) + len(row)] = row
    copy = "@%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r{0}], %rd{1};\n"
    body = (
        begin(columns=64)
        + "add.s64 %rd11, %rd10, 256; add.s64 %rd12, %rd10, 288; add.s64 %rd13, %rd10, 320;\n"
        + f"and.b64 %rd14, %rd12, 0x3fff; or.b64 %rd14, %rd14, {128 >> 4 << 32 | 1 << 46};\n"
        + f"and.b64 %rd15, %rd13, 0x3fff; or.b64 %rd15, %rd15, {128 >> 4 << 32 | 1 << 46};\n"
        + "add.u32 %r10, %r4, 32; add.u32 %r11, %r4, 36;\n"
        + copy.format(10, 14)
        + copy.format(11, 15)
        + f"mov.u32 %r6, {descriptor}; setp.ne.b32 %p5, 0, 0;\n"
        + f"@%p0 tcgen05.mma.cta_group::1.kind::{kind}.collector::a::discard "
        + "[%r4], %rd10, %rd11, %r6, [%r10], [%r11], %p5;\n"
        + COMMIT
        + WAIT
        + LOAD
        + STORE
        + FREE.replace(" 32;", " 64;")
    )
    for schedule in SCHEDULES:
        out = np.zeros((16, 128), np.float32)
        found = run(body, content, out, header=HEADER, smem=8192, block=128, schedule=schedule)
        assert found.kinds == set(), found.texts
        assert np.array_equal(found.arrays[1].T, expected.astype(np.float32)), schedule


def test_a_may_be_in_tensor_memory():
    """A row of A is a lane, and a column has two elements along k."""
    words = np.ascontiguousarray(A.astype(ml_dtypes.bfloat16)).view(np.uint32).reshape(M, K // 2)
    registers = [f"%r{14 + i}" for i in range(8)]
    body = (
        begin(columns=64)
        + "mul.wide.u32 %rd20, %r0, 4; add.s64 %rd21, %rd2, %rd20;\n"
        + "".join(f"ld.global.b32 {x}, [%rd21+{512 * i}];\n" for i, x in enumerate(registers))
        + "and.b32 %r7, %r0, 0xffffffe0; shl.b32 %r7, %r7, 16; add.u32 %r7, %r7, %r4; add.u32 %r7, %r7, 32;\n"
        + f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r7], {{{', '.join(registers)}}};\n"
        + "tcgen05.wait::st.sync.aligned; BARRIER\nadd.u32 %r8, %r4, 32;\n"
        + multiply().replace("[%r4], %rd10,", "[%r4], [%r8],")
        + COMMIT
        + WAIT
        + LOAD
        + STORE
        + FREE.replace(" 32;", " 64;")
    )
    arrays = image(A, B), np.zeros((16, 128), np.float32), np.ascontiguousarray(words.T)
    found = run(body.replace("BARRIER", "bar.sync 0;"), *arrays, header=HEADER, smem=8192, block=128)
    assert found.kinds == set(), found.texts
    assert np.array_equal(found.arrays[1].T, A @ B.T)
    without = run(body.replace("BARRIER", ""), *arrays, header=HEADER, smem=8192, block=128)
    assert without.kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ, FindingKind.UNINITIALISED}
