"""Tensor memory: its allocation, and what warps and tcgen05.cp move into and out of it.

Source: PTX ISA, "Tensorcore 5th Generation Family Instructions": tcgen05.alloc, tcgen05.dealloc,
tcgen05.relinquish_alloc_permit, tcgen05.ld, tcgen05.st, tcgen05.cp, tcgen05.wait.

tcgen05.ld and tcgen05.st move their bits when they are issued. They might do so at any time up to tcgen05.wait: the
clocks find who uses the same columns without being ordered behind the wait (aot/emulate/tensor_loads.py).

With .cta_group::2 a warp of each CTA of the pair allocates and frees together with the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import STAY, form
from aot.emulate.layouts.matrix_descriptor import core_matrix_rows
from aot.emulate.layouts.tensor_memory import (
    LANES_A_WARP,
    NUM_COLUMNS,
    NUM_LANES,
    LoadShape,
    num_registers,
    register_cells,
    split_address,
)
from aot.emulate.memory import SHARED_START, chunk_cells
from aot.emulate.tensor_memory import TENSOR_POISON
from aot.emulate.units._operands import located
from aot.emulate.units.tcgen05_order import ctas_of_group, enqueue, make_ordered, single_lane

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.forms import Step
    from aot.emulate.order import Agent
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Cta, Warp

MIN_COLUMNS = 32
"""Of an allocation, a power of two. Source: PTX ISA, tcgen05.alloc."""


@dataclass(frozen=True)
class _Meeting:
    """What a warp does together with a warp of the pair's other CTA."""

    is_allocation: bool
    num_columns: int
    address: int
    """Shared address that the allocation is written to, or tensor memory address that is freed."""


_FINISHED = "finished"
"""What a warp finds in place of its meeting once the other warp has done it."""


def group_of(instruction: Instruction) -> int:
    """Return the CTAs that an instruction is of."""
    return 2 if ".cta_group::2" in instruction.opcode else 1


def _first_free(cta: Cta, num_columns: int) -> int | None:
    allocated = cta.tensor_memory.allocated
    starts = range(0, NUM_COLUMNS, num_columns)
    return next((x for x in starts if not allocated[x : x + num_columns].any()), None)


def _check_allocation(cta: Cta, num_columns: int, where: str) -> None:
    if not MIN_COLUMNS <= num_columns <= NUM_COLUMNS or num_columns & (num_columns - 1):
        text = f"{where}: allocates {num_columns} columns; expected a power of two from {MIN_COLUMNS} to {NUM_COLUMNS}"
        raise Fault(FaultKind.TENSOR_MEMORY, text)
    if not cta.tensor_memory.may_allocate:
        raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: CTA {cta.rank} has relinquished its right to allocate")


def _take(warp: Warp, start: int, num_columns: int, to: int, where: str) -> None:
    cta = warp.cta
    cta.tensor_memory.allocated[start : start + num_columns] = True
    offsets = cta.shared.offsets(np.array([to]), 4, where)
    cta.shared.write(warp.at(where), offsets, np.array([[start]], np.uint32).view(np.uint8))


def _full_and_uniform(warp: Warp, register: NDArray[np.uint32], where: str) -> int:
    if not warp.full or (register != register[0]).any():
        raise Fault(FaultKind.DIVERGENCE, f"{where}: lanes give different operands, or are not all here")
    return int(register[0])


@form("tcgen05.alloc.cta_group::{1,2}.sync.aligned{,.shared::cta}.b32")
def allocate(program: Program, instruction: Instruction) -> Step:
    """Allocate columns, waiting until there are enough, and write their address to shared memory."""
    where, group = instruction.where, group_of(instruction)
    address, columns = program.address(instruction.operands[0]), program.source(instruction.operands[1], "b32")

    def run(warp: Warp) -> int | None:
        to = _full_and_uniform(warp, address(warp), where)
        count = _full_and_uniform(warp, warp.registers[columns], where)
        if warp.met == _FINISHED:
            warp.met = None
            return None
        _check_allocation(warp.cta, count, where)
        warps = [warp]
        if group == 2:
            partner = _meet(warp, _Meeting(is_allocation=True, num_columns=count, address=to), where)
            if partner is None:
                return STAY
            warps.append(partner)
        starts = [_first_free(x.cta, count) for x in warps]
        if None in starts:
            full = warps[starts.index(None)].cta
            full.tensor_memory.queue.wait(
                warp, f"waits for {count} columns of tensor memory", lambda: _first_free(full, count) is not None
            )
            return STAY
        if len(set(starts)) > 1:
            raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: the CTAs of a pair have different columns free: {starts}")
        for each in warps:
            place = to if each is warp else each.met.address
            _take(each, starts[0] or 0, count, place, where)
        _release_partner(warps)
        return None

    return run


