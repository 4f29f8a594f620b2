from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind, UnknownInstructionError
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, run

UNORDERED = {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}
START = """
.shared .align 16 .b8 tile[2048]; .shared .align 8 .b8 bar[16];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, bar; setp.eq.u32 %p1, %r1, 0;
mad.lo.u32 %r4, %r1, 16, %r2; mad.wide.u32 %rd5, %r1, 16, %rd1;
"""
BACK = """
ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r4+{at}]; mad.wide.u32 %rd6, %r1, 16, %rd0;
st.global.v4.u32 [%rd6], {%r20, %r21, %r22, %r23};
"""


def back(at=0):
    return BACK.replace("{at}", str(at))


def source(count=128):
    return np.arange(1000, 1000 + count, dtype=np.uint32)


def execute(body, *, block=32, schedule=None, **options):
    return run(
        START + body, np.zeros(4 * block, np.uint32), source(4 * block), block=block, schedule=schedule, **options
    )


@pytest.mark.parametrize("wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"])
@pytest.mark.parametrize("form", ["ca.shared.global", "cg.shared::cta.global", "cg.shared.global.L2::128B"])
def test_what_is_waited_for_is_there(form, wait):
    for schedule in SCHEDULES:
        outcome = execute(f"cp.async.{form} [%r4], [%rd5], 16; {wait} {back()}", schedule=schedule)
        assert np.array_equal(outcome.arrays[0], source())
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("size", [4, 8])
def test_small_copies(size):
    lines = "".join(f"cp.async.ca.shared.global [%r4+{i}], [%rd5+{i}], {size};" for i in range(0, 16, size))
    assert np.array_equal(execute(lines + "cp.async.wait_all;" + back()).arrays[0], source())


@pytest.mark.parametrize("taken", [0, 1, 7, 15, 16])
def test_what_the_source_lacks_becomes_zeros(taken):
    body = f"mov.u32 %r7, {taken}; cp.async.cg.shared.global [%r4], [%rd5], 16, %r7; cp.async.wait_all; {back()}"
    found = execute(body).arrays[0].view(np.uint8).reshape(32, 16)
    expected = source().view(np.uint8).reshape(32, 16).copy()
    expected[:, taken:] = 0
    assert np.array_equal(found, expected)


def test_a_source_of_no_bytes_is_not_read():
    """Nor are the bytes behind those that are taken."""
    body = "mov.u64 %rd8, {}; mov.u32 %r7, {}; cp.async.cg.shared.global [%r4], [%rd8], 16, %r7; cp.async.wait_all;"
    assert not execute(body.format("0", 0)).kinds
    outcome = execute(body.format("0", 1))
    assert outcome.fault.kind is FaultKind.ADDRESS
    body = (
        "add.u64 %rd8, %rd1, 496; mov.u32 %r7, {}; cp.async.ca.shared.global [%r4], [%rd8], 16, %r7; cp.async.wait_all;"
    )
    exact = [np.zeros(128, np.uint32), np.arange(125, dtype=np.uint32)]
    assert not run(START + body.format(4), *exact).kinds
    assert run(START + body.format(5), *exact).fault.kind is FaultKind.ADDRESS


def test_more_bytes_than_the_copy_has_are_a_fault():
    body = "mov.u32 %r7, 17; cp.async.cg.shared.global [%r4], [%rd5], 16, %r7; cp.async.wait_all;"
    assert "17 bytes of the source; expected up to 16" in str(execute(body).fault)


@pytest.mark.parametrize(
    "line", ["cp.async.ca.shared.global [%r4+4], [%rd5], 8;", "cp.async.ca.shared.global [%r4], [%rd5+4], 8;"]
)
def test_both_addresses_are_multiples_of_the_size(line):
    assert execute(line).fault.kind is FaultKind.ALIGNMENT


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.cg.shared.global [%r4], [%rd5], 8;",
        "cp.async.ca.shared.global [%r4], [%rd5], 12;",
        "cp.async.ca.shared.global [%r4], [%rd5], 16, %p1;",
    ],
)
def test_forms_that_are_not_known_are_refused(line):
    with pytest.raises(UnknownInstructionError):
        execute(line)


def test_a_cache_policy_is_no_size():
    body = (
        "mov.u64 %rd9, 5; cp.async.cg.shared.global.L2::cache_hint [%r4], [%rd5], 16, %rd9; cp.async.wait_all;" + back()
    )
    assert np.array_equal(execute(body).arrays[0], source())
    body = body.replace("16, %rd9", "16, 4, %rd9")
    assert list(execute(body).arrays[0][::4]) == list(source()[::4])


