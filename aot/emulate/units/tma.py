"""Copies of boxes of tensors: cp.async.bulk.tensor in both directions, and their groups.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy: Tensor copy: cp.async.bulk.tensor",
"cp.async.bulk.commit_group", "cp.async.bulk.wait_group". A load writes each CTA's shared memory, and counts its bytes
there, at a time of its own. What it will write is poisoned from its issue on. A store reads shared memory at one time
and writes global memory at a later one; wait_group.read waits for the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import form
from aot.emulate.layouts.tensor_box import (
    CHUNK_BYTES,
    GATHER_ROWS,
    BoxRows,
    box_rows,
    chunk_addresses,
    gathered_rows,
)
from aot.emulate.layouts.tensor_map import NUM_BYTES, ElementType, TensorMap, decode_tensor_map
from aot.emulate.memory import (
    FILL,
    OFFSET_MASK,
    PARAMETER_WINDOW,
    RANK_SHIFT,
    SHARED_START,
    chunk_cells,
    is_parameter,
)
from aot.emulate.operation import Operation
from aot.emulate.ptx import Address, Vector
from aot.emulate.running import Cta
from aot.emulate.units._operands import located
from aot.emulate.units.barrier import check_initialised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.barriers import Mbarrier
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction, Operand
    from aot.emulate.running import Warp

LOAD, READ, WRITE = "tma.load", "tma.store.read", "tma.store.write"
"""Kinds of operations, as schedules know them."""

_decode = lru_cache(maxsize=256)(decode_tensor_map)


def _tensor_map(warp: Warp, address: int, where: str) -> TensorMap:
    """Decode the descriptor at a generic address: of a parameter, or in global memory."""
    if address % 64:
        raise Fault(FaultKind.ALIGNMENT, f"{where}: tensor map at {address:#x}; expected a multiple of 64")
    if not is_parameter(address):
        found = warp.device.memory.read(warp.at(where), np.array([address], np.uint64), NUM_BYTES)
        return _decode(found.tobytes())
    start = address - PARAMETER_WINDOW
    content = warp.launch.parameters[start : start + NUM_BYTES]
    if content.size != NUM_BYTES:
        raise Fault(FaultKind.ADDRESS, f"{where}: no tensor map at byte {start} of the parameters")
    return _decode(content.tobytes())


@dataclass(frozen=True)
class _Box:
    """Where the chunks of a box lie in a CTA's shared memory."""

    chunks: NDArray[np.int64]
    """Numbers of 16-byte chunks, in the order of the box."""
    cells: NDArray[np.int64] | slice
    bits: int

    @property
    def last(self) -> int:
        return int(self.chunks.max())


@lru_cache(maxsize=1024)
def _box(tensor_map: TensorMap, shared_address: int, num_rows: int | None) -> _Box:
    addresses = chunk_addresses(tensor_map, shared_address, num_rows)
    chunks = (addresses - SHARED_START) // CHUNK_BYTES
    if chunks.min() < 0:
        raise Fault(FaultKind.ADDRESS, f"box at shared address {shared_address:#x}, which the system keeps")
    return _Box(chunks, *chunk_cells(chunks))


def _check_inside(cta: Cta, box: _Box) -> None:
    if CHUNK_BYTES * (box.last + 1) > cta.shared.content.size:
        raise Fault(
            FaultKind.ADDRESS,
            f"box ends at byte {CHUNK_BYTES * (box.last + 1)} of {cta.shared.content.size} of shared memory",
        )


@dataclass(frozen=True)
class _Tensor:
    """The operand [map, {coordinates}] of an instruction, as slots."""

    tensor_map: int
    coordinates: list[int]
    is_gather: bool

    @staticmethod
    def of(program: Program, operand: Operand, *, is_gather: bool) -> _Tensor:
        if not isinstance(operand, Address) or operand.offset or len(operand.rest) != 1:
            raise TypeError(f"{operand} is no tensor")
        if not isinstance(operand.rest[0], Vector):
            raise TypeError("no vector of coordinates")
        return _Tensor(program.source(operand.base, "b64"), program.sources(operand.rest[0], "b32"), is_gather)

    def at(self, warp: Warp, lane: int, where: str) -> tuple[TensorMap, tuple[int, ...]]:
        registers = warp.registers
        tensor_map = _tensor_map(warp, int(registers[self.tensor_map][lane]), where)
        return tensor_map, tuple(int(registers[x].view(np.int32)[lane]) for x in self.coordinates)

    @property
    def num_rows(self) -> int | None:
        return GATHER_ROWS if self.is_gather else None

    def rows(self, tensor_map: TensorMap, coordinates: tuple[int, ...]) -> BoxRows:
        return (gathered_rows if self.is_gather else box_rows)(tensor_map, coordinates)


# NVVM writes the qualifiers in this order; that of the PTX ISA has .cta_group before the cache hint.
_GROUP = "{,.cta_group::1,.cta_group::2}"


