"""Operations on rows as another target has them: its kernels and table, this target's times."""

from dataclasses import replace

import pytest

from aot.core.errors import SelectionError
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.pipeline import select_stepped as by_records
from aot.select.portfolio.objective import Objective
from aot.select.reuse.adopt_steps import adopt_steps
from aot.select.selection import write_selection
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import legal
from tests.unit.invoked import succeed

H200, H100, GATE = load_target("h200"), load_target("h100"), row_operation("bf16_silu_mul")
FAST, SLOW = (x for x in legal(GATE, H200) if x.name in ("row_registers_128x1_v8x2", "row_registers_256x1_v8x1"))
PROBLEMS = tuple(RowProblem(GATE, rows, 4096) for rows in (16, 512))
TIMES = {GATE: {PROBLEMS[0]: {FAST: 3.0, SLOW: 6.0}, PROBLEMS[1]: {FAST: 9.0, SLOW: 8.0}}}


@pytest.fixture(scope="module")
def other():
    return select_stepped((GATE,), H200, SteppedTimes(TIMES, name="h200"), with_heldout=False)


def steps_of(selection):
    (section,) = selection.others.table.sections
    return [(column.cols, step) for column in section.columns for step in column.steps]


def test_the_kernels_are_the_others_and_the_times_are_its_own(other):
    own = {GATE: {PROBLEMS[0]: {FAST: 4.0, SLOW: 1.0}}}
    found = adopt_steps(other, (GATE,), own, None, "h100", H100)
    assert (found.target, found.like, found.provenance, found.record) == ("h100", "h200", "measured", "h100")
    assert (found.regrets, found.heldout, found.kernels, found.table.sections) == ((), (), (), ())
    assert found.others.kernels == other.others.kernels
    pairs = list(zip(steps_of(other), steps_of(found), strict=True))
    assert [(cols, step.rows, step.kernel) for (cols, step), _ in pairs] == [
        (cols, step.rows, step.kernel) for _, (cols, step) in pairs
    ]
    measured = {(cols, x.rows): x.time_us for cols, x in steps_of(found) if x.provenance == "measured"}
    assert measured == {(4096, 16): 4.0}
    predicted = next(x for cols, x in steps_of(found) if (cols, x.rows) == (4096, 512))
    assert predicted.provenance == "predicted"
    assert predicted.time_us > 0


def test_without_times_all_is_predicted(other):
    found = adopt_steps(other, (GATE,), {}, None, "row-cost-model-v1", H100)
    assert found.provenance == "predicted"
    assert {step.provenance for _, step in steps_of(found)} == {"predicted"}


def test_a_target_of_other_cores_is_refused(other):
    with pytest.raises(SelectionError, match="thor is sm_110a with 20 SMs, h200 sm_90a with 132; kernels and tables"):
        by_records((GATE,), load_target("thor"), (), "", Objective(like=other))


@pytest.mark.slow
def test_the_command_takes_rows_as_another_target_has_them(other, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_selection(tmp_path / "h200.json", replace(other))
    words = ["--target", "h100", "--operations", "bf16_silu_mul", "--like", "h200.json", "-o", "h100.json"]
    succeed("select", *words)
    text = succeed("explain", "--selection", "h100.json", "--operations", "bf16_silu_mul", "16", "4096")
    assert f"bf16_silu_mul_{FAST.name}" in text
