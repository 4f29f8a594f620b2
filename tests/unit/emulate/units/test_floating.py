from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from tests.unit.emulate.exact import (
    exact_fma,
    exact_product,
    exact_sum,
    extreme,
    flushed_fma,
    quotient,
)
from tests.unit.emulate.numbers import (
    FORMATS,
    bits_of_double,
    bits_of_float,
    float_edges,
    flushed,
    infinity,
    is_nan,
    narrowed,
    rounded,
    same,
    value,
)
from tests.unit.emulate.snippets import Operand, compute

NAN = 0x7FFFFFFF


def drawn(kind, count, seed=3):
    """Edges, and numbers whose exponents are near each other, so that sums round and cancel."""
    draw = random.Random(seed)
    fraction, exponent = FORMATS[kind]
    bias = (1 << (exponent - 1)) - 1
    edges = float_edges(kind)

    def near():
        exponent_bits = (bias + draw.randint(-fraction - 2, fraction + 2)) << fraction
        return draw.getrandbits(fraction) | exponent_bits | draw.getrandbits(1) << (fraction + exponent)

    return [draw.choice(edges) if draw.random() < 0.3 else near() for _ in range(count)]


def check(form, kind, expected, *columns, to=None):
    found = compute(form, to or kind, *(Operand(kind, x) for x in columns))
    for row, want, got in zip(zip(*columns, strict=True), expected, found, strict=True):
        text = f"{form} of {', '.join(f'{x:#x}' for x in row)}: {got:#x}, expected {want:#x}"
        assert same(got, want, to or kind), text


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_sums_and_products_are_rounded_to_nearest_even(kind):
    a, b = drawn(kind, 320), drawn(kind, 320, seed=4)
    minus = 1 << sum(FORMATS[kind])
    check(f"add.{kind}", kind, [exact_sum(x, y, kind) for x, y in zip(a, b, strict=True)], a, b)
    check(f"sub.rn.{kind}", kind, [exact_sum(x, y ^ minus, kind) for x, y in zip(a, b, strict=True)], a, b)
    check(f"mul.rn.{kind}", kind, [exact_product(x, y, kind) for x, y in zip(a, b, strict=True)], a, b)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_the_lesser_and_the_greater(kind, name):
    a, b = zip(*itertools.product(float_edges(kind), repeat=2), strict=True)
    expected = [extreme(x, y, kind, name) for x, y in zip(a, b, strict=True)]
    check(f"{name}.{kind}", kind, expected, a, b)


@pytest.mark.parametrize("name", ["min", "max"])
def test_the_lesser_and_the_greater_or_nan(name):
    a, b = zip(*itertools.product(float_edges("f32"), repeat=2), strict=True)
    rows = list(zip(a, b, strict=True))
    check(f"{name}.NaN.f32", "f32", [extreme(x, y, "f32", name, keeps_nan=True) for x, y in rows], a, b)
    expected = [extreme(flushed(x), flushed(y), "f32", name, keeps_nan=True) for x, y in rows]
    check(f"{name}.ftz.NaN.f32", "f32", expected, a, b)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_zeros_have_signs(kind):
    """Of +0 and -0 the greater is +0, whatever their order."""
    minus = 1 << sum(FORMATS[kind])
    check(f"max.{kind}", kind, [0, 0], [0, minus], [minus, 0])
    check(f"min.{kind}", kind, [minus, minus], [0, minus], [minus, 0])
    check(f"add.{kind}", kind, [0, minus, 0], [0, minus, minus], [minus, minus, 0])


def test_ftz_flushes_operands_and_results():
    a, b = zip(*itertools.product(float_edges("f32"), repeat=2), strict=True)
    rows = [(flushed(x), flushed(y)) for x, y in zip(a, b, strict=True)]
    check("add.ftz.f32", "f32", [flushed(exact_sum(x, y, "f32")) for x, y in rows], a, b)
    check("mul.rn.ftz.f32", "f32", [flushed_fma(x, y, (x ^ y) & 0x80000000, "rn") for x, y in rows], a, b)
    check("min.ftz.f32", "f32", [extreme(x, y, "f32", "min") for x, y in rows], a, b)
    check("max.ftz.f32", "f32", [extreme(x, y, "f32", "max") for x, y in rows], a, b)


