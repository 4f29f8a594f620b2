"""Integer arithmetic, logic and shifts.

Source: PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift Instructions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.forms import form
from aot.emulate.types import BYTES, SIGNED, UNSIGNED, raw_dtype, view_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value


def kind_of(instruction: Instruction) -> str:
    """Return the last type of a form."""
    return instruction.opcode.rsplit(".", 1)[1]


def unary(program: Program, instruction: Instruction, function: Callable[[Value], Value], kind: str) -> Step:
    """Build an instruction that looks at one operand as a type, and gives raw bits or that type."""
    to, source = program.destination(instruction.operands[0]), program.source(instruction.operands[1], kind)
    raw, view = raw_dtype(kind), view_dtype(kind) if kind != "pred" else np.bool_

    def run(warp: Warp) -> None:
        warp.put(to, function(warp.registers[source].view(view)).view(raw))

    return run


def binary(program: Program, instruction: Instruction, function: Callable[[Value, Value], Value], kind: str) -> Step:
    """Build an instruction that looks at two operands as a type, and gives that type."""
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])
    raw = raw_dtype(kind)
    if kind == "pred" or view_dtype(kind) is raw:

        def run_raw(warp: Warp) -> None:
            registers = warp.registers
            value = function(registers[a], registers[b])
            if warp.full and to is not None:
                registers[to] = value
            else:
                warp.put(to, value)

        return run_raw
    view = view_dtype(kind)

    def run(warp: Warp) -> None:
        registers = warp.registers
        warp.put(to, function(registers[a].view(view), registers[b].view(view)).view(raw))

    return run


def _bits_kind(kind: str) -> str:
    """Return the untyped bits of a type: two's complement adds and multiplies signed and unsigned alike."""
    return f"b{8 * BYTES[kind]}"


_WRAPPING = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@form("{add,sub}.{s16,u16,s32,u32,s64,u64}", "mul.lo.{s16,u16,s32,u32,s64,u64}")
def wrapping(program: Program, instruction: Instruction) -> Step:
    """Add, subtract or multiply modulo 2^n."""
    function = _WRAPPING[instruction.opcode.split(".")[0]]
    return binary(program, instruction, function, _bits_kind(kind_of(instruction)))


def _wide(kind: str) -> tuple[Any, Any]:
    """Return the dtype of a type, and that of twice its bytes."""
    table = SIGNED if kind[0] == "s" else UNSIGNED
    return table[BYTES[kind]], table[2 * BYTES[kind]]


@form("mul.wide.{s16,u16,s32,u32}")
def multiply_wide(program: Program, instruction: Instruction) -> Step:
    """Multiply into twice the bits."""
    kind = kind_of(instruction)
    view, wide = _wide(kind)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])
    raw = UNSIGNED[2 * BYTES[kind]]

    def run(warp: Warp) -> None:
        x, y = (warp.registers[i].view(view).astype(wide) for i in (a, b))
        warp.put(to, (x * y).view(raw))

    return run


@form("mul.hi.{s16,u16,s32,u32}")
def multiply_high(program: Program, instruction: Instruction) -> Step:
    """Give the upper half of a product."""
    view, wide = _wide(kind_of(instruction))

    def high(a: Value, b: Value) -> Value:
        return np.asarray((a.astype(wide) * b.astype(wide)) >> wide(8 * BYTES[kind_of(instruction)])).astype(view)

    return binary(program, instruction, high, kind_of(instruction))


@form("mul.hi.{s64,u64}")
def multiply_high_64(program: Program, instruction: Instruction) -> Step:
    """Give the upper half of a product of 64 bits."""

    def high(a: Value, b: Value) -> Value:
        products = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
        return np.array([x & (2**64 - 1) for x in products], np.uint64).view(a.dtype)

    return binary(program, instruction, high, kind_of(instruction))


