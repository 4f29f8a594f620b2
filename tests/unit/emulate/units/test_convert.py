from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.unit.emulate.numbers import (
    FORMATS,
    bits_of_float,
    clamped,
    float_edges,
    flushed,
    infinity,
    integer,
    integer_edges,
    is_nan,
    is_negative,
    narrowed,
    rounded,
    same,
    value,
    width,
    wrapped,
)
from tests.unit.emulate.snippets import Operand, compute, run

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
NAN16 = 0x7FFF


def floats(kind, count=200):
    """Edges, ties of half a unit, and random bits."""
    draw = random.Random(7)
    found = [*float_edges(kind), *(draw.getrandbits(sum(FORMATS[kind]) + 1) for _ in range(count))]
    points = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, -0.49, 127.5, 128.0, -128.5, 255.5, 256.0, 32767.5, 65535.4,
              2.0**31, 2.0**31 - 1, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30]  # fmt: skip
    return found + [rounded(Fraction(x), kind) for x in points]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrow_floats_are_widened_exactly(kind):
    every = list(range(0, 2**16, 61)) + float_edges(kind)
    found = compute(f"cvt.f32.{kind}", "f32", Operand(kind, every))
    for x, got in zip(every, found, strict=True):
        assert same(got, narrowed(x, kind, "f32"), "f32") if kind == "bf16" else got == narrowed(x, kind, "f32")


def test_float64_and_float32():
    a = floats("f32")
    found = compute("cvt.f64.f32", "f64", Operand("f32", a))
    assert all(same(got, narrowed(x, "f32", "f64"), "f64") for x, got in zip(a, found, strict=True))
    b = floats("f64") + [narrowed(x, "f32", "f64") | 1 << 28 for x in floats("f32", 50)]
    found = compute("cvt.rn.f32.f64", "f32", Operand("f64", b))
    assert all(same(got, narrowed(x, "f64", "f32"), "f32") for x, got in zip(b, found, strict=True))