@form(
    "cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.shared::{cta,cluster}.global.tile.mbarrier::complete_tx::bytes"
    "{,.multicast::cluster}{,.L2::cache_hint}" + _GROUP,
    "cp.async.bulk.tensor.2d.shared::{cta,cluster}.global.tile::gather4.mbarrier::complete_tx::bytes"
    "{,.multicast::cluster}" + _GROUP + "{,.L2::cache_hint}",
)
def load(program: Program, instruction: Instruction) -> Step:
    """Copy a box from global memory to this CTA, to another of the cluster, or to the CTAs of a mask."""
    opcode, operands, where = instruction.opcode, instruction.operands, instruction.where
    address, barrier = program.address(operands[0]), program.address(operands[2])
    tensor = _Tensor.of(program, operands[1], is_gather="::gather4" in opcode)
    mask = program.source(operands[3], "b16") if ".multicast::cluster" in opcode else None
    is_pair, is_own = ".cta_group::2" in opcode, ".shared::cta." in opcode

    def run(warp: Warp) -> None:
        cluster = warp.cta.cluster
        for lane in warp.active():
            shared, bar = int(address(warp)[lane]), int(barrier(warp)[lane])
            if mask is None:
                targets = [cluster.cta_of(shared, where)]
            else:
                targets = cluster.ctas_of_mask(int(warp.registers[mask][lane]), where)
            if is_own and targets != [warp.cta]:
                raise Fault(FaultKind.ADDRESS, f"{where}: {shared:#x} is of another CTA, and the form of this one")
            with located(where):
                tensor_map, coordinates = tensor.at(warp, lane, where)
                box = _box(tensor_map, shared & OFFSET_MASK, tensor.num_rows)
                rows = tensor.rows(tensor_map, coordinates)
                for cta in targets:
                    _check_inside(cta, box)
            warp.note_early(tensor_map.address, is_write=False, where=where)
            for cta in targets:
                rank = _barrier_rank(cta, bar, is_multicast=mask is not None, is_pair=is_pair, where=where)
                found = cluster.ctas[rank].mbarrier(bar, where)
                check_initialised(warp, found, where, is_async=True)
                _issue_load(warp, _Load(where, lane, tensor_map, rows, box, cta, found))

    return run


def _barrier_rank(cta: Cta, bar: int, *, is_multicast: bool, is_pair: bool, where: str) -> int:
    """Return the rank of the CTA whose barrier counts the bytes of `cta`.

    It is that CTA. With .cta_group::2 it may be its peer, by the parity of the rank in the barrier's address.

    Source: PTX ISA, cp.async.bulk.tensor, .cta_group: the signal goes to a CTA whose parity is that of the barrier's.
    """
    rank = bar >> RANK_SHIFT
    if is_multicast:
        return (cta.rank & ~1) | (rank & 1) if is_pair else cta.rank
    if rank != cta.rank and not (is_pair and rank == cta.rank ^ 1):
        raise Fault(FaultKind.BARRIER, f"{where}: the barrier is of CTA {rank}, the box of CTA {cta.rank}")
    return rank


@dataclass(frozen=True)
class _Load:
    """One load of a box into one CTA."""

    where: str
    lane: int
    tensor_map: TensorMap
    rows: BoxRows
    box: _Box
    cta: Cta
    barrier: Mbarrier

    @property
    def copied_bytes(self) -> int:
        """Return the bytes that are written of each chunk: the first, where elements are padded."""
        return CHUNK_BYTES * self.tensor_map.element.bits // self.tensor_map.element.shared_bits

    @property
    def num_bytes(self) -> int:
        return self.copied_bytes * self.box.chunks.size


