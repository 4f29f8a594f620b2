from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, run

START = """
.shared .align 128 .b8 tile[1024]; .shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r3, bar; setp.eq.u32 %p1, %r1, 0;
@%p1 mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster; bar.sync 0; @!%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], {expected};
"""
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+{to}], [%rd1+{at}], {size}, [%r3];"
BACK = """
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
mad.lo.u32 %r4, %r1, 16, %r2; mad.wide.u32 %rd6, %r1, 16, %rd0;
ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r4]; st.global.v4.u32 [%rd6], {%r20, %r21, %r22, %r23};
"""
SOURCE = np.arange(1000, 1128, dtype=np.uint32)


def copy(to=0, at=0, size=512):
    return COPY.replace("{to}", str(to)).replace("{at}", str(at)).replace("{size}", str(size))


def execute(body, expected=512, back=BACK, schedule=None):
    return run(
        START.replace("{expected}", str(expected)) + body + back,
        np.zeros(128, np.uint32),
        SOURCE,
        schedule=schedule,
        read_only=(1,),
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_the_barrier_has_counted_is_there(schedule):
    outcome = execute(copy(0, 256, 256) + copy(256, 0, 256), schedule=schedule)
    assert np.array_equal(outcome.arrays[0], np.roll(SOURCE, 64))
    assert not outcome.kinds, outcome.texts


def test_a_size_may_be_in_a_register():
    outcome = execute("mov.u32 %r9, 512; " + copy(size="%r9"))
    assert np.array_equal(outcome.arrays[0], SOURCE)


def test_reading_without_waiting_shows():
    late = "LATE: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra LATE;"
    outcome = execute(copy(), back=BACK.replace("@!%p2 bra WAIT;", "") + late, schedule=Schedule(Mode.HOLD_LOADS))
    assert FindingKind.READ_BEFORE_WRITE in outcome.kinds
    assert not np.array_equal(outcome.arrays[0], SOURCE)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (copy(8), FaultKind.ALIGNMENT, "shared address"),
        (copy(at=8, size=16), FaultKind.ALIGNMENT, "source"),
        (copy(size=24), FaultKind.ALIGNMENT, "size"),
        (copy(size=0), FaultKind.ADDRESS, "no bytes"),
        (copy(at=16), FaultKind.ADDRESS, "in no allocation"),
        (copy(to=528), FaultKind.ADDRESS, "of shared memory"),
        (copy(size=496), FaultKind.DEADLOCK, "waits"),
    ],
)
def test_what_hardware_refuses_is_a_fault(body, kind, text):
    outcome = execute(body)
    assert outcome.fault.kind is kind
    assert text in str(outcome.fault)


def test_a_cta_that_has_exited_is_not_written():
    outcome = execute(copy(), back="WAIT: exit;", schedule=Schedule(Mode.HOLD_LOADS))
    assert outcome.fault.kind is FaultKind.EXITED