def _meet(warp: Warp, meeting: _Meeting, where: str) -> Warp | None:
    """Return the warp of the pair's other CTA that does the same, or None where it is to be waited for."""
    first, second = ctas_of_group(warp, 2, where)
    peer = second if first is warp.cta else first
    waiting = [x for x in peer.warps if isinstance(x.met, _Meeting) and x.met.is_allocation is meeting.is_allocation]
    if waiting:
        if waiting[0].met.num_columns != meeting.num_columns:
            counts = meeting.num_columns, waiting[0].met.num_columns
            raise Fault(
                FaultKind.TENSOR_MEMORY, f"{where}: the CTAs of a pair give {counts} columns; expected the same"
            )
        return waiting[0]
    if peer.done:
        raise Fault(FaultKind.EXITED, f"{where}: the pair's other CTA has exited")
    warp.met = meeting
    warp.cta.tensor_memory.queue.wait(
        warp, "waits for the pair's other CTA to allocate or free tensor memory", lambda: warp.met == _FINISHED
    )
    return None


def _release_partner(warps: list[Warp]) -> None:
    for each in warps[1:]:
        each.met = _FINISHED
        each.cta.tensor_memory.queue.wake()


@form("tcgen05.dealloc.cta_group::{1,2}.sync.aligned.b32")
def free(program: Program, instruction: Instruction) -> Step:
    """Free columns. It counts as a write of them, so that accesses which are not ordered before it are found."""
    where, group = instruction.where, group_of(instruction)
    address, columns = (program.source(x, "b32") for x in instruction.operands)

    def run(warp: Warp) -> int | None:
        start = _full_and_uniform(warp, warp.registers[address], where)
        count = _full_and_uniform(warp, warp.registers[columns], where)
        if warp.met == _FINISHED:
            warp.met = None
            return None
        warps = [warp]
        if group == 2:
            partner = _meet(warp, _Meeting(is_allocation=False, num_columns=count, address=start), where)
            if partner is None:
                return STAY
            warps.append(partner)
        for each in warps:
            _give(each, start if each is warp else each.met.address, count, where)
        _release_partner(warps)
        return None

    return run


def _give(warp: Warp, address: int, num_columns: int, where: str) -> None:
    tensor = warp.cta.tensor_memory
    lane, column = split_address(address)
    tensor.check_allocated(column, num_columns, where)
    if lane:
        raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: frees from lane {lane} on; expected lane 0")
    tensor.shadow.write(warp.at(where), tensor.cells(0, NUM_LANES, column, num_columns))
    tensor.words[:, column : column + num_columns] = TENSOR_POISON
    tensor.allocated[column : column + num_columns] = False
    tensor.queue.wake()


@form("tcgen05.relinquish_alloc_permit.cta_group::{1,2}.sync.aligned")
def relinquish(program: Program, instruction: Instruction) -> Step:
    """Let no warp of this CTA allocate any more."""

    def run(warp: Warp) -> None:
        warp.cta.tensor_memory.may_allocate = False

    return run


@dataclass(frozen=True)
class _Access:
    """The cells of a load or store of a warp."""

    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]


_SHAPES = {x.value: x for x in LoadShape}
_REPEATS = "{x1,x2,x4,x8,x16,x32,x64,x128}"


def _shape(instruction: Instruction) -> tuple[LoadShape, int]:
    parts = instruction.opcode.split(".")
    return _SHAPES[parts[4]], int(parts[5][1:])


def _access(warp: Warp, address: int, shape: LoadShape, repeat: int, agent: Agent, *, is_write: bool) -> _Access:
    """Check what a warp accesses, and note it. Source: PTX ISA, tcgen05.ld, "Access restrictions"."""
    where = agent.where
    tensor, cells = warp.cta.tensor_memory, register_cells(shape, repeat)
    lane, column = split_address(address)
    low = LANES_A_WARP * (warp.index % 4)
    if not low <= lane <= lane + shape.num_lanes <= low + LANES_A_WARP or lane % 16:
        text = f"{where}: warp {warp.index} accesses {shape.num_lanes} lanes from {lane}; expected its 32 from {low}"
        raise Fault(FaultKind.TENSOR_MEMORY, text)
    tensor.check_allocated(column, cells.num_columns, where)
    ordered = tensor.cells(lane, shape.num_lanes, column, cells.num_columns)
    if is_write:
        tensor.shadow.write(agent, ordered)
    else:
        tensor.shadow.read(agent, ordered)
    return _Access(lane + cells.lanes, column + cells.columns)


