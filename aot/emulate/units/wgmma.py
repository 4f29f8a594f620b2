"""wgmma: products of a warpgroup of operands in shared memory, or A in registers, with results in registers.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". Each of the four warps
multiplies its 16 rows. Its products complete in order, each at a time that the scheduler chooses; operands are read and
registers written then. Until a wgmma.wait_group covers a product, its registers may not be touched.

A product is summed in float64 and rounded once to float32: the order and the rounding inside of hardware are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import YIELD, form
from aot.emulate.layouts.fragments import a_fragment, accumulator_fragment
from aot.emulate.layouts.instruction_descriptor import Element
from aot.emulate.layouts.matrix_descriptor import Major, MatrixUnit
from aot.emulate.ptx import Vector
from aot.emulate.units._operands import (
    ELEMENT_BITS,
    Places,
    check_inside,
    located,
    operand_places,
    read_operand,
    values,
    word_dtype,
)
from aot.emulate.wait_queue import WaitQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp

ROWS, WARP_ROWS, WARPS = 64, 16, 4
"""Rows of a product, of one warp, and warps of a group. Source: PTX ISA, wgmma.mma_async: m is 64."""


@dataclass(eq=False)
class ProductGroup:
    """The products of a warp between two commits."""

    is_committed: bool = False
    num_pending: int = 0
    done: int = 0
    """Bits of its products."""
    registers: set[tuple[frozenset[int], frozenset[int]]] = field(default_factory=set)
    """Those of each product: its accumulators, and those of A."""
    queue: WaitQueue = field(default_factory=WaitQueue)

    @property
    def is_complete(self) -> bool:
        """Say whether no product is under way."""
        return self.num_pending == 0


def _open_group(warp: Warp) -> ProductGroup:
    if not warp.groups or warp.groups[-1].is_committed:
        warp.groups.append(ProductGroup())
    found: ProductGroup = warp.groups[-1]
    return found


@form("wgmma.fence.sync.aligned")
def fence(program: Program, instruction: Instruction) -> Step:
    """Order the warp's accesses to registers before the products that follow."""

    def run(warp: Warp) -> None:
        warp.fenced_registers = list(warp.registers)

    return run


@form("wgmma.commit_group.sync.aligned")
def commit(program: Program, instruction: Instruction) -> Step:
    """Make the products since the last commit a group; there may be none."""

    def run(warp: Warp) -> None:
        _open_group(warp).is_committed = True

    return run


@form("wgmma.wait_group.sync.aligned")
def wait(program: Program, instruction: Instruction) -> Step:
    """Wait until no more than so many of the latest groups are under way."""
    left, where = program.constant_value(instruction.operands[0]), instruction.where

    def run(warp: Warp) -> int | None:
        committed = [x for x in warp.groups if x.is_committed]
        waited = committed[: max(len(committed) - left, 0)]
        if not waited:
            return None

        def learn() -> None:
            for group in waited:
                warp.knowledge.join_done(group.done)
                warp.groups.remove(group)
            warp.untouchable = frozenset().union(*(y for group in warp.groups for x in group.registers for y in x))

        last = waited[-1]
        if all(x.is_complete for x in waited):
            learn()
            return None
        # Products of a warp complete in order, so that the last group with one is the last to be complete.
        last = next(x for x in reversed(waited) if not x.is_complete)
        last.queue.wait(warp, f"waits for wgmma groups at {where}", lambda: last.is_complete, learn)
        return YIELD

    return run