GROUPS = """
cp.async.ca.shared.global [%r4], [%rd5], 16; cp.async.commit_group;
cp.async.ca.shared.global [%r4+512], [%rd5], 16; cp.async.commit_group;
cp.async.ca.shared.global [%r4+1024], [%rd5], 16; cp.async.commit_group;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_groups_are_complete_from_the_oldest_on(schedule):
    """In every schedule: with two left the first is there, and the second is not known to be."""
    for left, stage, is_there in ((2, 0, True), (2, 512, False), (1, 512, True), (1, 1024, False), (0, 1024, True)):
        body = GROUPS + f"cp.async.wait_group {left};" + back(stage) + "cp.async.wait_all;"
        outcome = execute(body, schedule=schedule)
        if is_there:
            assert np.array_equal(outcome.arrays[0], source())
            assert not outcome.kinds, outcome.texts
        else:
            assert outcome.kinds == {FindingKind.READ_BEFORE_WRITE}, outcome.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_missing_wait_is_seen_in_every_schedule(schedule):
    body = "cp.async.ca.shared.global [%r4], [%rd5], 16; cp.async.commit_group;" + back() + "cp.async.wait_all;"
    assert execute(body, schedule=schedule).kinds == {FindingKind.READ_BEFORE_WRITE}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_copy_into_what_is_read_is_seen_in_every_schedule(schedule):
    """A ring of one stage, whose reads another warp has not finished: with and without the barrier."""
    body = """
    st.shared.v4.u32 [%r4], {{%r1, %r1, %r1, %r1}}; bar.sync 0;
    xor.b32 %r5, %r4, 512; ld.shared.u32 %r6, [%r5]; {barrier}
    cp.async.ca.shared.global [%r4], [%rd5], 16; cp.async.wait_all;
    """.replace("xor.b32 %r5, %r4, 512", "xor.b32 %r9, %r1, 32; mad.lo.u32 %r5, %r9, 16, %r2")
    assert not execute(body.format(barrier="bar.sync 0;"), block=64, schedule=schedule).kinds
    assert execute(body.format(barrier=""), block=64, schedule=schedule).kinds & UNORDERED


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_source_is_read_until_the_wait(schedule):
    """A store to the source behind the issue is a race, and behind the wait it is none."""
    body = "cp.async.ca.shared.global [%r4], [%rd5], 16; {} mov.u32 %r7, 1; st.global.u32 [%rd5], %r7; {}"
    right = execute(body.format("cp.async.wait_all;", back()), schedule=schedule)
    assert not right.kinds
    assert np.array_equal(right.arrays[0], source())
    wrong = execute(body.format("", "cp.async.wait_all;"), schedule=schedule)
    assert wrong.kinds == {FindingKind.WRITE_BEFORE_READ}, wrong.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_cta_that_ends_before_its_copies_is_seen_in_every_schedule(schedule):
    for commit in ("", "cp.async.commit_group;"):
        body = f"cp.async.ca.shared.global [%r4], [%rd5], 16; {commit}"
        assert execute(body, schedule=schedule).kinds == {FindingKind.EXIT}


# Barriers that copies tell: a producer warp, and a consumer warp.

THROUGH_A_BARRIER = """
@%p1 mbarrier.init.shared::cta.b64 [%r3], {count}; bar.sync 0;
setp.lt.u32 %p2, %r1, 32; @!%p2 bra CONSUMER;
cp.async.ca.shared.global [%r4], [%rd5], 16; add.u32 %r5, %r4, 512; cp.async.ca.shared.global [%r5], [%rd5+512], 16;
cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%r3]; {own}
bra END;
CONSUMER: {wait}
sub.u32 %r6, %r4, 512; mad.wide.u32 %rd6, %r1, 16, %rd0; ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r6];
st.global.v4.u32 [%rd6+-512], {{%r20, %r21, %r22, %r23}};
ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r4]; st.global.v4.u32 [%rd6], {{%r20, %r21, %r22, %r23}};
END:
"""
WAIT = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0; @!%p3 bra WAIT;"
PLAIN = "mbarrier.arrive.shared::cta.b64 _, [%r3];"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_barrier_is_told_when_the_copies_of_each_lane_are_complete(schedule):
    """With .noinc the arrivals are counted at the barrier's initialisation; without, they count themselves."""
    for noinc, count, own in ((".noinc", 32, ""), ("", 32, PLAIN)):
        body = THROUGH_A_BARRIER.format(count=count, noinc=noinc, own=own, wait=WAIT)
        outcome = execute(body, block=64, schedule=schedule)
        assert np.array_equal(outcome.arrays[0], source(256)), (noinc, outcome.texts)
        assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_barrier_that_is_not_waited_for_is_seen_in_every_schedule(schedule):
    body = THROUGH_A_BARRIER.format(count=32, noinc=".noinc", own="", wait="")
    outcome = execute(body, block=64, schedule=schedule)
    assert outcome.kinds & (UNORDERED | {FindingKind.UNINITIALISED}), outcome.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_barrier_that_the_warp_tells_itself_says_nothing_of_its_copies(schedule):
    body = THROUGH_A_BARRIER.format(count=32, noinc=".noinc", own="", wait=WAIT)
    body = body.replace("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r3];", PLAIN)
    outcome = execute(body, block=64, schedule=schedule)
    assert FindingKind.READ_BEFORE_WRITE in outcome.kinds, outcome.texts


def test_arrivals_that_are_not_counted_are_missing():
    """A barrier of one too many hangs; the report says who waits for what."""
    outcome = execute(THROUGH_A_BARRIER.format(count=33, noinc=".noinc", own="", wait=WAIT), block=64)
    assert outcome.fault.kind is FaultKind.DEADLOCK
    assert "warp 1 waits for phase 0 of mbarrier 0xc00 of CTA (0, 0, 0) (1 of 33 arrivals and 0 bytes" in str(
        outcome.fault
    )
    outcome = execute(THROUGH_A_BARRIER.format(count=31, noinc=".noinc", own="", wait=WAIT), block=64)
    assert outcome.fault or outcome.kinds & UNORDERED


def test_copies_wait_for_the_end_when_loads_are_held():
    """The completion that a barrier is told of is held with the copies, or it would complete them."""
    body = "@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; bar.warp.sync -1;"
    body += "cp.async.ca.shared.global [%r4], [%rd5], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r3];"
    body += "mov.u32 %r9, 0; LOOP: add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 300; @%p4 bra LOOP;" + back()
    outcome = execute(body, schedule=Schedule(Mode.HOLD_LOADS))
    assert set(outcome.arrays[0]) == {0xFFFFFFFF}
    assert FindingKind.READ_BEFORE_WRITE in outcome.kinds