@form(f"tcgen05.ld.sync.aligned.{{32x32b,16x64b,16x128b,16x256b}}.{_REPEATS}.b32")
def load(program: Program, instruction: Instruction) -> Step:
    """Load registers of a warp from tensor memory."""
    where, (shape, repeat) = instruction.where, _shape(instruction)
    to, address = program.destinations(instruction.operands[0]), program.address(instruction.operands[1])
    if len(to) != num_registers(shape, repeat):
        raise ValueError(f"{len(to)} registers; expected {num_registers(shape, repeat)}")

    def run(warp: Warp) -> None:
        at = _full_and_uniform(warp, address(warp), where)
        agent = warp.device.operations.agent("tcgen05.ld", warp.agent, where)
        access = _access(warp, at, shape, repeat, agent, is_write=False)
        warp.tensor_loads.load(agent.bit, to)
        found = warp.cta.tensor_memory.words[access.lanes, access.columns]
        for i, slot in enumerate(to):
            warp.put(slot, found[i])
        warp.device.bytes_moved["tcgen05.ld"] += found.nbytes

    return run


@form(f"tcgen05.st.sync.aligned.{{32x32b,16x64b,16x128b,16x256b}}.{_REPEATS}.b32")
def store(program: Program, instruction: Instruction) -> Step:
    """Store registers of a warp to tensor memory."""
    where, (shape, repeat) = instruction.where, _shape(instruction)
    address, sources = program.address(instruction.operands[0]), program.sources(instruction.operands[1], "b32")
    if len(sources) != num_registers(shape, repeat):
        raise ValueError(f"{len(sources)} registers; expected {num_registers(shape, repeat)}")

    def run(warp: Warp) -> None:
        at = _full_and_uniform(warp, address(warp), where)
        agent = warp.device.operations.agent("tcgen05.st", warp.agent, where)
        access = _access(warp, at, shape, repeat, agent, is_write=True)
        warp.tensor_loads.stores |= agent.bit
        words = np.stack([warp.registers[x] for x in sources])
        warp.cta.tensor_memory.words[access.lanes, access.columns] = words
        warp.device.bytes_moved["tcgen05.st"] += words.nbytes

    return run


@form("tcgen05.wait::{ld,st}.sync.aligned")
def wait(program: Program, instruction: Instruction) -> Step:
    """Let the warp know its loads, or its stores, to be complete."""
    is_load = "::ld" in instruction.opcode

    def run(warp: Warp) -> None:
        loads = warp.tensor_loads
        warp.knowledge.join_done(loads.end_loads() if is_load else loads.end_stores())

    return run


COPY_ROWS, COPY_BYTES, COPY_COLUMNS = 32, 16, 4
"""Of tcgen05.cp .32x128b. Source: PTX ISA, tcgen05.cp."""


@form("tcgen05.cp.cta_group::{1,2}.32x128b.warpx4")
def copy(program: Program, instruction: Instruction) -> Step:
    """Copy 32 rows of 16 bytes of shared memory to 4 columns, into the 32 lanes of each warp; in each CTA of a pair."""
    where, group = instruction.where, group_of(instruction)
    address, descriptor = program.address(instruction.operands[0]), program.source(instruction.operands[1], "b64")

    def run(warp: Warp) -> None:
        lane = single_lane(warp, where)
        to, source = int(address(warp)[lane]), int(warp.registers[descriptor][lane])
        with located(where):
            rows = core_matrix_rows(source, COPY_ROWS) - SHARED_START
        _issue_copy(warp, to, rows, group, where)

    return run


def _issue_copy(warp: Warp, to: int, rows: NDArray[np.int64], group: int, where: str) -> None:
    first_lane, column = split_address(to)
    ctas = ctas_of_group(warp, group, where)
    if first_lane or rows.min() < 0 or rows.max() + COPY_BYTES > min(x.shared.content.size for x in ctas):
        raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: lane {first_lane}, or rows outside of shared memory")
    columns = slice(column, column + COPY_COLUMNS)

    def complete() -> None:
        for cta in ctas:
            content = cta.shared.content[rows[:, None] + np.arange(COPY_BYTES)].view(np.uint32)
            cta.tensor_memory.words[:, columns] = np.tile(content, (NUM_LANES // COPY_ROWS, 1))

    operation = make_ordered(warp, "tcgen05.cp", where, complete)
    cells, bits = chunk_cells(rows // COPY_BYTES)
    for cta in ctas:
        cta.tensor_memory.check_allocated(column, COPY_COLUMNS, where)
        cta.shared.shadow.read(operation.agent, cells, bits)
        cta.tensor_memory.shadow.write(operation.agent, cta.tensor_memory.cells(0, NUM_LANES, column, COPY_COLUMNS))
    enqueue(warp, operation)