def test_signs_are_changed_and_cleared_and_ftz_flushes():
    a = float_edges("f32")
    check("neg.f32", "f32", [x ^ 0x80000000 for x in a], a)
    check("abs.f32", "f32", [x & 0x7FFFFFFF for x in a], a)
    check("neg.ftz.f32", "f32", [flushed(x) ^ 0x80000000 for x in a], a)
    check("abs.ftz.f32", "f32", [flushed(x) & 0x7FFFFFFF for x in a], a)


def test_copysign_gives_the_second_operand_the_sign_of_the_first():
    rows = list(itertools.product([0, 0x80000000, 0xC0000000, 0x3F800000], [0x3FC00000, 0xBFC00000, 0, 0x80000000]))
    a, b = zip(*rows, strict=True)
    assert compute("copysign.f32", "f32", Operand("f32", a), Operand("f32", b)) == [
        (x & 0x80000000) | (y & 0x7FFFFFFF) for x, y in rows
    ]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_is_rounded_once_to_its_side(mode):
    a, b, c = (drawn("f32", 384, seed) for seed in (11, 12, 13))
    # A product far below the sum's last bit still decides: ties, and results beside a whole step.
    tiny, one, half = 0x0C000000, 0x3F800000, 0x33800000  # 2^-103, 1, 2^-24: half a step of 1
    a += [tiny, tiny | 0x80000000, one, one, 0x3F800001, 0x7F7FFFFF, tiny, one, 0xBF800000, 0x80000000]
    b += [one, one, half, half, 0x3F7FFFFF, 0x7F7FFFFF, tiny, one, one, one]
    c += [one, one, one, 0x3F800001, half, one, one, 0xBF800000, one, 0]
    expected = [exact_fma(x, y, z, "f32", mode) for x, y, z in zip(a, b, c, strict=True)]
    check(f"fma.{mode}.f32", "f32", expected, a, b, c)


def test_a_tie_that_a_product_far_below_breaks():
    """The sum in float64 is a tie, which would be rounded away from what is right."""
    # (1 + 2^-20) (1 - 2^-20) 2^-24 + 1 + 2^-23 lies below the middle by 2^-64.
    a, b, c = bits_of_float((1 + 2.0**-20) * 2.0**-24), bits_of_float(1 - 2.0**-20), bits_of_float(1 + 2.0**-23)
    assert compute("fma.rn.f32", "f32", Operand("f32", [a]), Operand("f32", [b]), Operand("f32", [c])) == [c]
    # The same for float64: (1 + 2^-30) (1 - 2^-30) + 2^53 + 2 lies below the middle by 2^-60.
    rows = [[bits_of_double(x)] for x in (1 + 2.0**-30, 1 - 2.0**-30, 2.0**53 + 2)]
    assert compute("fma.rn.f64", "f64", *(Operand("f64", x) for x in rows)) == [bits_of_double(2.0**53 + 2)]
    # And for 16 bits, whose sum float32 rounds to a tie: 2^-11 (1 + 2^-10) (1 - 2^-10) + 1 + 2^-10.
    for kind, fraction in (("f16", 10), ("bf16", 7)):
        step = Fraction(2) ** -fraction
        numbers = [(1 + step) * step / 2, 1 - step, 1 + step]
        x, y, z = (rounded(n, kind) for n in numbers)
        assert compute(f"fma.rn.{kind}", kind, *(Operand(kind, [n]) for n in (x, y, z))) == [z]


def test_fma_with_ftz():
    a, b, c = (drawn("f32", 256, seed) for seed in (21, 22, 23))
    a += [0x20000000, 0x00800000, 1, 0x00FFFFFF]
    b += [0x1F000000, 0x3F000000, 0x7F000000, 0x3F000000]
    c += [0, 0, 0x3F800000, 0]
    for mode in ("rn", "rz", "rm", "rp"):
        rows = zip(map(flushed, a), map(flushed, b), map(flushed, c), strict=True)
        check(f"fma.{mode}.ftz.f32", "f32", [flushed_fma(*x, mode) for x in rows], a, b, c)