@dataclass(frozen=True)
class _Form:
    """What an instruction says, and the slots of its registers."""

    where: str
    n: int
    a: Element
    b: Element
    d: list[int]
    a_slots: list[int]
    """Of A in registers; else that of its descriptor."""
    is_a_in_registers: bool
    b_slot: int
    accumulate: int
    sign: int
    a_major: Major
    b_major: Major
    saturates: bool

    @property
    def is_integer(self) -> bool:
        """Say whether sums are of integers."""
        return self.a in {Element.S8, Element.U8}

    @property
    def registers(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the slots that may not be touched while the product is under way: accumulators, and those of A."""
        return frozenset(self.d), frozenset(self.a_slots if self.is_a_in_registers else ())


_N = ",".join(str(n) for n in range(8, 257, 8))
_N_INTEGER = ",".join(str(n) for n in (8, 16, 24, *range(32, 257, 16)))
"""Source: PTX ISA, wgmma.mma_async, shapes."""


@form(
    f"wgmma.mma_async.sync.aligned.m64n{{{_N}}}k16.f32.{{bf16.bf16,f16.f16}}",
    f"wgmma.mma_async.sync.aligned.m64n{{{_N}}}k8.f32.tf32.tf32",
    f"wgmma.mma_async.sync.aligned.m64n{{{_N}}}k32.f32.{{e4m3,e5m2}}.{{e4m3,e5m2}}",
    f"wgmma.mma_async.sync.aligned.m64n{{{_N_INTEGER}}}k32{{,.satfinite}}.s32.{{s8,u8}}.{{s8,u8}}",
    f"wgmma.mma_async.sync.aligned.m64n{{{_N_INTEGER}}}k32.s32.{{s8,u8}}.{{s8,u8}}.satfinite",
)
def multiply(program: Program, instruction: Instruction) -> Step:
    """Multiply, and add to the accumulators where the predicate holds."""
    found = _read(program, instruction)
    line = instruction.line

    def run(warp: Warp) -> None:
        _check_registers(warp, found)
        b = _uniform(warp, found.b_slot, found.where)
        accumulates = bool(_uniform(warp, found.accumulate, found.where))
        a = None if found.is_a_in_registers else _uniform(warp, found.a_slots[0], found.where)
        _check_group(warp, (line, a, b, accumulates), found.where)
        with located(found.where):
            _issue(warp, found, a, b, accumulates=accumulates)

    return run


def _read(program: Program, instruction: Instruction) -> _Form:
    parts = instruction.opcode.split(".")
    n = int(parts[4].split("n")[1].split("k")[0])
    a, b = (Element(x) for x in [x for x in parts[5:] if x != "satfinite"][1:3])
    operands = instruction.operands
    d = program.sources(operands[0], "b32")
    if len(d) != n // 2:
        raise ValueError(f"{len(d)} accumulators; expected {n // 2}")
    is_vector = isinstance(operands[1], Vector)
    rest = [program.constant_value(x) for x in operands[4:]]
    signs = [] if a in {Element.S8, Element.U8} else rest[:2]
    majors = rest[len(signs) :]
    expected = (1 if is_vector else 2) if ELEMENT_BITS[a] == 16 else 0
    if set(signs) - {1, -1} or set(majors) - {0, 1} or len(majors) != expected:
        raise ValueError(f"scales and majors {rest}")
    return _Form(
        where=instruction.where,
        n=n,
        a=a,
        b=b,
        d=d,
        a_slots=program.sources(operands[1], "b32" if is_vector else "b64"),
        is_a_in_registers=is_vector,
        b_slot=program.source(operands[2], "b64"),
        accumulate=program.source(operands[3], "pred"),
        sign=int(np.prod(signs)) if signs else 1,
        a_major=Major(majors[0]) if len(majors) == 2 else Major.K,
        b_major=Major(majors[-1]) if majors else Major.K,
        saturates="satfinite" in parts,
    )


def _uniform(warp: Warp, slot: int, where: str) -> int:
    register = warp.registers[slot]
    if not warp.full or (register != register[0]).any():
        raise Fault(FaultKind.DIVERGENCE, f"{where}: lanes give different operands, or are not all here")
    return int(register[0])


def _check_group(warp: Warp, issued: tuple[Any, ...], where: str) -> None:
    """Fault where the four warps of a group issue different products. Source: PTX ISA, wgmma.mma_async, .aligned."""
    table, key = warp.cta.issued, (warp.index // WARPS, warp.num_issued)
    warp.num_issued += 1
    first = table.setdefault(key, [issued, 0])
    if first[0] != issued:
        raise Fault(
            FaultKind.DIVERGENCE, f"{where}: warp {warp.index} issues {issued}, another of its group {first[0]}"
        )
    first[1] += 1
    if first[1] == WARPS:
        del table[key]


def _check_registers(warp: Warp, found: _Form) -> None:
    """Fault where registers were written since the last fence, or are of a product of another shape under way.

    Source: PTX ISA, wgmma.fence: needed before the first product and whenever registers, of accumulators or of A, are
    modified; products of one shape may share accumulators without it. A of several products may be read from the same
    registers.
    """
    fenced, registers = warp.fenced_registers, warp.registers
    if fenced is None:
        raise Fault(FaultKind.REGISTERS, f"{found.where}: no wgmma.fence before")
    mine, a = found.registers
    for group in warp.groups:
        for other, other_a in group.registers:
            is_shared = other != mine and not other.isdisjoint(mine)
            if is_shared or not other.isdisjoint(a) or not other_a.isdisjoint(mine):
                raise Fault(FaultKind.REGISTERS, f"{found.where}: shares registers with another product in flight")
    for slot in (mine | a) - warp.untouchable:
        now = registers[slot]
        if now is not fenced[slot] and warp.by_products.get(slot) is not now:
            raise Fault(FaultKind.REGISTERS, f"{found.where}: a register was written since the last wgmma.fence")


def _issue(warp: Warp, found: _Form, a: int | None, b: int, *, accumulates: bool) -> None:
    cta, device = warp.cta, warp.device
    row = WARP_ROWS * (warp.index % WARPS)
    bits = ELEMENT_BITS[found.a]
    b_places = operand_places(b, MatrixUnit.WGMMA, found.n, 0, found.n, bits, found.b_major)
    reads = [b_places]
    a_places: Places | None = None
    if a is not None:
        a_places = operand_places(a, MatrixUnit.WGMMA, ROWS, row, row + WARP_ROWS, bits, found.a_major)
        reads.append(a_places)
    group = _open_group(warp)

    def complete() -> None:
        b_values = read_operand(cta, b_places, found.b)
        a_values = _a_in_registers(warp, found) if a_places is None else read_operand(cta, a_places, found.a)
        product = found.sign * (a_values @ b_values.T)
        _accumulate(warp, found, product, accumulates=accumulates)
        group.num_pending -= 1
        if group.is_complete:
            group.queue.wake()

    operation = device.operations.make("wgmma", warp.agent, found.where, complete)
    for places in reads:
        check_inside(cta, places)
        cta.shared.shadow.read(operation.agent, places.cells, places.bits)
    group.num_pending += 1
    group.done |= operation.bit
    group.registers.add(found.registers)
    warp.untouchable |= found.registers[0] | found.registers[1]
    device.operations.enqueue(warp, operation)


def _a_in_registers(warp: Warp, found: _Form) -> NDArray[np.float64]:
    fragment = a_fragment(len(found.a_slots))
    words = np.empty((WARP_ROWS, 8), np.uint32)
    words[fragment.rows, fragment.columns] = np.stack([warp.registers[x] for x in found.a_slots])
    return values(words.view(word_dtype(found.a)), found.a)


def _accumulate(warp: Warp, found: _Form, product: NDArray[np.float64], *, accumulates: bool) -> None:
    fragment = accumulator_fragment(len(found.d))
    tiles: Any = product[fragment.rows, fragment.columns]
    if found.is_integer:
        tiles = tiles.astype(np.int64)
    if accumulates:
        old = np.stack([warp.registers[x] for x in found.d])
        tiles = tiles + old.view(np.int32 if found.is_integer else np.float32)
    if found.saturates:
        tiles = np.clip(tiles, -(2**31), 2**31 - 1)
    new = tiles.astype(np.uint32) if found.is_integer else tiles.astype(np.float32).view(np.uint32)
    for i, slot in enumerate(found.d):
        warp.registers[slot] = warp.by_products[slot] = new[i]
