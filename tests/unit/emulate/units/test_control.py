from __future__ import annotations

import random

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, Kernel, run, run_kernels

STORE = "mad.wide.u32 %rd9, %r1, 4, %rd0; st.global.u32 [%rd9], %r2;"
"""Stores %r2 at the place of the lane %r1."""


def lanes(body, block=32, **options):
    """Run a body that leaves its result in %r2, with the thread in %r1; return the results, and the outcome."""
    outcome = run(f"mov.u32 %r1, %tid.x; {body}\n{STORE}", np.full(block, 0xAAAA, np.uint32), block=block, **options)
    return [int(x) for x in outcome.arrays[0]], outcome


def test_branches_that_diverge_come_together_again():
    found, _ = lanes("""
    setp.lt.u32 %p1, %r1, 10; @%p1 bra LESS;
    add.u32 %r2, %r1, 100; bra JOINED;
    LESS: mul.lo.u32 %r2, %r1, 7;
    JOINED: vote.sync.ballot.b32 %r3, %p1, -1; xor.b32 %r2, %r2, %r3;
    """)
    assert found == [(7 * i if i < 10 else i + 100) ^ 0x3FF for i in range(32)]


def test_nested_branches():
    found, outcome = lanes("""
    and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0; and.b32 %r4, %r1, 2; setp.eq.u32 %p2, %r4, 0; mov.u32 %r2, 0;
    @%p1 bra EVEN;
      add.u32 %r2, %r2, 1;
      @!%p2 bra ODD_HIGH; add.u32 %r2, %r2, 10; bra ODD_END;
      ODD_HIGH: add.u32 %r2, %r2, 20;
      ODD_END: add.u32 %r2, %r2, 100; bra END;
    EVEN: add.u32 %r2, %r2, 2;
      @%p2 bra EVEN_LOW; add.u32 %r2, %r2, 30; bra END;
      EVEN_LOW: add.u32 %r2, %r2, 40;
    END: add.u32 %r2, %r2, 1000;
    """)
    assert found[:4] == [1042, 1111, 1032, 1121]
    assert found == found[:4] * 8
    assert not outcome.kinds


def test_a_loop_that_each_lane_leaves_at_its_own_time():
    """Collatz: lanes leave in any order, and those that have left wait."""
    found, _ = lanes("""
    add.u32 %r3, %r1, 1; mov.u32 %r2, 0;
    LOOP: setp.eq.u32 %p1, %r3, 1; @%p1 bra DONE;
    and.b32 %r4, %r3, 1; setp.eq.u32 %p2, %r4, 0;
    @%p2 shr.u32 %r3, %r3, 1;
    @!%p2 mad.lo.u32 %r3, %r3, 3, 1;
    add.u32 %r2, %r2, 1; bra LOOP;
    DONE: vote.sync.all.pred %p3, %p1, -1; @!%p3 add.u32 %r2, %r2, 1000;
    """)

    def steps(n):
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert found == [steps(i + 1) for i in range(32)]


def test_a_loop_in_a_loop_with_continue_and_break():
    found, _ = lanes("""
    mov.u32 %r2, 0; mov.u32 %r3, 0;
    OUTER: setp.ge.u32 %p1, %r3, 5; @%p1 bra END; mov.u32 %r4, 0; add.u32 %r3, %r3, 1;
    INNER: setp.ge.u32 %p2, %r4, %r1; @%p2 bra OUTER; add.u32 %r4, %r4, 1;
      and.b32 %r5, %r4, 1; setp.eq.u32 %p3, %r5, 0; @%p3 bra INNER;
      add.u32 %r2, %r2, %r4; setp.gt.u32 %p4, %r2, 200; @%p4 bra END; bra INNER;
    END:
    """)

    def expected(lane):
        total = 0
        for _ in range(5):
            for i in range(1, lane + 1):
                if i % 2:
                    total += i
                    if total > 200:
                        return total
        return total

    assert found == [expected(i) for i in range(32)]