def ties(kind):
    """float32 in the middle between two numbers of 16 bits, and one step beside it."""
    shift = 23 - FORMATS[kind][0]
    near_one = [0x3F800000 | i << shift | 1 << (shift - 1) for i in range(4)]
    return [x + d for x in near_one for d in (-1, 0, 1)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float32_is_rounded_to_16_bits(kind):
    a = floats("f32", 400) + ties(kind) + [0x33000000, 0x33000001, 0x477FEFFF, 0x477FF000, 0x7F7F7FFF, 0x7F7F8000]
    found = compute(f"cvt.rn.{kind}.f32", kind, Operand("f32", a))
    assert found == [narrowed(x, "f32", kind) for x in a]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_relu_makes_negative_numbers_positive_zero_and_keeps_nan(kind):
    a = [*floats("f32", 100), 0xFFC00000]
    expected = [0 if is_negative(x, "f32") and not is_nan(x, "f32") else narrowed(x, "f32", kind) for x in a]
    assert compute(f"cvt.rn.relu.{kind}.f32", kind, Operand("f32", a)) == expected


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_of_two_the_first_becomes_the_upper_half(kind, relu):
    a, b = floats("f32", 100), floats("f32", 100)[::-1]

    def half(x):
        return 0 if relu and is_negative(x, "f32") and not is_nan(x, "f32") else narrowed(x, "f32", kind)

    found = compute(f"cvt.rn{relu}.{kind}x2.f32", "b32", Operand("f32", a), Operand("f32", b))
    assert found == [half(x) << 16 | half(y) for x, y in zip(a, b, strict=True)]


FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def fp8_values(name):
    """All finite numbers of a type, by their bits."""
    with np.errstate(all="ignore"):
        values = np.arange(256, dtype=np.uint8).view(FP8[name]).astype(np.float64)
    return {i: float(x) for i, x in enumerate(values) if math.isfinite(x)}


def nearest_fp8(bits, name):
    """Choose the nearest finite number, of two the one with an even last bit; NaN is 0x7f."""
    if is_nan(bits, "f32"):
        return 0x7F
    sign = 0x80 if is_negative(bits, "f32") else 0
    positive = {i: x for i, x in fp8_values(name).items() if i < 0x80}
    number = abs(value(bits, "f32"))
    if number == math.inf:
        return max(positive, key=positive.__getitem__) | sign
    return min(positive, key=lambda i: (abs(number - Fraction(positive[i])), i & 1)) | sign


@pytest.mark.parametrize("name", FP8)
def test_float32_is_rounded_and_saturated_to_8_bits(name):
    numbers = sorted(x for x in fp8_values(name).values() if x >= 0)
    middles = [bits_of_float((x + y) / 2) for x, y in itertools.pairwise(numbers)]
    a = [*floats("f32", 60), *middles[::3], *(x + 1 for x in middles[::5]), *(x - 1 for x in middles[1::5])]
    a += [bits_of_float(x) for x in (464.0, 465.0, -448.5, 61440.0, 65536.0)]
    b = a[::-1]
    found = compute(f"cvt.rn.satfinite.{name}x2.f32", "b16", Operand("f32", a), Operand("f32", b))
    for x, y, got in zip(a, b, found, strict=True):
        assert got == nearest_fp8(x, name) << 8 | nearest_fp8(y, name), f"{x:#x}, {y:#x}: {got:#x}"


@pytest.mark.parametrize("name", FP8)
def test_8_bits_are_widened_to_float16_exactly(name):
    pairs = [i | (255 - i) << 8 for i in range(256)]
    found = compute(f"cvt.rn.f16x2.{name}x2", "b32", Operand("b16", pairs))
    values = fp8_values(name)
    for pair, got in zip(pairs, found, strict=True):
        for byte, half in ((pair & 0xFF, got & 0xFFFF), (pair >> 8, got >> 16)):
            if byte in values:
                negative = bool(byte & 0x80)
                assert half == rounded(Fraction(values[byte]), "f16", negative_zero=negative)
            elif name == "e5m2" and byte & 0x7F == 0x7C:
                assert half == infinity("f16", negative=bool(byte & 0x80))
            else:
                assert half == NAN16


def test_tf32_has_ties_away_from_zero():
    a = [*floats("f32", 100), 0x3F801000, 0x3F800FFF, 0x3F801001, 0xBF801000, 0x7F7FFFFF, 0x7F7FEFFF, 1, 0x1000, 0xFFF]
    expected = []
    for x in a:
        if is_nan(x, "f32") or x & 0x7FFFFFFF == infinity("f32"):
            expected.append(x & ~0x1FFF)
        else:
            kept, rest = x & ~0x1FFF, x & 0x1FFF
            expected.append(kept + (0x2000 if rest >= 0x1000 else 0))
    assert compute("cvt.rna.tf32.f32", "b32", Operand("f32", a)) == expected


def test_saturation_clamps_to_one_and_nan_to_zero():
    a = floats("f32", 60)

    def clamp(x):
        number = value(x, "f32")
        return 0 if is_nan(x, "f32") or number <= 0 else min(x, 0x3F800000)

    assert compute("cvt.sat.f32.f32", "f32", Operand("f32", a)) == [clamp(x) for x in a]
    assert compute("cvt.ftz.sat.f32.f32", "f32", Operand("f32", a)) == [clamp(flushed(x)) for x in a]


WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
"""Python's round() has ties to even."""


def to_integer(bits, source, kind, mode):
    """PTX ISA, cvt: NaN is 0, or the bits 1000... where source or result has 64 bits."""
    number = value(bits, source)
    if is_nan(bits, source):
        return 1 << (width(kind) - 1) if source == "f64" or width(kind) == 64 else 0
    if isinstance(number, float):
        return clamped(2**70 if number > 0 else -(2**70), kind)
    return clamped(WHOLE[mode](number), kind)


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("mode", WHOLE)
def test_floats_become_whole_numbers_of_their_range(mode, kind, source):
    a = floats(source, 40)
    register = "b16" if width(kind) < 32 else f"b{width(kind)}"
    found = compute(f"cvt.{mode}.{kind}.{source}", register, Operand(source, a))
    for x, got in zip(a, found, strict=True):
        want = wrapped(integer(to_integer(x, source, kind, mode), kind), register)
        assert got == want, f"cvt.{mode}.{kind}.{source} of {x:#x}: {got:#x}, expected {want:#x}"


def test_subnormal_numbers_are_flushed_before_they_are_rounded():
    a = [1, 0x80000001, 0x007FFFFF, 0x3F000000]
    assert compute("cvt.rpi.s32.f32", "s32", Operand("f32", a)) == [1, 0, 1, 1]
    assert compute("cvt.rpi.ftz.s32.f32", "s32", Operand("f32", a)) == [0, 0, 0, 1]
    assert compute("cvt.rmi.ftz.s32.f32", "s32", Operand("f32", a)) == [0, 0, 0, 0]
    one = 0x3F800000
    assert compute("cvt.rpi.f32.f32", "f32", Operand("f32", a)) == [one, 0x80000000, one, one]
    assert compute("cvt.rpi.ftz.f32.f32", "f32", Operand("f32", a)) == [0, 0x80000000, 0, one]


@pytest.mark.parametrize("mode", WHOLE)
def test_floats_become_whole_floats(mode):
    a = floats("f32", 100)
    found = compute(f"cvt.{mode}.f32.f32", "f32", Operand("f32", a))
    for x, got in zip(a, found, strict=True):
        number = value(x, "f32")
        if isinstance(number, float):
            assert same(got, x, "f32")
        else:
            assert got == rounded(Fraction(WHOLE[mode](number)), "f32", negative_zero=is_negative(x, "f32"))


@pytest.mark.parametrize("target", ["f32", "f64"])
@pytest.mark.parametrize("kind", INTEGERS)
def test_whole_numbers_become_floats(kind, target):
    draw = random.Random(9)
    a = integer_edges(kind) + [draw.getrandbits(width(kind)) for _ in range(60)]
    if width(kind) >= 32:  # ties of float32
        a += [(1 << 24) + 1, (1 << 24) + 3, (1 << 25) + 2, (1 << 25) + 6, (1 << 25) + 3]
    register = "b16" if width(kind) < 32 else f"b{width(kind)}"
    found = compute(f"cvt.rn.{target}.{kind}", target, Operand(register, a))
    assert found == [rounded(Fraction(integer(x, kind)), target) for x in a]


def test_only_the_low_bits_of_a_wider_register_are_converted():
    assert compute("cvt.rn.f32.u8", "f32", Operand("b16", [0x1FF])) == [bits_of_float(255)]
    assert compute("cvt.rn.f32.s8", "f32", Operand("b16", [0x1FF])) == [bits_of_float(-1)]
    assert compute("cvt.s32.s8", "s32", Operand("b32", [0x17F, 0x180])) == [127, 0xFFFFFF80]


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_whole_numbers_are_rounded_up(kind):
    a = [0, 1, (1 << 24) + 1, (1 << 25) + 1, (1 << 25) + 3, (1 << 32) - 1, *integer_edges(kind)]
    found = compute(f"cvt.rp.f32.{kind}", "f32", Operand(kind, a))
    assert found == [rounded(Fraction(x), "f32", "rp") for x in a]


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_whole_numbers_are_cut_and_extended_by_their_signs(kind, source):
    """A wider register gets the result extended by the sign of its own type. PTX ISA, cvt."""
    a = integer_edges(source)
    from_register = "b16" if width(source) < 32 else f"b{width(source)}"
    for to_register in ("b16", "b32", "b64"):
        if width(to_register) >= width(kind):
            found = compute(f"cvt.{kind}.{source}", to_register, Operand(from_register, a))
            assert found == [wrapped(integer(wrapped(integer(x, source), kind), kind), to_register) for x in a]


def test_generic_addresses_lead_to_where_they_came_from():
    body = """
    .shared .align 8 .b8 tile[256];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2;
    mov.u32 %r3, tile; add.u32 %r4, %r3, %r2;
    cvt.u64.u32 %rd2, %r4; cvta.shared.u64 %rd3, %rd2;
    st.u32 [%rd3], %r1;
    ld.shared.u32 %r5, [%r4];
    cvta.to.shared.u64 %rd4, %rd3; cvt.u32.u64 %r6, %rd4;
    ld.shared.u32 %r7, [%r6];
    cvta.to.global.u64 %rd5, %rd0; cvta.global.u64 %rd6, %rd5;
    mad.wide.u32 %rd7, %r1, 4, %rd6;
    add.u32 %r8, %r5, %r7;
    st.u32 [%rd7], %r8;
    ld.global.u32 %r9, [%rd7]; add.u32 %r9, %r9, 1; st.global.u32 [%rd7], %r9;
    """
    outcome = run(body, np.zeros(32, np.uint32))
    assert list(outcome.arrays[0]) == [2 * i + 1 for i in range(32)]
    assert not outcome.kinds


def test_mapa_gives_the_same_place_of_another_cta():
    body = """
    .shared .align 8 .b8 tile[16];
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, tile; add.u32 %r3, %r1, 7;
    st.shared.u32 [%r2+4], %r3;
    barrier.cluster.arrive; barrier.cluster.wait;
    add.u32 %r4, %r1, 1; and.b32 %r4, %r4, 3;
    mapa.shared::cluster.u32 %r5, %r2, %r4;
    ld.shared::cluster.u32 %r6, [%r5+4];
    mov.u32 %r7, %ctaid.x; mad.wide.u32 %rd2, %r7, 4, %rd0;
    st.global.u32 [%rd2], %r6;
    barrier.cluster.arrive; barrier.cluster.wait;
    """
    outcome = run(body, np.zeros(4, np.uint32), grid=4, cluster=4)
    assert list(outcome.arrays[0]) == [8, 9, 10, 7]
    assert not outcome.kinds


def test_float32_is_rounded_to_pairs_of_4_bits_four_of_which_are_a_word():
    """The result is a register of 8 bits, as CuTe DSL declares it in a scope of its own; ties go to even codes."""
    numbers = [0.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e30, np.inf, np.nan, 1e-30, 0.26, 4.99]
    codes = [0, 0, 2, 2, 4, 4, 6, 6, 7, 7, 7, 7, 7, 0, 1, 6]
    values = np.array([*numbers, *(-x for x in numbers)], np.float32)
    wanted = np.array([*codes, *(x | 8 for x in codes)], np.uint32)
    wanted[28] = 7  # -NaN, whose sign is dropped
    body = """
    mov.u32 %r1, %tid.x; mul.wide.u32 %rd5, %r1, 4;
    add.s64 %rd6, %rd0, %rd5; add.s64 %rd7, %rd1, %rd5; add.s64 %rd8, %rd2, %rd5;
    ld.global.f32 %f1, [%rd7]; ld.global.f32 %f2, [%rd8];
    {
    .reg .b8 b0; .reg .b8 b1;
    cvt.rn.satfinite.e2m1x2.f32 b0, %f1, %f2;
    cvt.rn.satfinite.e2m1x2.f32 b1, %f2, %f1;
    mov.b32 %r2, {b0, b1, b1, b0};
    }
    st.global.b32 [%rd6], %r2;
    """
    other, of_other = np.roll(values, 3), np.roll(wanted, 3)
    found, *_ = run(body, np.zeros(32, np.uint32), values, other).arrays
    first, second = wanted << 4 | of_other, of_other << 4 | wanted
    assert np.array_equal(found, first | second << 8 | second << 16 | first << 24)
