"""Tensor memory: its allocation, and who reads it."""

from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, run
from tests.unit.emulate.units.asynchronous import FIRST, HEADER
from tests.unit.emulate.units.tensor_products import (
    COMMIT,
    FREE,
    LOAD,
    STORE,
    WAIT,
    A,
    B,
    begin,
    multiply,
    run_products,
)


@pytest.mark.slow
def test_tensor_memory_that_is_freed_under_a_product_or_before_it_is_read_is_found():
    under = begin() + multiply() + FREE + COMMIT + WAIT
    assert FindingKind.WRITE_BEFORE_WRITE in run_products(under, schedule=Schedule(Mode.LAZY)).kinds
    early = begin() + multiply() + COMMIT + WAIT + LOAD + FREE.replace("bar.sync 0;\n", "")
    kinds = set().union(*(x.kinds for x in (run_products(early, schedule=s) for s in SCHEDULES) if x.fault is None))
    assert FindingKind.WRITE_BEFORE_READ in kinds


def test_allocation_that_is_kept_or_wrong_is_found():
    assert run_products(begin() + multiply() + COMMIT + WAIT + LOAD).kinds == {FindingKind.EXIT}
    assert "expected a power of two from 32 to 512" in run_products(begin(columns=48)).fault.text
    again = "@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    again += "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;\n"
    assert "relinquished" in run_products(begin() + again).fault.text
    wide = "add.u32 %r4, %r4, 24;\n" + multiply()
    assert "columns 24 to 40 are not allocated" in run_products(begin() + wide).fault.text


def test_columns_are_waited_for():
    """512 columns are allocated again only once they were freed, by another warp and later."""
    body = begin(columns=512) + "setp.eq.u32 %p2, %r0, 32; setp.ge.u32 %p3, %r0, 32; setp.lt.u32 %p4, %r0, 64;\n"
    body += "and.pred %p3, %p3, %p4;\n@%p3 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+4], 512;\n"
    body += "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;\nbar.sync 0;\n"
    body += "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 512;\n"
    for schedule in SCHEDULES:
        assert run_products(body, schedule=schedule).report is not None
    without = body.replace("@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;\n", "")
    found = run_products(without)
    assert found.fault.kind is FaultKind.DEADLOCK
    assert "waits for 512 columns of tensor memory" in found.fault.text


def test_a_warp_reads_its_own_lanes_only():
    body = begin() + multiply() + COMMIT + WAIT + LOAD.replace("and.b32 %r7, %r0, 0xffffffe0;", "mov.u32 %r7, 0;")
    assert "expected its 32 from" in run_products(body + FREE).fault.text


def test_one_cta_of_a_pair_cannot_allocate_alone():
    body = "mov.u32 %r8, %cluster_ctarank; setp.eq.u32 %p2, %r8, 0; setp.ne.u32 %p7, %r8, 0;\n" + FIRST
    body += "@%p2 bra SKIP;\ntcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;\nSKIP:\n"
    found = run(body, np.zeros(4, np.uint32), header=HEADER, smem=1024, grid=2, cluster=2)
    assert found.fault.kind in {FaultKind.EXITED, FaultKind.DEADLOCK}


WAIT_FOR_LOADS = "tcgen05.wait::ld.sync.aligned;\n"
LAZY_LOAD = LOAD.replace(WAIT_FOR_LOADS, "")
PRODUCT = begin() + multiply() + COMMIT + WAIT
COPIES = "".join(f"mov.b64 %rd{22 + i}, {{%r{14 + 2 * i}, %r{15 + 2 * i}}};\n" for i in range(8))
OFF = "setp.ne.u32 %p6, %r0, %r0;\n@%p6 add.u32 %r12, %r14, 1;\n"
"""An instruction that uses a register of the load in no lane."""


def test_a_load_is_over_where_it_was_waited_for():
    found = run_products(PRODUCT + LOAD + FREE + STORE)
    assert found.kinds == set()
    assert np.array_equal(found.arrays[1].T, A @ B.T)


@pytest.mark.parametrize("between", ["", COPIES, OFF], ids=["nothing", "copies", "predicated off"])
def test_a_load_that_is_not_waited_for_may_still_be_under_way(between):
    """Copies of registers are none in machine code, so that nothing there waits for the load either."""
    found = run_products(PRODUCT + LAZY_LOAD + between + FREE + STORE)
    assert FindingKind.WRITE_BEFORE_READ in found.kinds
    assert "by tcgen05.ld" in " ".join(found.texts)


@pytest.mark.parametrize("copies", ["", COPIES], ids=["itself", "a copy"])
def test_a_use_of_what_was_loaded_waits_for_it_against_the_letter(copies):
    use = "st.global.b64 [%rd1], %rd22;\n" if copies else "st.global.b32 [%rd1], %r14;\n"
    found = run_products(PRODUCT + LAZY_LOAD + copies + use + FREE)
    assert {x for x in found.kinds if x.is_fault} <= {FindingKind.WRITE_BEFORE_WRITE}  # all threads store to one place
    assert "uses a register of a tcgen05.ld before tcgen05.wait::ld" in " ".join(found.texts)


def test_a_use_ends_its_own_load_only():
    """The second load's registers are another's: it is still under way."""
    second = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r12}, [%r7];\n"
    found = run_products(PRODUCT + LAZY_LOAD + second + STORE + FREE)
    assert FindingKind.WRITE_BEFORE_READ in found.kinds
    used = run_products(PRODUCT + LAZY_LOAD + second + STORE + "add.u32 %r13, %r12, 1;\n" + FREE)
    assert used.kinds == {FindingKind.LETTER}


def test_a_store_is_there_behind_its_wait():
    store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r14};\n"
    again = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r12}, [%r7];\n" + WAIT_FOR_LOADS
    waits = "tcgen05.wait::st.sync.aligned;\n"
    assert run_products(PRODUCT + LOAD + store + waits + again + FREE).kinds == set()
    found = run_products(PRODUCT + LOAD + store + WAIT_FOR_LOADS + again + waits + FREE)
    assert found.kinds == {FindingKind.READ_BEFORE_WRITE}
