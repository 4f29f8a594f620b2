"""mbarrier objects. Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".

A try that fails gives up the warp's turn. The second failure of the same try in a row blocks the warp until the phase
is complete, since it may: mbarrier.try_wait is a potentially blocking instruction.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.barriers import Mbarrier
from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import STAY, YIELD, form
from aot.emulate.memory import OFFSET_MASK, SHARED_WINDOW
from aot.emulate.ptx import Address
from aot.emulate.units._accesses import keep_for_fence, space_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction, Operand
    from aot.emulate.running import Warp
    from aot.emulate.types import Value

OBJECT_BYTES = 8
MAX_COUNT = 2**20 - 1
"""Arrivals of a phase. Source: PTX ISA, "mbarrier.init"."""
ALL, NONE = np.ones(32, bool), np.zeros(32, bool)


def check_initialised(warp: Warp, barrier: Mbarrier, where: str, *, is_async: bool = False) -> None:
    """Note where a warp uses a barrier whose initialisation it cannot know.

    An asynchronous operation that arrives at the barrier needs a fence behind the initialisation as well, of the
    initialisation itself or of proxies. Source: PTX ISA, "membar/fence: fence.mbarrier_init, fence.proxy.async".
    """
    by, epoch = barrier.initialised_by
    knowledge = warp.knowledge
    fenced = max(knowledge.initialised.epoch_of(by), knowledge.fenced.epoch_of(by))
    is_known = fenced >= epoch or (not is_async and (by == warp.number or knowledge.seen.epoch_of(by) >= epoch))
    if not is_known:
        warp.device.report(FindingKind.BARRIER_INIT, where, f"warp {warp.index} uses mbarrier {barrier.where}")


def shared_address(program: Program, operand: Operand, instruction: Instruction) -> Callable[[Warp], Value]:
    """Return a function from a warp to the shared addresses of its lanes, where a form may take generic ones."""
    address = program.address(operand)
    if space_of(instruction) != "generic":
        return address
    window = np.uint64(SHARED_WINDOW)

    def shared(warp: Warp) -> Value:
        found = address(warp)
        low = int(found[warp.mask].min())
        if low < SHARED_WINDOW:
            raise Fault(FaultKind.ADDRESS, f"{instruction.where}: {low:#x} is not in shared memory")
        return (found - window).astype(np.uint32)

    return shared


def find(warp: Warp, address: int, where: str, *, in_cluster: bool) -> Mbarrier:
    """Return the barrier at an address.

    Raises:
        Fault: there is none, or it is another CTA's and the form speaks of this one's.
    """
    cta = warp.cta.cluster.cta_of(address, where)
    if cta is not warp.cta and not in_cluster:
        raise Fault(FaultKind.ADDRESS, f"{where}: mbarrier {address:#x} is of CTA {cta.rank}")
    barrier = cta.mbarrier(address, where)
    check_initialised(warp, barrier, where)
    return barrier


@form("mbarrier.init{,.shared,.shared::cta}.b64")
def initialise(program: Program, instruction: Instruction) -> Step:
    """Make a barrier of so many arrivals."""
    where = instruction.where
    address = shared_address(program, instruction.operands[0], instruction)
    count = program.source(instruction.operands[1], "b32")

    def run(warp: Warp) -> None:
        cta = warp.cta
        for x, n in zip(address(warp)[warp.mask], warp.registers[count][warp.mask], strict=True):
            cta.shared.offsets(np.array([x]), OBJECT_BYTES, where)
            key, number = int(x) & OFFSET_MASK, int(n)
            if key in cta.mbarriers:
                raise Fault(FaultKind.BARRIER, f"{where}: mbarrier {key:#x} is initialised twice")
            if not 1 <= number <= MAX_COUNT:
                raise Fault(FaultKind.BARRIER, f"{where}: {number} arrivals")
            barrier = Mbarrier(f"{key:#x} of CTA {cta.ctaid}", number, cta.cluster.knowledge)
            barrier.initialised_by = warp.number, warp.agent.epoch
            cta.mbarriers[key] = barrier

    return run


@form("mbarrier.inval{,.shared,.shared::cta}.b64")
def invalidate(program: Program, instruction: Instruction) -> Step:
    """End a barrier."""
    where, address = instruction.where, shared_address(program, instruction.operands[0], instruction)

    def run(warp: Warp) -> None:
        for x in address(warp)[warp.mask]:
            find(warp, int(x), where, in_cluster=False)
            del warp.cta.mbarriers[int(x) & OFFSET_MASK]

    return run


_SCOPES = "{,.release.cta,.release.cluster}{,.shared,.shared::cta,.shared::cluster}.b64"


@form(f"mbarrier.arrive{_SCOPES}", f"mbarrier.arrive.expect_tx{_SCOPES}")
def arrive(program: Program, instruction: Instruction) -> Step:
    """Arrive, with all that the warp has done before; with .expect_tx, expect bytes first."""
    where, operands = instruction.where, list(instruction.operands)
    expects, in_cluster = ".expect_tx" in instruction.opcode, "shared::cluster" in instruction.opcode
    state = None
    if not isinstance(operands[0], Address):
        state = program.destination(operands.pop(0))
    address = shared_address(program, operands[0], instruction)
    count = program.source(operands[1], "b32") if len(operands) > 1 else program.constant(1, "b32")

    def run(warp: Warp) -> None:
        knowledge = warp.release()
        places, counts = address(warp)[warp.mask], warp.registers[count][warp.mask]
        for place in np.unique(places):
            # The lanes' arrivals at one barrier are one arrival: an H100 faults where they are more than are pending.
            barrier, mine = find(warp, int(place), where, in_cluster=in_cluster), counts[places == place]
            total = int(mine.sum(dtype=np.int64))
            if expects:
                barrier.arrive(mine.size, knowledge, expected=total)
            else:
                barrier.arrive(total, knowledge)
        if state is not None:
            warp.put(state, np.full(32, 0xBAD0BAD0, np.uint64))  # no kernel of ours reads it

    return run


@form("mbarrier.expect_tx.relaxed.{cta,cluster}.shared{,::cta,::cluster}.b64")
def expect(program: Program, instruction: Instruction) -> Step:
    """Expect bytes."""
    where, in_cluster = instruction.where, "shared::cluster" in instruction.opcode
    address = shared_address(program, instruction.operands[0], instruction)
    count = program.source(instruction.operands[1], "b32")

    def run(warp: Warp) -> None:
        for x, n in zip(address(warp)[warp.mask], warp.registers[count][warp.mask], strict=True):
            find(warp, int(x), where, in_cluster=in_cluster).expect(int(n))

    return run


@form(
    "mbarrier.{try_wait,test_wait}.parity{,.acquire.cta,.acquire.cluster,.relaxed.cluster}{,.shared,.shared::cta}.b64"
)
def wait(program: Program, instruction: Instruction) -> Step:
    """Say whether the phase of a parity is complete, and learn what those know who arrived in it."""
    where, is_relaxed = instruction.where, ".relaxed." in instruction.opcode
    to = program.destination(instruction.operands[0])
    address = shared_address(program, instruction.operands[1], instruction)
    parity = program.source(instruction.operands[2], "b32")

    def run(warp: Warp) -> int | None:
        addresses, parities = address(warp)[warp.mask], warp.registers[parity][warp.mask]
        if (addresses != addresses[0]).any() or (parities != parities[0]).any():
            raise Fault(FaultKind.DIVERGENCE, f"{where}: lanes wait for different barriers")
        barrier, wanted = find(warp, int(addresses[0]), where, in_cluster=False), int(parities[0]) & 1
        if (barrier.phase & 1) != wanted:
            warp.tried = None
            if is_relaxed:
                keep_for_fence(warp, barrier.completed)
            else:
                warp.knowledge.join(barrier.completed)
            warp.put(to, ALL)
            return None
        warp.put(to, NONE)
        attempt = (warp.pc, barrier, wanted)
        if warp.tried == attempt:
            warp.tried = None
            barrier.queue.wait(warp, partial(_missing, barrier), lambda: (barrier.phase & 1) != wanted)
            return STAY
        warp.tried = attempt
        return YIELD

    return run


def _missing(barrier: Mbarrier) -> str:
    missing = f"{barrier.pending} of {barrier.count} arrivals and {barrier.transactions} bytes are missing"
    return f"waits for phase {barrier.phase} of mbarrier {barrier.where} ({missing})"
