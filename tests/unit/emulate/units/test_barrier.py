from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import WARP_ORDERS, run

START = """
.shared .align 16 .b8 tile[1024]; .shared .align 8 .b8 bars[64];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, bars; shr.u32 %r4, %r1, 5; mov.u32 %r5, %laneid;
setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r5, 0; mad.lo.u32 %r6, %r1, 4, %r2; mad.wide.u32 %rd5, %r1, 4, %rd0;
"""
INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r3], {count}; bar.sync 0;"


def wait(parity=0, at=0, name="W"):
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3+{at}], {parity}; @!%p9 bra {name};"


def execute(body, *, block=64, size=64, schedule=None, **options):
    return run(START + body, np.zeros(size, np.uint32), block=block, schedule=schedule, **options)


EXCHANGE = """
add.u32 %r7, %r1, 40; st.shared.u32 [%r6], %r7; {arrive} {wait}
xor.b32 %r8, %r1, 32; mad.lo.u32 %r9, %r8, 4, %r2; ld.shared.u32 %r10, [%r9]; st.global.u32 [%rd5], %r10;
"""
ARRIVALS = {
    "each lane": (64, "mbarrier.arrive.shared::cta.b64 %rd9, [%r3];"),
    "a lane of each warp": (2, "@%p2 mbarrier.arrive.release.cta.shared.b64 _, [%r3];"),
    "many at once": (64, "@%p2 mbarrier.arrive.shared::cta.b64 _, [%r3], 32;"),
    "by the cluster's address": (
        2,
        "mapa.shared::cluster.u32 %r11, %r3, 0; @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11];",
    ),
    "by the generic address": (
        2,
        "cvt.u64.u32 %rd8, %r3; cvta.shared.u64 %rd8, %rd8; @%p2 mbarrier.arrive.b64 _, [%rd8];",
    ),
}


@pytest.mark.parametrize("name", ARRIVALS)
def test_a_phase_is_complete_with_its_last_arrival(name):
    count, arrive = ARRIVALS[name]
    for schedule in WARP_ORDERS:
        outcome = execute(INIT.format(count=count) + EXCHANGE.format(arrive=arrive, wait=wait()), schedule=schedule)
        assert list(outcome.arrays[0]) == [40 + (i ^ 32) for i in range(64)]
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize(
    "form", ["try_wait.parity.acquire.cta.shared::cta", "test_wait.parity.shared", "try_wait.parity"]
)
def test_forms_of_waits(form):
    place = "[%rd8]" if "shared" not in form else "[%r3]"
    line = f"cvt.u64.u32 %rd8, %r3; cvta.shared.u64 %rd8, %rd8; W: mbarrier.{form}.b64 %p9, {place}, 0; @!%p9 bra W;"
    for schedule in WARP_ORDERS:
        body = INIT.format(count=64) + EXCHANGE.format(arrive=ARRIVALS["each lane"][1], wait=line)
        outcome = execute(body, schedule=schedule)
        assert list(outcome.arrays[0]) == [40 + (i ^ 32) for i in range(64)]
        assert not outcome.kinds, outcome.texts


def test_a_relaxed_wait_learns_by_a_fence():
    line = wait().replace("parity.shared", "parity.relaxed.cluster.shared")
    for schedule in WARP_ORDERS:
        arrive = ARRIVALS["each lane"][1]
        fenced = INIT.format(count=64) + EXCHANGE.format(arrive=arrive, wait=line + "fence.acq_rel.cluster;")
        assert not execute(fenced, schedule=schedule).kinds
        bare = INIT.format(count=64) + EXCHANGE.format(arrive=arrive, wait=line)
        assert execute(bare, schedule=schedule).kinds == {FindingKind.READ_BEFORE_WRITE}


def test_without_the_wait_there_is_a_race_in_every_schedule():
    for schedule in WARP_ORDERS:
        body = INIT.format(count=64) + EXCHANGE.format(arrive=ARRIVALS["each lane"][1], wait="")
        kinds = execute(body, schedule=schedule).kinds
        assert kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}
        assert kinds <= {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ, FindingKind.UNINITIALISED}


