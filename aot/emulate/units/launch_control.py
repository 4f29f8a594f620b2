"""Cluster launch control.

A cluster that runs takes the place of one that has not begun. Source: PTX ISA, "Cluster Launch Control:
clusterlaunchcontrol.try_cancel, clusterlaunchcontrol.query_cancel".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.forms import form
from aot.emulate.memory import FILL

if TYPE_CHECKING:
    from aot.emulate.forms import Step
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction
    from aot.emulate.running import Warp

RESPONSE_BYTES = 16
_CANCELLED = np.uint64(1)
_FIELDS = {"x": (1, 0, 0xFFFFFFFF), "y": (1, 32, 0xFFFF), "z": (0, 16, 0xFFFF)}
"""Word, shift and mask of the first CTA's coordinates in a response: inferred; kernels see them by query_cancel."""


@form(
    "clusterlaunchcontrol.try_cancel.async{,.shared::cta}.mbarrier::complete_tx::bytes"
    "{,.multicast::cluster::all}.b128"
)  # fmt: skip
def try_cancel(program: Program, instruction: Instruction) -> Step:
    """Ask for a cluster; the response, and 16 bytes of the mbarrier, come to this CTA or to all of the cluster."""
    where, to_all = instruction.where, "multicast" in instruction.opcode
    address, barrier = program.address(instruction.operands[0]), program.address(instruction.operands[1])

    def run(warp: Warp) -> None:
        lanes = warp.active()
        if len(lanes) != 1:
            raise Fault(FaultKind.DIVERGENCE, f"{where}: {len(lanes)} lanes cancel")
        _issue(warp, int(address(warp)[lanes[0]]), int(barrier(warp)[lanes[0]]), where, to_all=to_all)

    return run


def _issue(warp: Warp, to: int, bar: int, where: str, *, to_all: bool) -> None:
    device, cluster = warp.device, warp.cta.cluster
    if cluster.number in warp.launch.refused:
        raise Fault(FaultKind.BARRIER, f"{where}: asks again after it was refused, which is undefined")
    targets = cluster.ctas if to_all else [warp.cta]
    offsets = [int(x.shared.offsets(np.array([to]), RESPONSE_BYTES, where)[0]) for x in targets]

    def complete() -> None:
        response = np.zeros(2, np.uint64)
        first = warp.launch.cancel_cluster()
        if first is None:
            warp.launch.refused.add(cluster.number)
        else:
            size = warp.launch.launch.cluster
            x, y, z = (first[i] * size[i] for i in range(3))
            response[:] = int(_CANCELLED) | z << 16, x | y << 32
        for cta, offset in zip(targets, offsets, strict=True):
            found = cta.mbarrier(bar, where)
            cta.shared.content[offset : offset + RESPONSE_BYTES] = response.view(np.uint8)
            found.complete(RESPONSE_BYTES, operation.bit)

    operation = device.operations.make("clc", warp.agent, where, complete)
    for cta, offset in zip(targets, offsets, strict=True):
        cta.shared.shadow.write(operation.agent, slice(offset // 4, (offset + RESPONSE_BYTES) // 4))
        cta.shared.content[offset : offset + RESPONSE_BYTES] = FILL
    device.operations.post(operation)


@form("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128")
def is_cancelled(program: Program, instruction: Instruction) -> Step:
    """Say whether a response names a cluster."""
    to, source = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "b128")
    return lambda warp: warp.put(to, (warp.registers[source][:, 0] & _CANCELLED) != 0)


@form("clusterlaunchcontrol.query_cancel.get_first_ctaid::{x,y,z}.b32.b128")
def first_cta(program: Program, instruction: Instruction) -> Step:
    """Give a coordinate of the first CTA of a response; of one that was refused it is undefined."""
    where = instruction.where
    word, shift, mask = _FIELDS[instruction.opcode.split("::")[1][0]]
    to, source = program.destination(instruction.operands[0]), program.source(instruction.operands[1], "b128")

    def run(warp: Warp) -> None:
        response = warp.registers[source]
        if not (response[warp.mask, 0] & _CANCELLED).all():
            warp.device.report(FindingKind.LETTER, where, "asks for the CTA of a cancel that was refused")
        warp.put(to, ((response[:, word] >> np.uint64(shift)) & np.uint64(mask)).astype(np.uint32))

    return run
