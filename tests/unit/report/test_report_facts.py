"""What a report tells, worked out from a selection, its record and what was held out."""

from dataclasses import replace

import pytest

from aot.core.candidate import changed
from aot.core.dispatch import Tier
from aot.core.errors import SelectionError
from aot.report.facts import facts_of, unchosen
from tests.unit.reported import DIRECT, FAILURES, RECORD, SELECTION, THOR, TMA, WIDE, measured_facts, scored
from tests.unit.twins import CONDITIONS, problem_of


def test_the_facts_of_an_operation():
    facts = measured_facts()
    (x,) = facts.operations
    assert [(cell.problem.m, cell.after, cell.is_last, cell.is_measured) for cell in x.cells] == [
        (16, 0, False, True),
        (128, 16, True, True),
    ]
    assert x.cells[0].fraction == pytest.approx(x.cells[0].roofline.time_us / 4.0)
    assert [(s.found.chosen, s.found.regret, s.is_own) for s in x.inside] == [
        (TMA, pytest.approx(0.25), True),
        (DIRECT, 0.0, True),
    ]
    assert [(y.tier, y.rounding, y.regret) for y in x.outside] == [
        (Tier.TUNED, pytest.approx(0.25), pytest.approx(0.25)),
        (Tier.GRID, 0.0, pytest.approx(0.25)),
    ]
    assert [(y.candidate, y.num_best, y.largest_problem.m) for y in x.unchosen] == [(WIDE, 1, 16)]
    assert x.unchosen[0].mean_gain == pytest.approx(0.125)
    assert facts.num_measurements == 12


def test_failures_are_joined_by_their_outcome():
    found = measured_facts().operations[0].failures
    assert [(str(x.status), x.num_pairs, x.num_kernels) for x in found] == [
        ("workspace too small", 2, 1),
        ("quarantined: <wrong> & unsafe", 1, 1),
    ]
    assert found[0].example == f"{changed(TMA, tile_n=32).name} on m16 n256 k512: {FAILURES[0].status}"


def test_a_record_that_is_not_the_selections_is_refused():
    with pytest.raises(SelectionError, match="rests on the record thor, which is not here; give --record"):
        facts_of(SELECTION, THOR, None)
    other = replace(RECORD, conditions=(replace(CONDITIONS, driver="2"), CONDITIONS))
    with pytest.raises(SelectionError, match="from 1 runs of the record thor, whose conditions are not those of the 2"):
        facts_of(SELECTION, THOR, other)
    with pytest.raises(
        SelectionError, match=r"tier 1: the record thor and the held-out shapes give 0 problems, .* on 1;"
    ):
        facts_of(scored(), THOR, RECORD, ())


def test_unchosen_needs_a_shipped_kernel_and_a_gain():
    times = {problem_of(8, 8, 8): {TMA: 2.0, DIRECT: 3.0}}
    assert unchosen(times, {TMA}) == ()
    assert unchosen(times, {WIDE}) == ()
    (found,) = unchosen(times, {DIRECT})
    assert (found.candidate, found.mean_gain, found.num_problems) == (TMA, 0.5, 1)