def test_the_parity_that_is_not_the_phases_is_the_one_before():
    """A wait for parity 1 of a fresh barrier passes; for parity 0 it waits for the first phase. PTX ISA, test_wait."""
    body = (
        INIT.format(count=1)
        + """
    mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r3], 1; mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r3], 0;
    mbarrier.arrive.shared::cta.b64 _, [%r3];
    mbarrier.test_wait.parity.shared::cta.b64 %p5, [%r3], 1; mbarrier.test_wait.parity.shared::cta.b64 %p6, [%r3], 0;
    mbarrier.arrive.shared::cta.b64 _, [%r3];
    mbarrier.test_wait.parity.shared::cta.b64 %p7, [%r3], 1; mbarrier.test_wait.parity.shared::cta.b64 %p8, [%r3], 0;
    selp.u32 %r7, 1, 0, %p3; selp.u32 %r8, 2, 0, %p4; selp.u32 %r9, 4, 0, %p5; selp.u32 %r10, 8, 0, %p6;
    selp.u32 %r11, 16, 0, %p7; selp.u32 %r12, 32, 0, %p8; or.b32 %r7, %r7, %r8; or.b32 %r7, %r7, %r9;
    or.b32 %r7, %r7, %r10; or.b32 %r7, %r7, %r11; or.b32 %r7, %r7, %r12; st.global.u32 [%rd0], %r7;
    """.replace("selp.u32", "selp.b32")
    )
    assert execute(body.replace("mbarrier.arrive", "@%p1 mbarrier.arrive"), block=32).arrays[0][0] == 0b011001


PIPELINE = """
@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; @%p1 mbarrier.init.shared::cta.b64 [%r3+8], 32;
@%p1 mbarrier.init.shared::cta.b64 [%r3+16], {empty}; @%p1 mbarrier.init.shared::cta.b64 [%r3+24], {empty}; bar.sync 0;
mov.u32 %r10, 0; mov.u32 %r11, 0; mov.u32 %r12, 0; mov.u32 %r13, 0;
setp.ne.u32 %p3, %r4, 0; @%p3 bra CONSUMER;
PRODUCER: // %r10 step, %r11 stage, %r12 parity
  mad.lo.u32 %r14, %r11, 8, %r3; xor.b32 %r15, %r12, {first};
  EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r14+16], %r15; @!%p4 bra EMPTY;
  mad.lo.u32 %r16, %r11, 128, %r6; mad.lo.u32 %r17, %r10, 1000, %r5; st.shared.u32 [%r16], %r17;
  mbarrier.arrive.shared::cta.b64 _, [%r14];
  add.u32 %r10, %r10, 1; xor.b32 %r11, %r11, 1; setp.eq.u32 %p5, %r11, 0; @%p5 xor.b32 %r12, %r12, 1;
  setp.lt.u32 %p6, %r10, 7; @%p6 bra PRODUCER; bra END;
CONSUMER:
  mad.lo.u32 %r14, %r11, 8, %r3;
  FULL: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r14], %r12; @!%p4 bra FULL;
  xor.b32 %r18, %r5, 1; mad.lo.u32 %r16, %r11, 128, %r2; mad.lo.u32 %r16, %r18, 4, %r16; ld.shared.u32 %r17, [%r16];
  add.u32 %r13, %r13, %r17; {release}
  add.u32 %r10, %r10, 1; xor.b32 %r11, %r11, 1; setp.eq.u32 %p5, %r11, 0; @%p5 xor.b32 %r12, %r12, 1;
  setp.lt.u32 %p6, %r10, 7; @%p6 bra CONSUMER; mad.wide.u32 %rd6, %r1, 4, %rd0; st.global.u32 [%rd6+-128], %r13;
END:
"""
RELEASE = "mbarrier.arrive.shared::cta.b64 _, [%r14+16];"


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_a_pipeline_of_two_stages(schedule):
    """A producer warp and two consumer warps, over seven steps: right, and nothing reported, in every schedule."""
    body = PIPELINE.format(empty=64, first=1, release=RELEASE)
    outcome = execute(body, block=96, size=64, schedule=schedule)
    assert list(outcome.arrays[0]) == [sum(1000 * k + (i % 32 ^ 1) for k in range(7)) for i in range(64)]
    assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_a_pipeline_whose_stages_are_given_back_too_early(schedule):
    """A consumer that arrives before it reads, or of which one warp does not arrive: seen in every schedule."""
    early = PIPELINE.format(empty=64, first=1, release="").replace(
        "xor.b32 %r18, %r5, 1;", RELEASE + "xor.b32 %r18, %r5, 1;"
    )
    one = PIPELINE.format(empty=32, first=1, release="setp.eq.u32 %p7, %r4, 1; @%p7 " + RELEASE)
    for body in (early, one):
        outcome = execute(body, block=96, size=64, schedule=schedule)
        if outcome.fault:  # the warp was overtaken by two phases, and waits for one that never comes
            assert outcome.fault.kind is FaultKind.DEADLOCK
            continue
        kinds = {FindingKind.WRITE_BEFORE_READ, FindingKind.READ_BEFORE_WRITE}
        assert outcome.kinds & kinds, outcome.texts