def _issue_load(warp: Warp, load: _Load) -> None:
    device, shared = warp.device, load.cta.shared

    def complete() -> None:
        if load.cta.done:
            raise Fault(
                FaultKind.EXITED, f"{load.where}: writes shared memory of CTA {load.cta.rank}, which has exited"
            )
        row_bytes, rows = load.tensor_map.copied_row_bytes, load.rows
        data = np.zeros((load.num_bytes // row_bytes, row_bytes), np.uint8)
        if rows.starts.size:
            part = slice(rows.first_byte, rows.first_byte + rows.num_bytes)
            data[rows.indices, part] = device.memory.read(operation.agent, rows.starts, rows.num_bytes)
        _chunks(shared.content)[load.box.chunks, : load.copied_bytes] = data.reshape(-1, load.copied_bytes)
        device.bytes_moved[LOAD] += load.num_bytes
        load.barrier.complete(load.num_bytes, operation.bit, operation.agent.knowledge.seen.launches)

    operation = device.operations.make(LOAD, warp.agent, load.where, complete, lane=load.lane)
    shared.shadow.write(operation.agent, load.box.cells)
    _chunks(shared.content)[load.box.chunks] = FILL  # the copy may write from now on
    device.operations.post(operation)


def _chunks(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return content.reshape(-1, CHUNK_BYTES)


class BulkGroup(list[Operation]):
    """The bulk copies of lanes between two commits; lanes commit and wait each for themselves."""

    def __init__(self, operations: list[Operation], lanes: set[int]) -> None:
        super().__init__(operations)
        self.lanes = lanes


@form("cp.async.bulk.tensor.{1d,2d,3d,4d,5d}.global.shared::cta.tile.bulk_group{,.L2::cache_hint}")
def store(program: Program, instruction: Instruction) -> Step:
    """Copy a box from shared to global memory."""
    operands, where = instruction.operands, instruction.where
    tensor = _Tensor.of(program, operands[0], is_gather=False)
    address = program.address(operands[1])

    def run(warp: Warp) -> None:
        for lane in _lanes_that_store(warp, tensor, address(warp), where):
            shared = int(address(warp)[lane])
            if warp.cta.cluster.cta_of(shared, where) is not warp.cta:
                raise Fault(FaultKind.ADDRESS, f"{where}: {shared:#x} is of another CTA")
            with located(where):
                tensor_map, coordinates = tensor.at(warp, lane, where)
                if tensor_map.element is ElementType.B4_PADDED:  # which the driver's documents have loads of alone
                    raise Fault(FaultKind.DESCRIPTOR, "a store of padded 4-bit elements; expected packed ones")
                box = _box(tensor_map, shared & OFFSET_MASK, None)
                rows = tensor.rows(tensor_map, coordinates)
                _check_inside(warp.cta, box)
            warp.note_early(tensor_map.address, is_write=True, where=where)
            _issue_store(warp, where, lane, tensor_map, rows, box)

    return run


def _lanes_that_store(warp: Warp, tensor: _Tensor, addresses: NDArray[Any], where: str) -> list[int]:
    """Return the active lanes, or the first where all of them ask for the same store.

    The machine code has one instruction of the uniform datapath, which stores once (inferred). By the letter of the PTX
    ISA each lane stores.
    """
    lanes = warp.active()
    slots = (tensor.tensor_map, *tensor.coordinates)
    asked = [addresses, *(warp.registers[x] for x in slots)]
    if len(lanes) > 1 and all((x[lanes] == x[lanes[0]]).all() for x in asked):
        warp.device.report(FindingKind.LETTER, where, f"{len(lanes)} lanes issue the same store")
        return lanes[:1]
    return lanes


def _issue_store(warp: Warp, where: str, lane: int, tensor_map: TensorMap, rows: BoxRows, box: _Box) -> None:
    device, shared = warp.device, warp.cta.shared
    data: list[NDArray[np.uint8]] = []

    def read() -> None:
        data.append(_chunks(shared.content)[box.chunks].reshape(-1, tensor_map.row_bytes))

    def write() -> None:
        device.operations.complete(reading)
        if rows.starts.size:
            part = slice(rows.first_byte, rows.first_byte + rows.num_bytes)
            device.memory.write(writing.agent, rows.starts, np.ascontiguousarray(data[0][rows.indices, part]))
        device.bytes_moved[WRITE] += CHUNK_BYTES * box.chunks.size

    reading = device.operations.make(READ, warp.agent, where, read, lane=lane)
    writing = device.operations.make(WRITE, warp.agent, where, write, lane=lane)
    shared.shadow.read(reading.agent, box.cells, box.bits)
    warp.bulk_open += [reading, writing]
    device.operations.post(reading)
    device.operations.post(writing)


@form("cp.async.bulk.commit_group")
def commit(program: Program, instruction: Instruction) -> Step:
    """Make each active lane's stores since its last commit a group; there may be none."""

    def run(warp: Warp) -> None:
        lanes = set(warp.active())
        warp.bulk_groups.append(BulkGroup([x for x in warp.bulk_open if x.lane in lanes], lanes))
        warp.bulk_open = [x for x in warp.bulk_open if x.lane not in lanes]

    return run


@form("cp.async.bulk.wait_group{,.read}")
def wait(program: Program, instruction: Instruction) -> Step:
    """Wait until no more than so many of a lane's latest groups are under way, or have still to read their source.

    What is waited for is completed here at the latest.
    """
    left = program.constant_value(instruction.operands[0])
    finish = _finish_reads if instruction.opcode.endswith(".read") else _finish_writes

    def run(warp: Warp) -> None:
        for lane in warp.active():
            mine = [x for x in warp.bulk_groups if isinstance(x, BulkGroup) and lane in x.lanes]
            for group in mine[: max(len(mine) - left, 0)]:
                finish(warp, group, lane)

    return run


def _finish_reads(warp: Warp, group: BulkGroup, lane: int) -> None:
    _finish(warp, [x for x in group if x.lane == lane and x.kind == READ])


def _finish_writes(warp: Warp, group: BulkGroup, lane: int) -> None:
    _finish(warp, [x for x in group if x.lane == lane])
    group.lanes.discard(lane)
    if not group.lanes:
        warp.bulk_groups.remove(group)


def _finish(warp: Warp, operations: list[Operation]) -> None:
    for operation in operations:
        warp.device.operations.complete(operation)
        warp.knowledge.join_done(operation.bit)
