"""Conversions. Source: PTX ISA, "Data Movement and Conversion Instructions: cvt, cvta, mapa"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import decode, encode
from aot.emulate.forms import form
from aot.emulate.memory import OFFSET_MASK, RANK_SHIFT, SHARED_WINDOW
from aot.emulate.types import BYTES, SIGNED, UNSIGNED, bf16_to_f32, f32_to_bf16, flushed, raw_dtype, view_dtype
from aot.emulate.units.integer import unary

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

FP8 = {"e4m3x2": ElementType.E4M3, "e5m2x2": ElementType.E5M2}
"""Two 8-bit floats."""
NAN = np.uint32(0x7FFFFFFF).view(np.float32)


def _types(instruction: Instruction) -> tuple[str, str]:
    to, source = instruction.opcode.split(".")[-2:]
    return to, source


def widened(values: Value, kind: str) -> Value:
    """Return a narrow float's bits as float32; NaN of float16 becomes 0x7fffffff, as on an H100 (2026-11-26)."""
    if kind == "bf16":
        return bf16_to_f32(values)
    found = values.view(np.float16).astype(np.float32)
    return np.where(np.isnan(found), NAN, found)


@form("cvt.f32.{bf16,f16}")
def widen(program: Program, instruction: Instruction) -> Step:
    """Widen to float32."""
    _, kind = _types(instruction)
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], kind)
    return lambda warp: warp.put(to, widened(warp.registers[a], kind).view(np.uint32))


@form("cvt.f64.f32", "cvt.rn.f32.f64")
def between_floats(program: Program, instruction: Instruction) -> Step:
    """Widen to float64 or round to float32."""
    kinds = _types(instruction)
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], kinds[1])
    view, target, raw = view_dtype(kinds[1]), view_dtype(kinds[0]), raw_dtype(kinds[0])
    return lambda warp: warp.put(to, warp.registers[a].view(view).astype(target).view(raw))


def _narrowed(values: Value, kind: str) -> Value:
    """Round float32 to 16 bits; NaN becomes 0x7fff."""
    if kind.startswith("bf16"):
        return f32_to_bf16(values)
    return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(np.float16).view(np.uint16))


@form("cvt.rn{,.relu}.{bf16,f16}.f32")
def narrow(program: Program, instruction: Instruction) -> Step:
    """Round to 16 bits, to nearest even; with .relu negative numbers and NaN become 0 and NaN."""
    kind, _ = _types(instruction)
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "f32")
    clamps = ".relu." in instruction.opcode

    def run(warp: Warp) -> None:
        values = warp.registers[a].view(np.float32)
        warp.put(to, _narrowed(np.maximum(values, np.float32(0)) if clamps else values, kind))

    return run


@form("cvt.rn{,.relu}.{bf16x2,f16x2}.f32")
def narrow_two(program: Program, instruction: Instruction) -> Step:
    """Round two to 16 bits: the first operand becomes the upper half."""
    kind, _ = _types(instruction)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, "f32") for x in instruction.operands[1:3])
    clamps = ".relu." in instruction.opcode

    def run(warp: Warp) -> None:
        high, low = (warp.registers[x].view(np.float32) for x in (a, b))
        if clamps:
            high, low = np.maximum(high, np.float32(0)), np.maximum(low, np.float32(0))
        bits = [_narrowed(x, kind).astype(np.uint32) for x in (high, low)]
        warp.put(to, bits[0] << np.uint32(16) | bits[1])

    return run


@form("cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32")
def to_fp8(program: Program, instruction: Instruction) -> Step:
    """Round two float32 to 8-bit floats, saturated, NaN to 0x7f: the first operand becomes the upper byte."""
    element = FP8[_types(instruction)[0]]
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, "f32") for x in instruction.operands[1:3])

    def byte(values: Value) -> Value:
        return np.where(np.isnan(values), np.uint8(0x7F), encode(element, values)).astype(np.uint16)

    def run(warp: Warp) -> None:
        high, low = (byte(warp.registers[x].view(np.float32)) for x in (a, b))
        warp.put(to, high << np.uint16(8) | low)

    return run


@form("cvt.rn.satfinite.e2m1x2.f32")
def to_fp4(program: Program, instruction: Instruction) -> Step:
    """Round two float32 to 4-bit floats, saturated, NaN to 6: the first operand becomes the upper half of a byte."""
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, "f32") for x in instruction.operands[1:3])

    def run(warp: Warp) -> None:
        high, low = (encode(ElementType.E2M1, warp.registers[x].view(np.float32)) for x in (a, b))
        warp.put(to, high << np.uint8(4) | low)

    return run


@form("cvt.rn.f16x2.{e4m3x2,e5m2x2}")
def from_fp8(program: Program, instruction: Instruction) -> Step:
    """Widen two 8-bit floats to float16, which holds both types exactly; NaN becomes 0x7fff."""
    element = FP8[_types(instruction)[1]]
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "b16")

    def run(warp: Warp) -> None:
        values = decode(element, np.ascontiguousarray(warp.registers[a]).view(np.uint8)).astype(np.float16)
        bits = np.where(np.isnan(values), np.uint16(0x7FFF), values.view(np.uint16))
        warp.put(to, np.ascontiguousarray(bits).view(np.uint32))

    return run


@form("cvt.rna.tf32.f32")
def to_tf32(program: Program, instruction: Instruction) -> Step:
    """Round to 10 bits of fraction, ties away from zero; of NaN the other bits are cut, as by an H100."""
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "f32")

    def run(warp: Warp) -> None:
        bits = warp.registers[a]
        is_nan = np.isnan(bits.view(np.float32))
        warp.put(to, np.where(is_nan, bits, bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000))

    return run


