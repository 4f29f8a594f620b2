from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from tests.unit.emulate.snippets import WARP_ORDERS, run

RACES = {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ, FindingKind.UNINITIALISED}
START = """
.shared .align 16 .b8 tile[1024];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shr.u32 %r4, %r1, 5; mad.lo.u32 %r6, %r1, 4, %r2;
mad.wide.u32 %rd5, %r1, 4, %rd0; setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r4, 1;
"""
EXCHANGE = """
add.u32 %r7, %r1, 40; st.shared.u32 [%r6], %r7; {}
xor.b32 %r8, %r1, 32; mad.lo.u32 %r9, %r8, 4, %r2; ld.shared.u32 %r10, [%r9]; st.global.u32 [%rd5], %r10;
"""
EXCHANGED = [40 + (i ^ 32) for i in range(64)]


def execute(body, *, block=64, schedule=None, **options):
    return run(START + body, np.zeros(block, np.uint32), block=block, schedule=schedule, **options)


@pytest.mark.parametrize(
    "line",
    [
        "bar.sync 0;",
        "bar.sync 5, 64;",
        "barrier.sync 15;",
        "barrier.cta.sync.aligned 1, 64;",
        "mov.u32 %r20, 3; mov.u32 %r21, 64; bar.sync %r20, %r21;",
        "barrier.cluster.arrive; barrier.cluster.wait;",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
    ],
)
def test_threads_wait_for_each_other(line):
    for schedule in WARP_ORDERS:
        outcome = execute(EXCHANGE.format(line), schedule=schedule)
        assert list(outcome.arrays[0]) == EXCHANGED
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize(
    "line",
    [
        "",
        "bar.warp.sync -1;",
        "bar.sync 0, 32;",
        "fence.acq_rel.cta;",
        "barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
    ],
)
def test_what_does_not_order_two_warps_is_a_race_in_every_schedule(line):
    for schedule in WARP_ORDERS:
        outcome = execute(EXCHANGE.format(line), schedule=schedule)
        assert outcome.kinds & RACES, (line, schedule)


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_producers_arrive_and_consumers_wait(schedule):
    """PTX ISA, "barrier": the producer and consumer of its example, in turns."""
    body = """
    mov.u32 %r10, 0; mov.u32 %r11, 0; @%p2 bra CONSUMER;
    PRODUCER: mad.lo.u32 %r7, %r10, 100, %r1; st.shared.u32 [%r6], %r7; bar.arrive 0, 64; {full}
    add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 5; @%p3 bra PRODUCER; bra END;
    CONSUMER: bar.sync 0, 64; ld.shared.u32 %r12, [%r6+-128]; add.u32 %r11, %r11, %r12; bar.arrive 1, 64;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 5; @%p3 bra CONSUMER; st.global.u32 [%rd5], %r11; END:
    """
    outcome = execute(body.format(full="bar.sync 1, 64;"), schedule=schedule)
    assert list(outcome.arrays[0][32:]) == [1000 + 5 * i for i in range(32)]
    assert not outcome.kinds, outcome.texts
    outcome = execute(body.format(full=""), schedule=schedule)
    assert outcome.fault or outcome.kinds & RACES


def test_a_warp_may_arrive_for_its_own_first_turn():
    """As two warp groups take turns: the first gives itself a start, and each arrives at the other's barrier."""
    body = """
    mov.u32 %r10, 0; add.u32 %r11, %r4, 2; sub.u32 %r12, 3, %r4; mov.u32 %r13, 0; @%p1 st.shared.u32 [%r2+512], %r13;
    @%p1 bar.arrive 2, 64;
    LOOP: bar.sync %r11, 64; ld.shared.u32 %r14, [%r2+512]; mad.lo.u32 %r14, %r14, 3, %r4;
    st.shared.u32 [%r2+512], %r14; bar.arrive %r12, 64;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 4; @%p3 bra LOOP; {last} st.global.u32 [%rd5], %r14; END:
    """.format(last="setp.ne.u32 %p4, %r4, 1; @%p4 bra END;")
    expected = 0
    for i in range(8):
        expected = 3 * expected + i % 2
    for schedule in WARP_ORDERS:
        outcome = execute(body, schedule=schedule)
        assert outcome.arrays[0][40] == expected
        assert not outcome.kinds, outcome.texts


