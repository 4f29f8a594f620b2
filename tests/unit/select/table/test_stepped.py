import pytest

from aot.cli.options import RECORDS
from aot.core.dispatch import MAX_STEP_M, Tier
from aot.core.errors import SelectionError, StoreError
from aot.core.json_text import write_json
from aot.core.strict_json import decode, parse_json
from aot.core.target import load_target
from aot.families import rows_family_of
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.dispatch import RowTable
from aot.kinds.rows.operation import MAX_COLS
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.sizes import COL_EDGES, ROW_EDGES
from aot.select import pipeline
from aot.select.portfolio.objective import SelectionLimits
from aot.select.selection import read_selection, write_selection
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import Patterns, fallback, legal
from aot.space.kinds import space_of
from tests.compiling import EVERY

pytestmark = pytest.mark.slow

H200 = load_target("h200")
NORM, TWIN = row_operation("bf16_rms_norm"), row_operation("fp16_rms_norm")


def time_us(candidate, problem):
    (found,) = space_of(NORM).times_us([candidate], problem, H200)
    return found


def selected(times=None, operations=(NORM,), target=H200, **options):
    """Select by times; gives kernels and table."""
    return select_stepped(operations, target, SteppedTimes(times or {}), with_heldout=False, **options).others


@pytest.mark.parametrize(("target", "first"), [("h200", 0), ("thor", 1)])
def test_every_operation_gets_a_sound_table_that_says_predicted(target, first, tmp_path):
    """Some on each target; `make walk` takes all on both."""
    operations = tuple(row_operations())[0 if EVERY else first :: 1 if EVERY else 24]
    whole = select_stepped(operations, load_target(target))
    assert (whole.provenance, whole.heldout) == ("predicted", ())
    write_selection(tmp_path / "s.json", whole)
    assert read_selection(tmp_path / "s.json") == whole
    selection = whole.others
    assert [section.operation for section in selection.table.sections] == list(operations)
    steps = [step for section in selection.table.sections for column in section.columns for step in column.steps]
    assert {step.provenance for step in steps} == {"predicted"}
    for operation in operations:
        own = [key for key in selection.kernels if key.operation is operation]
        assert 2 <= len(own) <= SelectionLimits.max_row_kernels + 1
        assert own[0].candidate == fallback(operation, load_target(target))


def test_the_table_loses_little_to_the_best_candidate_by_the_models_times():
    selection = selected()
    ratios = []
    for rows in ROW_EDGES:
        for cols in COL_EDGES:
            problem = RowProblem(NORM, rows, cols)
            chosen, tier = selection.look_up(problem)
            assert tier is Tier.GRID
            fit = [x for x in legal(NORM, H200) if rows_family_of(x).limits(x, NORM).takes(cols)]
            best = min(space_of(NORM).times_us(fit, problem, H200))
            ratios.append(time_us(chosen, problem) / best)
    assert max(ratios) < 1.25
    assert sum(ratios) / len(ratios) < 1.02


def test_a_step_ends_where_the_time_of_its_kernel_doubles():
    """Of one kernel for all rows too: a table says times at the edges of its steps alone."""
    selection = selected(patterns=Patterns.parse("row_looped_512x1_v8x2"))
    for column in selection.table.sections[0].columns[:-1]:
        starts = [0, *(step.rows for step in column.steps)]
        assert {step.kernel for step in column.steps} == {1}
        for step, start in zip(column.steps, starts, strict=False):
            first = next(edge for edge in ROW_EDGES if edge > start)
            assert step.time_us < 2 * time_us(selection.kernels[1].candidate, RowProblem(NORM, first, column.cols))


def test_any_width_is_answered_by_vectors():
    selection = selected()
    assert selection.table.sections[0].columns[-1].cols == MAX_COLS
    assert selection.look_up(RowProblem(NORM, 5, 1 << 24))[1] is Tier.GRID


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
    selection = selected(measured(one, other))
    assert [key.candidate for key in selection.kernels[1:]] == sorted((one, other), key=legal(NORM, H200).index)
    section = selection.table.sections[0]
    assert {1024, 4096} < set(section.col_edges)
    for column in section.columns:
        named = {step.rows: step for step in column.steps if step.provenance == "measured"}
        assert sorted(named) == ([1, 64] if column.cols in (1024, 4096) else [])
        assert [selection.kernels[named[x].kernel].candidate for x in sorted(named)] == [one, other][: len(named)]
        assert [x.time_us for x in named.values()] == pytest.approx([5.0 + 0.001 * column.cols] * len(named))


def test_what_was_measured_past_the_largest_edge_of_a_table_is_its_last_step():
    rows = 2 * MAX_STEP_M
    times = {RowProblem(NORM, rows, 4096): dict.fromkeys(two_of_any_width(), 900.0)}
    (section,) = selected({NORM: times}).table.sections
    (column,) = (x for x in section.columns if x.cols == 4096)
    last = column.steps[-1]
    assert (last.rows, last.time_us, last.provenance) == (MAX_STEP_M, 900.0, "measured")
    assert max(step.rows for x in section.columns for step in x.steps) == MAX_STEP_M


def test_between_what_was_measured_a_prediction_is_corrected_by_the_nearest_time():
    """The model's favourite took ten times as long as predicted at the one size measured: so another is taken."""
    favourite = selected().kernels[1].candidate
    others = [x for x in legal(NORM, H200) if x != favourite]

    def predicted(candidate):
        return time_us(candidate, RowProblem(NORM, 64, 4096))

    fits = [x for x in (favourite, *others) if rows_family_of(x).limits(x, NORM).max_cols >= 4096]
    times = {x: predicted(x) * (10 if x == favourite else 1) for x in fits}
    selection = selected({NORM: {RowProblem(NORM, 64, 4096): times}})
    assert favourite not in {key.candidate for key in selection.kernels[1:]}


