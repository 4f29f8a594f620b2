"""Branches, exits, and what the lanes of a warp do together.

Source: PTX ISA, "Control Flow Instructions", "Parallel Synchronization and Communication Instructions: elect.sync,
vote.sync, shfl.sync, griddepcontrol", "Miscellaneous Instructions: setmaxnreg, trap, nanosleep".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import STAY, YIELD, form
from aot.emulate.ptx import Negated, Pair
from aot.emulate.types import LANES

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Cta, Warp
    from aot.emulate.types import Lanes, Value

REGISTER_STEP, MIN_REGISTERS, MAX_REGISTERS = 8, 24, 256
"""What setmaxnreg takes. Source: PTX ISA, "setmaxnreg"."""
ALL_LANES = np.uint32(0xFFFFFFFF)


@form("bra{,.uni}")
def branch(program: Program, instruction: Instruction) -> Step:
    """Branch; lanes that do not wait where they are, and go on when those that are farther behind have come."""
    target = instruction.target
    guard = program.guard_slot(instruction)
    if target is None:
        raise TypeError("no target")
    if guard is None:
        return lambda _: target
    slot, is_negated = guard

    def run(warp: Warp) -> int | None:
        predicate = warp.registers[slot]
        taken = warp.mask & (~predicate if is_negated else predicate)
        count = np.count_nonzero(taken)
        if count == 0:
            return None
        if count == (32 if warp.full else np.count_nonzero(warp.mask)):
            return target
        warp.pending.append((target, taken))
        warp.mask = warp.mask & ~taken
        warp.full = False
        return None

    return run


@form("ret", "exit")
def leave(program: Program, instruction: Instruction) -> Step:
    """End the active lanes whose predicate holds; with the last the warp ends, and with the last warp the CTA."""
    where, guard = instruction.where, program.guard_slot(instruction)

    def run(warp: Warp) -> int | None:
        leaving = warp.mask
        if guard is not None:
            predicate = warp.registers[guard[0]]
            leaving = leaving & (~predicate if guard[1] else predicate)
        if not leaving.any():
            return None
        staying = warp.mask & ~leaving
        warp.lanes = warp.lanes & ~leaving
        if staying.any():
            warp.mask, warp.full = staying, False
            return None
        if warp.pending:
            at, mask = warp.pending.pop()
            warp.mask, warp.full = mask, bool(mask.all())
            return at
        warp.done = True
        _end(warp, where)
        return YIELD

    return run


def _end(warp: Warp, where: str) -> None:
    """Note what a warp leaves behind, and end what ends with it."""
    cta = warp.cta
    if any(not group.is_complete for group in warp.groups):
        raise Fault(FaultKind.EXITED, f"{where}: warp {warp.index} exits with wgmma in flight")
    cta.cluster.settle()
    for barrier in cta.named.values():
        barrier.settle(cta.num_threads)
    if all(x.done for x in cta.warps):
        _end_operations(cta, where)
        cta.finish()


def _end_operations(cta: Cta, where: str) -> None:
    """Complete what the warps of a CTA have issued; note what uses shared memory and was not waited for by any."""
    device, waited = cta.device, 0
    for warp in cta.warps:
        waited |= warp.knowledge.seen.done
    for warp in cta.warps:
        groups = [*warp.bulk_groups, *warp.copy_groups]
        for operation in [*warp.bulk_open, *(x for group in groups for x in group), *warp.copies]:
            if operation.kind in ("tma.store.read", "cp.async") and not operation.bit & waited:
                device.report(FindingKind.EXIT, where, f"{operation.agent.who} was not waited for")
            device.operations.complete(operation)


@form("trap")
def trap(program: Program, instruction: Instruction) -> Step:
    """Fault."""
    where = instruction.where

    def run(warp: Warp) -> None:
        raise Fault(FaultKind.TRAP, f"{where}: CTA {warp.cta.ctaid} warp {warp.index}")

    return run


@form("nanosleep.u32")
def sleep(program: Program, instruction: Instruction) -> Step:
    """Give others a turn."""
    return lambda _: YIELD


@form("elect.sync")
def elect(program: Program, instruction: Instruction) -> Step:
    """Choose one of the lanes that are named: the lowest, as chips do (inferred)."""
    to, where = instruction.operands[0], instruction.where
    if not isinstance(to, Pair):
        raise TypeError("no pair of destinations")
    lane, predicate = program.destination(to.first), program.destination(to.second)
    members = program.source(instruction.operands[1], "b32")

    def run(warp: Warp) -> None:
        named = _named(warp, warp.registers[members], where)
        leader = int(np.argmax(named if named.any() else warp.mask))
        warp.put(lane, np.full(32, leader, np.uint32))
        warp.put(predicate, np.equal(LANES, leader))

    return run


def _bits(lanes: Value) -> int:
    return sum(1 << int(x) for x in np.flatnonzero(lanes))


def _named(warp: Warp, members: Value, where: str) -> Lanes:
    """Return the active lanes that their own masks name.

    Lanes that are named and elsewhere are noted: on a chip they would be waited for. So are those that are here and not
    named, whose results are undefined.
    """
    if warp.full and (members == ALL_LANES).all():
        return warp.mask
    wanted = int(np.bitwise_or.reduce(members[warp.mask])) & _bits(warp.lanes)
    missing = wanted & ~_bits(warp.mask)
    if missing:
        warp.device.report(FindingKind.CONVERGENCE, where, f"lanes {missing:#x} of the mask are elsewhere")
    named: Lanes = warp.mask & ((members >> LANES.astype(np.uint32)) & np.uint32(1)).astype(bool)
    if (named != warp.mask).any():
        strangers = _bits(warp.mask & ~named)
        warp.device.report(FindingKind.CONVERGENCE, where, f"lanes {strangers:#x} are not in their own masks")
    return named


@form("vote.sync.{ballot.b32,any.pred,all.pred,uni.pred}")
def vote(program: Program, instruction: Instruction) -> Step:
    """Combine a predicate over lanes."""
    mode, where = instruction.opcode.split(".")[2], instruction.where
    source = instruction.operands[1]
    is_negated = isinstance(source, Negated)
    to = program.destination(instruction.operands[0])
    a = program.source(source.operand if isinstance(source, Negated) else source, "pred")
    members = program.source(instruction.operands[2], "b32")

    def run(warp: Warp) -> None:
        predicate, masks = ~warp.registers[a] if is_negated else warp.registers[a], warp.registers[members]
        named = _named(warp, masks, where)
        found = np.zeros(32, np.uint32 if mode == "ballot" else bool)
        for mask in np.unique(masks[warp.mask]):  # lanes of one mask vote together
            lanes = warp.mask & (masks == mask)
            found[lanes] = _result(mode, lanes & named, predicate)
        warp.put(to, found)

    return run


def _result(mode: str, lanes: Lanes, predicate: Lanes) -> int:
    votes = predicate[lanes]
    if mode == "ballot":
        return _bits(lanes & predicate)
    return bool({"any": votes.any(), "all": votes.all(), "uni": votes.all() or not votes.any()}[mode])


@form("shfl.sync.{idx,up,down,bfly}.b32")
def shuffle(program: Program, instruction: Instruction) -> Step:
    """Read another lane's register; segments and clamps as PTX ISA, "shfl.sync", computes them."""
    mode, where = instruction.opcode.split(".")[2], instruction.where
    first = instruction.operands[0]
    pair = isinstance(first, Pair)
    to = program.destination(first.first if isinstance(first, Pair) else first)
    valid_to = program.destination(first.second) if isinstance(first, Pair) else None
    a, b, c = (program.source(x, "b32") for x in instruction.operands[1:4])
    members = program.source(instruction.operands[4], "b32")

    def run(warp: Warp) -> None:
        registers = warp.registers
        lane, clamp = registers[b].astype(np.int64) & 31, registers[c].astype(np.int64)
        segment, limit = (clamp >> 8) & 31, clamp & 31
        top = (LANES & segment) | (limit & ~segment)
        at = {
            "idx": (LANES & segment) | (lane & ~segment & 31),
            "up": LANES - lane,
            "down": LANES + lane,
            "bfly": LANES ^ lane,
        }[mode]
        valid = at >= top if mode == "up" else at <= top
        at = np.where(valid, at, LANES)
        named = _named(warp, registers[members], where)
        if not (warp.full and named is warp.mask) and not named[at[warp.mask]].all():
            warp.device.report(FindingKind.CONVERGENCE, where, "reads a lane that is not active, or not named")
        warp.put(to, registers[a][at])
        if pair:
            warp.put(valid_to, valid)

    return run


