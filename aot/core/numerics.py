"""Bits of every element type: rounding values to them, reading them, and what memory holds that nobody wrote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aot.core.element import BYTE_BITS, ElementType

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bits: TypeAlias = "NDArray[Any]"
"""Elements as unsigned integers of their width: uint8, uint16 or uint32. One of 4 bits has a uint8 to itself here;
`pack` puts two of those into a byte, as they lie in memory."""

POISON_BYTE = 0xFF
"""What every byte of an output is before a launch, and of what lies around operands: a NaN in every floating-point
type, so that an element that was not written shows, and a read outside an operand gives NaN."""

INTEGER_POISON_BYTE = 0x80
"""The same for integers, which have no NaN: -128 in int8, which random operands never hold, and -2139062144 in int32,
which no sum of int8 products reaches below k = 130,560."""


@dataclass(frozen=True)
class _Float:
    """A binary floating-point format.

    Source: IEEE 754-2019, section 3; PTX ISA, alternate floating-point formats; Open Compute Project, OCP 8-bit
    Floating Point Specification (OFP8), table 1, and Microscaling Formats (MX), section 5.3.
    """

    significand_bits: int
    """The leading bit, which is not stored, among them."""
    min_exponent: int
    """Exponent of the least normal number."""
    max_finite: float
    saturates: bool = False
    """Whether what is larger becomes the largest number, infinities too, and not infinity. Source: PTX ISA, cvt with
    .satfinite, the only conversion to FP8 that there is; torch._scaled_mm's outputs are of it."""


_FLOATS = {
    ElementType.BFLOAT16: _Float(8, -126, (2 - 2.0**-7) * 2.0**127),
    ElementType.FLOAT16: _Float(11, -14, 65504.0),
    ElementType.FLOAT32: _Float(24, -126, (2 - 2.0**-23) * 2.0**127),
    ElementType.TFLOAT32: _Float(11, -126, (2 - 2.0**-10) * 2.0**127),
    ElementType.E4M3: _Float(4, -6, 448.0, saturates=True),
    ElementType.E5M2: _Float(3, -14, 57344.0, saturates=True),
    ElementType.E2M1: _Float(2, 0, 6.0, saturates=True),
    ElementType.E8M0: _Float(1, -127, 2.0**127, saturates=True),
}

_INTEGERS: dict[ElementType, tuple[type[Any], type[Any]]] = {
    ElementType.INT8: (np.int8, np.uint8),
    ElementType.INT32: (np.int32, np.uint32),
    ElementType.UINT8: (np.uint8, np.uint8),
}
"""Each with the type of its bits."""

_EXPONENT = {
    ElementType.BFLOAT16: 0x7F80,
    ElementType.FLOAT16: 0x7C00,
    ElementType.FLOAT32: 0x7F800000,
    ElementType.TFLOAT32: 0x7F800000,
    ElementType.E4M3: 0x7F,
    ElementType.E5M2: 0x7C,
    ElementType.E8M0: 0xFF,
}
"""Bits that are all set in infinities and NaNs alone: the exponent's, and of E4M3, which has no infinity, the
significand's too. E2M1 has neither. Source: as of `_Float`."""

FLOAT32_BIAS = 127
"""What is added to a float32's exponent where it is stored. Source: IEEE 754-2019, section 3.4."""

_E4M3_NAN, _E5M2_NAN, _E5M2_INFINITY, _E8M0_NAN = 0x7F, 0x7E, 0x7C, 0xFF


def is_integer(dtype: ElementType) -> bool:
    """Say whether the type is one of whole numbers."""
    return dtype in _INTEGERS


def bits_type(dtype: ElementType) -> np.dtype[Any]:
    """Return numpy's type of the bits of an element: of one of 4 bits, the type that its code lies in."""
    return np.dtype(f"u{dtype.size_of(1)}")


def poison_byte(dtype: ElementType) -> int:
    """Return what every byte of an output is before a launch, and around operands."""
    return INTEGER_POISON_BYTE if is_integer(dtype) else POISON_BYTE


def poison(dtype: ElementType) -> int:
    """Return the bits of an element that nobody wrote."""
    return int.from_bytes(bytes([poison_byte(dtype)]) * dtype.size_of(1), "little") & ((1 << dtype.bits) - 1)


def unit_roundoff(dtype: ElementType) -> float:
    """Return the largest relative error of rounding to a floating-point type, within its normal numbers."""
    return 2.0 ** -_FLOATS[dtype].significand_bits


def max_finite(dtype: ElementType) -> float:
    """Return the largest number of a type."""
    return float(np.iinfo(_INTEGERS[dtype][0]).max) if is_integer(dtype) else _FLOATS[dtype].max_finite