def test_a_result_is_flushed_that_is_less_than_normal_when_rounded_without_a_limit_of_exponents():
    """(1 + 2^-k) (1 - 2^-k) 2^-126: an H100 flushes it for k up to 12, and rounds it to 2^-126 from 13 on."""
    for form in ("mul.rn.ftz.f32", "fma.rn.ftz.f32"):
        a = [bits_of_float((1 + 2.0**-k) * 2.0**-126) for k in range(2, 24)]
        b = [bits_of_float(1 - 2.0**-k) for k in range(2, 24)]
        columns = (a, b, [0] * 22) if form.startswith("fma") else (a, b)
        found = compute(form, "f32", *(Operand("f32", x) for x in columns))
        assert found == [0] * 11 + [0x00800000] * 11


def test_fma_of_float64_is_rounded_once():
    a, b, c = (drawn("f64", 256, seed) for seed in (31, 32, 33))
    check("fma.rn.f64", "f64", [exact_fma(x, y, z, "f64") for x, y, z in zip(a, b, c, strict=True)], a, b, c)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_pairs_of_float32(ftz):
    flush = flushed if ftz else (lambda x: x)
    columns = [drawn("f32", 256, seed) for seed in (41, 42, 43)]
    columns[0] += [1, 0x00800000]
    columns[1] += [0x3F800000, 0x80800001]
    columns[2] += [0, 0x00000001]
    inputs = [[flush(x) for x in column] for column in columns]
    packed = [[x | y << 32 for x, y in zip(c[::2], c[1::2], strict=True)] for c in columns]
    results = {
        "add.rn": [flush(exact_sum(x, y, "f32")) for x, y, _ in zip(*inputs, strict=True)],
        "mul": [flush(exact_product(x, y, "f32")) for x, y, _ in zip(*inputs, strict=True)],
        "fma.rn": [flush(exact_fma(x, y, z, "f32")) for x, y, z in zip(*inputs, strict=True)],
        "sub": [flush(exact_sum(x, y ^ 0x80000000, "f32")) for x, y, _ in zip(*inputs, strict=True)],
    }
    for name, expected in results.items():
        count = 3 if name == "fma.rn" else 2
        found = compute(f"{name}{ftz}.f32x2", "f32x2", *(Operand("f32x2", x) for x in packed[:count]))
        halves = [part for x in found for part in (x & 0xFFFFFFFF, x >> 32)]
        for i, (got, want) in enumerate(zip(halves, expected, strict=True)):
            assert same(got, want, "f32"), f"{name}{ftz}.f32x2 {i}: {got:#x}, expected {want:#x}"


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_precision(kind):
    a, b, c = (drawn(kind, 384, seed) for seed in (51, 52, 53))
    # 1 + half a step, and a product far below that breaks the tie, which float32 cannot hold.
    one = ((1 << (FORMATS[kind][1] - 1)) - 1) << FORMATS[kind][0]
    tiny = 1
    a += [tiny, one + 1]
    b += [one, one + 1]
    c += [one | 1, tiny]
    minus = 1 << sum(FORMATS[kind])
    rows = list(zip(a, b, c, strict=True))
    check(f"add.{kind}", kind, [exact_sum(x, y, kind) for x, y, _ in rows], a, b)
    check(f"sub.rn.{kind}", kind, [exact_sum(x, y ^ minus, kind) for x, y, _ in rows], a, b)
    check(f"mul.{kind}", kind, [exact_product(x, y, kind) for x, y, _ in rows], a, b)
    check(f"fma.rn.{kind}", kind, [exact_fma(x, y, z, kind) for x, y, z in rows], a, b, c)
    check(f"min.{kind}", kind, [extreme(x, y, kind, "min") for x, y, _ in rows], a, b)
    check(f"max.{kind}", kind, [extreme(x, y, kind, "max") for x, y, _ in rows], a, b)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_tie_of_half_precision_that_a_product_far_below_breaks(kind):
    fraction, exponent = FORMATS[kind]
    bias = (1 << (exponent - 1)) - 1
    half_step = (bias - fraction - 1) << fraction  # half a step of one
    small = (bias - 14) << fraction  # 2^-14
    one = bias << fraction
    # one * (1 + step) + half a step would be a tie; a c of half a step and a product of (1 + step)(1 + step) is not.
    a, b, c = [one + 1, one, small], [one + 1, one + 1, small], [half_step, half_step, one]
    expected = [exact_fma(x, y, z, kind) for x, y, z in zip(a, b, c, strict=True)]
    check(f"fma.rn.{kind}", kind, expected, a, b, c)


