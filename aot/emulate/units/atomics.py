"""Atomic operations.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import YIELD, form
from aot.emulate.memory import SHARED_WINDOW, WORD
from aot.emulate.ptx import Address, Vector
from aot.emulate.types import BYTES, UNSIGNED, bf16_to_f32, f32_to_bf16, flushed, view_dtype
from aot.emulate.units._accesses import learn, note_poll, space_of, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda old, x: old + x,
    "exch": lambda _, x: x,
    "min": min,
    "max": max,
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "xor": lambda old, x: old ^ x,
    "cas": lambda old, x, y: y if old == x else old,
    "inc": lambda old, x: type(old)(0) if old >= x else old + type(old)(1),
}
_ORDER = "{,.relaxed,.acquire,.release,.acq_rel}{,.cta,.cluster,.gpu,.sys}"
_SPACES = "{,.global,.shared,.shared::cta,.shared::cluster}"
_RED_ORDER = "{,.relaxed,.release}{,.cta,.cluster,.gpu,.sys}"
_OPERATIONS = "add.u32,add.s32,add.u64,add.f32,min.s32,min.u32,max.s32,max.u32,and.b32,or.b32,xor.b32,inc.u32"


class _Place:
    """One element that is changed atomically."""

    def __init__(self, warp: Warp, space: str, address: int, size: int, where: str) -> None:
        if address % size:
            raise Fault(FaultKind.ALIGNMENT, f"{where}: address {address:#x}; expected a multiple of {size}")
        if space == "generic" and address >= SHARED_WINDOW:
            space, address = "cluster", address - SHARED_WINDOW
        if space in ("global", "generic"):
            allocation = warp.device.memory.find(address, address + size, where)
            if not allocation.writable:
                raise Fault(FaultKind.READ_ONLY, f"{where}: changes {allocation.name}")
            self.content, self.at = allocation.content, address - allocation.start
            self.key, self.is_global = address, True
        else:
            cta = warp.cta if space == "shared" else warp.cta.cluster.cta_of(address, where)
            self.at = int(cta.shared.offsets(np.array([address]), size, where)[0])
            self.content = cta.shared.content
            cells = slice(self.at // WORD, -(-(self.at + size) // WORD))
            cta.shared.shadow.strong(warp.at(where), cells, is_write=True)
            self.key, self.is_global = -(id(cta) << 24 | self.at), False
        self.size, self.has_changed = size, False

    def change(self, view: Any, function: Callable[[Any], Any]) -> Any:
        """Change the element; return what it was."""
        bytes_ = self.content[self.at : self.at + self.size]
        before = bytes_.copy()
        old = before.view(view)[0]
        bytes_[:] = np.array([function(old)], view).view(np.uint8)
        self.has_changed = bool((bytes_ != before).any())
        return old


def _note_global(warp: Warp, space: str, addresses: Value, size: int, where: str) -> None:
    """Take note of what a warp changes in global memory, all at once."""
    if space in ("global", "generic"):
        mine = addresses[addresses < np.uint64(SHARED_WINDOW)]
        if mine.size:
            warp.device.memory.note_strong(warp.at(where), mine, size, is_write=True)


def _orders(instruction: Instruction) -> tuple[bool, bool]:
    """Say whether an atomic acquires and releases; without a qualifier it is relaxed."""
    parts = set(instruction.opcode.split("."))
    return bool(parts & {"acquire", "acq_rel"}), bool(parts & {"release", "acq_rel"})


@form(
    f"atom{_ORDER}{_SPACES}.{{{_OPERATIONS},exch.b32,exch.b64}}",
    f"atom{_ORDER}{_SPACES}.cas.{{b32,b64}}",
    f"red{_RED_ORDER}{_SPACES}.{{{_OPERATIONS}}}",
    f"red{_RED_ORDER}.global.add.noftz.{{bf16,f16}}",
)
def atomic(program: Program, instruction: Instruction) -> Step:
    """Change an element for each active lane, one after the other."""
    parts, where, space = instruction.opcode.split("."), instruction.where, space_of(instruction)
    operands = list(instruction.operands)
    to = None if parts[0] == "red" else program.destination(operands.pop(0))
    kind, name = parts[-1], next(x for x in parts if x in _FUNCTIONS)
    if not isinstance(operands[0], Address) or isinstance(operands[1], Vector):
        raise TypeError("no single element")
    address, sources = program.address(operands[0]), [program.source(x, kind) for x in operands[1:]]
    is_narrow = kind in ("bf16", "f16")
    size, view = BYTES[kind], np.uint16 if is_narrow else view_dtype(kind)
    function = _narrow_add(kind) if is_narrow else _FUNCTIONS[name]
    flushes = name == "add" and kind == "f32"
    acquires, releases = _orders(instruction)

    def run(warp: Warp) -> int:
        addresses = address(warp)
        found, has_changed = np.zeros(32, UNSIGNED[size]), False
        _note_global(warp, space, addresses[warp.mask], size, where)
        for lane in warp.active():
            place = _Place(warp, space, int(addresses[lane]), size, where)
            if space in ("global", "generic"):
                warp.note_early(int(addresses[lane]), is_write=True, where=where)
            given = [warp.registers[x][lane : lane + 1].view(view)[0] for x in sources]
            made = flushing_add if flushes and place.is_global else function
            old = place.change(view, lambda x, made=made, given=given: made(x, *given))  # type: ignore[misc]
            has_changed |= place.has_changed
            if to is not None:  # a reduction reads nothing that its warp could act on
                learn(warp, place.key, acquires=acquires)
            tell(warp, place.key, releases=releases)
            found[lane] = np.array([old], view).view(UNSIGNED[size])[0]
        if to is not None:
            warp.put(to, found.astype(warp.registers[to].dtype))
            note_poll(warp, addresses[warp.mask], found)
        if has_changed:
            warp.launch.turns.global_changed()
        return YIELD

    return run


def flushing_add(old: Any, x: Any) -> Any:
    """Add float32 as global memory does: subnormal numbers are zeros. Source: PTX ISA, "atom"; of vectors, an H100."""
    values = flushed(np.array([old, x], np.float32))
    return flushed(values[:1] + values[1:])[0]


def _narrow_add(kind: str) -> Callable[[Any, Any], Any]:
    """Return the sum of two 16-bit floats by their bits."""

    def add(old: Any, x: Any) -> Any:
        bits = np.array([old, x], np.uint16)
        if kind == "bf16":
            values = bf16_to_f32(bits)
            return f32_to_bf16(values[:1] + values[1:])[0]
        halves = bits.view(np.float16)
        return (halves[:1] + halves[1:]).view(np.uint16)[0]

    return add


@form(f"red{_RED_ORDER}.global.add{{,.L2::cache_hint}}.{{v2,v4}}.f32")
def reduce_vector(program: Program, instruction: Instruction) -> Step:
    """Add a vector of float32 to global memory, each element atomically."""
    where = instruction.where
    address, slots = program.address(instruction.operands[0]), program.sources(instruction.operands[1], "f32")
    size = 4 * len(slots)
    _, releases = _orders(instruction)

    def run(warp: Warp) -> None:
        addresses = address(warp)
        _note_global(warp, "global", addresses[warp.mask], size, where)
        for lane in warp.active():
            start = int(addresses[lane])
            if start % size:
                raise Fault(FaultKind.ALIGNMENT, f"{where}: address {start:#x}; expected a multiple of {size}")
            warp.note_early(start, is_write=True, where=where)
            for i, slot in enumerate(slots):
                value = warp.registers[slot].view(np.float32)[lane]
                place = _Place(warp, "global", start + 4 * i, 4, where)
                place.change(np.float32, lambda old, value=value: flushing_add(old, value))  # type: ignore[misc]
            tell(warp, start, releases=releases)
        warp.launch.turns.global_changed()

    return run