@pytest.mark.parametrize("name", ["ret", "exit"])
def test_lanes_may_exit_alone(name):
    """By a predicate, or by a branch that only they take; the others go on."""
    found, outcome = lanes(f"""
    mov.u32 %r2, 5; setp.lt.u32 %p1, %r1, 8; setp.gt.u32 %p2, %r1, 23; setp.eq.u32 %p3, %r1, 12;
    @%p1 {name};
    @%p2 bra LAST;
    @!%p3 bra ON; {name};
    LAST: {name};
    ON: vote.sync.ballot.b32 %r2, %p1, 0x00ffef00; vote.sync.ballot.b32 %r3, %p3, 0x00ffef00; mov.u32 %r2, 7;
    """)
    assert found == [7 if 8 <= i <= 23 and i != 12 else 0xAAAA for i in range(32)]
    assert not outcome.kinds


def test_lanes_that_exit_while_others_wait_elsewhere():
    found, outcome = lanes("""
    setp.lt.u32 %p1, %r1, 16; setp.lt.u32 %p2, %r1, 4; mov.u32 %r2, 1;
    @%p1 bra LOW; bra END;
    LOW: @%p2 ret; mov.u32 %r2, 2;
    END: add.u32 %r2, %r2, 10;
    """)
    assert found == [0xAAAA] * 4 + [12] * 12 + [11] * 16
    assert not outcome.kinds


def test_a_warp_of_fewer_than_32_lanes():
    found, outcome = lanes("setp.lt.u32 %p1, %r1, 1000; vote.sync.ballot.b32 %r2, %p1, -1;", block=40)
    assert found == [0xFFFFFFFF] * 32 + [0xFF] * 8
    assert not outcome.kinds


def test_control_that_reaches_the_closing_brace_exits():
    found, _ = lanes("mov.u32 %r2, 3; setp.ge.u32 %p1, %r1, 16; @%p1 bra END;" + STORE + "bra END; END: ret; { trap; }")
    assert found == [3] * 16 + [0xAAAA] * 16


@pytest.mark.parametrize("mode", ["any", "all", "uni"])
def test_votes(mode):
    found, _ = lanes(f"""
    setp.lt.u32 %p1, %r1, 32; setp.eq.u32 %p2, %r1, 3; setp.gt.u32 %p3, %r1, 50;
    vote.sync.{mode}.pred %p4, %p1, -1; vote.sync.{mode}.pred %p5, %p2, -1; vote.sync.{mode}.pred %p6, %p3, -1;
    vote.sync.{mode}.pred %p7, !%p2, -1;
    selp.b32 %r2, 1, 0, %p4; @%p5 add.u32 %r2, %r2, 2; @%p6 add.u32 %r2, %r2, 4; @%p7 add.u32 %r2, %r2, 8;
    """)
    expected = {"any": 1 + 2 + 8, "all": 1, "uni": 1 + 4}[mode]
    assert found == [expected] * 32


def test_lanes_vote_with_those_of_their_own_mask():
    found, outcome = lanes("""
    setp.lt.u32 %p1, %r1, 16; selp.b32 %r3, 0x0000ffff, 0xffff0000, %p1;
    and.b32 %r4, %r1, 3; setp.eq.u32 %p2, %r4, 0;
    vote.sync.ballot.b32 %r2, %p2, %r3;
    setp.eq.u32 %p3, %r1, 20; vote.sync.any.pred %p4, %p3, %r3; @%p4 add.u32 %r2, %r2, 1;
    """)
    assert found == [0x1111] * 16 + [0x11110001] * 16
    assert not outcome.kinds


def test_lanes_that_are_named_and_elsewhere_are_noted():
    body = "setp.lt.u32 %p1, %r1, 16; mov.u32 %r2, 0; @!%p1 bra END; {} END:"
    for line in ("vote.sync.ballot.b32 %r2, %p1, -1;", "shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;",
                 "{ .reg .pred q; elect.sync _|q, -1; }"):  # fmt: skip
        assert lanes(body.format(line))[1].kinds == {FindingKind.CONVERGENCE}
        assert not lanes(body.format(line.replace("-1", "0xffff")))[1].kinds