def test_a_pipeline_that_waits_for_the_wrong_parity():
    """A producer that waits for parity 0 first waits for what only it can bring about."""
    outcome = execute(PIPELINE.format(empty=64, first=0, release=RELEASE), block=96, size=64)
    assert outcome.fault.kind is FaultKind.DEADLOCK
    lines = str(outcome.fault).splitlines()
    assert lines[0] == "deadlock: 3 warps have not ended:"
    assert "warp 0 waits for phase 0 of mbarrier 0x810 of CTA (0, 0, 0) (64 of 64 arrivals and 0 bytes" in lines[1]
    assert "warp 1 waits for phase 0 of mbarrier 0x800 of CTA (0, 0, 0) (32 of 32 arrivals and 0 bytes" in lines[2]
    assert "mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r14], %r12" in lines[2]


def test_more_arrivals_than_a_phase_has_are_a_fault():
    """The arrivals of a warp's lanes are one arrival, of which an H100 takes no part for the next phase."""
    outcome = execute(INIT.format(count=33) + "mbarrier.arrive.shared::cta.b64 _, [%r3];", block=64)
    assert outcome.fault.kind is FaultKind.BARRIER
    assert "32 arrivals where 1 of 33 are pending" in str(outcome.fault)
    outcome = execute(INIT.format(count=4) + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r3], 5;", block=32)
    assert outcome.fault.kind is FaultKind.BARRIER
    assert "5 arrivals where 4 of 4 are pending" in str(outcome.fault)


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("@%p1 mbarrier.init.shared::cta.b64 [%r3], 0;", FaultKind.BARRIER, "0 arrivals"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r3], 1048576;", FaultKind.BARRIER, "1048576 arrivals"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r3+4], 1;", FaultKind.ALIGNMENT, "expected a multiple of 8"),
        ("@%p1 mbarrier.init.shared::cta.b64 [%r3+64], 1;", FaultKind.ADDRESS, "of 1088 bytes"),
        ("mbarrier.arrive.shared::cta.b64 _, [%r3];", FaultKind.BARRIER, "no mbarrier is initialised"),
        (wait(), FaultKind.BARRIER, "no mbarrier is initialised"),
        (INIT.format(count=1) * 2, FaultKind.BARRIER, "is initialised twice"),
        (
            INIT.format(count=1) + "@%p1 mbarrier.inval.shared::cta.b64 [%r3];" + wait(),
            FaultKind.BARRIER,
            "no mbarrier",
        ),
        (INIT.format(count=1) + "mad.lo.u32 %r3, %r5, 8, %r3;" + wait(), FaultKind.DIVERGENCE, "different barriers"),
        (
            INIT.format(count=1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1048576;" + wait(),
            FaultKind.BARRIER,
            "transaction count 1048576",
        ),
        ("cvt.u64.u32 %rd8, %r3; mbarrier.arrive.b64 _, [%rd8];", FaultKind.ADDRESS, "is not in shared memory"),
    ],
)
def test_misuse_of_a_barrier(line, kind, text):
    fault = execute(line, block=32).fault
    assert fault.kind is kind
    assert text in str(fault)


def test_a_barrier_may_be_made_anew():
    body = INIT.format(count=1) + "@%p1 mbarrier.inval.shared::cta.b64 [%r3]; bar.sync 0;" + INIT.format(count=32)
    body += "mbarrier.arrive.shared::cta.b64 _, [%r3];" + wait()
    assert not execute(body, block=32).kinds


