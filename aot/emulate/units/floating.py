"""Floating-point arithmetic.

Source: PTX ISA, "Floating Point Instructions", "Half Precision Floating Point Instructions", "Mixed Precision
Floating-Point Instructions".

What hardware approximates (ex2, lg2, rcp, rsqrt, sqrt, tanh, sin, cos and div with .approx) is computed in float64 here
and rounded: within the error that the ISA allows, and not the bits of a chip. A fused multiply-add is computed in
float64, whose 53 bits hold a product of two float32 exactly. Its sum is rounded to odd, not to nearest, so that
rounding it again to a format of half the bits gives what one rounding gives. Source: S. Boldo and G. Melquiond,
Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd, IEEE Transactions on Computers
57, 2008.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.forms import form
from aot.emulate.types import F32_TINY, bf16_to_f32, f32_to_bf16, flushed
from aot.emulate.units.integer import binary, kind_of, unary

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

_F32_STEP = 0x1FFFFFFF
"""The bits of a float64's fraction that a float32 has not."""
_F32_HALF = 0x10000000
"""Half a step of a float32 in them."""


def _of_zeros(a: Value, b: Value, zeros: Value, others: Value) -> Value:
    return np.where((a == 0) & (b == 0), zeros, others)


def _lesser(a: Value, b: Value) -> Value:
    """Return the lesser, of which -0 is one beside +0. Source: PTX ISA, "min"."""
    return _of_zeros(a, b, -(-a - b), np.fmin(a, b))


def _greater(a: Value, b: Value) -> Value:
    """Return the greater, of which +0 is one beside -0. Source: PTX ISA, "max"."""
    return _of_zeros(a, b, a + b, np.fmax(a, b))


_ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": _lesser, "max": _greater,
}  # fmt: skip


def _flushed_result(found: Value, exact: Value, rounding: str = "rn") -> Value:
    """Flush a float32 result, given its value in float64.

    A result that is the least normal number is flushed where its value, rounded to 24 bits of any exponent, is less.
    Source: an H100, 2026-11-26.
    """
    below = 2.0**-25 if rounding == "rn" else 2.0**-24
    limit = np.float64(F32_TINY) * (1 - below)
    magnitude = np.abs(exact)
    is_tiny = (magnitude < limit) | ((magnitude == limit) & (rounding != "rn"))
    return np.where(is_tiny, np.copysign(np.float32(0), found), flushed(found))


def _multiply_flushed(a: Value, b: Value) -> Value:
    exact = a.astype(np.float64) * b
    return _flushed_result(exact.astype(np.float32), exact)