def saturates(dtype: ElementType) -> bool:
    """Say whether what is larger than a type's largest number becomes that, and not infinity."""
    return is_integer(dtype) or _FLOATS[dtype].saturates


def round_to(dtype: ElementType, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round values to those that a type has, to nearest, ties to even; NaN stays NaN.

    Beyond its range narrow floating-point types saturate, as do the integers, and the others give infinity. Of E8M0,
    which has no sign and no zero, what is below its least power becomes that, and what is negative NaN.
    """
    if is_integer(dtype):
        limits = np.iinfo(_INTEGERS[dtype][0])
        return np.clip(np.rint(values), limits.min, limits.max)
    form = _FLOATS[dtype]
    with np.errstate(invalid="ignore", over="ignore"):
        _, exponent = np.frexp(values)  # values = x * 2^exponent, x in [0.5, 1)
        quantum = np.maximum(exponent, form.min_exponent + 1) - form.significand_bits
        rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
        limit = form.max_finite if form.saturates else np.inf
        rounded = np.where(np.abs(rounded) > form.max_finite, np.copysign(limit, values), rounded)
        if dtype is ElementType.E8M0:
            return np.where(values < 0, np.nan, np.maximum(rounded, 2.0**form.min_exponent))
        return rounded


@cache
def _code_values(dtype: ElementType) -> NDArray[np.float64]:
    """Return the value of each code of a type of 8 or 4 bits."""
    codes, sign = np.arange(1 << dtype.bits), 1 << (dtype.bits - 1)
    form = _FLOATS[dtype]
    if dtype is ElementType.E8M0:
        return np.where(codes == _E8M0_NAN, np.nan, np.ldexp(1.0, codes + form.min_exponent))
    stored = form.significand_bits - 1
    exponent, fraction = (codes & (sign - 1)) >> stored, codes & (2**stored - 1)
    significand = np.where(exponent > 0, 2**stored, 0) + fraction
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - 1 + form.min_exponent - stored)
    top = codes & (sign - 1)
    if dtype is ElementType.E4M3:
        values[top == _E4M3_NAN] = np.nan
    elif dtype is ElementType.E5M2:
        values[top == _E5M2_INFINITY] = np.inf
        values[top > _E5M2_INFINITY] = np.nan
    signed: NDArray[np.float64] = np.where(codes & sign, -values, values)
    return signed


def _cut(values: NDArray[np.float32], num_bits: int) -> NDArray[np.uint32]:
    """Round float32 values to their upper bits, ties to even, and return those, the lower ones zero; NaNs stay NaNs."""
    bits = values.view(np.uint32)
    low = np.uint32(2**num_bits - 1)
    rounded = bits + ((low >> np.uint32(1)) + ((bits >> np.uint32(num_bits)) & np.uint32(1)))
    return np.where(np.isnan(values), bits | np.uint32(1 << 22), rounded) & ~low


_NAN_CODES = {ElementType.E4M3: _E4M3_NAN, ElementType.E5M2: _E5M2_NAN, ElementType.E2M1: 0x7}
"""What NaN becomes: of E2M1, which has none, the largest number. Source: PTX ISA, cvt, .e2m1x2."""


def _encode_e2m1(values: NDArray[np.float32]) -> Bits:
    """Round to codes of e2m1 by counting the middles between its numbers that lie below.

    A middle itself goes to the even one of its two codes.
    """
    magnitude = np.abs(values)
    code = np.zeros(values.shape, np.uint8)
    for middle, goes_up in ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        is_above = magnitude >= np.float32(middle) if goes_up else magnitude > np.float32(middle)
        code += is_above.view(np.uint8)
    is_nan = np.isnan(values)
    code |= (np.signbit(values) & ~is_nan).view(np.uint8) << np.uint8(3)
    code[is_nan] = _NAN_CODES[ElementType.E2M1]
    return code


def _encode_narrow(dtype: ElementType, values: NDArray[np.float32]) -> Bits:
    """Round to codes of 8 or 4 bits, which ascend with the magnitude.

    Those of normal numbers are float32's upper bits less the exponents that the type lacks; those of others, how many
    times the least number they are.
    """
    if dtype is ElementType.E8M0:
        exact = round_to(dtype, values.astype(np.float64))
        _, exponent = np.frexp(np.where(np.isnan(exact), 1.0, exact))
        return np.where(np.isnan(exact), _E8M0_NAN, exponent - 1 - _FLOATS[dtype].min_exponent).astype(np.uint8)
    if dtype is ElementType.E2M1:
        return _encode_e2m1(values)
    form = _FLOATS[dtype]
    stored = form.significand_bits - 1
    least = form.min_exponent - stored
    is_nan = np.isnan(values)
    magnitude = np.minimum(np.where(is_nan, np.float32(0), np.abs(values)), np.float32(form.max_finite))
    missing = (FLOAT32_BIAS + form.min_exponent - 1) << stored
    normal = (_cut(magnitude, 23 - stored) >> np.uint32(23 - stored)).astype(np.int32) - missing
    is_normal = magnitude >= np.float32(2.0**form.min_exponent)
    code = np.where(is_normal, normal, np.rint(np.ldexp(np.where(is_normal, 0, magnitude), -least)).astype(np.int32))
    code = np.where(is_nan, _NAN_CODES[dtype], code)
    return (code | np.where(np.signbit(values), 1 << (dtype.bits - 1), 0)).astype(np.uint8)


def encode(dtype: ElementType, values: NDArray[np.float32]) -> Bits:
    """Round float32 values to the type's bits, to nearest, ties to even, as `round_to` does."""
    values = np.ascontiguousarray(values, np.float32)
    if is_integer(dtype):
        signed, unsigned = _INTEGERS[dtype]
        return round_to(dtype, values.astype(np.float64)).astype(signed).view(unsigned)
    if dtype is ElementType.BFLOAT16:
        return (_cut(values, 16) >> np.uint32(16)).astype(np.uint16)
    if dtype is ElementType.FLOAT16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    if dtype is ElementType.FLOAT32:
        return values.view(np.uint32)
    return _cut(values, 13) if dtype is ElementType.TFLOAT32 else _encode_narrow(dtype, values)


def decode(dtype: ElementType, bits: Bits) -> NDArray[np.float64]:
    """Return the values that the bits stand for. TFLOAT32 is float32 in memory: no bit is cut."""
    bits = np.ascontiguousarray(bits)
    if dtype.bits <= BYTE_BITS and not is_integer(dtype):
        return np.take(_code_values(dtype), bits)
    if dtype is ElementType.BFLOAT16:
        bits = bits.astype(np.uint32) << np.uint32(16)
    kinds: dict[ElementType, type[Any]] = {
        ElementType.FLOAT16: np.float16,
        **{x: signed for x, (signed, _) in _INTEGERS.items()},
    }
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return np.asarray(bits.view(kinds.get(dtype, np.float32)), np.float64)


def is_bad(dtype: ElementType, bits: Bits) -> NDArray[np.bool_]:
    """Say which elements are not finite, or of an integer type not written."""
    if is_integer(dtype):
        return np.asarray(bits == bits.dtype.type(poison(dtype)), np.bool_)
    if dtype is ElementType.E2M1:
        return np.zeros(bits.shape, np.bool_)
    exponent = bits.dtype.type(_EXPONENT[dtype])
    return np.asarray((bits & exponent) == exponent, np.bool_)


def pack(codes: Bits) -> Bits:
    """Put codes of 4 bits into bytes, (..., n) to (..., n / 2): of each two, the first into the lower half.

    Source: PTX ISA, packed alternate floating-point data formats: .e2m1x2; torch.float4_e2m1fn_x2 holds them so.

    Raises:
        ValueError: n is odd.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"{codes.shape[-1]} codes of 4 bits fill no whole bytes; give an even number")
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, np.uint8)


def unpack(packed: Bits) -> Bits:
    """Return the codes of 4 bits that bytes hold, (..., n) to (..., 2 n)."""
    return np.stack([packed & 0xF, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


@dataclass(frozen=True)
class Specials:
    """Bits of what arithmetic treats in its own way."""

    nan: int
    infinity: int
    """Of E4M3 and E2M1, which have none, the largest number."""
    least: int
    """The least number above 0, a subnormal one; of 32-bit types the least normal one, since a kernel may take float32
    numbers below it for 0, whose product with an infinity is a NaN."""
    large: int
    """The largest number, or 2^60 where the square of that is more than float32 has."""
    lowest: int
    """The same, negative."""
    zero: int = 0


def special_bits(dtype: ElementType) -> Specials:
    """Return a type's special numbers. Of an integer type, NaN and infinity are the lowest number."""
    if is_integer(dtype):
        limits = np.iinfo(_INTEGERS[dtype][0])
        lowest = 1 << (dtype.bits - 1)
        return Specials(lowest, lowest, 1, int(limits.max), lowest)
    large = min(_FLOATS[dtype].max_finite, 2.0**60)
    values = np.array([np.nan, np.inf, large, -large], np.float32)
    nan, infinity, high, low = encode(dtype, values).tolist()
    least = 1 << 23 if dtype.bits == 32 else 1
    return Specials(nan, _E5M2_INFINITY if dtype is ElementType.E5M2 else infinity, least, high, low)