@form("mad.lo.{s16,u16,s32,u32,s64,u64}")
def multiply_add(program: Program, instruction: Instruction) -> Step:
    """Multiply and add modulo 2^n."""
    kind = _bits_kind(kind_of(instruction))
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, kind) for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        registers = warp.registers
        warp.put(to, registers[a] * registers[b] + registers[c])

    return run


@form("mad.wide.{s32,u32}")
def multiply_add_wide(program: Program, instruction: Instruction) -> Step:
    """Multiply into 64 bits and add."""
    kind = kind_of(instruction)
    view, wide = _wide(kind)
    to = program.destination(instruction.operands[0])
    a, b = (program.source(x, kind) for x in instruction.operands[1:3])
    c = program.source(instruction.operands[3], "b64")

    def run(warp: Warp) -> None:
        x, y = (warp.registers[i].view(view).astype(wide) for i in (a, b))
        warp.put(to, (x * y).view(np.uint64) + warp.registers[c])

    return run


def _divide(a: Value, b: Value) -> Value:
    """Divide towards zero; by zero the result is not defined, and all ones on an H100 (2026-11-26)."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(b == 0, ~b.dtype.type(0), a // safe)
    # The magnitude of the least number is no number of its type, but the unsigned one of the same bits.
    unsigned = UNSIGNED[a.dtype.itemsize]
    quotient = np.abs(a).view(unsigned) // np.abs(safe).view(unsigned)
    signed: Value = np.where((a < 0) != (safe < 0), np.negative(quotient), quotient).view(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), signed)


def _remainder(a: Value, b: Value) -> Value:
    """Return what a division towards zero leaves; by zero as for a quotient."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, np.invert(a.dtype.type(0)), np.fmod(a, safe)).astype(a.dtype)


_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "div": _divide,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@form(
    "{div,rem,min,max}.{s16,u16,s32,u32,s64,u64}",
    "{and,or,xor}.{b16,b32,b64,pred}",
)
def plain_binary(program: Program, instruction: Instruction) -> Step:
    """Divide, compare or combine bits."""
    name = instruction.opcode.split(".")[0]
    return binary(program, instruction, _BINARY[name], kind_of(instruction))


@form("not.{b16,b32,b64,pred}")
def complement(program: Program, instruction: Instruction) -> Step:
    """Complement bits."""
    return unary(program, instruction, np.invert, kind_of(instruction))


@form("neg.{s16,s32,s64}")
def negate(program: Program, instruction: Instruction) -> Step:
    """Negate in two's complement."""
    return unary(program, instruction, np.negative, kind_of(instruction))


@form("abs.{s32,s64}")
def absolute(program: Program, instruction: Instruction) -> Step:
    """Give the absolute value."""
    return unary(program, instruction, np.abs, kind_of(instruction))


def _of_bits(program: Program, instruction: Instruction, function: Callable[[int], int]) -> Step:
    """Build an instruction that counts something of the bits of one operand, into 32 bits."""
    to = program.destination(instruction.operands[0])
    source = program.source(instruction.operands[1], kind_of(instruction))

    def run(warp: Warp) -> None:
        warp.put(to, np.array([function(int(x)) for x in warp.registers[source]], np.uint32))

    return run


@form("popc.{b32,b64}")
def population_count(program: Program, instruction: Instruction) -> Step:
    """Count the bits that are set."""
    return _of_bits(program, instruction, int.bit_count)


@form("clz.{b32,b64}")
def leading_zeros(program: Program, instruction: Instruction) -> Step:
    """Count the zeros above the highest bit that is set."""
    bits = 8 * BYTES[kind_of(instruction)]
    return _of_bits(program, instruction, lambda x: bits - x.bit_length())


@form("brev.b32")
def reverse_bits(program: Program, instruction: Instruction) -> Step:
    """Reverse the order of bits."""
    return _of_bits(program, instruction, lambda x: int(f"{x:032b}"[::-1], 2))


@form("bfind.u32")
def find_highest(program: Program, instruction: Instruction) -> Step:
    """Give the position of the highest bit that is set, or all ones."""
    return _of_bits(program, instruction, lambda x: (x.bit_length() - 1) & 0xFFFFFFFF)


