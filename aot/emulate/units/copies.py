"""cp.async, the copies of 4, 8 and 16 bytes.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy: Non-bulk copy"; "mbarrier:
cp.async.mbarrier.arrive".

They write through the generic proxy, so that wgmma and TMA need a proxy fence behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.memory import FILL, WORD
from aot.emulate.ptx import Register
from aot.emulate.units.barrier import check_initialised, shared_address

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.barriers import Mbarrier
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp

_HINTS = "{,.L2::cache_hint,.L2::64B,.L2::128B,.L2::256B}"
SIZES = {"ca": (4, 8, 16), "cg": (16,)}
"""Bytes of a copy, by what caches it. Source: PTX ISA, "cp.async"."""


@form(f"cp.async.{{ca,cg}}.shared{{,::cta}}.global{_HINTS}")
def copy(program: Program, instruction: Instruction) -> Step:
    """Copy from global to shared memory; what the source lacks of the size is filled with zeros."""
    where, operands = instruction.where, list(instruction.operands)
    if ".L2::cache_hint" in instruction.opcode:
        operands.pop()
    to, source = program.address(operands[0]), program.address(operands[1])
    size = program.constant_value(operands[2])
    if size not in SIZES[instruction.opcode.split(".")[2]]:
        raise ValueError(f"{size} bytes")
    if len(operands) > 3 and isinstance(operands[3], Register) and program.type_of(operands[3]) == "pred":
        raise TypeError("a predicate that ignores the source")
    taken = program.source(operands[3], "b32") if len(operands) > 3 else None

    def run(warp: Warp) -> None:
        lanes = warp.active()
        counts = [size if taken is None else int(warp.registers[taken][lane]) for lane in lanes]
        if max(counts) > size:
            raise Fault(FaultKind.ADDRESS, f"{where}: {max(counts)} bytes of the source; expected up to {size}")
        places, sources = to(warp)[lanes], source(warp)[lanes]
        if (sources % np.asarray(size, sources.dtype)).any():
            raise Fault(FaultKind.ALIGNMENT, f"{where}: source {int(sources[0]):#x}; expected a multiple of {size}")
        _issue(warp, warp.cta.shared.offsets(places, size, where), [*map(int, sources)], counts, size, where)

    return run


def _issue(
    warp: Warp, offsets: NDArray[np.int64], sources: list[int], counts: list[int], size: int, where: str
) -> None:
    """Issue the copies of a warp's lanes, which are one operation here: they complete together."""
    device, shared = warp.device, warp.cta.shared
    places = offsets[:, None] + np.arange(size)

    def complete() -> None:
        data = np.zeros((len(sources), size), np.uint8)
        for row, content in zip(data, contents, strict=True):
            row[: content.size] = content
        shared.content[places] = data
        device.bytes_moved["cp.async"] += sum(counts)

    operation = device.operations.make("cp.async", warp.agent, where, complete, is_async_proxy=False)
    contents = []
    for source, count in zip(sources, counts, strict=True):
        if count:
            warp.note_early(source, is_write=False, where=where)
        contents.append(device.memory.note_read(operation.agent, source, count) if count else np.empty(0, np.uint8))
    shared.shadow.write(operation.agent, (offsets[:, None] // WORD + np.arange(size // WORD)).reshape(-1))
    shared.content[places] = FILL  # it may be written from now on
    warp.copies.append(operation)
    device.operations.post(operation)


@form("cp.async.commit_group")
def commit(program: Program, instruction: Instruction) -> Step:
    """Make the warp's copies since the last commit a group."""

    def run(warp: Warp) -> None:
        warp.copy_groups.append(warp.copies)
        warp.copies = []

    return run


@form("cp.async.wait_group", "cp.async.wait_all")
def wait(program: Program, instruction: Instruction) -> Step:
    """Wait until no more than so many groups are under way: those before are completed here at the latest."""
    left = program.constant_value(instruction.operands[0]) if instruction.operands else -1

    def run(warp: Warp) -> None:
        if left < 0:
            warp.copy_groups.append(warp.copies)
            warp.copies = []
        while len(warp.copy_groups) > max(left, 0):
            for operation in warp.copy_groups.popleft():
                warp.device.operations.complete(operation)
                warp.knowledge.join_done(operation.bit)

    return run


@form("cp.async.mbarrier.arrive{,.noinc}{,.shared,.shared::cta}.b64")
def arrive(program: Program, instruction: Instruction) -> Step:
    """Let an mbarrier be told when all copies before are complete; without .noinc its count grows first.

    It counts the lanes one by one; here they arrive together, when the copies of all of them are complete.
    """
    where, counts = instruction.where, ".noinc" not in instruction.opcode
    address = shared_address(program, instruction.operands[0], instruction)

    def run(warp: Warp) -> None:
        device = warp.device
        copies = [*warp.copies, *(x for group in warp.copy_groups for x in group)]
        warp.copies = [x for x in warp.copies if not x.done]
        done = 0
        for x in copies:
            done |= x.bit
        bars = address(warp)[warp.mask]
        for bar in np.unique(bars):
            barrier, num_lanes = warp.cta.mbarrier(int(bar), where), int((bars == bar).sum())
            check_initialised(warp, barrier, where)
            if counts:
                barrier.pending += num_lanes

            def complete(barrier: Mbarrier = barrier, num_lanes: int = num_lanes) -> None:
                for x in copies:
                    device.operations.complete(x)
                barrier.arrive(num_lanes, done=done)

            device.operations.post(
                device.operations.make("cp.async.arrive", warp.agent, where, complete, is_async_proxy=False)
            )

    return run
