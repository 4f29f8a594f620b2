"""The selections that the repository ships, held against what their targets can do."""

import random
from dataclasses import replace

import pytest

from aot.cli.options import MAX_HELDOUT_REGRET, RECORDS
from aot.core.dispatch import MAX_STEP_M
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.kinds.rows.catalogue import twins
from aot.kinds.rows.problem import RowProblem
from aot.select.pipeline import COMMITTED
from aot.select.score.explain import explained
from aot.select.score.gate import check_heldout
from aot.select.selection import read_selection
from aot.select.times.known import measured_times
from aot.select.times.record import read_record
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


PATHS = sorted(COMMITTED.glob("*.json.gz"))
OF_ROWS = [path for path in PATHS if path.name.endswith(".rows.json.gz")]
OF_PRODUCTS = [path for path in PATHS if path not in OF_ROWS]


@pytest.mark.parametrize("path", OF_PRODUCTS, ids=lambda path: path.name)
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


@pytest.mark.parametrize("path", OF_PRODUCTS, ids=lambda path: path.name)
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


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_committed_selection_is_built_without_being_asked_twice(path):
    check_heldout(read_selection(path), *MAX_HELDOUT_REGRET)


@pytest.mark.parametrize("path", OF_ROWS, ids=lambda path: path.name)
def test_measured_steps_of_operations_on_rows_are_the_records_and_its_operations_or_their_twins_are_all_there(path):
    selection = read_selection(path)
    record = measured_times(read_record(RECORDS / f"{selection.record}.jsonl.gz"))
    times = {
        x: {replace(p, rows=min(p.rows, MAX_STEP_M)): row for p, row in rows.items()} for x, rows in record.items()
    }
    sections, kernels = selection.others.table.sections, selection.others.kernels
    steps = [
        (RowProblem(section.operation, step.rows, column.cols), kernels[step.kernel].candidate, step)
        for section in sections
        for column in section.columns
        for step in column.steps
        if step.provenance == PROVENANCE_MEASURED
    ]
    assert [x for x, candidate, step in steps if step.time_us != round(times[x.operation][x][candidate], 3)] == []
    asked = {problem.name for rows in times.values() for problem in rows}
    assert {x.name for x, _, _ in steps} == asked
    assert {x.operation for x in sections} == {y for x in times for y in (x, *twins(x))}


def test_there_is_a_committed_selection():
    assert [path.name for path in COMMITTED.glob("*.json.gz")]
