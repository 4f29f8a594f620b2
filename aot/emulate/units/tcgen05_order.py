"""The order of tensor core operations: the queue of a warp, tcgen05.commit and tcgen05.fence.

Source: PTX ISA, "Tensorcore 5th Generation Family Instructions: Memory Consistency Model", "Pipelined tcgen05
instructions", tcgen05.commit, tcgen05.fence. tcgen05.mma, tcgen05.cp and tcgen05.commit of one thread are executed in
order; those of different warps are not ordered here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.forms import form
from aot.emulate.units.barrier import check_initialised

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.forms import Step
    from aot.emulate.operation import Operation
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Cta, Warp


def single_lane(warp: Warp, where: str) -> int:
    """Return the one active lane.

    Raises:
        Fault: there are more, which would issue the operation several times.
    """
    lanes = warp.active()
    if len(lanes) != 1:
        raise Fault(FaultKind.DIVERGENCE, f"{where}: {len(lanes)} lanes issue; expected one, by elect.sync")
    return lanes[0]


def ctas_of_group(warp: Warp, group: int, where: str) -> list[Cta]:
    """Return the CTA of a warp, or with 2 its pair, the even rank first.

    Raises:
        Fault: the cluster has no such pair.
    """
    cta, ctas = warp.cta, warp.cta.cluster.ctas
    if group == 1:
        return [cta]
    first = cta.rank & ~1
    if first + 1 >= len(ctas):
        raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: CTA {cta.rank} of a cluster of {len(ctas)} has no pair")
    return ctas[first : first + 2]


def make_ordered(warp: Warp, kind: str, where: str, run: Callable[[], None]) -> Operation:
    """Make an operation that knows those that the warp issued before to be complete, as it comes behind them."""
    operation = warp.device.operations.make(kind, warp.agent, where, run)
    operation.agent.knowledge.join_done(warp.tensor_done)
    warp.tensor_done |= operation.bit
    return operation


def enqueue(warp: Warp, operation: Operation) -> None:
    """Let an operation complete behind those that the warp issued before."""
    warp.device.operations.enqueue(warp, operation)


@form("tcgen05.commit.cta_group::{1,2}.mbarrier::arrive::one{,.shared::cluster}{,.multicast::cluster}.b64")
def commit(program: Program, instruction: Instruction) -> Step:
    """Let mbarriers be told when all that the warp has issued is complete."""
    where, operands = instruction.where, instruction.operands
    address = program.address(operands[0])
    mask = program.source(operands[1], "b16") if ".multicast::cluster" in instruction.opcode else None

    def run(warp: Warp) -> None:
        cluster = warp.cta.cluster
        for lane in warp.active():
            bar = int(address(warp)[lane])
            if mask is None:
                targets = [cluster.cta_of(bar, where)]
            else:
                targets = cluster.ctas_of_mask(int(warp.registers[mask][lane]), where)
            for cta in targets:
                check_initialised(warp, cta.mbarrier(bar, where), where, is_async=True)
            _issue(warp, bar, targets, where)

    return run


def _issue(warp: Warp, bar: int, targets: list[Cta], where: str) -> None:
    # What the operations waited for is complete with them, such as the copy that a product has read.
    done = warp.tensor_done | warp.knowledge.seen.done

    def complete() -> None:
        for cta in targets:
            cta.mbarrier(bar, where).arrive(1, done=done)

    enqueue(warp, warp.device.operations.make("tcgen05.commit", warp.agent, where, complete))


@form("tcgen05.fence::{before,after}_thread_sync")
def fence(program: Program, instruction: Instruction) -> Step:
    """Nothing to do: barriers order the operations that arrive at them, and tcgen05.wait loads and stores."""
    return lambda _: None