def test_two_halves_at_once():
    for kind in ("f16", "bf16"):
        a, b, c = (drawn(kind, 128, seed) for seed in (61, 62, 63))
        packed = [[x | y << 16 for x, y in zip(v[::2], v[1::2], strict=True)] for v in (a, b, c)]
        expected = [exact_fma(x, y, z, kind) for x, y, z in zip(a, b, c, strict=True)]
        found = compute(f"fma.rn.{kind}x2", "b32", *(Operand("b32", x) for x in packed))
        halves = [part for x in found for part in (x & 0xFFFF, x >> 16)]
        for got, want in zip(halves, expected, strict=True):
            assert same(got, want, kind)
        greatest = [extreme(x, y, kind, "max") for x, y in zip(a, b, strict=True)]
        found = compute(f"max.{kind}x2", "b32", *(Operand("b32", x) for x in packed[:2]))
        halves = [part for x in found for part in (x & 0xFFFF, x >> 16)]
        for got, want in zip(halves, greatest, strict=True):
            assert same(got, want, kind)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision(kind):
    """A narrow operand and float32. PTX ISA, "Mixed Precision Floating-Point Instructions"."""
    a, b, c = drawn(kind, 256, 71), drawn(kind, 256, 72), drawn("f32", 256, 73)
    widened = [narrowed(x, kind, "f32") for x in a]
    for name, sign in (("add", 0), ("sub", 0x80000000)):
        found = compute(f"{name}.rn.f32.{kind}", "f32", Operand(kind, a), Operand("f32", c))
        for got, x, z in zip(found, widened, c, strict=True):
            assert same(got, exact_sum(x, z ^ sign, "f32"), "f32")
    found = compute(f"fma.rn.f32.{kind}", "f32", Operand(kind, a), Operand(kind, b), Operand("f32", c))
    for got, x, y, z in zip(found, a, b, c, strict=True):
        assert same(got, exact_fma(x, y, z, kind, addend="f32"), "f32")


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_division_and_reciprocals_are_rounded_to_nearest(kind):
    a, b = drawn(kind, 384, 81), drawn(kind, 384, 82)
    rows = list(zip(a, b, strict=True))
    check(f"div.rn.{kind}", kind, [quotient(x, y, kind) for x, y in rows], a, b)
    one = ((1 << (FORMATS[kind][1] - 1)) - 1) << FORMATS[kind][0]
    check(f"rcp.rn.{kind}", kind, [quotient(one, x, kind) for x in a], a)


def test_division_with_ftz():
    a, b = drawn("f32", 384, 83), drawn("f32", 384, 84)
    rows = [(flushed(x), flushed(y)) for x, y in zip(a, b, strict=True)]
    check("div.rn.ftz.f32", "f32", [flushed(quotient(x, y, "f32")) for x, y in rows], a, b)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_roots_are_rounded_to_nearest(kind):
    found = compute(f"sqrt.rn.{kind}", kind, Operand(kind, drawn(kind, 256, 91)))
    for x, got in zip(drawn(kind, 256, 91), found, strict=True):
        number = value(x, kind)
        if number in (0, math.inf):
            assert got == x
        elif is_nan(x, kind) or number < 0:
            assert is_nan(got, kind)
        else:  # the square of the result less and more half a step encloses the number
            low, high = (value(got - 1, kind) + value(got, kind)) / 2, (value(got, kind) + value(got + 1, kind)) / 2
            assert low * low <= number <= high * high


