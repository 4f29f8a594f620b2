"""A parser of the PTX that NVVM writes: kernels, their parameters, shared variables, registers and instructions.

Source: PTX ISA, sections "Syntax", "State Spaces, Types, and Variables" and "Instruction Operands". Braces open a
scope, as inline assembly does, in which registers and labels hide those outside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from aot.core.errors import CompileError
from aot.emulate.types import BYTES


@dataclass(frozen=True)
class Register:
    """A register; its name is made unique where scopes hide names."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: an integer, or the bits of a floating-point number."""

    value: int


@dataclass(frozen=True)
class Special:
    """A special register, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """The address of a variable or parameter."""

    name: str


@dataclass(frozen=True)
class Vector:
    """Operands in braces, or a vector register's parts."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """Two destinations, written a|b."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """A predicate's complement."""

    operand: Operand


@dataclass(frozen=True)
class Discard:
    """The destination _."""


@dataclass(frozen=True)
class Address:
    """An operand in brackets: a base, an offset in bytes, and a tensor's coordinates and the like."""

    base: Operand
    offset: int
    rest: tuple[Operand, ...]


Operand = Register | Immediate | Special | Symbol | Vector | Pair | Negated | Discard | Address


@dataclass(frozen=True)
class Guard:
    """The predicate of an instruction: @p or @!p."""

    register: str
    is_negated: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    line: int
    opcode: str
    """The exact form, such as `mad.lo.s32`."""
    operands: tuple[Operand, ...]
    guard: Guard | None
    target: int | None
    """The instruction that a branch goes to, by its number."""
    text: str

    @property
    def where(self) -> str:
        """Name the place in messages."""
        return f"line {self.line}: {self.text[:120]}"


@dataclass(frozen=True)
class Kernel:
    """One entry of a module."""

    name: str
    parameters: dict[str, tuple[int, int]]
    """Offset and bytes of each, by name."""
    shared: dict[str, int]
    """Offsets of static shared variables."""
    static_bytes: int
    dynamic: frozenset[str]
    """Names of dynamic shared memory, which lies behind the static."""
    dynamic_start: int
    """Its offset."""
    registers: dict[str, str]
    """The type of each."""
    instructions: tuple[Instruction, ...]

    @cached_property
    def slots(self) -> dict[str, int]:
        """Number the registers: where a warp keeps each."""
        return {name: i for i, name in enumerate(self.registers)}

    @property
    def parameter_sizes(self) -> tuple[int, ...]:
        """Return the bytes of each parameter, in order."""
        return tuple(size for _, size in self.parameters.values())

    @property
    def parameter_bytes(self) -> int:
        """Return the bytes that all parameters span."""
        return max((offset + size for offset, size in self.parameters.values()), default=0)


@dataclass
class _Scope:
    number: int
    registers: dict[str, str] = field(default_factory=dict)


@dataclass
class _Statement:
    """An instruction whose branch target is still a label."""

    instruction: Instruction
    label: str | None
    scopes: tuple[int, ...]


