"""Races: each kind by a minimal kernel, in every schedule, and not with the synchronisation that it lacks."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FindingKind
from aot.emulate.order import HOST, Agent, Clock, Knowledge, Shadow, bits_of
from tests.unit.emulate.snippets import SCHEDULES, WARP_ORDERS, run

READ, WRITE, OVERWRITE = (
    FindingKind.READ_BEFORE_WRITE,
    FindingKind.WRITE_BEFORE_READ,
    FindingKind.WRITE_BEFORE_WRITE,
)
EVERY = pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
START = """
.shared .align 16 .b8 tile[1024]; .shared .align 8 .b8 bar[16];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, bar; shr.u32 %r4, %r1, 5; mov.u32 %r5, %ctaid.x;
setp.eq.u32 %p1, %r4, 0; setp.eq.u32 %p2, %r4, 1; setp.eq.u32 %p3, %r4, 2; setp.eq.u32 %p4, %r1, 0;
mov.u32 %r6, 5; st.shared.u32 [%r2], %r6; bar.sync 0;
""".replace("st.shared", "@%p1 st.shared")


def kinds(body, *, block=64, schedule=None, **options):
    return run(START + body, np.zeros(64, np.uint32), block=block, schedule=schedule, **options).kinds


# Two warps and one place: what the one does, what the other does, and what is reported without an order.
PAIRS = {
    "a read of what is written": ("st.shared.u32 [%r2], %r6;", "ld.shared.u32 %r7, [%r2];", {READ, WRITE}),
    "two writes": ("st.shared.u32 [%r2], %r6;", "st.shared.u32 [%r2], %r6;", {OVERWRITE}),
    "a wide read of a narrow write": ("st.shared.u8 [%r2+15], %r6;", "ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r2];",
                                      {READ, WRITE, FindingKind.UNINITIALISED}),
    "in global memory": ("st.global.u32 [%rd0], %r6;", "ld.global.u32 %r7, [%rd0];", {READ, WRITE}),
    "of one byte in global memory": ("st.global.v4.u32 [%rd0], {%r6, %r6, %r6, %r6};", "st.global.u8 [%rd0+15], %r6;",
                                     {OVERWRITE}),
    "two reads": ("ld.shared.u32 %r7, [%r2];", "ld.shared.u32 %r7, [%r2];", set()),
    "two places": ("st.shared.u32 [%r2+4], %r6;", "st.shared.u32 [%r2+8], %r6;", set()),
    "two bytes of global memory": ("st.global.u8 [%rd0+1], %r6;", "st.global.u8 [%rd0+2], %r6;", set()),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@EVERY
def test_two_accesses_without_an_order(schedule, name):
    """Whichever comes first: then it is a read too early, or a write too early."""
    first, second, expected = PAIRS[name]
    for one, other in ((first, second), (second, first)):
        found = kinds(f"@%p1 {one} @%p2 {other}", schedule=schedule)
        assert found <= expected
        assert bool(found - {FindingKind.UNINITIALISED}) == bool(expected), found


ORDERS = {
    "a barrier of all": "{0} bar.sync 1; {1}",
    "a barrier of two": "{0} @!%p3 bar.sync 1, 64; {1}",
    "an arrival and a wait": "{0} @%p1 bar.arrive 1, 64; @%p2 bar.sync 1, 64; {1}",
    "two barriers through a third warp": "{0} @%p1 bar.arrive 1, 64; @%p3 bar.sync 1, 64; @%p3 bar.arrive 2, 64;"
    " @%p2 bar.sync 2, 64; {1}",
    "the clusters' barrier": "{0} barrier.cluster.arrive; barrier.cluster.wait; {1}",
    "an mbarrier": "@%p4 mbarrier.init.shared::cta.b64 [%r3], 32; bar.sync 1; {0}"
    "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r3]; @!%p2 bra E;"
    "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], 0; @!%p9 bra W; {1} E:",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", WARP_ORDERS[::3], ids=str)
def test_accesses_in_an_order_are_not_reported(schedule, order):
    for first, second, _ in PAIRS.values():
        for one, other in ((first, second), (second, first)):
            found = kinds(ORDERS[order].format(f"@%p1 {one}", f"@%p2 {other}"), block=96, schedule=schedule)
            assert found <= {FindingKind.UNINITIALISED}, (one, other, found)


REVERSED = {
    "an arrival of the one that comes behind": "{0} @%p2 bar.arrive 1, 64; @%p1 bar.sync 1, 64; {1}",
    "an arrival before the access": "@%p1 bar.arrive 1, 64; {0} @%p2 bar.sync 1, 64; {1}",
    "barriers of other numbers": "{0} @%p1 bar.arrive 1, 64; @%p2 bar.arrive 2, 64; @%p3 bar.sync 1, 64;"
    " @%p3 bar.sync 2, 64; {1}",
    "a barrier with the third warp only": "{0} @!%p2 bar.sync 1, 64; {1}",
}


@pytest.mark.parametrize("order", REVERSED)
@EVERY
def test_a_synchronisation_that_does_not_order_them_hides_no_race(schedule, order):
    body = REVERSED[order].format("@%p1 st.shared.u32 [%r2], %r6;", "@%p2 st.shared.u32 [%r2], %r6;")
    assert kinds(body, block=96, schedule=schedule) == {OVERWRITE}


@EVERY
def test_a_race_that_no_result_shows(schedule):
    """The same value is written twice, and whoever reads gets it."""
    assert kinds("mov.u32 %r7, 9; st.shared.u32 [%r2+16], %r7; bar.sync 1; ld.shared.u32 %r8, [%r2+16];",
                 schedule=schedule) == {OVERWRITE}  # fmt: skip


@EVERY
def test_ctas_that_write_one_place_of_global_memory(schedule):
    body = "@%p1 st.global.u32 [%rd0], %r6;"
    assert run(START + body, np.zeros(1, np.uint32), grid=3, schedule=schedule).kinds == {OVERWRITE}
    own = "@%p1 mad.wide.u32 %rd5, %r5, 4, %rd0; @%p1 st.global.u32 [%rd5], %r6;"
    assert not run(START + own, np.zeros(3, np.uint32), grid=3, schedule=schedule).kinds


@EVERY
def test_an_order_passes_through_flags_and_barriers(schedule):
    """Warp 1 of CTA 0 writes; warp 0 of it tells a flag behind a barrier; warp 0 of CTA 1 sees it; its warp 1 reads."""
    body = """
    setp.ne.u32 %p5, %r5, 0; @%p5 bra READER;
    @%p2 st.global.u32 [%rd0], %r6; {first} mov.u32 %r8, 1; @%p4 st.release.gpu.global.u32 [%rd0+4], %r8; bra END;
    READER: @!%p1 bra BEHIND;
    L: ld.acquire.gpu.global.u32 %r9, [%rd0+4]; setp.eq.u32 %p6, %r9, 0; @%p6 bra L;
    BEHIND: {second} @%p2 ld.global.u32 %r10, [%rd0]; @%p2 st.global.u32 [%rd0+8], %r10;
    END:
    """
    outcome = run(START + body.format(first="bar.sync 1;", second="bar.sync 2;"), np.zeros(3, np.uint32), block=64,
                  grid=2, schedule=schedule)  # fmt: skip
    assert list(outcome.arrays[0]) == [5, 1, 5]
    assert not outcome.kinds, outcome.texts
    for first, second in (("", "bar.sync 2;"), ("bar.sync 1;", "")):
        outcome = run(START + body.format(first=first, second=second), np.zeros(3, np.uint32), block=64, grid=2,
                      schedule=schedule)  # fmt: skip
        assert outcome.kinds & {READ, WRITE}


# Proxies: the answer of cluster launch control is written through the async proxy.

PROXIES = """
@%p4 mbarrier.init.shared::cta.b64 [%r3], 1; @%p4 fence.mbarrier_init.release.cluster; bar.sync 1;
@%p2 st.shared.v4.u32 [%r2], {{%r6, %r6, %r6, %r6}};
{order}
@%p4 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
@%p4 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r2], [%r3];
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r3], 0; @!%p9 bra W; ld.shared.u32 %r7, [%r2];
"""
FENCED = ("@%p2 fence.proxy.async.shared::cta; bar.sync 2;", "bar.sync 2; @%p4 fence.proxy.async;",
          "bar.sync 2; @%p1 fence.proxy.async.shared::cluster;")  # fmt: skip
UNFENCED = {
    "bar.sync 2;": FindingKind.PROXY_FENCE,
    "bar.sync 2; @%p2 fence.proxy.async.shared::cta;": FindingKind.PROXY_FENCE,
    "bar.sync 2; @%p1 fence.proxy.async.global;": FindingKind.PROXY_FENCE,
    "bar.sync 2; @%p1 fence.acq_rel.cta;": FindingKind.PROXY_FENCE,
    "@%p1 fence.proxy.async.shared::cta; bar.sync 2;": FindingKind.PROXY_FENCE,
    "@%p2 fence.proxy.async.shared::cta;": OVERWRITE,
}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_was_written_through_the_generic_proxy_is_fenced_for_the_async_proxy(schedule):
    """By the thread that wrote it, or by one that has seen it, before the operation is issued."""
    for order in FENCED:
        assert not kinds(PROXIES.format(order=order), schedule=schedule), order
    for order, kind in UNFENCED.items():
        found = kinds(PROXIES.format(order=order), schedule=schedule)
        assert found == {kind} or (kind is OVERWRITE and kind in found), order


# The parts themselves.


def agent(name, cluster, warp, *, launch=0):
    knowledge = Knowledge(cluster, 4)
    local = warp % 4
    knowledge.seen.epochs[local] = 1
    return Agent(knowledge, f"line of {name}", name, is_async_proxy=False, warp=warp, epoch=1, launch=launch)


def test_what_is_joined_is_the_later_of_each():
    one, other = Clock(0, 3), Clock(0, 3)
    one.epochs[:], other.epochs[:] = [1, 5, 0], [4, 2, 0]
    one.done, other.done = 0b101, 0b110
    copy = one.copy()
    one.join(other)
    assert (list(one.epochs), one.done) == ([4, 5, 0], 0b111)
    assert (list(copy.epochs), copy.done) == ([1, 5, 0], 0b101)


def test_epochs_of_other_clusters_are_kept_apart():
    mine, other, third = Clock(0, 2), Clock(7, 2), Clock(9, 2)
    other.epochs[:] = [3, 4]
    third.join(other)
    other.epochs[:] = [9, 9]
    mine.join(third)
    assert [mine.epoch_of(7 * 1024 + i) for i in range(2)] == [3, 4]
    assert mine.epoch_of(9 * 1024) == 0
    assert mine.epoch_of(8 * 1024) == 0
    copy = mine.copy()
    mine.join(other)
    assert (mine.epoch_of(7 * 1024), copy.epoch_of(7 * 1024)) == (9, 3)


def test_a_report_names_both_places():
    found = []
    shadow = Shadow(8, {}, lambda kind, where, text: found.append((kind, where, text)), has_proxies=False)
    shadow.fill(slice(0, 8))
    one, other = agent("warp 0", 0, 0), agent("warp 1", 0, 1)
    shadow.write(one, np.array([2, 3]))
    shadow.read(other, np.array([1]))
    assert not found
    shadow.read(other, slice(0, 8))
    assert found == [(READ, "line of warp 1", "warp 1, not ordered behind the write by warp 0 of line of warp 0")]
    one.knowledge.seen.epochs[1] = 1
    shadow.write(one, np.array([1]))
    assert len(found) == 1
    other.epoch = 2
    shadow.read(other, np.array([1]))
    shadow.write(one, np.array([1]))
    assert [x[0] for x in found] == [READ, READ, WRITE]


def test_cells_as_bits_and_slices():
    assert bits_of(np.array([0, 3, 5])) == 0b101001
    assert bits_of(np.array([70, 64])) == 1 << 70 | 1 << 64
    assert bits_of(slice(2, 5)) == 0b11100
    assert bits_of(np.array([], np.int64)) == 0
    assert HOST > 10**9
