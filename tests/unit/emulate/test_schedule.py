from __future__ import annotations

import itertools

import numpy as np
import pytest

from aot.emulate.launch import Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.schedule import HELD, Mode, Schedule
from tests.unit.emulate.snippets import compile_body

# Two CTAs of a cluster. Warp 0 copies stages to shared memory by cp.async; warp 1 adds each stage up, and sends its
# sums to the other CTA by st.async; warp 2 waits for those, and adds them to global memory atomically.
BODY = """
.shared .align 16 .b8 stages[1024]; .shared .align 16 .b8 box[128]; .shared .align 8 .b8 bars[40];
mov.u32 %r1, %tid.x; mov.u32 %r2, stages; mov.u32 %r3, bars; mov.u32 %r4, box; mov.u32 %r5, %laneid;
shr.u32 %r6, %r1, 5; mov.u32 %r7, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0;
mov.u32 %r8, 0; mov.u32 %r9, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; @%p1 mbarrier.init.shared::cta.b64 [%r3+8], 32;
@%p1 mbarrier.init.shared::cta.b64 [%r3+16], 32; @%p1 mbarrier.init.shared::cta.b64 [%r3+24], 32;
@%p1 mbarrier.init.shared::cta.b64 [%r3+32], 1; @%p1 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive; barrier.cluster.wait;
setp.eq.u32 %p2, %r6, 1; @%p2 bra SUM; setp.eq.u32 %p3, %r6, 2; @%p3 bra RECEIVE;
mad.lo.u32 %r12, %r7, 96, %r5; mad.wide.u32 %rd5, %r12, 16, %rd1;
COPY: mad.lo.u32 %r13, %r9, 8, %r3; xor.b32 %r14, %r10, 1;
E: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r13+16], %r14; @!%p4 bra E;
mad.lo.u32 %r15, %r9, 512, %r2; mad.lo.u32 %r15, %r5, 16, %r15; cp.async.cg.shared.global [%r15], [%rd5], 16;
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r13]; add.u64 %rd5, %rd5, 512;
add.u32 %r8, %r8, 1; xor.b32 %r9, %r9, 1; setp.eq.u32 %p5, %r9, 0; @%p5 xor.b32 %r10, %r10, 1;
setp.lt.u32 %p6, %r8, 3; @%p6 bra COPY; bra END;
SUM: mad.lo.u32 %r13, %r9, 8, %r3;
F: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r13], %r10; @!%p4 bra F;
xor.b32 %r14, %r5, 5; mad.lo.u32 %r15, %r9, 512, %r2; mad.lo.u32 %r15, %r14, 16, %r15;
ld.shared.v4.u32 {%r16, %r17, %r18, %r19}, [%r15]; add.u32 %r16, %r16, %r17; add.u32 %r18, %r18, %r19;
add.u32 %r11, %r11, %r16; add.u32 %r11, %r11, %r18; mbarrier.arrive.shared::cta.b64 _, [%r13+16];
add.u32 %r8, %r8, 1; xor.b32 %r9, %r9, 1; setp.eq.u32 %p5, %r9, 0; @%p5 xor.b32 %r10, %r10, 1;
setp.lt.u32 %p6, %r8, 3; @%p6 bra SUM;
xor.b32 %r20, %r7, 1; mapa.shared::cluster.u32 %r21, %r4, %r20; mapa.shared::cluster.u32 %r22, %r3, %r20;
mad.lo.u32 %r21, %r5, 4, %r21; add.u32 %r22, %r22, 32;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r21], %r11, [%r22]; bra END;
RECEIVE: setp.eq.u32 %p7, %r5, 0; @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+32], 128;
G: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r3+32], 0; @!%p4 bra G;
mad.lo.u32 %r21, %r5, 4, %r4; ld.shared.u32 %r23, [%r21]; mad.wide.u32 %rd6, %r5, 4, %rd0;
red.global.add.u32 [%rd6], %r23; atom.global.add.u32 %r24, [%rd0+128], 1;
END: barrier.cluster.arrive; barrier.cluster.wait;
"""
SOURCE = np.arange(2 * 96 * 4, dtype=np.uint32)
SCHEDULES = [Schedule(mode, seed) for seed, mode in enumerate(Mode)]


