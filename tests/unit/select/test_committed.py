"""The selections that the repository ships, held against what their targets can do."""

import random

import pytest

from aot.cli.options import MAX_HELDOUT_REGRET
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.select.pipeline import COMMITTED
from aot.select.score.explain import explained
from aot.select.score.gate import check_heldout
from aot.select.selection import read_selection
from aot.space.roofline import roofline

MEASURED_LEAST = 0.93
"""Least measured time over the roofline: the rates in a target's file were measured, and a kernel may exceed them.

Those of random bfloat16 are bound by power. Elements of e2m1 have few bits that change: an H200 multiplies packed mxfp4
at 847 TFLOP/s, where its file says 790 (aot/records/h200_packed.jsonl.gz)."""

MULTIPLIED = (Grouping.DENSE, Grouping.BATCHED)
"""Of these a roofline is a bound. Groups are timed on skewed loads too, which leave some empty: their weights are not
read, and the roofline of the rows expected of each counts them."""

ROUNDING_US = 0.0005
"""A row's times have three decimals."""


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_no_time_of_a_committed_table_is_below_what_the_target_can_do(path):
    selection = read_selection(path)
    target = load_target(selection.target)
    rows = [
        (Problem(section.operation, m, ladder.n, ladder.k, section.num_groups), row)
        for section in selection.table.sections
        if section.operation.grouping in MULTIPLIED
        for ladder in section.ladders
        for m, row in zip(ladder.m_edges, ladder.rows, strict=True)
    ]
    assert rows
    below = []
    for problem, row in rows:
        share = MEASURED_LEAST if row.provenance == PROVENANCE_MEASURED else 1.0
        bound_us = roofline(problem, target).time_us
        least = share * bound_us - ROUNDING_US
        second = MEASURED_LEAST * bound_us - ROUNDING_US  # beside a prediction it may be measured
        found = ((row.time_us, least), (row.runner_up_us, second))
        below += [(problem.name, row.provenance, us, limit) for us, limit in found if us < limit]
    assert below == []


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_no_time_that_is_told_of_a_committed_table_is_below_the_roofline(path):
    selection = read_selection(path)
    target = load_target(selection.target)
    rng, told = random.Random(14), 0
    for section in selection.table.sections:
        for ladder in rng.sample(section.ladders, min(5, len(section.ladders))):
            last = ladder.m_edges[-1]
            for m in (rng.randint(1, last), rng.choice(ladder.m_edges), last, last + 1, 4 * last):
                problem = Problem(section.operation, m, ladder.n, ladder.k, section.num_groups)
                found = explained(selection, problem, target, {})
                assert found.time_us is None or found.time_us >= found.roofline_us, problem.name
                assert found.time_us is None or m <= last, problem.name
                told += found.time_us is not None
    assert told


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json.gz")), ids=lambda path: path.name)
def test_a_committed_selection_is_built_without_being_asked_twice(path):
    check_heldout(read_selection(path), *MAX_HELDOUT_REGRET)


def test_there_is_a_committed_selection():
    assert [path.name for path in COMMITTED.glob("*.json.gz")]
