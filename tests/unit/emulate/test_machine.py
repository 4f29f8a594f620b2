from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.barriers import Mbarrier
from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.launch import PROGRAMMATIC, Launch
from aot.emulate.machine import Machine
from aot.emulate.memory import GlobalMemory
from aot.emulate.order import Knowledge
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import WARP_ORDERS, Kernel, compile_body, run, run_kernels

COUNT = "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; @%p1 red.global.add.u32 [%rd0], 1;"


def test_findings_of_one_place_are_counted():
    body = "mov.u32 %r2, 0; L: ld.shared.u32 %r3, [tile]; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 5; @%p1 bra L;"
    outcome = run(body, np.zeros(1, np.uint32), header=".shared .align 4 .b8 tile[4];", block=64)
    found = outcome.report.findings
    assert [(x.kind, x.count) for x in found] == [(FindingKind.UNINITIALISED, 10)]
    assert found[0].where.endswith("ld.shared.u32 %r3, [tile]")
    assert found[0].text in {f"warp {i} of CTA (0, 0, 0) reads what nothing has written" for i in (0, 1)}


def test_instructions_forms_and_bytes_are_counted_where_asked():
    body = COUNT + "ld.global.u32 %r4, [%rd1]; st.global.u32 [%rd1+4], %r1;"
    arrays = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    report = run(body, *arrays, block=64, grid=3, counts=True).report
    assert report.counts["ld.param.u64"] == 2 * 6
    assert report.counts["red.global.add.u32"] == 6  # an instruction whose predicate is false is executed too
    assert report.bytes_moved["global loads"] == 6 * 32 * 4
    assert report.bytes_moved["global stores"] == 6 * 32 * 4
    assert report.num_instructions == sum(report.counts.values()) == 6 * 8
    assert not run(body, *arrays, block=64).report.counts


@pytest.mark.parametrize("resident", [1, 2, 5])
def test_so_many_clusters_are_resident_at_once(resident):
    """Each cluster counts itself in and out; none sees more than those that are resident."""
    body = """
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END; atom.global.add.u32 %r2, [%rd0], 1; mov.u32 %r4, 0;
    L: atom.global.max.u32 %r3, [%rd0+4], %r2; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 10; @%p2 bra L;
    red.global.add.u32 [%rd0], -1; END:
    """
    seen = set()
    for schedule in WARP_ORDERS:
        found = run(body, np.zeros(2, np.uint32), grid=10, resident=resident, schedule=schedule).arrays[0]
        assert found[0] == 0
        seen.add(int(found[1]))
    assert max(seen) == resident - 1


@pytest.mark.parametrize("schedule", WARP_ORDERS, ids=str)
def test_launches_follow_each_other(schedule):
    """Three kernels in stream order, each of which needs all of the one in front."""
    add = "mov.u32 %r1, %tid.x; xor.b32 %r2, %r1, {}; mad.wide.u32 %rd5, %r2, 4, %rd0; ld.global.u32 %r3, [%rd5];"
    add += "mad.lo.u32 %r3, %r3, 3, %r1; bar.sync 0; mad.wide.u32 %rd6, %r1, 4, %rd0; st.global.u32 [%rd6], %r3;"
    kernels = [Kernel(add.format(x), block=64) for x in (33, 5, 62)]
    outcome = run_kernels(kernels, np.arange(64, dtype=np.uint32), schedule=schedule)
    expected = np.arange(64)
    for x in (33, 5, 62):
        expected = 3 * expected[np.arange(64) ^ x] + np.arange(64)
    assert list(outcome.arrays[0]) == list(expected)
    assert not outcome.kinds, outcome.texts


def test_the_kernel_behind_begins_early_only_when_all_ctas_let_it():
    """One CTA of the kernel in front that does not trigger holds the next one back until it ends."""
    front = "mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 0; {} griddepcontrol.launch_dependents;"
    front += "L: ld.acquire.gpu.global.u32 %r3, [%rd0]; setp.eq.u32 %p2, %r3, 0; @%p2 bra L;"
    behind = Kernel("mov.u32 %r3, 1; st.release.gpu.global.u32 [%rd0], %r3; griddepcontrol.wait;", programmatic=True)
    early = run_kernels([Kernel(front.format(""), grid=2), behind], np.zeros(1, np.uint32))
    assert early.fault is None
    held = run_kernels([Kernel(front.format("@%p1"), grid=2), behind], np.zeros(1, np.uint32))
    assert held.fault.kind is FaultKind.DEADLOCK


def test_the_first_kernel_of_a_stream_may_be_behind_one_that_is_not_known():
    for mode in Mode:
        outcome = run_kernels([Kernel("griddepcontrol.wait;" + COUNT, programmatic=True, grid=3)],
                              np.zeros(1, np.uint32), schedule=Schedule(mode))  # fmt: skip
        assert outcome.arrays[0][0] == 3
        assert not outcome.kinds


def test_a_trace_is_called_before_each_instruction():
    memory = GlobalMemory()
    address = memory.allocate(4, "out")
    seen = []

    def trace(warp, instruction):
        seen.append((warp.index, instruction.opcode, int(warp.registers[warp.launch.kernel.slots["%r2"]][3])))

    machine = Machine({"kernel": compile_body("mov.u32 %r2, 5; add.u32 %r2, %r2, 1;")}, memory, Schedule(), trace=trace)
    machine.run([Launch("kernel", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (address.to_bytes(8, "little"),), {})])
    assert seen[1:] == [(0, "mov.u32", 0xDEADBEEF), (0, "add.u32", 5), (0, "ret", 6)]


def test_a_deadlock_lists_up_to_forty_warps():
    outcome = run("bar.sync 1, 1024;", np.zeros(1, np.uint32), block=96, grid=16, resident=16)
    lines = str(outcome.fault).splitlines()
    assert lines[0] == "deadlock: 48 warps have not ended:"
    assert len(lines) == 41


def test_a_phase_needs_its_arrivals_and_its_bytes_in_any_order():
    for order in (("a", "e", "c"), ("c", "a", "e"), ("e", "c", "a"), ("c", "e", "a")):
        barrier = Mbarrier("0x400", 2, lambda: Knowledge(0, 1))
        steps = {"a": lambda b=barrier: b.arrive(1), "e": lambda b=barrier: b.arrive(1, expected=64),
                 "c": lambda b=barrier: b.complete(64, 0b10)}  # fmt: skip
        for i, step in enumerate(order):
            assert barrier.phase == 0, order[:i]
            steps[step]()
        assert (barrier.phase, barrier.pending, barrier.transactions) == (1, 2, 0), order
        assert barrier.completed.seen.done == 0b10


def test_a_launch_knows_its_sizes():
    launch = Launch("k", (3, 4, 5), (33, 2, 1), (1, 2, 1), 0, (), {PROGRAMMATIC: (1,)})
    assert (launch.num_ctas, launch.warps_per_cta, launch.is_programmatic) == (60, 3, True)
    assert not Launch("k", (1, 1, 1), (1, 1, 1), (1, 1, 1), 0, (), {}).is_programmatic