@pytest.fixture(scope="module")
def program():
    return compile_body(BODY, 2)


def execute(program, schedule):
    """Run two CTAs; return results, findings, and which warp took each of its steps when."""
    memory = GlobalMemory()
    out, source = memory.allocate(33 * 4, "sums"), memory.allocate(SOURCE.nbytes, "source", writable=False)
    memory.view(out, 33 * 4)[:] = 0
    memory.view(source, SOURCE.nbytes)[:] = SOURCE.view(np.uint8)
    trace = []
    machine = Machine(
        {"kernel": program}, memory, schedule, limit=100_000, trace=lambda warp, _: trace.append((warp.number, warp.pc))
    )
    parameters = tuple(x.to_bytes(8, "little") for x in (out, source))
    report = machine.run([Launch("kernel", (2, 1, 1), (96, 1, 1), (2, 1, 1), 0, parameters, {})])
    return list(memory.view(out, 33 * 4).view(np.uint32)), report, trace


def expected():
    """Add the source up: by ranks of CTAs, stages, lanes and elements of a lane."""
    sums = SOURCE.reshape(2, 3, 32, 4).sum(axis=(0, 1, 3))[np.arange(32) ^ 5]
    return [*sums, 64]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_mode_gives_the_same_result(program, schedule):
    found, report, _ = execute(program, schedule)
    assert found == expected()
    assert not report.findings


@pytest.mark.parametrize("mode", Mode)
def test_a_run_is_repeated_exactly_by_its_mode_and_seed(program, mode):
    first, second = (execute(program, Schedule(mode, 7))[2] for _ in range(2))
    assert first == second


def test_another_seed_is_another_run(program):
    for mode in (Mode.RANDOM, Mode.PRIORITY, Mode.STRICT, Mode.LAZY):
        assert execute(program, Schedule(mode, 7))[2] != execute(program, Schedule(mode, 8))[2]


def test_modes_are_not_like_each_other(program):
    traces = {mode: tuple(execute(program, Schedule(mode, 0))[2]) for mode in Mode}
    # Those that hold operations back of which this kernel has none are all like the random one.
    like_random = {x for x, trace in traces.items() if trace == traces[Mode.RANDOM]}
    assert like_random == {Mode.RANDOM, Mode.HOLD_STORES, Mode.HOLD_STORE_WRITES, Mode.HOLD_PRODUCTS, Mode.HOLD_FRONT,
                           Mode.BEHIND_ITSELF}  # fmt: skip
    assert len(set(traces.values())) == len(Mode) - len(like_random) + 1


def test_strict_orders_favour_the_same_warps_throughout(program):
    """A warp goes on until it must wait, so that turns change hands less often than at random."""
    for seed in range(3):
        trace = [warp for warp, _ in execute(program, Schedule(Mode.STRICT, seed))[2]]
        turns = sum(x != y for x, y in itertools.pairwise(trace))
        free = [warp for warp, _ in execute(program, Schedule(Mode.RANDOM, seed))[2]]
        assert turns < sum(x != y for x, y in itertools.pairwise(free))


def test_eager_and_lazy_completion():
    assert Schedule(Mode.EAGER).completion(can_step=True) == 1.0
    assert Schedule(Mode.LAZY).completion(can_step=True) == 0.0
    assert {Schedule(x).completion(can_step=False) for x in Mode} == {1.0}


def test_kinds_that_are_held_are_those_of_operations():
    kinds = {kind for held in HELD.values() for kind in held}
    assert kinds == {"tma.store.read", "tma.store.write", "tma.load", "cp.async", "cp.async.arrive", "st.async",
                          "clc", "wgmma", "tcgen05.mma", "tcgen05.cp", "front"}  # fmt: skip