def test_barriers_of_all_threads_do_not_wait_for_those_that_have_exited():
    """PTX ISA, "barrier": the thread waits for the non-exited threads of the other warps."""
    body = "@%p1 ret; add.u32 %r7, %r1, 40; st.shared.u32 [%r6], %r7; bar.sync 0;"
    body += "xor.b32 %r8, %r1, 96; mad.lo.u32 %r9, %r8, 4, %r2; setp.eq.u32 %p3, %r4, 3; @%p3 ret;"
    body += "bar.sync 0; ld.shared.u32 %r10, [%r9]; st.global.u32 [%rd5], %r10;"
    for schedule in WARP_ORDERS:
        outcome = execute(body, block=128, schedule=schedule)
        assert list(outcome.arrays[0][32:96]) == [40 + (i ^ 96) for i in range(32, 96)]
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("bar.sync 16;", FaultKind.BARRIER, "barrier 16; expected 0 to 15"),
        ("bar.sync 1, 48;", FaultKind.BARRIER, "48 threads; expected a multiple of 32"),
        ("bar.arrive 1, 0;", FaultKind.BARRIER, "0 threads; expected a multiple of 32"),
        ("@%p1 bar.sync 1, 64; @%p2 bar.sync 1, 96;", FaultKind.BARRIER, "threads at barrier 1 of"),
        ("bar.sync 1, 96;", FaultKind.DEADLOCK, "warp 0 waits at barrier 1 of 96 threads, where 64 are, at line"),
        ("@%p1 bar.sync 1, 64;", FaultKind.DEADLOCK, "warp 0 waits at barrier 1 of 64 threads, where 32 are, at line"),
        ("@%p1 bar.sync 0; @%p2 bar.sync 1;", FaultKind.DEADLOCK, "warp 1 waits at barrier 1 of 64 threads"),
        ("setp.lt.u32 %p3, %r1, 16; @%p3 bar.sync 0;", FaultKind.DIVERGENCE, "warp 0 of CTA (0, 0, 0)"),
        ("setp.lt.u32 %p3, %r1, 16; @%p3 bra E; bar.sync 0; E:", FaultKind.DIVERGENCE, "warp 0 of CTA (0, 0, 0)"),
        ("barrier.cluster.wait;", FaultKind.BARRIER, "waits without having arrived"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", FaultKind.BARRIER, "arrives twice"),
        ("barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.wait;", FaultKind.BARRIER, "without having"),
        ("setp.lt.u32 %p3, %r1, 16; @%p3 barrier.cluster.arrive;", FaultKind.DIVERGENCE, "warp 0"),
    ],
)
def test_misuse(body, kind, text):
    fault = execute(body).fault
    assert fault.kind is kind
    assert text in str(fault)


CLUSTER = """
mov.u32 %r20, %cluster_ctarank; add.u32 %r21, %r20, 1; and.b32 %r21, %r21, 3; mapa.shared::cluster.u32 %r22, %r6, %r21;
mad.lo.u32 %r7, %r20, 100, %r1; st.shared::cluster.u32 [%r22], %r7; {first}
ld.shared.u32 %r10, [%r6]; mad.lo.u32 %r11, %r20, 64, %r1; mad.wide.u32 %rd6, %r11, 4, %rd0; st.global.u32 [%rd6], %r10;
{second}
"""
SYNC = "barrier.cluster.arrive; barrier.cluster.wait;"


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_the_ctas_of_a_cluster_wait_for_each_other(schedule):
    def go(first, second):
        body = START + CLUSTER.format(first=first, second=second)
        return run(body, np.zeros(256, np.uint32), block=64, grid=4, cluster=4, schedule=schedule)

    outcome = go(SYNC, SYNC)
    assert list(outcome.arrays[0]) == [100 * ((cta + 3) % 4) + i for cta in range(4) for i in range(64)]
    assert not outcome.kinds, outcome.texts
    for first in ("", "bar.sync 0;", "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"):
        outcome = go(first, SYNC)
        assert outcome.kinds & RACES, first


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_a_cta_that_has_exited_has_arrived_at_the_clusters_barrier(schedule):
    body = "mov.u32 %r20, %cluster_ctarank; setp.eq.u32 %p3, %r20, 1; @%p3 ret;" + SYNC + "st.global.u32 [%rd5], %r1;"
    outcome = execute(body, grid=2, cluster=2, schedule=schedule)
    assert list(outcome.arrays[0]) == list(range(64))


def test_a_cta_that_does_not_arrive_is_waited_for():
    body = "mov.u32 %r20, %cluster_ctarank; setp.eq.u32 %p3, %r20, 1; @%p3 bra OTHER;" + SYNC + "bra END;"
    body += "OTHER: bar.sync 3, 96; END:"
    fault = execute(body, block=32, grid=2, cluster=2).fault
    assert fault.kind is FaultKind.DEADLOCK
    assert "CTA (0, 0, 0) warp 0 waits at the cluster's barrier, at line" in str(fault)
    assert "CTA (1, 0, 0) warp 0 waits at barrier 3 of 96 threads, where 32 are, at line" in str(fault)
    lines = str(fault).splitlines()[1:]
    assert [x.split(": ")[1] for x in lines] == ["barrier.cluster.wait", "bar.sync 3, 96"]


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_an_early_arrival_covers_only_what_is_before_it(schedule):
    """What is stored between arrival and wait is not ordered."""
    before = "st.shared.u32 [%r6], %r7; barrier.cluster.arrive;"
    between = "barrier.cluster.arrive; st.shared.u32 [%r6], %r7;"
    rest = "barrier.cluster.wait; xor.b32 %r8, %r1, 32; mad.lo.u32 %r9, %r8, 4, %r2; ld.shared.u32 %r10, [%r9];"
    assert not execute("mov.u32 %r7, 1;" + before + rest, schedule=schedule).kinds
    assert execute("mov.u32 %r7, 1;" + between + rest, schedule=schedule).kinds & RACES
