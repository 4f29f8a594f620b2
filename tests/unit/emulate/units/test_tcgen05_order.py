"""Commits: what may be read and overwritten before and behind them."""

from __future__ import annotations

import numpy as np

from aot.emulate.faults import FindingKind
from aot.emulate.schedule import Mode, Schedule
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


def test_a_load_that_does_not_wait_for_the_product_is_found():
    body = begin() + multiply() + COMMIT + LOAD + STORE + WAIT + FREE
    found = run_products(body, schedule=Schedule(Mode.LAZY))
    assert FindingKind.READ_BEFORE_WRITE in found.kinds
    assert not np.array_equal(found.arrays[1].T, A @ B.T)
    late = run_products(begin() + multiply() + LOAD + COMMIT + WAIT + FREE, schedule=Schedule(Mode.EAGER))
    assert late.kinds & {FindingKind.READ_BEFORE_WRITE, FindingKind.WRITE_BEFORE_READ}


def test_operands_are_read_until_the_commit_arrives():
    again = "st.shared.b32 [%r1], %r0;\n"
    after = begin() + multiply() + COMMIT + WAIT + again + LOAD + FREE
    assert FindingKind.WRITE_BEFORE_READ not in run_products(after).kinds
    before = begin() + multiply() + again + COMMIT + WAIT + LOAD + FREE
    assert FindingKind.WRITE_BEFORE_READ in run_products(before).kinds