def test_a_lane_that_votes_without_being_in_its_mask_is_noted():
    assert lanes("setp.eq.u32 %p1, %r1, 0; vote.sync.ballot.b32 %r2, %p1, 0xffff;")[1].kinds == {
        FindingKind.CONVERGENCE
    }


def source_lane(mode, lane, b, c):
    """PTX ISA, shfl.sync: the lane that is read, and whether it is in range."""
    segment, limit, by = c >> 8 & 31, c & 31, b & 31
    last = lane & segment | limit & ~segment
    first = lane & segment
    at = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | by & ~segment}[mode]
    valid = at >= last if mode == "up" else at <= last
    return (at if valid else lane), valid


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles_in_segments(mode):
    for segment in (0, 16, 24, 28, 30, 31, 0b10101):
        for limit in (0,) if mode == "up" else (31, 15, 7):
            for by in (0, 1, 5, 16, 31, 33):
                c = segment << 8 | limit
                found, outcome = lanes(f"""
                mul.lo.u32 %r3, %r1, 3; shfl.sync.{mode}.b32 %r2|%p1, %r3, {by}, {c}, -1; @%p1 add.u32 %r2, %r2, 1000;
                """)
                pairs = [source_lane(mode, i, by, c) for i in range(32)]
                assert found == [3 * at + 1000 * valid for at, valid in pairs], (mode, segment, limit, by)
                assert not outcome.kinds


def test_each_lane_may_ask_for_another():
    draw = random.Random(2)
    order = [draw.randrange(32) for _ in range(32)]
    table = np.array(order, np.uint32)
    body = f"""mov.u32 %r1, %tid.x; mad.wide.u32 %rd8, %r1, 4, %rd1; ld.global.u32 %r3, [%rd8];
    mul.lo.u32 %r4, %r1, %r1; shfl.sync.idx.b32 %r2, %r4, %r3, 31, -1; {STORE}"""
    outcome = run(body, np.zeros(32, np.uint32), table)
    assert list(outcome.arrays[0]) == [x * x for x in order]


def test_a_shuffle_from_a_lane_that_is_elsewhere_is_noted():
    body = "setp.lt.u32 %p1, %r1, 16; mov.u32 %r2, 0; @!%p1 bra END; shfl.sync.idx.b32 %r2, %r1, {}, 31, 0xffff; END:"
    assert not lanes(body.format(15))[1].kinds
    assert lanes(body.format(16))[1].kinds == {FindingKind.CONVERGENCE}


def test_the_leader_is_one_of_those_that_are_named():
    body = "elect.sync %r2|%p1, {}; @%p1 add.u32 %r2, %r2, 100;"
    assert lanes(body.format(-1))[0] == [100] + [0] * 31
    found, outcome = lanes("setp.lt.u32 %p2, %r1, 5; mov.u32 %r2, 77; @%p2 bra END;" + body.format(0xFFFFFFE0) + "END:")
    assert found == [77] * 5 + [105] + [5] * 26
    assert not outcome.kinds


def test_a_trap_ends_the_run():
    _, outcome = lanes("mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 3; @%p1 trap;")
    assert outcome.fault.kind is FaultKind.TRAP
    assert not lanes("mov.u32 %r2, 0; setp.eq.u32 %p1, %r1, 33; @%p1 trap;")[1].kinds