APPROXIMATE = {
    "ex2": (lambda x: 2.0**x, [-126.0, -1.5, 0.0, 0.25, 1.0, 10.0, 127.5]),
    "lg2": (math.log2, [1e-30, 0.3, 1.0, 2.0, 1000.0]),
    "rcp": (lambda x: 1 / x, [1e-20, -3.0, 7.0, 1e20]),
    "rsqrt": (lambda x: 1 / math.sqrt(x), [1e-20, 2.0, 1e20]),
    "sqrt": (math.sqrt, [0.0, 1e-20, 2.0, 1e20]),
    "sin": (math.sin, [-3.0, 0.0, 1.0]),
    "cos": (math.cos, [-3.0, 0.0, 1.0]),
    "tanh": (math.tanh, [-20.0, -0.5, 0.0, 3.0]),
}
ERROR = 2.0**-22
"""Relative, of ex2, rcp and rsqrt, the narrowest that the PTX ISA allows: 2^-22."""


@pytest.mark.parametrize("name", APPROXIMATE)
def test_functions_are_within_the_errors_that_the_specification_allows(name):
    function, points = APPROXIMATE[name]
    found = compute(f"{name}.approx.f32", "f32", Operand("f32", [bits_of_float(x) for x in points]))
    for x, bits in zip(points, found, strict=True):
        exact = function(float(value(bits_of_float(x), "f32")))
        assert abs(float(value(bits, "f32")) - exact) <= ERROR * abs(exact) + 2.0**-40


def test_functions_at_their_limits():
    infinite, minus = infinity("f32"), infinity("f32", negative=True)
    check(
        "ex2.approx.f32",
        "f32",
        [0, infinite, infinite, NAN, 0],
        [minus, infinite, bits_of_float(130), NAN, bits_of_float(-200)],
    )
    check("lg2.approx.f32", "f32", [minus, minus, NAN, infinite], [0, 0x80000000, bits_of_float(-1), infinite])
    check("rcp.approx.f32", "f32", [infinite, minus, 0, 0x80000000], [0, 0x80000000, infinite, minus])
    check("rsqrt.approx.f32", "f32", [infinite, minus, 0, NAN], [0, 0x80000000, infinite, bits_of_float(-4)])
    check("tanh.approx.f32", "f32", [0x3F800000, 0xBF800000, 0x80000000], [infinite, minus, 0x80000000])
    check("rcp.approx.ftz.f32", "f32", [infinite, minus, 0], [1, 0x80000001, 0x7F000001])
    check("rsqrt.approx.ftz.f32", "f32", [infinite], [0x00400000])
    check("ex2.approx.ftz.f32", "f32", [0, 0x00800000, 0x3F800000], [bits_of_float(-130), bits_of_float(-126), 1])
    check("lg2.approx.ftz.f32", "f32", [minus], [5])


def test_the_approximate_quotient_by_a_number_above_two_to_the_126th_is_zero():
    """PTX ISA, div: for 2^126 < |b| < 2^128 div.approx gives 0, or NaN where a is infinite."""
    huge = [bits_of_float(1.5 * 2.0**126), bits_of_float(-(2.0**127)), bits_of_float(2.0**127)]
    a = [bits_of_float(2.0**100), bits_of_float(2.0**100), infinity("f32")]
    found = compute("div.approx.f32", "f32", Operand("f32", a), Operand("f32", huge))
    assert [x & 0x7FFFFFFF for x in found[:2]] == [0, 0]
    assert is_nan(found[2], "f32")
    two_to_the_126th = bits_of_float(2.0**126)
    full = compute("div.approx.f32", "f32", Operand("f32", [two_to_the_126th]), Operand("f32", [two_to_the_126th]))
    assert full == [0x3F800000]
    within = compute("div.full.f32", "f32", Operand("f32", a[:2]), Operand("f32", huge[:2]))
    exact = [Fraction(2) ** 100 / value(x, "f32") for x in huge[:2]]
    assert all(abs(value(x, "f32") - y) <= abs(y) * Fraction(2) ** -21 for x, y in zip(within, exact, strict=True))
