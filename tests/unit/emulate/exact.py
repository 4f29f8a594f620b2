"""Exact results of floating-point instructions, by fractions."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.unit.emulate.numbers import FORMATS, infinity, is_nan, is_negative, rounded, value, zero


def nan_of(kind):
    return (1 << sum(FORMATS[kind])) - 1


def exact_sum(x, y, kind, mode="rn"):
    """Add two values that may be infinite or NaN; give bits."""
    a, b = value(x, kind), value(y, kind)
    if isinstance(a, float) or isinstance(b, float):
        total = float(a) if isinstance(a, float) else float(b)
        if isinstance(a, float) and isinstance(b, float):
            total = a + b
        return nan_of(kind) if math.isnan(total) else infinity(kind, negative=total < 0)
    both = is_negative(x, kind) and is_negative(y, kind)
    either = is_negative(x, kind) or is_negative(y, kind)
    return rounded(a + b, kind, mode, negative_zero=both or (mode == "rm" and either))


def exact_fma(x, y, z, kind, mode="rn", addend=None):
    """Multiply and add with one rounding; give bits of `kind`, or of the addend's type where it is wider."""
    to = addend or kind
    a, b, c = value(x, kind), value(y, kind), value(z, to)
    negative = is_negative(x, kind) != is_negative(y, kind)
    if any(isinstance(v, float) for v in (a, b, c)):
        if any(isinstance(v, float) and math.isnan(v) for v in (a, b, c)):
            return nan_of(to)
        product = None
        if isinstance(a, float) or isinstance(b, float):
            if a == 0 or b == 0:
                return nan_of(to)
            product = -math.inf if negative else math.inf
        if product is None:
            return infinity(to, negative=c < 0)
        if isinstance(c, float) and c != product:
            return nan_of(to)
        return infinity(to, negative=product < 0)
    both, either = negative and is_negative(z, to), negative or is_negative(z, to)
    return rounded(a * b + c, to, mode, negative_zero=both or (mode == "rm" and either))


def flushed_fma(x, y, z, mode):
    """Flush what is below the normal numbers when it is rounded as if exponents had no limit."""
    found = exact_fma(x, y, z, "f32", mode)
    exact = [value(v, "f32") for v in (x, y, z)]
    if any(isinstance(v, float) for v in exact):
        return found
    number = exact[0] * exact[1] + exact[2]
    scaled = rounded(number * Fraction(2) ** 60, "f32", mode)
    is_tiny = abs(value(scaled, "f32")) < Fraction(2) ** -66 if number < Fraction(2) ** 40 else False
    return zero("f32", negative=is_negative(found, "f32")) if is_tiny else found


def exact_product(x, y, kind):
    minus_zero = zero(kind, negative=is_negative(x, kind) != is_negative(y, kind))
    return exact_fma(x, y, minus_zero, kind)


def extreme(x, y, kind, name, *, keeps_nan=False):
    """The lesser or greater, where -0 is less than +0. PTX ISA, min, max."""
    if is_nan(x, kind) or is_nan(y, kind):
        if keeps_nan or (is_nan(x, kind) and is_nan(y, kind)):
            return nan_of(kind)
        return y if is_nan(x, kind) else x
    key = lambda v: (value(v, kind), not is_negative(v, kind))  # noqa: E731
    return min(x, y, key=key) if name == "min" else max(x, y, key=key)


def quotient(x, y, kind):
    a, b = value(x, kind), value(y, kind)
    negative = is_negative(x, kind) != is_negative(y, kind)
    if is_nan(x, kind) or is_nan(y, kind) or (isinstance(a, float) and isinstance(b, float)) or (a == 0 and b == 0):
        return nan_of(kind)
    if isinstance(a, float) or b == 0:
        return infinity(kind, negative=negative)
    if isinstance(b, float):
        return zero(kind, negative=negative)
    return rounded(a / b, kind, negative_zero=negative)
