"""Barriers of threads.

Bar, barrier, barrier.cluster, and fences. Source: PTX ISA, "Parallel Synchronization and Communication Instructions:
bar, barrier, barrier.cluster, membar/fence".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.emulate.cta import NamedBarrier
from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import YIELD, form

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.warp import Warp


@form("bar.warp.sync")
def warp_barrier(program: Program, instruction: Instruction) -> Step:
    """Nothing to do: the lanes of a warp run together here, and count as one agent."""
    return lambda _: None


def _check_together(warp: Warp, where: str) -> None:
    if warp.pending or (warp.mask != warp.lanes).any():
        raise Fault(FaultKind.DIVERGENCE, f"{where}: warp {warp.index} of CTA {warp.cta.ctaid}")


def _arrive(warp: Warp, index: int, total: int, where: str) -> NamedBarrier:
    barrier = warp.cta.named.get(index)
    if barrier is None:
        barrier = warp.cta.named[index] = NamedBarrier(warp.cta.cluster.knowledge())
    barrier.num_arrived += 32
    if barrier.num_arrived > total:
        text = f"{where}: {barrier.num_arrived} threads at barrier {index} of {total}"
        raise Fault(FaultKind.BARRIER, text)
    barrier.knowledge.join(warp.release())
    if barrier.num_arrived == total:
        barrier.num_arrived = 0
        barrier.generation += 1
        barrier.completed, barrier.knowledge = barrier.knowledge, warp.cta.cluster.knowledge()
        barrier.queue.wake()
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
        total = 32 * len(warp.cta.warps) if count is None else int(warp.registers[count][0])
        before = warp.cta.named[index].generation if index in warp.cta.named else 0
        barrier = _arrive(warp, index, total, where)

        def learn() -> None:
            if barrier.completed is not None:
                warp.knowledge.join(barrier.completed)

        if barrier.generation != before:
            learn()
            return YIELD
        barrier.queue.wait(
            warp, f"waits at barrier {index} of {total} threads", lambda: barrier.generation != before, learn
        )
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
    """Make what the warp has seen through the generic proxy known to the async proxy."""

    def run(warp: Warp) -> None:
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
        warp.machine.report(FindingKind.LETTER, where, "a fence of descriptors, which nothing here writes")

    return run