@form("cvt{,.ftz}.sat.f32.f32")
def saturate(program: Program, instruction: Instruction) -> Step:
    """Clamp to [0, 1]; NaN and -0 become 0."""
    flush = flushed if ".ftz" in instruction.opcode else np.asarray

    def clamp(values: Value) -> Value:
        x = flush(values)
        return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))  # a comparison with NaN is false

    return unary(program, instruction, clamp, "f32")


_ROUNDINGS: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@form(
    "cvt.{rni,rzi,rmi,rpi}{,.ftz}{,.sat}.{s32,u32,s64,u64,s8,u8,s16,u16}.f32",
    "cvt.{rni,rzi,rmi,rpi}{,.sat}.{s32,u32,s64,u64,s8,u8,s16,u16}.f64",
)
def to_integer(program: Program, instruction: Instruction) -> Step:
    """Round to a whole number, clamped to its type's range.

    NaN becomes 0, or the bits 1000... where source or result has 64 bits. Source: PTX ISA, "cvt", Integer Notes.
    """
    kind, source = _types(instruction)
    rounding = _ROUNDINGS[instruction.opcode.split(".")[1]]
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], source)
    view, raw = view_dtype(source), raw_dtype(program.type_of(instruction.operands[0]))
    limits, signed = np.iinfo(view_dtype(kind)), kind[0] == "s"
    low, high = int(limits.min), int(limits.max)
    of_nan = (low if signed else high // 2 + 1) if 8 in (BYTES[kind], BYTES[source]) else 0
    flush = flushed if ".ftz" in instruction.opcode else np.asarray

    def run(warp: Warp) -> None:
        values = rounding(flush(warp.registers[a].view(view)).astype(np.float64))
        found = [of_nan if np.isnan(x) else int(np.clip(x, float(low), float(high))) for x in values]
        wide = np.array([min(max(x, low), high) for x in found], np.int64 if signed else np.uint64)
        warp.put(to, wide.astype(raw))

    return run


@form("cvt.{rni,rzi,rmi,rpi}{,.ftz}.f32.f32")
def to_whole_float(program: Program, instruction: Instruction) -> Step:
    """Round to a whole number that stays a float32."""
    rounding = _ROUNDINGS[instruction.opcode.split(".")[1]]
    flush = flushed if ".ftz" in instruction.opcode else np.asarray
    return unary(program, instruction, lambda x: rounding(flush(x)), "f32")


@form("cvt.rn.{f32,f64}.{s8,u8,s16,u16,s32,u32,s64,u64}", "cvt.rp.f32.{u32,u64}")
def from_integer(program: Program, instruction: Instruction) -> Step:
    """Convert a whole number; .rp rounds up."""
    kind, source = _types(instruction)
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], source)
    narrow_, view = UNSIGNED[BYTES[source]], view_dtype(source)
    target, raw = view_dtype(kind), raw_dtype(kind)
    rounds_up = ".rp." in instruction.opcode

    def run(warp: Warp) -> None:
        values = warp.registers[a].astype(narrow_).view(view)
        found = values.astype(target)
        if rounds_up:
            short = [int(x) > int(y) for x, y in zip(values, found, strict=True)]
            found = np.where(short, np.nextafter(found, target(np.inf)), found)
        warp.put(to, found.view(raw))

    return run


@form("cvt.{s8,u8,s16,u16,s32,u32,s64,u64}.{s8,u8,s16,u16,s32,u32,s64,u64}")
def between_integers(program: Program, instruction: Instruction) -> Step:
    """Cut or extend a whole number, by its source's sign; a wider register gets it extended by the result's."""
    kind, source = _types(instruction)
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], source)
    narrow_, signed = UNSIGNED[BYTES[source]], view_dtype(source)
    raw = raw_dtype(program.type_of(instruction.operands[0]))
    table = SIGNED if kind[0] == "s" else UNSIGNED
    cut, wide = table[BYTES[kind]], table[np.dtype(raw).itemsize]

    def run(warp: Warp) -> None:
        value = warp.registers[a].astype(narrow_).view(signed)
        warp.put(to, value.astype(cut).astype(wide).view(raw))

    return run


@form("cvta.param.u64", "cvta{,.to}.global.u64")
def same_address(program: Program, instruction: Instruction) -> Step:
    """Global memory and parameters have their generic addresses."""
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "b64")
    return lambda warp: warp.put(to, warp.registers[a])


@form("cvta.shared{,::cta,::cluster}.u64", "cvta.to.shared{,::cta,::cluster}.u64")
def shared_address(program: Program, instruction: Instruction) -> Step:
    """Go between a shared address and its generic address."""
    to, a = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "b64")
    window = np.uint64(SHARED_WINDOW)
    if ".to." in instruction.opcode:
        return lambda warp: warp.put(to, warp.registers[a] - window)
    return lambda warp: warp.put(to, warp.registers[a] + window)


@form("mapa.shared::cluster.u32")
def map_address(program: Program, instruction: Instruction) -> Step:
    """Give the address of the same place in another CTA of the cluster."""
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, "b32") for x in instruction.operands[1:3])

    def run(warp: Warp) -> None:
        registers = warp.registers
        warp.put(to, (registers[a] & np.uint32(OFFSET_MASK)) | (registers[b] << np.uint32(RANK_SHIFT)))

    return run
