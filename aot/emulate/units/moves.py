"""Comparisons, selections and moves.

Source: PTX ISA, "Comparison and Selection Instructions", "Data Movement and Conversion Instructions: mov, prmt".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.forms import form
from aot.emulate.ptx import Special, Vector
from aot.emulate.types import BYTES, UNSIGNED, raw_dtype, view_dtype
from aot.emulate.units.integer import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value


@form("prmt.b32")
def permute_bytes(program: Program, instruction: Instruction) -> Step:
    """Choose four of eight bytes, or their signs."""
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "b32") for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        registers = warp.registers
        both = registers[a].astype(np.uint64) | registers[b].astype(np.uint64) << np.uint64(32)
        selectors = registers[c].astype(np.uint64)
        found = np.zeros(32, np.uint64)
        for i in range(4):
            selector = selectors >> np.uint64(4 * i)
            byte = both >> (np.uint64(8) * (selector & np.uint64(7))) & np.uint64(0xFF)
            sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
            found |= np.where(selector & np.uint64(8), sign, byte) << np.uint64(8 * i)
        warp.put(to, found.astype(np.uint32))

    return run


_COMPARISONS: dict[str, Callable[[Value, Value], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


@form(
    "setp.{eq,ne}.{b16,b32,b64}",
    "setp.{eq,ne,lt,le,gt,ge}.{s16,u16,s32,u32,s64,u64,f32,f64}",
    "setp.{lo,ls,hi,hs}.{u16,u32,u64}",
)
def compare(program: Program, instruction: Instruction) -> Step:
    """Compare into a predicate. A comparison with NaN is false, but for ne."""
    _, comparison, kind = instruction.opcode.split(".")
    function, view = _COMPARISONS[comparison], view_dtype(kind)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])

    def run(warp: Warp) -> None:
        registers = warp.registers
        x, y = registers[a].view(view), registers[b].view(view)
        found = function(x, y)
        if comparison == "ne" and view in (np.float32, np.float64):
            found &= ~(np.isnan(x) | np.isnan(y))  # ne is ordered; neu is not
        warp.put(to, found)

    return run


@form("setp.{equ,neu,ltu,leu,gtu,geu,num,nan}.{f32,f64}")
def compare_unordered(program: Program, instruction: Instruction) -> Step:
    """Compare into a predicate that is true where an operand is NaN; num and nan say whether one is."""
    _, comparison, kind = instruction.opcode.split(".")
    view = view_dtype(kind)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])

    def run(warp: Warp) -> None:
        x, y = (warp.registers[i].view(view) for i in (a, b))
        is_nan = np.isnan(x) | np.isnan(y)
        if comparison in ("num", "nan"):
            warp.put(to, is_nan if comparison == "nan" else ~is_nan)
        else:
            warp.put(to, _COMPARISONS[comparison[:-1]](x, y) | is_nan)

    return run


@form("selp.{b16,b32,b64,s32,u32,f32,f64}")
def select(program: Program, instruction: Instruction) -> Step:
    """Choose by a predicate."""
    kind = kind_of(instruction)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])
    predicate = program.source(instruction.operands[3], "pred")

    def run(warp: Warp) -> None:
        registers = warp.registers
        warp.put(to, np.where(registers[predicate], registers[a], registers[b]))

    return run


@form("mov.{b16,b32,b64,b128,u16,u32,u64,s16,s32,s64,f32,f64,pred}")
def move(program: Program, instruction: Instruction) -> Step:
    """Move, pack or unpack."""
    kind = kind_of(instruction)
    to, source = instruction.operands
    if kind == "b128":
        return _move_128(program, to, source)
    if isinstance(to, Vector):
        return _unpack(program, instruction)
    if isinstance(source, Vector):
        return _pack(program, instruction)
    slot = program.destination(to)
    if isinstance(source, Special) and source.name in ("%clock", "%clock64", "%globaltimer"):
        dtype = raw_dtype(kind)

        def clock(warp: Warp) -> None:
            warp.put(slot, np.full(32, warp.device.num_instructions, np.uint64).astype(dtype))

        return clock
    a = program.source(source, kind)

    def run(warp: Warp) -> None:
        warp.put(slot, warp.registers[a])

    return run


def _move_128(program: Program, to: Any, source: Any) -> Step:
    if isinstance(to, Vector):
        raise TypeError("b128 is not unpacked by any kernel that is known")
    slot = program.destination(to)
    if not isinstance(source, Vector):
        a = program.source(source, "b128")
        return lambda warp: warp.put(slot, warp.registers[a])
    low, high = (program.source(x, "b64") for x in source.items)
    return lambda warp: warp.put(slot, np.stack([warp.registers[low], warp.registers[high]], 1))


def _unpack(program: Program, instruction: Instruction) -> Step:
    to, source = instruction.operands
    slots, size = program.destinations(to), BYTES[kind_of(instruction)]
    a, part, bits = program.source(source, kind_of(instruction)), UNSIGNED[size // len(slots)], 8 * size // len(slots)

    def run(warp: Warp) -> None:
        value = warp.registers[a]
        for i, slot in enumerate(slots):
            if slot is not None:
                warp.put(slot, (value >> value.dtype.type(bits * i)).astype(part))

    return run


def _pack(program: Program, instruction: Instruction) -> Step:
    to, source = instruction.operands
    size = BYTES[kind_of(instruction)]
    if not isinstance(source, Vector):
        raise TypeError("no vector")
    bits, dtype = 8 * size // len(source.items), UNSIGNED[size]
    slot, slots = program.destination(to), program.sources(source, f"b{bits}")

    def run(warp: Warp) -> None:
        value = warp.registers[slots[0]].astype(dtype)
        for i, x in enumerate(slots[1:], 1):
            value = value | (warp.registers[x].astype(dtype) << dtype(bits * i))
        warp.put(slot, value)

    return run
