import pytest

from aot.cli.options import RECORDS
from aot.core.dispatch import MAX_STEP_M, Tier
from aot.core.errors import SelectionError
from aot.core.json_text import write_json
from aot.core.strict_json import decode, parse_json
from aot.core.target import load_target
from aot.families import rows_family_of
from aot.kinds.rows.dispatch import RowTable, look_up_rows, row_table_fault
from aot.kinds.rows.operation import MAX_COLS, RowOperation, RowProblem
from aot.kinds.rows.sizes import COL_EDGES, ROW_EDGES
from aot.select.pipeline import records_of
from aot.select.table.stepped import MAX_KERNELS, renumbered_steps, select_stepped, times_of
from aot.space.enumeration import fallback, legal
from aot.space.kinds import space_of

H200 = load_target("h200")
NORM = RowOperation.BF16_RMS_NORM


def time_us(candidate, problem):
    (found,) = space_of(NORM).times_us([candidate], problem, H200)
    return found


class Kernel:
    """What a table is held against of a kernel."""

    def __init__(self, key):
        self.operation, self.limits = key.operation, rows_family_of(key.candidate).limits(key.candidate, key.operation)


def kernels_of(selection):
    return [Kernel(key) for key in selection.kernels]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "thor"])
def test_every_operation_gets_a_sound_table_that_says_predicted(target):
    selection = select_stepped(tuple(RowOperation), load_target(target))
    assert row_table_fault(selection.table, kernels_of(selection)) == ""
    assert [section.operation for section in selection.table.sections] == list(RowOperation)
    steps = [step for section in selection.table.sections for column in section.columns for step in column.steps]
    assert {step.provenance for step in steps} == {"predicted"}
    for operation in RowOperation:
        own = [key for key in selection.kernels if key.operation is operation]
        assert 2 <= len(own) <= MAX_KERNELS + 1
        assert own[0].candidate == fallback(operation, load_target(target))


def test_the_table_loses_little_to_the_best_candidate_by_the_models_times():
    selection = select_stepped((NORM,), H200)
    limits = [kernel.limits for kernel in kernels_of(selection)]
    ratios = []
    for rows in ROW_EDGES:
        for cols in COL_EDGES:
            problem = RowProblem(NORM, rows, cols)
            found = look_up_rows(selection.table.sections[0], problem, limits, 16)
            assert found.tier is Tier.GRID
            fit = [x for x in legal(NORM, H200) if rows_family_of(x).limits(x, NORM).takes(cols)]
            best = min(space_of(NORM).times_us(fit, problem, H200))
            ratios.append(time_us(selection.kernels[found.kernel].candidate, problem) / best)
    assert max(ratios) < 1.25
    assert sum(ratios) / len(ratios) < 1.02


def test_any_width_is_answered_by_vectors():
    selection = select_stepped((NORM,), H200)
    assert selection.table.sections[0].columns[-1].cols == MAX_COLS
    limits = [kernel.limits for kernel in kernels_of(selection)]
    found = look_up_rows(selection.table.sections[0], RowProblem(NORM, 5, 1 << 24), limits, 16)
    assert found.tier is Tier.GRID


def measured(*candidates, rows=(1, 64), cols=(1024, 4096)):
    """Make times in which the candidate at place i is the best at the i-th number of rows."""
    return {
        NORM: {
            RowProblem(NORM, r, c): {x: 5.0 + (i != j) + 0.001 * c for i, x in enumerate(candidates)}
            for j, r in enumerate(rows)
            for c in cols
        }
    }


def two_of_any_width():
    return [x for x in legal(NORM, H200) if rows_family_of(x).limits(x, NORM).max_cols == MAX_COLS][:2]


def test_measured_times_choose_and_their_rows_say_so():
    one, other = two_of_any_width()
    selection = select_stepped((NORM,), H200, measured(one, other))
    assert [key.candidate for key in selection.kernels[1:]] == sorted((one, other), key=legal(NORM, H200).index)
    section = selection.table.sections[0]
    assert {1024, 4096} < set(section.col_edges)
    for column in section.columns:
        named = {step.rows: step for step in column.steps if step.provenance == "measured"}
        assert sorted(named) == ([1, 64] if column.cols in (1024, 4096) else [])
        assert [selection.kernels[named[x].kernel].candidate for x in sorted(named)] == [one, other][: len(named)]
        assert [x.time_us for x in named.values()] == pytest.approx([5.0 + 0.001 * column.cols] * len(named))


def test_the_times_that_are_committed_make_a_table_that_a_manifest_holds():
    times = times_of(tuple(RowOperation), records_of(H200, RECORDS))
    assert len(times) >= 9
    table = select_stepped(tuple(times), H200, times).table
    assert decode(RowTable, parse_json(write_json(table))) == table


def test_what_was_measured_past_the_largest_edge_of_a_table_is_its_last_step():
    rows = 2 * MAX_STEP_M
    times = {RowProblem(NORM, rows, 4096): dict.fromkeys(two_of_any_width(), 900.0)}
    (section,) = select_stepped((NORM,), H200, {NORM: times}).table.sections
    (column,) = (x for x in section.columns if x.cols == 4096)
    last = column.steps[-1]
    assert (last.rows, last.time_us, last.provenance) == (MAX_STEP_M, 900.0, "measured")
    assert max(step.rows for x in section.columns for step in x.steps) == MAX_STEP_M


def test_between_what_was_measured_a_prediction_is_corrected_by_the_nearest_time():
    """The model's favourite took ten times as long as predicted at the one size measured: so another is taken."""
    favourite = select_stepped((NORM,), H200).kernels[1].candidate
    others = [x for x in legal(NORM, H200) if x != favourite]

    def predicted(candidate):
        return time_us(candidate, RowProblem(NORM, 64, 4096))

    fits = [x for x in (favourite, *others) if rows_family_of(x).limits(x, NORM).max_cols >= 4096]
    times = {x: predicted(x) * (10 if x == favourite else 1) for x in fits}
    selection = select_stepped((NORM,), H200, {NORM: {RowProblem(NORM, 64, 4096): times}})
    assert favourite not in {key.candidate for key in selection.kernels[1:]}


def test_a_record_that_leaves_a_size_without_a_kernel_is_refused():
    narrow = next(x for x in legal(NORM, H200) if rows_family_of(x).limits(x, NORM).max_cols < MAX_COLS)
    with pytest.raises(SelectionError, match="bf16_rms_norm: no kernel was timed on bf16_rms_norm rows 1 cols 512"):
        select_stepped((NORM,), H200, measured(narrow, cols=(64,)))


def test_a_table_is_renumbered_over_the_kernels_of_a_wheel():
    selection = select_stepped((NORM,), H200)
    numbers = {key: 100 - i for i, key in enumerate(selection.kernels)}
    table = renumbered_steps(selection, numbers)
    for old, new in zip(selection.table.sections[0].columns, table.sections[0].columns, strict=True):
        assert [100 - step.kernel for step in old.steps] == [step.kernel for step in new.steps]
    assert table.sections[0].fallback == 100
