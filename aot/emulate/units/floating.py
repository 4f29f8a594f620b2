"""Floating-point arithmetic.

Source: PTX ISA, "Floating Point Instructions", "Half Precision Floating Point Instructions", "Mixed Precision
Floating-Point Instructions".

What hardware approximates (ex2, lg2, rcp, rsqrt, sqrt, tanh, sin, cos and div with .approx) is computed in float64 here
and rounded: within the error that the ISA allows, and not the bits of a chip. A fused multiply-add is computed in
float64, whose 53 bits hold a product of two float32 exactly; the sum is then rounded twice, which differs from one
rounding in one case of 2^29.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.forms import form
from aot.emulate.types import bf16_to_f32, f32_to_bf16
from aot.emulate.units.integer import binary, kind_of, unary

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.warp import Value, Warp

_TINY = np.float32(np.finfo(np.float32).tiny)


def _flushed(values: Value) -> Value:
    """Take subnormal numbers for zeros of their sign, as .ftz does."""
    return np.where(np.abs(values) < _TINY, np.copysign(np.float32(0), values), values).astype(np.float32)


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin, "max": np.fmax}


@form("{add,sub,mul}{,.rn}{,.ftz}.f32", "{add,sub,mul}{,.rn}.f64", "{min,max}{,.ftz}.f32", "{min,max}.f64")
def arithmetic(program: Program, instruction: Instruction) -> Step:
    """Add, subtract, multiply, or choose the lesser or greater, which is the other where one is NaN."""
    name, *modifiers = instruction.opcode.split(".")
    function = _ARITHMETIC[name]
    if "ftz" in modifiers:
        plain = function
        return binary(program, instruction, lambda a, b: _flushed(plain(_flushed(a), _flushed(b))), "f32")
    return binary(program, instruction, function, kind_of(instruction))


@form("{min,max}{,.ftz}.NaN.f32")
def extreme_or_nan(program: Program, instruction: Instruction) -> Step:
    """Choose the lesser or greater; NaN where one is."""
    function = np.minimum if instruction.opcode.startswith("min") else np.maximum
    return binary(program, instruction, function, "f32")


@form("{add,sub,mul,fma}{,.rn}{,.ftz}.f32x2")
def pairs(program: Program, instruction: Instruction) -> Step:
    """Compute two float32 at once."""
    name = instruction.opcode.split(".")[0]
    to = program.destination(instruction.operands[0])
    sources = [program.source(x, "b64") for x in instruction.operands[1:]]

    def run(warp: Warp) -> None:
        values = [warp.registers[x].view(np.float32) for x in sources]
        found = fused(*values) if name == "fma" else _ARITHMETIC[name](*values)
        warp.put(to, np.ascontiguousarray(found).view(np.uint64))

    return run


def fused(a: Value, b: Value, c: Value) -> Value:
    """Multiply and add float32 with one rounding (see above)."""
    return np.asarray(a.astype(np.float64) * b + c).astype(np.float32)


@form("fma.{rn,rm,rp,rz}{,.ftz}.f32")
def multiply_add(program: Program, instruction: Instruction) -> Step:
    """Multiply and add; rm, rp and rz round towards minus, plus infinity and zero."""
    modifiers = instruction.opcode.split(".")
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "f32") for x in instruction.operands[1:4])
    flushes, rounding = "ftz" in modifiers, modifiers[1]
    if not flushes and rounding == "rn":

        def run_plain(warp: Warp) -> None:
            registers = warp.registers
            product = registers[a].view(np.float32).astype(np.float64) * registers[b].view(np.float32)
            warp.put(to, (product + registers[c].view(np.float32)).astype(np.float32).view(np.uint32))

        return run_plain

    def run(warp: Warp) -> None:
        x, y, z = (warp.registers[i].view(np.float32) for i in (a, b, c))
        if flushes:
            x, y, z = _flushed(x), _flushed(y), _flushed(z)
        exact = x.astype(np.float64) * y + z
        found = exact.astype(np.float32)
        if rounding != "rn":
            found = _rounded(exact, found, rounding)
        warp.put(to, (_flushed(found) if flushes else found).view(np.uint32))

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


@form("fma.rn.f64")
def multiply_add_64(program: Program, instruction: Instruction) -> Step:
    """Multiply and add float64, in extended precision, which holds all but the last bits of a product."""
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "f64") for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        x, y, z = (warp.registers[i].view(np.float64).astype(np.longdouble) for i in (a, b, c))
        warp.put(to, (x * y + z).astype(np.float64).view(np.uint64))

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
        return unary(program, instruction, lambda x: _flushed(compute(_flushed(x))), "f32")
    return unary(program, instruction, compute, "f32")


@form("{rcp,sqrt}.rn.f64")
def function_of_one_64(program: Program, instruction: Instruction) -> Step:
    """Compute a function of a float64."""
    return unary(program, instruction, _FUNCTIONS[instruction.opcode.split(".")[0]], "f64")


@form("div.{rn,approx,full}{,.ftz}.f32")
def divide(program: Program, instruction: Instruction) -> Step:
    """Divide; .approx and .full as a division that is rounded once."""
    flushes = "ftz" in instruction.opcode.split(".")

    def compute(a: Value, b: Value) -> Value:
        if flushes:
            return _flushed((_flushed(a).astype(np.float64) / _flushed(b)).astype(np.float32))
        return np.asarray(a.astype(np.float64) / b).astype(np.float32)

    return binary(program, instruction, compute, "f32")


@form("div.rn.f64")
def divide_64(program: Program, instruction: Instruction) -> Step:
    """Divide float64."""
    return binary(program, instruction, np.divide, "f64")


@form("neg{,.ftz}.f32")
def negate(program: Program, instruction: Instruction) -> Step:
    """Change the sign."""
    return unary(program, instruction, np.negative, "f32")


@form("abs{,.ftz}.f32")
def absolute(program: Program, instruction: Instruction) -> Step:
    """Clear the sign."""
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
    """Round float32 values to 16-bit floats."""
    return f32_to_bf16(values) if kind.startswith("bf16") else values.astype(np.float16).view(np.uint16)


@form("{add,sub,mul,fma}{,.rn}.{bf16,f16,bf16x2,f16x2}", "{min,max}.{bf16,f16,bf16x2,f16x2}")
def half_precision(program: Program, instruction: Instruction) -> Step:
    """Compute with 16-bit floats, one or two at once: in float64, rounded once."""
    name, kind = instruction.opcode.split(".")[0], kind_of(instruction)
    to = program.destination(instruction.operands[0])
    register = "b32" if kind.endswith("x2") else "b16"
    sources = [program.source(x, register) for x in instruction.operands[1:]]
    raw = np.uint32 if register == "b32" else np.uint16

    def run(warp: Warp) -> None:
        bits = [np.ascontiguousarray(warp.registers[x]).view(np.uint16) for x in sources]
        values = [_narrow_values(x, kind).astype(np.float64) for x in bits]
        found = values[0] * values[1] + values[2] if name == "fma" else _ARITHMETIC[name](*values)
        warp.put(to, np.ascontiguousarray(_narrow_bits(found.astype(np.float32), kind)).view(raw))

    return run
