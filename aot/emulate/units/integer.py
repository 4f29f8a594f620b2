"""Integer arithmetic, logic, shifts, comparisons and moves.

Source: PTX ISA, "Integer Arithmetic Instructions", "Comparison and Selection Instructions", "Logic and Shift
Instructions", "Data Movement and Conversion Instructions: mov, prmt".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.forms import form
from aot.emulate.ptx import Special, Vector
from aot.emulate.types import BYTES, SIGNED, UNSIGNED, raw_dtype, view_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.warp import Value, Warp


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
            warp.put(slot, np.full(32, warp.machine.num_instructions, np.uint64).astype(dtype))

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
