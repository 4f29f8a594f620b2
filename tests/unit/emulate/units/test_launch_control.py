from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.launch import Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, compile_body, run

# Each cluster counts itself, then takes the work of clusters that have not begun until there is none. The first thread
# of the cluster's first CTA asks; every CTA of the cluster gets the response, and expects its 16 bytes.
PERSISTENT = """
.shared .align 16 .b8 answer[16]; .shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, answer; mov.u32 %r3, bar; mov.u32 %r4, %cluster_ctarank; mov.u32 %r5, %ctaid.x;
setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r4, 0; and.pred %p2, %p1, %p2; mov.u32 %r6, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;
barrier.cluster.arrive; barrier.cluster.wait;
WORK: @%p1 mad.wide.u32 %rd5, %r5, 4, %rd0; @%p1 red.global.add.u32 [%rd5], 1;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
{before}
@%p2 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128 [%r2], [%r3];
{wait}
ld.shared.v2.b64 {{%rd6, %rd7}}, [%r2]; mov.b128 %rq1, {{%rd6, %rd7}};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %rq1;
{early} @!%p3 bra END;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r5, %rq1; add.u32 %r5, %r5, %r4;
xor.b32 %r6, %r6, 1; fence.proxy.async.shared::cta; {after} bra WORK;
END: barrier.cluster.arrive; barrier.cluster.wait;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], %r6; @!%p9 bra W;"
SYNC = "barrier.cluster.arrive; barrier.cluster.wait;"
ALL = ".multicast::cluster::all"


def execute(*, cluster=1, schedule=None, grid=12, resident=2, counts=False, **parts):
    chosen = {"multicast": ALL if cluster > 1 else "", "wait": WAIT, "before": "", "after": SYNC, "early": "", **parts}
    body = PERSISTENT.format(**chosen)
    return run(body, np.zeros(grid, np.uint32), block=64, grid=grid, cluster=cluster, resident=resident,
               schedule=schedule, counts=counts)  # fmt: skip


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_work_of_every_cta_is_done_once(schedule, cluster):
    outcome = execute(cluster=cluster, schedule=schedule)
    assert list(outcome.arrays[0]) == [1] * 12
    assert not outcome.kinds, outcome.texts


def test_few_clusters_run_and_take_the_rest():
    counts = execute(counts=True).report.counts
    assert counts["clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"] >= 12
    # Each of 12 was asked for or began by itself, and each cluster that ran was refused once.
    assert counts["clc"] == 12


def test_coordinates_of_a_grid_of_three_dimensions():
    body = PERSISTENT.format(multicast="", wait=WAIT, before="", after=SYNC, early="")
    body = body.replace(
        "mov.u32 %r5, %ctaid.x;", "mov.u32 %r5, %ctaid.x; mov.u32 %r10, %ctaid.y; mov.u32 %r11, %ctaid.z;"
    )
    place = "mad.lo.u32 %r12, %r11, 3, %r10; mad.lo.u32 %r12, %r12, 2, %r5; mad.wide.u32 %rd5, %r12, 4, %rd0;"
    body = body.replace("@%p1 mad.wide.u32 %rd5, %r5, 4, %rd0;", place)
    for axis, register in (("y", "%r10"), ("z", "%r11")):
        query = f"clusterlaunchcontrol.query_cancel.get_first_ctaid::{axis}.b32.b128 {register}, %rq1;"
        body = body.replace("xor.b32 %r6, %r6, 1;", query + "xor.b32 %r6, %r6, 1;")
    memory = GlobalMemory()
    address = memory.allocate(4 * 24, "counts")
    memory.view(address, 96)[:] = 0
    machine = Machine({"kernel": compile_body(body)}, memory, Schedule(Mode.LAZY), resident=2)
    report = machine.run([Launch("kernel", (2, 3, 4), (64, 1, 1), (1, 1, 1), 0, (address.to_bytes(8, "little"),), {})])
    assert list(memory.view(address, 96).view(np.uint32)) == [1] * 24
    assert report.findings == ()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_answer_that_is_not_waited_for_is_seen_in_every_schedule(schedule):
    outcome = execute(wait="", schedule=schedule)
    if outcome.fault is None:
        assert outcome.kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_answer_that_overwrites_the_one_being_read_is_seen_in_every_schedule(schedule):
    """Without the barrier behind the reads of all warps the next answer may come while a warp still reads."""
    outcome = execute(after="", schedule=schedule, resident=1)
    assert outcome.fault or outcome.kinds & {FindingKind.WRITE_BEFORE_READ}, outcome.texts


def test_the_coordinates_of_a_refused_answer_are_noted():
    early = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r13, %rq1;"
    assert execute(early=early).kinds == {FindingKind.LETTER}


def test_asking_again_after_a_refusal_is_a_fault():
    again = "xor.b32 %r6, %r6, 1; bra WORK;"
    fault = execute(early=f"@!%p3 {again.replace('; bra', '; @!%p3 bra')}", grid=1).fault
    assert fault.kind is FaultKind.BARRIER
    assert "asks again after it was refused" in str(fault)


def test_one_thread_asks():
    body = PERSISTENT.format(multicast="", wait=WAIT, before="", after=SYNC, early="")
    body = body.replace("@%p2 clusterlaunch", "clusterlaunch")
    assert run(body, np.zeros(4, np.uint32), block=32, grid=4).fault.kind is FaultKind.DIVERGENCE


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[%r2+8], [%r3]", FaultKind.ALIGNMENT),
        ("[%r2], [%r3+8]", FaultKind.BARRIER),
        ("[%r2+16], [%r3]", FaultKind.ADDRESS),
    ],
)
def test_misuse(line, kind):
    body = PERSISTENT.format(multicast="", wait=WAIT, before="", after=SYNC, early="")
    body = body.replace("[%r2], [%r3];", f"{line};")
    assert run(body, np.zeros(4, np.uint32), block=32, grid=4).fault.kind is kind
