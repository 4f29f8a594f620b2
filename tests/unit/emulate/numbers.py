"""Numbers at the edges of their types, and exact arithmetic on them, without numpy and without the interpreter."""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction

INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")


def width(kind: str) -> int:
    """Return the bits of an integer type."""
    return int(kind[1:])


def integer(bits: int, kind: str) -> int:
    """Return the number that bits are of a type."""
    size = width(kind)
    bits &= (1 << size) - 1
    return bits - (1 << size) if kind[0] == "s" and bits >> (size - 1) else bits


def wrapped(value: int, kind: str) -> int:
    """Return the bits of a number modulo 2^n."""
    return value & ((1 << width(kind)) - 1)


def clamped(value: int, kind: str) -> int:
    """Return the bits of the number nearest to a number that its type has."""
    size = width(kind)
    low, high = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if kind[0] == "s" else (0, (1 << size) - 1)
    return wrapped(min(max(value, low), high), kind)


def integer_edges(kind: str) -> list[int]:
    """List the bits of numbers at the edges of a type."""
    size = width(kind)
    top = 1 << (size - 1)
    return [0, 1, 2, 3, 7, 31, 100, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 0x5A5A5A5A5A5A5A5A & (2 * top - 1)]


def pairs(kind: str) -> tuple[list[int], list[int]]:
    """Return each edge of an integer type with each, as two columns of raw bits."""
    found = list(itertools.product(integer_edges(kind), repeat=2))
    return [x for x, _ in found], [y for _, y in found]


# Floating point: bits of fraction, bits of exponent.
FORMATS = {"f16": (10, 5), "bf16": (7, 8), "f32": (23, 8), "f64": (52, 11)}


def parts(kind: str) -> tuple[int, int, int]:
    """Return bits of fraction, of exponent, and the exponent's bias."""
    fraction, exponent = FORMATS[kind]
    return fraction, exponent, (1 << (exponent - 1)) - 1


def is_nan(bits: int, kind: str) -> bool:
    fraction, exponent, _ = parts(kind)
    return bits >> fraction & ((1 << exponent) - 1) == (1 << exponent) - 1 and bits & ((1 << fraction) - 1) != 0


def is_negative(bits: int, kind: str) -> bool:
    return bool(bits >> sum(FORMATS[kind]))


def infinity(kind: str, *, negative: bool = False) -> int:
    fraction, exponent, _ = parts(kind)
    return ((1 << exponent) - 1) << fraction | int(negative) << (fraction + exponent)


def zero(kind: str, *, negative: bool = False) -> int:
    return int(negative) << sum(FORMATS[kind])


def value(bits: int, kind: str) -> Fraction | float:
    """Return a number exactly, an infinity or NaN as a float."""
    fraction, exponent, bias = parts(kind)
    sign = -1 if is_negative(bits, kind) else 1
    e, f = bits >> fraction & ((1 << exponent) - 1), bits & ((1 << fraction) - 1)
    if e == (1 << exponent) - 1:
        return math.nan if f else sign * math.inf
    if e == 0:
        return sign * Fraction(f) * Fraction(2) ** (1 - bias - fraction)
    return sign * Fraction(f | 1 << fraction) * Fraction(2) ** (e - bias - fraction)


def rounded(x: Fraction, kind: str, mode: str = "rn", *, negative_zero: bool = False) -> int:
    """Round a number to a format's bits: rn to nearest even, rz, rm and rp towards zero, minus and plus infinity.

    Args:
        x: the number.
        kind: the format.
        mode: the rounding.
        negative_zero: the sign of a zero.
    """
    fraction, exponent, bias = parts(kind)
    if x == 0:
        return zero(kind, negative=negative_zero)
    negative, x = x < 0, abs(x)
    e = max(_exponent(x), 1 - bias)
    scaled = x / Fraction(2) ** (e - fraction)
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    away = {"rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1 == 1), "rz": False,
            "rm": negative and rest > 0, "rp": not negative and rest > 0}[mode]  # fmt: skip
    whole += bool(away)
    biased = e + bias - 1  # a carry into the exponent is right as it is
    bits = (biased << fraction) + whole
    largest = infinity(kind)
    if bits >= largest:
        keeps = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        bits = largest - 1 if keeps else largest
    return bits | int(negative) << (fraction + exponent)


def _exponent(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def flushed(bits: int, kind: str = "f32") -> int:
    """Take a subnormal number for a zero of its sign."""
    fraction, exponent, _ = parts(kind)
    return zero(kind, negative=is_negative(bits, kind)) if bits >> fraction & ((1 << exponent) - 1) == 0 else bits


def bits_of_float(x: float) -> int:
    """Return the bits of a number as float32, rounded by the C library."""
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def bits_of_double(x: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])


def float_edges(kind: str) -> list[int]:
    """List the bits of numbers at the edges of a format: zeros, subnormals, ties, the largest, infinities and NaN."""
    fraction, exponent, bias = parts(kind)
    one = bias << fraction
    positive = [0, 1, (1 << fraction) - 1, 1 << fraction, one, one + 1, one - 1, one + (1 << fraction) + 3,
                one | 1 << (fraction - 1), (bias + fraction) << fraction | 1, infinity(kind) - 1,
                infinity(kind)]  # fmt: skip
    sign = 1 << (fraction + exponent)
    return [*positive, *(x | sign for x in positive), infinity(kind) | 1 << (fraction - 1)]


def same(a: int, b: int, kind: str) -> bool:
    """Say whether two results are equal; a NaN is like another."""
    return a == b or (is_nan(a, kind) and is_nan(b, kind))


def narrowed(bits: int, source: str, kind: str, mode: str = "rn") -> int:
    """Round a number of one format to another; NaN is all ones but the sign."""
    if is_nan(bits, source):
        return (1 << sum(FORMATS[kind])) - 1
    negative = is_negative(bits, source)
    x = value(bits, source)
    if isinstance(x, float):
        return infinity(kind, negative=negative)
    return rounded(x, kind, mode, negative_zero=negative)
