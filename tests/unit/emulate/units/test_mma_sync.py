"""Products of a warp, and matrices that go through shared memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind, UnknownInstructionError
from tests.unit.emulate.snippets import run
from tests.unit.emulate.units.asynchronous import FIRST, HEADER

RNG = np.random.default_rng(7)
DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "s8": np.int8,
    "tf32": np.float32,
}


def words_of(matrix):
    """View rows of k as 32-bit words."""
    return np.ascontiguousarray(matrix).view(np.uint8).reshape(matrix.shape[0], -1).view(np.uint32)


def by_thread(words, rows):
    """Order words as the specification's figures do: thread 4 g + t has row g (and g + 8), words t (and t + 4)."""
    places = [(r, 4 * half) for half in range(words.shape[1] // 4) for r in range(0, rows, 8)]
    return [[words[r + t // 4, k + t % 4] for t in range(32)] for r, k in places]


@pytest.mark.parametrize(
    ("form", "k", "kind"),
    [
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 16, "bf16"),
        ("m16n8k8.row.col.f32.f16.f16.f32", 8, "f16"),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 8, "tf32"),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, "e4m3"),
        ("m16n8k32.row.col.s32.s8.s8.s32", 32, "s8"),
    ],
)
def test_products_of_whole_numbers_are_exact(form, k, kind):
    a, b = (RNG.integers(-8, 9, (x, k)).astype(DTYPES[kind]) for x in (16, 8))
    dtype = np.int32 if kind == "s8" else np.float32
    c = RNG.integers(-100, 100, (16, 8)).astype(dtype)
    a_words, b_words = by_thread(words_of(a), 16), by_thread(words_of(b), 8)
    c_words = [[c.view(np.uint32)[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2] for t in range(32)] for i in range(4)]
    array = np.array([*a_words, *b_words, *c_words], np.uint32)
    lines = ["mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;"]
    lines += [f"ld.global.b32 %r{1 + i}, [%rd3+{128 * i}];" for i in range(len(array))]
    names = [f"%r{1 + i}" for i in range(len(array))]
    num_a, num_b = len(a_words), len(b_words)
    groups = names[:num_a], names[num_a : num_a + num_b], names[num_a + num_b :]
    lines.append(f"mma.sync.aligned.{form} {{%r30, %r31, %r32, %r33}}, " + ", ".join(
        "{" + ", ".join(x) + "}" for x in groups) + ";")  # fmt: skip
    lines += [f"st.global.b32 [%rd4+{128 * i}], %r{30 + i};" for i in range(4)]
    out = np.zeros((4, 32), np.uint32)
    found = run("\n".join(lines), array, out)
    assert found.report is not None, found.fault
    result = np.zeros((16, 8), dtype)
    for i in range(4):
        for t in range(32):
            result[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2] = found.arrays[1][i].view(dtype)[t]
    assert np.array_equal(result, a.astype(np.float64) @ b.astype(np.float64).T + c)


SCALED = {
    "mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3": (4, (0, 1), (0, 2)),
    "mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0": (2, (2, 0), (0, 3)),
    "mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0": (1, (3, 1), (1, 0)),
    "mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0": (1, (0, 0), (2, 1)),
}
"""Forms with the factors of a row, and the selectors of A and of B: byte-id and thread-id."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Source: OCP Microscaling Formats Specification 1.0, section 5.3.3."""


def drawn(kind, rows, k, *, is_in_bytes):
    """Draw an operand's rows; return the bytes that an instruction has of them, and their values."""
    if kind == "e4m3":
        values = RNG.integers(-8, 9, (rows, k)).astype(DTYPES[kind])
        return values.view(np.uint8), values.astype(np.float64)
    codes = RNG.integers(0, 16, (rows, k), np.uint8)
    values = np.where(codes >= 8, -1, 1) * E2M1[codes & 7]
    return (codes << 2 if is_in_bytes else codes[:, ::2] | codes[:, 1::2] << 4), values


def words_of_factors(kind, lanes, num_factors, byte):
    """Draw the factors of rows; return the words of 32 threads, NaN wherever the selector is not, and the values."""
    dtype = ml_dtypes.float8_e4m3fn if kind == "ue4m3" else ml_dtypes.float8_e8m0fnu
    values = np.ldexp(1.0, RNG.integers(-3, 4, (len(lanes), num_factors)))
    words = np.full((32, 4), 0x7F if kind == "ue4m3" else 0xFF, np.uint8)
    for row, lane in enumerate(lanes):
        words[lane, byte : byte + num_factors] = values[row].astype(dtype).view(np.uint8)
    return words.view(np.uint32)[:, 0], values


def multiply_scaled(form, selectors, arrays):
    """Run an instruction on the words of threads, and return the 16 x 8 floats."""
    lines = ["mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;"]
    lines += [f"ld.global.b32 %r{1 + i}, [%rd3+{128 * i}];" for i in range(12)]
    a, b, c = ("{" + ", ".join(f"%r{1 + i}" for i in x) + "}" for x in (range(4), range(4, 6), range(6, 10)))
    of_a, of_b = ("{" + f"{byte}, {thread}" + "}" for byte, thread in selectors)
    lines.append(
        f"mma.sync.aligned.kind::{form} {{%r30, %r31, %r32, %r33}}, {a}, {b}, {c}, %r11, {of_a}, %r12, {of_b};"
    )
    lines += [f"st.global.b32 [%rd4+{128 * i}], %r{30 + i};" for i in range(4)]
    found = run("\n".join(lines), arrays, np.zeros((4, 32), np.uint32))
    assert found.report is not None, found.fault
    result = np.zeros((16, 8), np.float32)
    for i in range(4):
        for t in range(32):
            result[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2] = found.arrays[1][i].view(np.float32)[t]
    return result


@pytest.mark.parametrize("form", SCALED, ids=lambda x: x.split(".")[0] + "_" + x.split(".", 6)[-1])
def test_products_of_blocks_are_multiplied_by_both_factors(form):
    """Row m of A has its factors in thread 4 (m mod 8) + m / 8 of the pair, column n of B in thread 4 n of the quad."""
    num_factors, (byte_a, thread_a), (byte_b, thread_b) = SCALED[form]
    *_, kind_a, kind_b, _, factor = form.split(".")
    k, is_in_bytes = (32, True) if num_factors == 1 else (64, False)
    a, values_a = drawn(kind_a, 16, k, is_in_bytes=is_in_bytes)
    b, values_b = drawn(kind_b, 8, k, is_in_bytes=is_in_bytes)
    lanes_a, lanes_b = [4 * (m % 8) + m // 8 + 2 * thread_a for m in range(16)], [4 * n + thread_b for n in range(8)]
    of_a, factors_a = words_of_factors(factor, lanes_a, num_factors, byte_a)
    of_b, factors_b = words_of_factors(factor, lanes_b, num_factors, byte_b)
    c = RNG.integers(-100, 100, (16, 8)).astype(np.float32)
    c_words = [[c.view(np.uint32)[t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2] for t in range(32)] for i in range(4)]
    words = [*by_thread(words_of(a), 16), *by_thread(words_of(b), 8), *c_words, of_a, of_b]
    found = multiply_scaled(form, ((byte_a, thread_a), (byte_b, thread_b)), np.array(words, np.uint32))
    expected = c.astype(np.float64)
    for m in range(16):
        for n in range(8):
            for i in range(k):
                block = i * num_factors // k
                scales = factors_a[m, block] * factors_b[n, block]
                expected[m, n] += values_a[m, i] * values_b[n, i] * scales
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(("form", "selectors"), [(0, ((2, 0), (0, 0))), (1, ((0, 0), (1, 0))), (2, ((0, 2), (0, 0)))])
def test_a_selector_that_the_instruction_has_not_is_refused(form, selectors):
    with pytest.raises(UnknownInstructionError, match="selects no factors; expected a constant byte-id of"):
        multiply_scaled(list(SCALED)[form], selectors, np.zeros((12, 32), np.uint32))


def move(body):
    """Run a body that has threads' words in %r10 to %r13, row addresses in %r5; return what %r20 to %r23 have then."""
    source = np.arange(4 * 32, dtype=np.uint32).reshape(4, 32) * 0x01000193
    lines = [FIRST, "mul.wide.u32 %rd2, %r0, 4; add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;",
             "mul.lo.u32 %r4, %r0, 16; add.u32 %r5, %r1, %r4;"]  # fmt: skip
    lines += [f"ld.global.b32 %r{10 + i}, [%rd3+{128 * i}];" for i in range(4)]
    lines.append(body)
    lines += [f"st.global.b32 [%rd4+{128 * i}], %r{20 + i};" for i in range(4)]
    found = run("\n".join(lines), source, np.zeros((4, 32), np.uint32), header=HEADER, smem=1024)
    return source, found


STORED, LOADED = "{%r10, %r11, %r12, %r13}", "{%r20, %r21, %r22, %r23}"


def test_matrices_come_back_from_shared_memory():
    body = (
        f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r5], {STORED};\n"
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {LOADED}, [%r5];\n"
    )
    source, found = move(body)
    assert found.kinds == set()
    assert np.array_equal(found.arrays[1], source)


def test_matrices_are_transposed():
    body = (
        f"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r5], {STORED};\n"
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {LOADED}, [%r5];\n"
    )
    source, found = move(body)
    for i in range(4):
        before, after = (x.view(np.uint16).reshape(8, 8) for x in (source[i], found.arrays[1][i]))
        assert np.array_equal(after, before.T)


def test_bytes_are_stored_transposed():
    """Thread 4 g + t, byte v: row 2 t + v % 2, byte g + 8 (v / 2), which is what a 16x8 fragment of bytes is."""
    body = f"stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r5], {STORED};\n"
    body += "\n".join(f"ld.shared.b32 %r{20 + i}, [%r5+{4 * i}];" for i in range(4))
    source, found = move(body)
    rows = found.arrays[1].T.copy().view(np.uint8).reshape(4, 8, 16)  # thread 8 i + r read row r of matrix i
    for i in range(4):
        for t in range(32):
            for v in range(4):
                byte = source[i].view(np.uint8)[4 * t + v]
                assert rows[i, 2 * (t % 4) + v % 2, t // 4 + 8 * (v // 2)] == byte


def test_what_is_missing_is_found():
    body = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {LOADED}, [%r5];\n"
    assert move(body)[1].kinds == {FindingKind.UNINITIALISED}
    assert move(body.replace("[%r5]", "[%r5+8]"))[1].fault.kind is FaultKind.ALIGNMENT
    assert move("@%p0 " + body)[1].fault.kind is FaultKind.DIVERGENCE