def test_expected_bytes_hold_a_phase_back():
    """Whether they are expected with an arrival or without; those that do not come are a deadlock."""
    apart = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 48; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r3];"
    for line in ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 48;", apart):
        outcome = execute(INIT.format(count=1) + "@%p1 " + line + wait(), block=32)
        assert outcome.fault.kind is FaultKind.DEADLOCK
        assert "(0 of 1 arrivals and 48 bytes are missing)" in str(outcome.fault)


def test_a_barrier_of_another_cta_is_not_waited_for():
    body = INIT.format(count=1) + "barrier.cluster.arrive; barrier.cluster.wait; mapa.shared::cluster.u32 %r3, %r3, 1;"
    fault = execute(body + wait(), block=32, grid=2, cluster=2).fault
    assert fault.kind is FaultKind.ADDRESS
    arrive = "mbarrier.arrive.{}.b64 _, [%r3]; barrier.cluster.arrive; barrier.cluster.wait;"
    body = body.replace("init.shared::cta.b64 [%r3], 1", "init.shared::cta.b64 [%r3], 64")
    options = {"block": 32, "grid": 2, "cluster": 2}
    assert execute(body + arrive.format("release.cluster.shared::cta"), **options).fault.kind is FaultKind.ADDRESS
    assert not execute(body + arrive.format("release.cluster.shared::cluster"), **options).kinds


REMOTE = """
mov.u32 %r20, %cluster_ctarank; xor.b32 %r21, %r20, 1; mapa.shared::cluster.u32 %r22, %r3, %r21;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; {fence}
{sync}
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r3], 0; @!%p9 bra W;
barrier.cluster.arrive; barrier.cluster.wait;
"""
FENCE = "@%p1 fence.mbarrier_init.release.cluster;"
RELAXED = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;"


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_other_ctas_know_a_barrier_by_a_fence_and_a_relaxed_arrival(schedule):
    """Or by an arrival that releases; with a relaxed one the fence decides, in every schedule."""
    options = {"block": 32, "grid": 2, "cluster": 2, "schedule": schedule}
    assert not execute(REMOTE.format(fence=FENCE, sync=RELAXED), **options).kinds
    assert not execute(REMOTE.format(fence="", sync="barrier.cluster.arrive; barrier.cluster.wait;"), **options).kinds
    assert execute(REMOTE.format(fence="", sync=RELAXED), **options).kinds == {FindingKind.BARRIER_INIT}


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_other_warps_know_a_barrier_by_a_barrier_of_threads(schedule):
    body = "@%p1 mbarrier.init.shared::cta.b64 [%r3], 64; {} mbarrier.arrive.shared::cta.b64 _, [%r3];" + wait()
    assert not execute(body.format("bar.sync 0;"), schedule=schedule).kinds
    outcome = execute(body.format(""), schedule=schedule)
    assert outcome.fault or outcome.kinds == {FindingKind.BARRIER_INIT}


def test_a_wait_that_makes_progress_between_its_tries_is_not_blocked_for_ever():
    """A loop that tries, does other work for those it waits for, and tries again."""
    body = (
        """
    @%p1 mbarrier.init.shared::cta.b64 [%r3], 1; @%p1 mbarrier.init.shared::cta.b64 [%r3+8], 1; bar.sync 0;
    setp.eq.u32 %p3, %r4, 1; @%p3 bra OTHER;
    TRY: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], 0; @%p9 bra END;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r3+8]; bra TRY;
    OTHER: """
        + wait(0, 8)
        + """ @%p2 mbarrier.arrive.shared::cta.b64 _, [%r3]; END:
    """
    )
    for schedule in WARP_ORDERS:
        assert not execute(body, schedule=schedule).kinds


def test_a_strict_order_does_not_starve_those_that_are_waited_for():
    """The highest precedence polls: the others must go on nevertheless."""
    body = (
        INIT.format(count=3)
        + """
    setp.eq.u32 %p3, %r4, 2; @%p3 bra WAITS; @%p2 mbarrier.arrive.shared::cta.b64 _, [%r3]; bra END;
    WAITS: @%p2 mbarrier.arrive.shared::cta.b64 _, [%r3];"""
        + wait()
        + "END:"
    )
    for seed in range(8):
        for mode in (Mode.STRICT, Mode.STRICT_LAZY, Mode.STRICT_EAGER, Mode.PRIORITY):
            assert not execute(body, block=96, schedule=Schedule(mode, seed)).kinds
