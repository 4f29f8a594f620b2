"""Which state each kernel of a wheel has, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey
from aot.core.execution import Execution, KernelState
from aot.core.problem import Problem
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.package.states import (
    execution_text,
    executions_of,
    measured_kernels,
    measured_steps,
    state_variables,
    states_text,
    with_states,
)
from tests.golden.manifest import BIG, KK, SMALL, SPLIT, golden_manifest, kernel
from tests.runtime.rows import SCALAR, WIDE, row_kernel
from tests.runtime.rows import SMALL as SMALL_ROWS

GOLDEN = golden_manifest()
KEYS = [x.key for x in GOLDEN.kernels]
RIGHT = Execution("x", "0" * 64, "1" * 64, 4, 3, 12, 0.375, 0, "2026-11-26")


def of(execution, candidate, **changes):
    return replace(execution, kernel=KernelKey(KK, candidate).name, **changes)


def test_a_kernel_is_measured_where_a_measured_row_has_a_time_of_it():
    table = GOLDEN.tables[0].table
    assert measured_kernels(table, KEYS, {}) == {KEYS[1], KEYS[2], KEYS[3]}
    first, second = table.sections
    ladder = replace(first.ladders[1], rows=(replace(first.ladders[1].rows[0], kernel=2, general=3, runner_up=2),))
    alone = replace(table, sections=(replace(first, ladders=(ladder,)), second))
    assert measured_kernels(alone, KEYS, {}) == {KEYS[2]}  # neither the general kernel nor the grid's have a time
    row = replace(ladder.rows[0], provenance="predicted")
    predicted = replace(table, sections=(replace(first, ladders=(replace(ladder, rows=(row,)),)), second))
    assert measured_kernels(predicted, KEYS, {}) == set()
    assert measured_kernels(predicted, KEYS, {KK: {Problem(KK, 1, 8, 8): {SPLIT: 5.0}}}) == {KernelKey(KK, SPLIT)}


def test_a_row_kernel_is_measured_where_a_step_has_a_time_of_it():
    kernels = [row_kernel(row_operation("bf16_rms_norm"), x) for x in (SCALAR, SMALL_ROWS, WIDE)]
    keys = [x.key for x in kernels]
    steps = (RowStep(1, 1, 2.0, "measured"), RowStep(9, 2, 3.0, "predicted"))
    table = RowTable((RowSection(row_operation("bf16_rms_norm"), (RowColumn(64, steps),), 0),))
    assert measured_steps(table, keys) == {keys[1]}
    made = with_states(kernels, measured_steps(table, keys), [replace(RIGHT, kernel=kernels[2].name)])
    assert [x.state for x in made] == ["compiled", "run", "executed"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, KernelState.EXECUTED),
        ({"ptx_sha256": "2" * 64}, KernelState.COMPILED),
        ({"num_findings": 1}, KernelState.COMPILED),
        ({"worst_error": 1.5}, KernelState.COMPILED),
    ],
)
def test_a_kernel_is_executed_where_the_record_is_of_its_ptx_and_right(changes, state):
    kernels = [replace(kernel(KK, x), state=None) for x in (BIG, SMALL)]
    found = [of(RIGHT, BIG, **changes)]
    assert [x.state for x in with_states(kernels, set(), found)] == [state, KernelState.COMPILED]
    assert [x.state for x in with_states(kernels, {kernels[0].key}, found)] == [KernelState.RUN, KernelState.COMPILED]


def test_executions_are_those_of_the_kernels_in_their_order():
    kernels = [kernel(KK, SMALL), kernel(KK, BIG), kernel(KK, SPLIT)]
    wrong = of(RIGHT, SMALL, num_findings=2)
    found = [of(RIGHT, BIG), of(RIGHT, SMALL), wrong, of(RIGHT, SPLIT, ptx_sha256="3" * 64)]
    assert list(executions_of(kernels, found)) == [wrong, found[0]]


def states(*given, executions=()):
    """Make a manifest of kernels of some states; of what no wheel may be, too."""
    kernels = tuple(replace(kernel(KK, BIG), state=state) for state in given)
    return replace(GOLDEN, kernels=kernels, executions=executions)


@pytest.mark.parametrize(
    ("given", "text", "has_executed"),
    [
        (["executed"] * 66, "66 of 66 kernels executed in the interpreter", True),
        (["compiled", "run", "run"], "2 of 3 kernels ran on the device, 1 compiled only", False),
        (["compiled", "executed"], "1 of 2 kernels executed in the interpreter, 1 compiled only", True),
    ],
)
def test_states_are_counted(given, text, has_executed):
    manifest = states(*map(KernelState, given))
    assert state_variables(manifest) == {"states": text, "has_executed": has_executed}


def test_kernels_that_ran_and_were_executed_are_counted_too():
    run = [KernelState.RUN, KernelState.RUN, KernelState.COMPILED]
    ran = "2 of 3 kernels ran on the device"
    expected = f"{ran} (2 executed in the interpreter too), 1 compiled only"
    assert states_text(states(*run, executions=(of(RIGHT, BIG),))) == expected
    assert states_text(states(*run, executions=(of(RIGHT, SMALL),))) == f"{ran}, 1 compiled only"
    text = states_text(states(*run, executions=(of(RIGHT, BIG, num_findings=1),)))
    assert text.startswith(f"{ran}, 1 compiled only; wrong in the interpreter: ")


def test_what_the_interpreter_found_wrong_is_named():
    wrong = of(RIGHT, BIG, num_findings=2, worst_error=2.0)
    manifest = states(KernelState.COMPILED, executions=(wrong, of(RIGHT, SMALL)))
    assert states_text(manifest) == f"1 of 1 kernels compiled only; wrong in the interpreter: {wrong.kernel}"


def test_an_execution_is_said_with_its_runs_and_its_worst_error():
    expected = "executed in the interpreter on 2026-11-26, 12 runs of 4 cases in 3 orders, "
    assert execution_text(RIGHT) == f"{expected}worst error 38% of what is allowed"
    assert execution_text(replace(RIGHT, num_findings=2)) == (
        f"{expected}2 faults found, worst error 38% of what is allowed"
    )