def test_special_registers():
    body = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %laneid;
    shr.u32 %r6, %r1, 5; mov.u32 %r7, %cluster_ctarank; mov.u32 %r8, %cluster_nctarank; mov.u32 %r9, %clusterid.x;
    mov.u32 %r10, %nclusterid.x; mov.u32 %r11, %cluster_ctaid.x; mov.u32 %r12, %tid.y;
    mad.lo.u32 %r20, %r3, %r2, %r1; mul.wide.u32 %rd5, %r20, 48; add.u64 %rd6, %rd0, %rd5;
    st.global.v4.u32 [%rd6], {%r1, %r2, %r3, %r4}; st.global.v4.u32 [%rd6+16], {%r5, %r6, %r7, %r8};
    st.global.v4.u32 [%rd6+32], {%r9, %r10, %r11, %r12};
    """
    outcome = run(body, np.zeros((4 * 64, 12), np.uint32), grid=4, cluster=2, block=64)
    for cta in range(4):
        for thread in range(64):
            expected = [thread, 64, cta, 4, thread % 32, thread // 32, cta % 2, 2, cta // 2, 2, cta % 2, 0]
            assert list(outcome.arrays[0][64 * cta + thread]) == expected


def test_warps_are_numbered_in_order():
    """A chip may number them otherwise: an H100 does (2026-11-26)."""
    found, _ = lanes("mov.u32 %r2, %warpid;", block=96)
    assert found == [i // 32 for i in range(96)]


def test_an_endless_loop_meets_the_limit():
    _, outcome = lanes("LOOP: add.u32 %r2, %r1, 1; bra LOOP;", limit=1000)
    assert outcome.fault.kind is FaultKind.LIMIT
    assert "warp 0 could go on, at line" in str(outcome.fault)


# griddepcontrol: two kernels behind each other.

FRONT = """
mov.u32 %r1, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r1, %r3, %r4, %r1;
griddepcontrol.launch_dependents;
mad.lo.u32 %r2, %r1, 3, 1; mad.wide.u32 %rd9, %r1, 4, %rd0; st.global.u32 [%rd9], %r2;
"""
BEHIND = """
mov.u32 %r1, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mad.lo.u32 %r1, %r3, %r4, %r1;
{wait}
xor.b32 %r5, %r1, 33; mad.wide.u32 %rd9, %r5, 4, %rd0; ld.global.u32 %r2, [%rd9];
mad.wide.u32 %rd8, %r1, 4, %rd1; st.global.u32 [%rd8], %r2;
"""


def two_kernels(wait, schedule, front=FRONT, **options):
    launches = [Kernel(front, block=64), Kernel(BEHIND.format(wait=wait), block=64, programmatic=True)]
    return run_kernels(launches, np.zeros(64, np.uint32), np.zeros(64, np.uint32), schedule=schedule, **options)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_kernel_behind_sees_what_it_waited_for(schedule):
    outcome = two_kernels("griddepcontrol.wait;", schedule)
    assert list(outcome.arrays[1]) == [3 * (i ^ 33) + 1 for i in range(64)]
    assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_kernel_behind_that_does_not_wait_races(schedule):
    outcome = two_kernels("", schedule)
    assert outcome.kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}, outcome.texts


def test_reads_before_the_wait_are_noted_as_early():
    """With a held front of which nothing is known: what the first launch reads before its wait is a note."""
    early = Kernel(BEHIND.format(wait="") + "griddepcontrol.wait;", block=64, programmatic=True)
    outcome = run_kernels([early], np.zeros(64, np.uint32), np.zeros(64, np.uint32), schedule=Schedule(Mode.HOLD_FRONT))
    assert outcome.kinds == {FindingKind.EARLY}
    assert {x.split(": ")[-1] for x in outcome.texts} == {"reads array 0", "writes array 1"}
    right = Kernel(BEHIND.format(wait="griddepcontrol.wait;"), block=64, programmatic=True)
    outcome = run_kernels([right], np.zeros(64, np.uint32), np.zeros(64, np.uint32), schedule=Schedule(Mode.HOLD_FRONT))
    assert not outcome.kinds


def test_the_kernel_behind_that_lets_the_next_start_before_its_wait_is_noted():
    body = "griddepcontrol.launch_dependents; griddepcontrol.wait;"
    outcome = run_kernels([Kernel(body, programmatic=True)], np.zeros(1, np.uint32), schedule=Schedule(Mode.HOLD_FRONT))
    assert outcome.kinds == {FindingKind.EARLY}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_without_the_attribute_the_kernel_behind_begins_when_the_one_in_front_has_ended(schedule):
    launches = [Kernel(FRONT, block=64), Kernel(BEHIND.format(wait=""), block=64)]
    outcome = run_kernels(launches, np.zeros(64, np.uint32), np.zeros(64, np.uint32), schedule=schedule)
    assert list(outcome.arrays[1]) == [3 * (i ^ 33) + 1 for i in range(64)]
    assert not outcome.kinds, outcome.texts


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_kernel_behind_that_writes_what_the_one_in_front_reads_races(schedule):
    front = """mov.u32 %r1, %tid.x; griddepcontrol.launch_dependents;
    mad.wide.u32 %rd9, %r1, 4, %rd1; ld.global.u32 %r2, [%rd9];
    mad.wide.u32 %rd8, %r1, 4, %rd0; st.global.u32 [%rd8], %r2;"""
    behind = "mov.u32 %r1, %tid.x; mov.u32 %r2, 9; {} mad.wide.u32 %rd9, %r1, 4, %rd1; st.global.u32 [%rd9], %r2;"
    for wait, kinds in (("griddepcontrol.wait;", set()), ("", {FindingKind.WRITE_BEFORE_READ})):
        launches = [Kernel(front), Kernel(behind.format(wait), programmatic=True)]
        outcome = run_kernels(launches, np.zeros(32, np.uint32), np.ones(32, np.uint32), schedule=schedule)
        if kinds:
            # Where the one behind wrote first, the one in front reads too late.
            assert outcome.kinds & {FindingKind.WRITE_BEFORE_READ, FindingKind.READ_BEFORE_WRITE}
        else:
            assert not outcome.kinds
            assert list(outcome.arrays[0]) == [1] * 32


def test_what_ended_before_the_kernel_in_front_began_needs_no_wait():
    first = Kernel("mov.u32 %r1, %tid.x; mad.wide.u32 %rd9, %r1, 4, %rd0; st.global.u32 [%rd9], %r1;")
    second = Kernel("griddepcontrol.launch_dependents;")
    third = """mov.u32 %r1, %tid.x; xor.b32 %r3, %r1, 1; mad.wide.u32 %rd9, %r3, 4, %rd0; ld.global.u32 %r2, [%rd9];
    mad.wide.u32 %rd8, %r1, 4, %rd1; st.global.u32 [%rd8], %r2;"""
    for schedule in SCHEDULES:
        launches = [first, second, Kernel(third, programmatic=True)]
        outcome = run_kernels(launches, np.zeros(32, np.uint32), np.zeros(32, np.uint32), schedule=schedule)
        assert list(outcome.arrays[1]) == [i ^ 1 for i in range(32)]
        assert not outcome.kinds, outcome.texts


# setmaxnreg.


def test_registers_move_between_warps():
    body = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; @%p1 bra FIRST;
    setmaxnreg.inc.sync.aligned.u32 104; bra END;
    FIRST: setmaxnreg.dec.sync.aligned.u32 24;
    END:
    """
    for schedule in SCHEDULES:
        assert not run(body, np.zeros(1, np.uint32), block=64, num_registers=64, schedule=schedule).kinds
    outcome = run(body.replace("104", "112"), np.zeros(1, np.uint32), block=64, num_registers=64)
    assert outcome.fault.kind is FaultKind.DEADLOCK
    assert "warp 1 waits for 112 registers" in str(outcome.fault)


@pytest.mark.parametrize("line", ["setmaxnreg.inc.sync.aligned.u32 40;", "setmaxnreg.dec.sync.aligned.u32 80;"])
def test_registers_that_are_moved_the_wrong_way(line):
    outcome = run(line, np.zeros(1, np.uint32), num_registers=64)
    assert outcome.fault.kind is FaultKind.REGISTERS
    assert "a thread has 64 registers" in str(outcome.fault)


def test_registers_are_moved_by_whole_warps():
    body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 3; @%p1 setmaxnreg.dec.sync.aligned.u32 24;"
    assert run(body, np.zeros(1, np.uint32), num_registers=64).fault.kind is FaultKind.DIVERGENCE