_INTEGER = re.compile(r"(-?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|(0[0-7]*)|(\d+))U?")
_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)(\S+)\s+(.*)", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v([24])\s+)?\.(\w+)\s+(.*)", re.DOTALL)
_RANGE = re.compile(r"(%\w+?)<(\d+)>")
_SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]")
_DYNAMIC = re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[\]")
_POINTER = r"(?:\s+\.ptr(?:\s+\.(?:const|global|local|shared))?(?:\s+\.align\s+\d+)?)?"
"""What a parameter that is a pointer says of what it points to. Source: PTX ISA, "Kernel Parameter Attribute: .ptr"."""
_PARAMETER = re.compile(rf"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+){_POINTER}\s+(\w+)(?:\[(\d+)\])?")
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)\n\{", re.DOTALL)
_OFFSET = re.compile(r"(.+?)\s*([+-])\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))")
_SPACE = re.compile(r"\s*")
_LOCATION = re.compile(r"\.(loc|pragma)\b[^\n;]*;?")  # .loc ends with its line
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENDS = re.compile(r"(ret|exit|bra|bra\.uni|trap)")


def _integer(text: str) -> int | None:
    """Return the number that a text is; None of another text."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits = found[1], next((x, base) for x, base in zip(found.groups()[1:], (16, 2, 8, 10), strict=True) if x)
    return int(sign + digits[0], digits[1])


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets and braces."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


class _Parser:
    """Parses the body of one entry."""

    def __init__(self, header: str) -> None:
        self.registers: dict[str, str] = {}
        self.labels: dict[str, int] = {}
        self.statements: list[_Statement] = []
        self.shared: dict[str, int] = {}
        self.static_bytes = 0
        dynamic = _DYNAMIC.findall(header)
        self.dynamic = frozenset(name for _, name in dynamic)
        self._dynamic_align = max((int(align) for align, _ in dynamic), default=1)
        self._scopes: list[_Scope] = []
        self._num_scopes = 0
        for text in re.findall(r"^\s*(\.shared[^;]*);", header, re.MULTILINE):
            self._declare_shared(text)

    def _declare_shared(self, text: str) -> None:
        found = _SHARED.match(text)
        if found is None:
            raise CompileError(
                f"PTX: {text!r} declares no shared memory that is understood; expected .align N .b8 name[bytes]"
            )
        align, size = int(found[1]), int(found[3])
        start = -(-self.static_bytes // align) * align
        self.shared[found[2]] = start
        self.static_bytes = start + size

    @property
    def dynamic_start(self) -> int:
        """Return the offset of dynamic shared memory: behind the static, at a multiple of its alignment."""
        return -(-self.static_bytes // self._dynamic_align) * self._dynamic_align

    def _declare_registers(self, text: str) -> None:
        found = _REGISTERS.match(text)
        if found is None or found[2] not in BYTES:
            raise CompileError(f"PTX: {text!r} declares no registers that are understood; expected .reg .type names")
        for name in _split(found[3]):
            many = _RANGE.fullmatch(name)
            parts = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for part in [f"{name}.{x}" for x in "xyzw"[: int(found[1])]] if found[1] else parts:
                own = f"{part}@{self._scopes[-1].number}" if self._scopes else part
                if self._scopes:
                    self._scopes[-1].registers[part] = own
                self.registers[own] = found[2]

    def _register(self, name: str) -> str:
        """Return the unique name of the innermost register that is called so."""
        return next((x.registers[name] for x in reversed(self._scopes) if name in x.registers), name)

    def _operand(self, text: str) -> Operand:
        if text.startswith("["):
            return self._address(text[1:-1].strip())
        if text.startswith("{"):
            return Vector(tuple(self._operand(x) for x in _split(text[1:-1])))
        if "|" in text:
            first, second = (self._operand(x.strip()) for x in text.split("|"))
            return Pair(first, second)
        return self._atom(text)

    def _atom(self, text: str) -> Operand:
        """Parse an operand that has no others inside, but for a complement's."""
        if text == "_":
            return Discard()
        if text.startswith("!"):
            return Negated(self._operand(text[1:]))
        if _FLOAT.fullmatch(text):
            return Immediate(int(f"0x{text[2:]}", 0))
        number = _integer(text)
        return self._name(text) if number is None else Immediate(number)

    def _name(self, text: str) -> Operand:
        name = self._register(text)
        if name in self.registers:
            return Register(name)
        parts = [self._register(f"{text}.{x}") for x in "xyzw"]
        if parts[0] in self.registers:
            return Vector(tuple(Register(x) for x in parts if x in self.registers))
        return Special(text) if text.startswith("%") else Symbol(text)

    def _address(self, text: str) -> Address:
        base, *rest = _split(text)
        offset = 0
        found = _OFFSET.fullmatch(base)
        if found:
            base, offset = found[1].strip(), int(found[3], 0) * (1 if found[2] == "+" else -1)
        return Address(self._operand(base), offset, tuple(self._operand(x) for x in rest))

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".reg"):
            self._declare_registers(text)
        elif text.startswith(".shared"):
            self._declare_shared(text)
        elif text.startswith("."):
            raise CompileError(f"PTX: {text!r} is no declaration that is understood; expected .reg or .shared")
        else:
            self._instruction(text, line)

    def _instruction(self, text: str, line: int) -> None:
        found = _GUARD.match(text)
        guard = Guard(self._register(found[2]), found[1] == "!") if found else None
        rest = found[3] if found else text
        opcode, *arguments_ = rest.split(None, 1)
        arguments = "".join(arguments_)
        is_branch = opcode.split(".")[0] == "bra"
        operands = () if is_branch else tuple(self._operand(x) for x in _split(arguments))
        instruction = Instruction(line, opcode, operands, guard, None, " ".join(text.split()))
        scopes = tuple(x.number for x in self._scopes)
        self.statements.append(_Statement(instruction, arguments if is_branch else None, scopes))

    def _label(self, name: str) -> None:
        self.labels[f"{name}@{self._scopes[-1].number}" if self._scopes else name] = len(self.statements)

    def body(self, text: str, start: int) -> None:
        """Parse from behind the entry's opening brace to its closing one."""
        at, line = start, text.count("\n", 0, start) + 1
        while True:
            start, at = at, _SPACE.match(text, at).end()  # type: ignore[union-attr]
            line += text.count("\n", start, at)
            if text[at] == "{":
                self._num_scopes += 1
                self._scopes.append(_Scope(self._num_scopes))
                at += 1
            elif text[at] == "}":
                if not self._scopes:
                    self._end(line)
                    return
                self._scopes.pop()
                at += 1
            elif label := _LABEL.match(text, at):
                self._label(label[1])
                at = label.end()
            elif says_nothing := _LOCATION.match(text, at):
                at = says_nothing.end()
            else:
                end = text.index(";", at)
                self._statement(text[at:end].strip(), line)
                line += text.count("\n", at, end)
                at = end + 1

    def _end(self, line: int) -> None:
        """End the kernel: control that reaches the closing brace leaves it."""
        last = self.statements[-1].instruction if self.statements else None
        is_left = last is not None and last.guard is None and _ENDS.fullmatch(last.opcode) is not None
        if not is_left or len(self.statements) in self.labels.values():
            self._instruction("ret", line)

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the instructions, with the targets of branches as numbers."""
        found = []
        for statement in self.statements:
            instruction = statement.instruction
            if statement.label is not None:
                names = [*(f"{statement.label}@{x}" for x in reversed(statement.scopes)), statement.label]
                target = next((self.labels[x] for x in names if x in self.labels), None)
                if target is None:
                    raise CompileError(f"PTX: {instruction.where}: there is no label {statement.label}")
                instruction = Instruction(**{**vars(instruction), "target": target})
            found.append(instruction)
        return tuple(found)


def _parameters(text: str) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    offset = 0
    for item in _split(text):
        match = _PARAMETER.fullmatch(item)
        if match is None or match[2] not in BYTES:
            raise CompileError(f"PTX: {item!r} is no parameter that is understood; expected .param .type name[count]")
        size = BYTES[match[2]] * int(match[4] or 1)
        align = int(match[1] or size)
        offset = -(-offset // align) * align
        found[match[3]] = (offset, size)
        offset += size
    return found


def parse_module(text: str) -> dict[str, Kernel]:
    """Parse all kernels of a module, by name.

    Raises:
        CompileError: a declaration is not understood.
    """
    text = _COMMENT.sub(lambda x: "\n" * x[0].count("\n"), text)
    kernels = {}
    for entry in _ENTRY.finditer(text):
        parser = _Parser(text[: text.index(".entry")])
        parser.body(text, entry.end())
        kernels[entry[1]] = Kernel(
            entry[1],
            _parameters(entry[2]),
            parser.shared,
            parser.static_bytes,
            parser.dynamic,
            parser.dynamic_start,
            parser.registers,
            parser.instructions(),
        )
    return kernels