def test_a_record_that_leaves_a_size_without_a_kernel_is_refused():
    narrow = next(x for x in legal(NORM, H200) if rows_family_of(x).limits(x, NORM).max_cols < MAX_COLS)
    with pytest.raises(SelectionError, match="bf16_rms_norm: no kernel was timed on bf16_rms_norm rows 1 cols 512"):
        selected(measured(narrow, cols=(64,)))


def near_the_model(rows=(1, 16, 64), cols=(1024, 2048, 4096), operation=NORM):
    """Make times of all kernels that are the model's, but for some that take twice as long."""
    fits = [x for x in legal(operation, H200) if rows_family_of(x).limits(x, operation).max_cols == MAX_COLS][:3]
    problems = [RowProblem(operation, r, c) for r in rows for c in cols]
    return {x: {y: (1 + i) * us for i, (y, us) in enumerate(zip(fits, model(fits, x), strict=True))} for x in problems}


def model(candidates, problem):
    return space_of(NORM).times_us(candidates, problem, H200)


def test_each_inner_size_is_left_out_in_turn_and_scored():
    times = near_the_model()
    held = select_stepped((NORM,), H200, SteppedTimes({NORM: times})).heldout
    assert [(x.operation, x.tier, x.num_problems, x.num_unmeasured) for x in held] == [(NORM, 2, 1, 0)]
    assert held[0].worst_problem == "bf16_rms_norm rows 16 cols 2048"
    middle = RowProblem(NORM, 16, 2048)
    first, *others = times[middle]
    # Where it is left out, nothing says that the first kernel takes long there.
    changed = {**times, middle: {first: 5 * max(times[middle].values()), **{x: times[middle][x] for x in others}}}
    (held,) = select_stepped((NORM,), H200, SteppedTimes({NORM: changed})).heldout
    assert held.worst > 1.0
    assert select_stepped((NORM,), H200, SteppedTimes({NORM: changed})).regrets[0].worst < 0.05


def test_sizes_at_the_ends_alone_are_not_left_out():
    assert select_stepped((NORM,), H200, SteppedTimes({NORM: near_the_model(rows=(1, 64))})).heldout == ()
    one_width = near_the_model(cols=(4096,))
    (held,) = select_stepped((NORM,), H200, SteppedTimes({NORM: one_width})).heldout
    assert held.num_problems == 1


def test_an_operation_without_times_has_those_of_the_one_of_another_type_and_says_predicted():
    one, other = two_of_any_width()
    found = select_stepped((TWIN,), H200, SteppedTimes(measured(one, other)))
    assert [key.candidate for key in found.others.kernels[1:]] == sorted((one, other), key=legal(TWIN, H200).index)
    assert found.regrets[0].method == "exact, by imputed times"
    assert (found.provenance, found.heldout) == ("predicted", ())
    steps = [step for column in found.others.table.sections[0].columns for step in column.steps]
    assert {step.provenance for step in steps} == {"predicted"}
    for rows, candidate in ((1, one), (64, other)):
        assert found.others.look_up(RowProblem(TWIN, rows, 1024))[0] == candidate


@pytest.mark.walk
def test_what_the_committed_records_have_is_measured_and_the_rest_by_them_or_the_model():
    asked = (NORM, TWIN, row_operation("fp16_gelu_tanh_mul"))
    found = pipeline.select_stepped(asked, H200, pipeline.records_of(H200, RECORDS))
    assert [x.method.partition(", ")[2] for x in found.regrets] == ["", "by imputed times", "by the cost model"]
    assert [x.operation for x in found.heldout] == [NORM]
    assert (found.provenance, found.record) == ("measured", "h200_rows")
    assert found.conditions[0].device == "NVIDIA H200"
    assert decode(RowTable, parse_json(write_json(found.others.table))) == found.others.table
    with pytest.raises(StoreError, match="is a record of h200, not of h100"):
        pipeline.select_stepped((NORM,), load_target("h100"), [RECORDS / "h200_rows.jsonl.gz"])


def test_patterns_say_which_kernels_there_are():
    found = selected(patterns=Patterns.parse("row_looped*"))
    assert {x.candidate.family for x in found.kernels[1:]} == {"row_looped"}


def test_ties_go_to_what_is_shipped_and_limits_are_kept():
    one, other = two_of_any_width()
    problems = [RowProblem(NORM, r, c) for r in (1, 64) for c in (1024, 4096)]
    tie = {NORM: {problem: {one: 5.0, other: 5.0} for problem in problems}}
    for shipped in (one, other):
        earlier = select_stepped((NORM,), H200, SteppedTimes({NORM: {key: {shipped: 1.0} for key in problems}}))
        found = selected(tie, incumbent=earlier)
        assert {found.look_up(x)[0] for x in problems} == {shipped}
    of_another = select_stepped((TWIN,), H200, with_heldout=False)
    assert selected(tie, incumbent=of_another) == selected(tie)
    two = measured(one, other)
    assert len(selected(two).kernels) == 3
    assert len(selected(two, limits=SelectionLimits(max_row_kernels=1)).kernels) == 2


def test_what_has_no_table_is_refused():
    with pytest.raises(SelectionError, match="the selection has no table for fp16_rms_norm"):
        selected().look_up(RowProblem(TWIN, 1, 64))
