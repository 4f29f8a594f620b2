"""Tensor memory: its allocation, and who reads it."""

from __future__ import annotations

import numpy as np

from aot.emulate.faults import FaultKind, FindingKind
from aot.emulate.schedule import Mode, Schedule
from tests.unit.emulate.snippets import SCHEDULES, run
from tests.unit.emulate.units.asynchronous import FIRST, HEADER
from tests.unit.emulate.units.tensor_products import (
    COMMIT,
    FREE,
    LOAD,
    WAIT,
    begin,
    multiply,
    run_products,
)


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