def odd_sum(a: Value, b: Value) -> Value:
    """Add float64, rounded to odd: a sum that is not exact gets the neighbour whose last bit is set."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)  # exact: D. Knuth, The Art of Computer Programming 2, 4.2.2
    bits = total.view(np.int64)
    outwards = np.where((error > 0) == (total > 0), np.int64(1), np.int64(-1))
    moves = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    return np.where(moves, bits + outwards, bits).view(np.float64)


def _odd_f32(values: Value) -> Value:
    """Round float64 to float32, to odd."""
    near = values.astype(np.float32)
    bits, back = near.view(np.int32), near.astype(np.float64)
    outwards = np.where(np.abs(values) > np.abs(back), np.int32(1), np.int32(-1))
    moves = ~np.isnan(values) & (back != values) & (bits & 1 == 0)
    return np.where(moves, bits + outwards, bits).view(np.float32)


@form("{add,sub,mul}{,.rn}{,.ftz}.f32", "{add,sub,mul}{,.rn}.f64", "{min,max}{,.ftz}.f32", "{min,max}.f64")
def arithmetic(program: Program, instruction: Instruction) -> Step:
    """Add, subtract, multiply, or choose the lesser or greater, which is the other where one is NaN."""
    name, *modifiers = instruction.opcode.split(".")
    function = _ARITHMETIC[name]
    if "ftz" in modifiers:
        plain = function if name != "mul" else _multiply_flushed
        return binary(program, instruction, lambda a, b: flushed(plain(flushed(a), flushed(b))), "f32")
    return binary(program, instruction, function, kind_of(instruction))


@form("{min,max}{,.ftz}.NaN.f32")
def extreme_or_nan(program: Program, instruction: Instruction) -> Step:
    """Choose the lesser or greater; NaN where one is."""
    function = _lesser if instruction.opcode.startswith("min") else _greater
    flush = flushed if ".ftz" in instruction.opcode else np.asarray

    def extreme(a: Value, b: Value) -> Value:
        x, y = flush(a), flush(b)
        return np.where(np.isnan(x) | np.isnan(y), np.float32(np.nan), function(x, y))

    return binary(program, instruction, extreme, "f32")


@form("{add,sub,mul}{,.rn}{,.ftz}.f32x2", "fma.rn{,.ftz}.f32x2")
def pairs(program: Program, instruction: Instruction) -> Step:
    """Compute two float32 at once."""
    name = instruction.opcode.split(".")[0]
    to = program.destination(instruction.operands[0])
    sources = [program.source(x, "b64") for x in instruction.operands[1:]]
    flush = flushed if ".ftz" in instruction.opcode else np.asarray

    def run(warp: Warp) -> None:
        values = [flush(warp.registers[x].view(np.float32)) for x in sources]
        found = flush(fused(*values) if name == "fma" else _ARITHMETIC[name](*values))
        warp.put(to, np.ascontiguousarray(found).view(np.uint64))

    return run


def fused(a: Value, b: Value, c: Value) -> Value:
    """Multiply and add float32 with one rounding (see above)."""
    product = a.astype(np.float64) * b
    total = product + c
    # Rounding twice differs from once only where the first gives a tie of the second: half a step of float32, or
    # numbers below its normal ones, whose steps are wider.
    if ((total.view(np.int64) & _F32_STEP == _F32_HALF) | (np.abs(total) < F32_TINY)).any():
        total = odd_sum(product, c.astype(np.float64))
    return np.asarray(total.astype(np.float32))


@form("fma.{rn,rm,rp,rz}{,.ftz}.f32")
def multiply_add(program: Program, instruction: Instruction) -> Step:
    """Multiply and add; rm, rp and rz round towards minus, plus infinity and zero."""
    modifiers = instruction.opcode.split(".")
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "f32") for x in instruction.operands[1:4])
    flushes, rounding = "ftz" in modifiers, modifiers[1]
    if not flushes and rounding == "rn":

        def run_plain(warp: Warp) -> None:
            x, y, z = (warp.registers[i].view(np.float32) for i in (a, b, c))
            warp.put(to, fused(x, y, z).view(np.uint32))

        return run_plain

    def run(warp: Warp) -> None:
        x, y, z = (warp.registers[i].view(np.float32) for i in (a, b, c))
        if flushes:
            x, y, z = flushed(x), flushed(y), flushed(z)
        product = x.astype(np.float64) * y
        exact = odd_sum(product, z.astype(np.float64))
        found = exact.astype(np.float32)
        if rounding != "rn":
            found = _rounded(exact, found, rounding)
        if rounding == "rm":  # a sum of zero is negative, unless both are positive zeros
            found = np.where((exact == 0) & (np.signbit(product) | np.signbit(z)), np.float32(-0.0), found)
        warp.put(to, (_flushed_result(found, exact, rounding) if flushes else found).view(np.uint32))

    return run


def _rounded(exact: Value, nearest: Value, rounding: str) -> Value:
    """Turn a float32 that was rounded to nearest into one that is rounded towards a side."""
    below, above = np.float32(-np.inf), np.float32(np.inf)
    is_above, is_below = nearest > exact, nearest < exact
    if rounding == "rm":
        return np.where(is_above, np.nextafter(nearest, below), nearest)
    if rounding == "rp":
        return np.where(is_below, np.nextafter(nearest, above), nearest)
    towards = np.nextafter(nearest, np.float32(0))
    return np.where((is_above & (exact > 0)) | (is_below & (exact < 0)), towards, nearest)


def _fused_64(a: float, b: float, c: float) -> float:
    """Multiply and add one float64, by fractions, whose quotient Python rounds to nearest even."""
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)) or a == 0 or b == 0:
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return 0.0  # of numbers that cancel
    try:
        found = float(exact)
    except OverflowError:
        return -math.inf if exact < 0 else math.inf
    return found or (-0.0 if exact < 0 else 0.0)


@form("fma.rn.f64")
def multiply_add_64(program: Program, instruction: Instruction) -> Step:
    """Multiply and add float64 with one rounding."""
    to = program.destination(instruction.operands[0])
    sources = [program.source(x, "f64") for x in instruction.operands[1:4]]

    def run(warp: Warp) -> None:
        rows = zip(*(warp.registers[i].view(np.float64).tolist() for i in sources), strict=True)
        warp.put(to, np.array([_fused_64(*row) for row in rows], np.float64).view(np.uint64))

    return run


_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}


@form(
    "{ex2,lg2,rcp,rsqrt,sqrt,sin,cos}.approx{,.ftz}.f32",
    "tanh.approx.f32",
    "{rcp,sqrt}.rn{,.ftz}.f32",
)
def function_of_one(program: Program, instruction: Instruction) -> Step:
    """Compute a function in float64, and round."""
    name, *modifiers = instruction.opcode.split(".")
    function = _FUNCTIONS[name]

    def compute(x: Value) -> Value:
        return np.asarray(function(x.astype(np.float64))).astype(np.float32)

    if "ftz" in modifiers:
        return unary(program, instruction, lambda x: flushed(compute(flushed(x))), "f32")
    return unary(program, instruction, compute, "f32")


@form("{rcp,sqrt}.rn.f64")
def function_of_one_64(program: Program, instruction: Instruction) -> Step:
    """Compute a function of a float64."""
    return unary(program, instruction, _FUNCTIONS[instruction.opcode.split(".")[0]], "f64")


_LARGEST_DIVISOR = np.float32(2.0**126)
"""Beyond which div.approx gives zero, or NaN for an infinity. Source: PTX ISA, "div"."""


@form("div.{rn,approx,full}{,.ftz}.f32")
def divide(program: Program, instruction: Instruction) -> Step:
    """Divide; .approx and .full as a division that is rounded once, but where .approx gives zero."""
    modifiers = instruction.opcode.split(".")
    flush, is_approximate = flushed if "ftz" in modifiers else np.asarray, "approx" in modifiers

    def compute(a: Value, b: Value) -> Value:
        x, y = flush(a), flush(b)
        if is_approximate:  # as x times a reciprocal that is flushed: PTX ISA, "div", for 2^126 < |b| < 2^128
            y = np.where((np.abs(y) > _LARGEST_DIVISOR) & np.isfinite(y), np.copysign(np.float32(np.inf), y), y)
        return flush((x.astype(np.float64) / y).astype(np.float32))

    return binary(program, instruction, compute, "f32")


@form("div.rn.f64")
def divide_64(program: Program, instruction: Instruction) -> Step:
    """Divide float64."""
    return binary(program, instruction, np.divide, "f64")


@form("neg{,.ftz}.f32")
def negate(program: Program, instruction: Instruction) -> Step:
    """Change the sign."""
    if ".ftz" in instruction.opcode:
        return unary(program, instruction, lambda x: np.negative(flushed(x)), "f32")
    return unary(program, instruction, np.negative, "f32")


@form("abs{,.ftz}.f32")
def absolute(program: Program, instruction: Instruction) -> Step:
    """Clear the sign."""
    if ".ftz" in instruction.opcode:
        return unary(program, instruction, lambda x: np.abs(flushed(x)), "f32")
    return unary(program, instruction, np.abs, "f32")


@form("copysign.f32")
def copy_sign(program: Program, instruction: Instruction) -> Step:
    """Give the second operand the sign of the first."""
    return binary(program, instruction, lambda a, b: np.copysign(b, a), "f32")


def _widen_bf16(bits: Value) -> Value:
    return bf16_to_f32(bits)


def _widen_f16(bits: Value) -> Value:
    return bits.view(np.float16).astype(np.float32)


@form("{add,sub}.rn.f32.{bf16,f16}")
def mixed_add(program: Program, instruction: Instruction) -> Step:
    """Add a narrow first operand and a float32."""
    name, _, _, narrow = instruction.opcode.split(".")
    widen = _widen_bf16 if narrow == "bf16" else _widen_f16
    to = program.destination(instruction.operands[0])
    a, b = program.source(instruction.operands[1], "b16"), program.source(instruction.operands[2], "f32")

    def run(warp: Warp) -> None:
        x, y = widen(warp.registers[a]), warp.registers[b].view(np.float32)
        warp.put(to, (x + y if name == "add" else x - y).view(np.uint32))

    return run


@form("fma.rn.f32.{bf16,f16}")
def mixed_multiply_add(program: Program, instruction: Instruction) -> Step:
    """Multiply two narrow operands and add a float32."""
    widen = _widen_bf16 if instruction.opcode.endswith("bf16") else _widen_f16
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, "b16") for x in instruction.operands[1:3])
    c = program.source(instruction.operands[3], "f32")

    def run(warp: Warp) -> None:
        x, y = widen(warp.registers[a]), widen(warp.registers[b])
        warp.put(to, fused(x, y, warp.registers[c].view(np.float32)).view(np.uint32))

    return run


def _narrow_values(bits: Value, kind: str) -> Value:
    """Return float32 values of 16-bit floats."""
    return _widen_bf16(bits) if kind.startswith("bf16") else _widen_f16(bits)


def _narrow_bits(values: Value, kind: str) -> Value:
    """Round float64 values, exact or rounded to odd, to 16-bit floats; NaN becomes 0x7fff."""
    if kind.startswith("bf16"):
        return f32_to_bf16(_odd_f32(values))
    return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))


@form(
    "{add,sub,mul}{,.rn}.{bf16,f16,bf16x2,f16x2}",
    "fma.rn.{bf16,f16,bf16x2,f16x2}",
    "{min,max}.{bf16,f16,bf16x2,f16x2}",
)
def half_precision(program: Program, instruction: Instruction) -> Step:
    """Compute with 16-bit floats, one or two at once: in float64, of which products are exact, rounded once."""
    name, kind = instruction.opcode.split(".")[0], kind_of(instruction)
    to = program.destination(instruction.operands[0])
    register = "b32" if kind.endswith("x2") else "b16"
    sources = [program.source(x, register) for x in instruction.operands[1:]]
    raw = np.uint32 if register == "b32" else np.uint16

    def run(warp: Warp) -> None:
        bits = [np.ascontiguousarray(warp.registers[x]).view(np.uint16) for x in sources]
        values = [_narrow_values(x, kind).astype(np.float64) for x in bits]
        if name == "fma":
            found = odd_sum(values[0] * values[1], values[2])
        elif name in ("add", "sub"):
            found = odd_sum(values[0], values[1] if name == "add" else -values[1])
        else:
            found = _ARITHMETIC[name](*values)
        warp.put(to, np.ascontiguousarray(_narrow_bits(found, kind)).view(raw))

    return run
