"""cp.async.bulk from global to shared memory: a run of bytes, without a tensor.

Source: PTX ISA, "Data Movement and Conversion Instructions: Bulk copy: cp.async.bulk". The bytes arrive through the
async proxy at a time of their own, and are counted by the barrier; what the copy will write is poisoned from its issue
on. It reads its source at any time until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.memory import FILL, OFFSET_MASK, RANK_SHIFT, SHARED_START, WORD
from aot.emulate.units.barrier import check_initialised
from aot.emulate.units.tma import LOAD

if TYPE_CHECKING:
    from aot.emulate.barriers import Mbarrier
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Cta, Warp

QUANTUM = 16
"""Of addresses and of the size. Source: PTX ISA, "cp.async.bulk"."""


@form("cp.async.bulk.shared::{cta,cluster}.global.mbarrier::complete_tx::bytes{,.L2::cache_hint}")
def load(program: Program, instruction: Instruction) -> Step:
    """Copy bytes to this CTA, or to another of the cluster, whose barrier counts them."""
    where, operands = instruction.where, instruction.operands
    to, source = program.address(operands[0]), program.address(operands[1])
    size, barrier = program.source(operands[2], "b32"), program.address(operands[3])
    is_own = ".shared::cta." in instruction.opcode

    def run(warp: Warp) -> None:
        for lane in warp.active():
            place, start, bar = (int(x(warp)[lane]) for x in (to, source, barrier))
            count = int(warp.registers[size][lane])
            _check(where, place, start, count)
            cta = warp.cta.cluster.cta_of(place, where)
            if bar >> RANK_SHIFT != cta.rank or (is_own and cta is not warp.cta):
                text = f"{where}: the bytes are for CTA {cta.rank}, the barrier of CTA {bar >> RANK_SHIFT}"
                raise Fault(FaultKind.BARRIER, f"{text}; this one is {warp.cta.rank}")
            found = cta.mbarrier(bar, where)
            check_initialised(warp, found, where, is_async=True)
            warp.note_early(start, is_write=False, where=where)
            _issue(warp, where, lane, cta, found, (place & OFFSET_MASK) - SHARED_START, start, count)

    return run


def _check(where: str, place: int, start: int, count: int) -> None:
    for value, name in ((place, "shared address"), (start, "source"), (count, "size")):
        if value % QUANTUM:
            raise Fault(FaultKind.ALIGNMENT, f"{where}: {name} {value:#x}; expected a multiple of {QUANTUM}")
    if not count:
        raise Fault(FaultKind.ADDRESS, f"{where}: no bytes")


def _issue(warp: Warp, where: str, lane: int, cta: Cta, barrier: Mbarrier, at: int, start: int, count: int) -> None:
    device, shared = warp.device, cta.shared
    if at < 0 or at + count > shared.num_bytes:
        raise Fault(FaultKind.ADDRESS, f"{where}: bytes {at} to {at + count} of {shared.num_bytes} of shared memory")

    def complete() -> None:
        if cta.done:
            raise Fault(FaultKind.EXITED, f"{where}: writes shared memory of CTA {cta.rank}, which has exited")
        shared.content[at : at + count] = content
        device.bytes_moved[LOAD] += count
        barrier.complete(count, operation.bit, operation.agent.knowledge.seen.launches)

    operation = device.operations.make(LOAD, warp.agent, where, complete, lane=lane)
    content = device.memory.note_read(operation.agent, start, count)
    shared.shadow.write(operation.agent, np.arange(at // WORD, (at + count) // WORD))
    shared.content[at : at + count] = FILL
    device.operations.post(operation)