@form("griddepcontrol.launch_dependents")
def launch_dependents(program: Program, instruction: Instruction) -> Step:
    """Let the next launch begin, as far as this CTA goes."""
    where = instruction.where

    def run(warp: Warp) -> None:
        if warp.launch.is_early:
            warp.device.report(FindingKind.EARLY, where, "lets the next kernel start")
        warp.cta.trigger()

    return run


@form("griddepcontrol.wait")
def wait_for_front(program: Program, instruction: Instruction) -> Step:
    """Wait until the kernel in front has ended, and see what it has done."""

    def run(warp: Warp) -> int | None:
        front = warp.launch.front

        def learn() -> None:
            if front.knowledge is not None:
                warp.knowledge.join(front.knowledge)

        if not front.is_complete:
            front.queue.wait(warp, "waits for the kernel in front", lambda: front.is_complete, learn)
            return YIELD
        learn()
        return None

    return run


@form("setmaxnreg.{inc,dec}.sync.aligned.u32")
def set_registers(program: Program, instruction: Instruction) -> Step:
    """Give registers to the CTA's pool, or wait until it has as many as are wanted."""
    wanted, is_increase = program.constant_value(instruction.operands[0]), ".inc." in instruction.opcode
    where = instruction.where
    if wanted % REGISTER_STEP or not MIN_REGISTERS <= wanted <= MAX_REGISTERS:
        raise TypeError(f"{wanted} registers")

    def run(warp: Warp) -> int | None:
        cta = warp.cta
        if not warp.full:
            raise Fault(FaultKind.DIVERGENCE, f"{where}: warp {warp.index}")
        if not warp.num_registers:
            return None  # the machine was not told how many a thread has
        need = 32 * (wanted - warp.num_registers)
        if (need < 0) == is_increase and need:
            raise Fault(FaultKind.REGISTERS, f"{where}: a thread has {warp.num_registers} registers")
        if cta.free_registers < need:
            cta.register_queue.wait(warp, f"waits for {wanted} registers", lambda: cta.free_registers >= need)
            return STAY
        cta.free_registers -= need
        warp.num_registers = wanted
        cta.register_queue.wake()
        return None

    return run
