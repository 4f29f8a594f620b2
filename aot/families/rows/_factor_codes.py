"""The codes of narrow elements and of their blocks' factors, as a thread computes them. Imports CUTLASS.

They have the bits of `aot.core.block_quantization`, on chips with and without instructions for these types: integer
arithmetic on float32's bits, and sums that round to a multiple of a power of two.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

import math
from typing import Any, NamedTuple

import cutlass
from cutlass import Float32, Int32

from aot.core.block_quantization import LEAST_E4M3
from aot.core.element import ElementType
from aot.core.numerics import FLOAT32_BIAS, max_finite
from aot.families.rows._memory import maximum
from aot.families.rows._quotient import in_float32

STORED_BITS = 23
"""Bits of a float32's significand that are stored. Source: IEEE 754-2019, section 3.4."""
MAGNITUDE, NAN, INFINITY = 0x7FFFFFFF, 0x7FC00000, 0x7F800000
"""Bits of a float32 but its sign, a NaN, and infinity, behind which all are NaNs."""
E2M1_FORM, E4M3_FORM = (1, 0), (3, -6)
"""Stored bits of the significand, and the exponent of the least normal number. Source: as of `aot.core.numerics`."""
E4M3_NAN, E8M0_NAN, E8M0_MOST = 0x7F, 255, 254
"""Codes of NaN, and the largest of a power of two. Source: Open Compute Project, Microscaling Formats, section 5."""
SIGN_SHIFT, SIGN = 28, 8
"""From a float32's sign to that of a code of 4 bits, and that bit."""


class Factor(NamedTuple):
    """What a block of elements has: the code of its factor, Int32, and a float32 that its elements are scaled by."""

    code: Any
    by: Any
    """What they are divided by, of NVFP4, or multiplied by, which is a power of two."""


def rounded(size: Any, form: tuple[int, int]) -> tuple[Any, Any]:
    """Return the code, Int32, and the value, Float32, that a number from 0 to a type's largest is rounded to.

    The sum with 2^p rounds to the multiples of 2^(p - 23), to nearest and ties to even, which are those of the type
    where p is 23 more than the exponent less the stored bits. Its bits then count them.
    """
    stored, least = form
    lowest = FLOAT32_BIAS + least
    exponent = cutlass.max(Float32(size).bitcast(Int32) >> STORED_BITS, lowest)
    large = Int32((exponent + (STORED_BITS - stored)) << STORED_BITS).bitcast(Float32)
    total = in_float32("add.rn.f32 {$w0}, {$r0}, {$r1};", size, large)
    steps = total.bitcast(Int32) - large.bitcast(Int32)
    return steps + ((exponent - lowest) << stored), in_float32("sub.rn.f32 {$w0}, {$r0}, {$r1};", total, large)


def _is_nan(value: Any) -> Any:
    """Say whether a float32 is a NaN, by its bits."""
    return (Float32(value).bitcast(Int32) & MAGNITUDE) > INFINITY


def e2m1_code(value: Any) -> Any:
    """Return the code of e2m1, Int32, that a float32 is rounded to: 6 of what is more, and of NaN."""
    value = Float32(value)
    bits = value.bitcast(Int32)
    most = Float32(max_finite(ElementType.E2M1))
    size = in_float32("min.f32 {$w0}, {$r0}, {$r1};", Int32(bits & MAGNITUDE).bitcast(Float32), most)  # of a NaN `most`
    code, _ = rounded(size, E2M1_FORM)
    return code | cutlass.select_(_is_nan(value), 0, (bits >> SIGN_SHIFT) & SIGN)


def nvfp4_factor(magnitude: Any, own: Any) -> Factor:
    """Return the factor of a block of e2m1 whose largest magnitude is given, under the tensor's own factor."""
    most = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", own, max_finite(ElementType.E2M1))
    ratio = maximum(in_float32("div.rn.f32 {$w0}, {$r0}, {$r1};", magnitude, most), Float32(LEAST_E4M3))
    ratio = in_float32("min.NaN.f32 {$w0}, {$r0}, {$r1};", ratio, max_finite(ElementType.E4M3))
    code, value = rounded(ratio, E4M3_FORM)
    divisor = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", value, own)
    return Factor(cutlass.select_(_is_nan(ratio), E4M3_NAN, code), divisor)


def mx_factor(magnitude: Any, element: ElementType) -> Factor:
    """Return the least power of two by which no element of a block is more than its type's largest number."""
    significand, exponent = math.frexp(max_finite(element))
    step = 1 << STORED_BITS
    # What is more than the largest number's significand carries into the exponent.
    carry = step - 1 - int((2 * significand - 1) * step)
    bits = Float32(magnitude).bitcast(Int32)
    code = cutlass.max(((bits + carry) >> STORED_BITS) - (exponent - 1), 0)
    code = cutlass.select_((bits >> STORED_BITS) == E8M0_NAN, E8M0_NAN, code)
    inverse = cutlass.select_(code == E8M0_MOST, step >> 1, (E8M0_MOST - code) << STORED_BITS)
    return Factor(code, Int32(cutlass.select_(code == E8M0_NAN, NAN, inverse)).bitcast(Float32))