@form("shl.{b16,b32,b64}", "shr.{b16,u16,s16,b32,u32,s32,b64,u64,s64}")
def shift(program: Program, instruction: Instruction) -> Step:
    """Shift; more than all bits give zeros, or signs where numbers are signed."""
    kind = kind_of(instruction)
    to = program.destination(instruction.operands[0])
    a, b = program.source(instruction.operands[1], kind), program.source(instruction.operands[2], "b32")
    view, raw, bits = view_dtype(kind), raw_dtype(kind), 8 * BYTES[kind]
    is_left, is_signed = instruction.opcode.startswith("shl"), kind[0] == "s"

    def run(warp: Warp) -> None:
        value, count = warp.registers[a].view(view), warp.registers[b]
        by = np.minimum(count, bits - 1).astype(view)
        found = value << by if is_left else value >> by
        if not is_signed:
            found = np.where(count < bits, found, view(0))
        warp.put(to, found.view(raw))

    return run


@form("shf.{l,r}.{wrap,clamp}.b32")
def funnel_shift(program: Program, instruction: Instruction) -> Step:
    """Shift two registers as one of 64 bits: left gives the upper half, right the lower."""
    _, direction, mode, _ = instruction.opcode.split(".")
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "b32") for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        registers = warp.registers
        both = registers[b].astype(np.uint64) << np.uint64(32) | registers[a]
        count = registers[c] & np.uint32(31) if mode == "wrap" else np.minimum(registers[c], np.uint32(32))
        by = count.astype(np.uint64)
        found = (both << by) >> np.uint64(32) if direction == "l" else both >> by
        warp.put(to, found.astype(np.uint32))

    return run


@form("lop3.b32")
def logic_of_three(program: Program, instruction: Instruction) -> Step:
    """Combine the bits of three operands by a table of 8 bits."""
    to = program.destination(instruction.operands[0])
    sources = [program.source(x, "b32") for x in instruction.operands[1:4]]
    table = program.constant_value(instruction.operands[4])

    def run(warp: Warp) -> None:
        a, b, c = (warp.registers[x] for x in sources)
        found = np.zeros(32, np.uint32)
        for i in range(8):
            if table >> i & 1:
                found |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        warp.put(to, found)

    return run


@form("bfe.u32")
def extract_bits(program: Program, instruction: Instruction) -> Step:
    """Extract a field of bits."""
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "b32") for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        registers = warp.registers
        start = (registers[b] & np.uint32(0xFF)).astype(np.uint64)
        length = np.minimum(registers[c] & np.uint32(0xFF), np.uint32(32)).astype(np.uint64)
        mask = (np.uint64(1) << length) - np.uint64(1)
        shifted = registers[a].astype(np.uint64) >> np.minimum(start, np.uint64(63))
        warp.put(to, (shifted & mask).astype(np.uint32))

    return run


@form("bfe.s32")
def extract_signed_bits(program: Program, instruction: Instruction) -> Step:
    """Extract a field of bits; its last one that the word has fills what is above.

    Source: PTX ISA, "Integer Arithmetic Instructions: bfe".
    """
    to = program.destination(instruction.operands[0])
    a, b, c = (program.source(x, "b32") for x in instruction.operands[1:4])

    def run(warp: Warp) -> None:
        registers = warp.registers
        word = registers[a].astype(np.int64)
        start = (registers[b] & np.uint32(0xFF)).astype(np.int64)
        length = (registers[c] & np.uint32(0xFF)).astype(np.int64)
        own = (np.int64(1) << np.clip(32 - start, 0, np.minimum(length, 32))) - 1
        last = word >> np.minimum(start + length - 1, 31) & 1
        above = np.where((length > 0) & (last == 1), ~own, 0)
        warp.put(to, ((word >> np.minimum(start, 63) & own) | above).astype(np.uint32))

    return run
