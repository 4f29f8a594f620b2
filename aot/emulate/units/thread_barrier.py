"""Barriers of threads.

Bar, barrier, barrier.cluster, and fences. Source: PTX ISA, "Parallel Synchronization and Communication Instructions:
bar, barrier, barrier.cluster, membar/fence".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.emulate.barriers import NUM_BARRIERS, NamedBarrier
from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import YIELD, form

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp


@form("bar.warp.sync")
def warp_barrier(program: Program, instruction: Instruction) -> Step:
    """Nothing to do: the lanes of a warp run together here, and count as one agent."""
    return lambda _: None


def _check_together(warp: Warp, where: str) -> None:
    if warp.pending or (warp.mask != warp.lanes).any():
        raise Fault(FaultKind.DIVERGENCE, f"{where}: warp {warp.index} of CTA {warp.cta.ctaid}")


def _arrive(warp: Warp, index: int, expected: int | None, where: str) -> NamedBarrier:
    """Arrive at a barrier of so many threads; None of all that have not exited.

    Raises:
        Fault: there is no such barrier or count, or others speak of other counts.
    """
    cta = warp.cta
    if index >= NUM_BARRIERS:
        raise Fault(FaultKind.BARRIER, f"{where}: barrier {index}; expected 0 to {NUM_BARRIERS - 1}")
    if expected is not None and (expected % 32 or not expected):
        raise Fault(FaultKind.BARRIER, f"{where}: {expected} threads; expected a multiple of 32")
    barrier = cta.named.get(index)
    if barrier is None:
        barrier = cta.named[index] = NamedBarrier(cta.cluster.knowledge, cta.cluster.knowledge())
    if not barrier.num_warps:
        barrier.expected = expected
    elif (barrier.expected or cta.num_threads) != (expected or cta.num_threads):
        text = f"{where}: {expected or cta.num_threads} threads at barrier {index} of {barrier.expected}"
        raise Fault(FaultKind.BARRIER, text)
    barrier.num_warps += 1
    barrier.knowledge.join(warp.release())
    barrier.settle(cta.num_threads)
    return barrier


@form("{bar.sync,barrier.sync,barrier.sync.aligned,barrier.cta.sync,barrier.cta.sync.aligned}")
def synchronise(program: Program, instruction: Instruction) -> Step:
    """Arrive at one of the CTA's barriers, and wait until all threads that it counts have."""
    where, operands = instruction.where, instruction.operands
    number = program.source(operands[0], "b32")
    count = program.source(operands[1], "b32") if len(operands) > 1 else None

    def run(warp: Warp) -> int | None:
        _check_together(warp, where)
        index = int(warp.registers[number][0])
        expected = None if count is None else int(warp.registers[count][0])
        before = warp.cta.named[index].generation if index in warp.cta.named else 0
        barrier = _arrive(warp, index, expected, where)

        def learn() -> None:
            if barrier.completed is not None:
                warp.knowledge.join(barrier.completed)

        if barrier.generation != before:
            learn()
            return YIELD
        total = expected or warp.cta.num_threads

        def reason() -> str:
            return f"waits at barrier {index} of {total} threads, where {barrier.num_arrived} are"

        barrier.queue.wait(warp, reason, lambda: barrier.generation != before, learn)
        return YIELD

    return run


@form("{bar.arrive,barrier.arrive,barrier.arrive.aligned,barrier.cta.arrive,barrier.cta.arrive.aligned}")
def arrive(program: Program, instruction: Instruction) -> Step:
    """Arrive at one of the CTA's barriers without waiting."""
    where = instruction.where
    number, count = (program.source(x, "b32") for x in instruction.operands)

    def run(warp: Warp) -> None:
        _check_together(warp, where)
        _arrive(warp, int(warp.registers[number][0]), int(warp.registers[count][0]), where)

    return run


@form("barrier.cluster.arrive{,.release,.relaxed}{,.aligned}")
def cluster_arrive(program: Program, instruction: Instruction) -> Step:
    """Arrive at the cluster's barrier; with .relaxed, only fenced initialisations of mbarriers become known."""
    where, is_relaxed = instruction.where, ".relaxed" in instruction.opcode

    def run(warp: Warp) -> None:
        cluster = warp.cta.cluster
        _check_together(warp, where)
        if warp.cluster_arrived == cluster.generation:
            raise Fault(FaultKind.BARRIER, f"{where}: warp {warp.index} of CTA {warp.cta.rank} arrives twice")
        warp.cluster_arrived = cluster.generation
        if is_relaxed:
            cluster.arrived.initialised.join(warp.knowledge.initialised)
            warp.next_epoch()
        else:
            cluster.arrived.join(warp.release())
        cluster.num_arrived += 1
        cluster.settle()

    return run


@form("barrier.cluster.wait{,.acquire}{,.aligned}")
def cluster_wait(program: Program, instruction: Instruction) -> Step:
    """Wait until all threads of the cluster have arrived."""
    where = instruction.where

    def run(warp: Warp) -> int | None:
        cluster, generation = warp.cta.cluster, warp.cluster_arrived
        if generation < 0 or warp.cluster_waited == generation:
            raise Fault(FaultKind.BARRIER, f"{where}: warp {warp.index} waits without having arrived")
        warp.cluster_waited = generation

        def learn() -> None:
            warp.knowledge.join(cluster.completed)

        if cluster.generation != generation:
            learn()
            return None
        cluster.queue.wait(warp, "waits at the cluster's barrier", lambda: cluster.generation != generation, learn)
        return YIELD

    return run


@form("fence.proxy.async{,.shared::cta,.shared::cluster,.global}")
def proxy_fence(program: Program, instruction: Instruction) -> Step:
    """Make what the warp has seen through the generic proxy known to the async proxy, in shared memory.

    The proxies of global memory are not told apart here, so that a fence of global memory alone does nothing.
    """
    is_of_shared = not instruction.opcode.endswith(".global")

    def run(warp: Warp) -> None:
        if is_of_shared:
            warp.knowledge.fenced.join(warp.knowledge.seen)
        warp.next_epoch()

    return run


@form("fence.mbarrier_init.release.cluster")
def init_fence(program: Program, instruction: Instruction) -> Step:
    """Make the initialisation of mbarriers known by relaxed arrivals of the cluster's barrier."""

    def run(warp: Warp) -> None:
        warp.knowledge.initialised.join(warp.knowledge.seen)
        warp.next_epoch()

    return run


@form("fence{,.acq_rel,.sc}.{cta,cluster,gpu,sys}", "membar.{cta,gl,sys}")
def memory_fence(program: Program, instruction: Instruction) -> Step:
    """Order relaxed accesses before and behind.

    What they were seen to say is learnt, and what follows them tells it.
    """

    def run(warp: Warp) -> None:
        if warp.acquiring is not None:
            warp.knowledge.join(warp.acquiring)
            warp.acquiring = None
        warp.fences = warp.release()

    return run


@form("fence.proxy.tensormap::generic.{acquire,release}.{cta,cluster,gpu,sys}")
def tensor_map_fence(program: Program, instruction: Instruction) -> Step:
    """Order writes of descriptors before TMA's reads; descriptors that kernels write are not known here."""
    where = instruction.where

    def run(warp: Warp) -> None:
        warp.device.report(FindingKind.LETTER, where, "a fence of descriptors, which nothing here writes")

    return run
