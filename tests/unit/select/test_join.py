from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Scope, Section
from aot.core.operation import Operation
from aot.core.table_check import table_fault
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.join import joined, restricted, with_unaligned_of
from aot.select.runs import Run
from aot.select.selection import FamilyKernel, Regret
from aot.select.selector import fallback_key
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import legal
from tests.unit.accepted import named
from tests.unit.selections import PLAIN, SELECTION
from tests.unit.twins import BF16, CONDITIONS

FP16, BIAS = Operation.FP16_KK, Operation.BF16_KK_BIAS
SILU, GELU = row_operation("bf16_silu_mul"), row_operation("fp16_gelu_tanh_mul")
SMALL = named("sm90_quack_64x64_c1x1_pingpong")
H200 = load_target("h200")


def section(operation, fallback, first, second):
    row = Row(first, first, 7.0, "measured", second, 8.0)
    return Section(operation, (Ladder(64, 64, (16,), (row,)),), Grid((1,), (1,), (Column((1,), (second,)),)), fallback)


def whole():
    """Make a selection of three operations, whose kernels are not in the sections' order."""
    kernels = (
        KernelKey(FP16, PLAIN),
        fallback_key(FP16, H200),
        KernelKey(BF16, SMALL),
        KernelKey(BIAS, PLAIN),
        KernelKey(BF16, PLAIN),
        fallback_key(BF16, H200),
        fallback_key(BIAS, H200),
    )
    table = DispatchTable((section(BF16, 5, 4, 2), section(FP16, 1, 0, 0), section(BIAS, 6, 3, 3)))
    regrets = tuple(Regret(x, 1, 1, 0.0, 0.0, "exact", 0.0) for x in (BF16, FP16, BIAS))
    return replace(SELECTION, kernels=kernels, table=table, regrets=regrets)


def dispatched(selection):
    """Return what each operation's rows and grid name, by kernel."""
    kernels = selection.kernels
    return {
        x.operation: (
            [(kernels[row.kernel], kernels[row.runner_up]) for ladder in x.ladders for row in ladder.rows],
            [kernels[i] for column in x.grid.columns for i in column.kernels],
            kernels[x.fallback],
        )
        for x in selection.table.sections
    }


def is_sound(selection):
    return not table_fault(selection.table, [FamilyKernel.of(key) for key in selection.kernels])


@pytest.mark.parametrize("kept", [(BF16,), (FP16, BIAS), (BF16, FP16, BIAS)])
def test_some_operations_of_a_selection_dispatch_as_before(kept):
    found = restricted(whole(), kept)
    assert set(found.operations) == set(kept)
    assert dispatched(found) == {x: row for x, row in dispatched(whole()).items() if x in kept}
    assert {key.operation for key in found.kernels} == set(kept)
    assert {x.operation for x in found.regrets} == set(kept)
    assert is_sound(found)


def test_what_is_parted_joins_to_the_same():
    parts = restricted(whole(), (BIAS,)), restricted(whole(), (BF16, FP16))
    found = joined(*parts)
    assert dispatched(found) == dispatched(whole())
    assert found.operations == (BF16, FP16, BIAS)
    assert len(found.kernels) == len(whole().kernels)
    assert {x.operation for x in found.regrets} == {BF16, FP16, BIAS}
    assert is_sound(found)


def test_tables_for_what_is_not_aligned_stay_where_a_selection_is_made_without():
    """A wheel once lost those of `kn`, whose odd sizes the general kernel then computed."""
    earlier, scope = whole(), Scope(1, False, 2)
    unaligned = [replace(x, scope=scope) for x in earlier.table.sections if x.operation in (BF16, BIAS)]
    table = DispatchTable((*earlier.table.sections, *unaligned))
    earlier = replace(earlier, table=table)
    anew = restricted(whole(), (FP16, BF16))
    found = with_unaligned_of(anew, earlier)
    assert [(x.operation, x.loads) for x in found.table.sections] == [(BF16, 0), (BF16, 2), (FP16, 0)]
    assert found.kernels[: len(anew.kernels)] == anew.kernels
    (moved,) = (x for x in found.table.sections if x.loads)
    of_one = replace(found, table=DispatchTable((replace(moved, scope=None),)))
    assert dispatched(of_one)[BF16] == dispatched(whole())[BF16]
    assert with_unaligned_of(anew, whole()) == anew


def test_a_joined_selection_is_measured_where_a_part_is():
    predicted = replace(restricted(whole(), (BIAS,)), provenance="predicted", record="cost-model-v1", conditions=())
    own = restricted(whole(), (BF16,))
    for found in (joined(own, predicted), joined(predicted, own)):
        assert (found.provenance, found.record, found.conditions) == ("measured", "mine", SELECTION.conditions)
    assert joined(predicted, replace(own, provenance="predicted", record="x")).provenance == "predicted"


def test_what_the_cost_model_chose_is_no_regret_beside_what_was_measured():
    regrets = tuple(
        Regret(x, 1, 1, 0.0, 0.0, method, 0.0) for x, method in ((BIAS, "exact"), (FP16, "exact, by imputed times"))
    )
    parts = restricted(whole(), (BF16,)), restricted(whole(), (BIAS, FP16))
    found = joined(parts[0], replace(parts[1], provenance="predicted", regrets=regrets))
    known = {x.operation: (x.method, x.is_known) for x in found.regrets}
    assert known == {
        BF16: ("exact", True),
        BIAS: ("exact, by the cost model", False),
        FP16: ("exact, by imputed times", True),
    }


def rows_dispatched(selection):
    """Return what each operation on rows names, by kernel."""
    found, kernels = selection.others, selection.others.kernels
    return {
        x.operation: [[(step.rows, kernels[step.kernel].name) for step in column.steps] for column in x.columns]
        for x in found.table.sections
    }


@pytest.mark.slow
def test_operations_on_rows_are_joined_to_products_and_taken_from_them():
    rows = select_stepped((SILU, GELU), H200, with_heldout=False)
    found = joined(rows, whole())
    assert found.operations == (BF16, FP16, BIAS, SILU, GELU)
    assert (found.record, found.conditions) == (whole().record, whole().conditions)
    assert len(found.all_kernels) == len(whole().kernels) + len(rows.others.kernels)
    assert rows_dispatched(found) == rows_dispatched(rows)
    assert restricted(found, (BF16, FP16, BIAS)).stepped is None
    one = restricted(found, (GELU,))
    assert (one.kernels, one.operations) == ((), (GELU,))
    assert {x.operation for x in one.others.kernels} == {GELU}
    assert rows_dispatched(one) == {GELU: rows_dispatched(rows)[GELU]}
    assert rows_dispatched(joined(one, restricted(found, (SILU,)))) == rows_dispatched(rows)
    assert joined(one, restricted(rows, (SILU,))).others.table.sections[0].operation is SILU


@pytest.mark.slow
def test_measured_rows_beside_predicted_products_stay_measured():
    times = {SILU: {RowProblem(SILU, 64, 4096): {x: 5.0 + i for i, x in enumerate(legal(SILU, H200))}}}
    known = SteppedTimes(times, name="own")
    rows = replace(select_stepped((SILU,), H200, known, with_heldout=False), conditions=(CONDITIONS,))
    predicted = replace(whole(), provenance="predicted", record="cost-model-v1", conditions=())
    for found in (joined(rows, predicted), joined(predicted, rows)):
        again = joined(found, select_stepped((GELU,), H200, with_heldout=False))
        for each in (found, again):
            assert (each.provenance, each.record, each.conditions) == ("measured", "own", (CONDITIONS,))
            methods = {x.operation: x.method for x in each.regrets}
            assert (methods[SILU], methods[BF16]) == ("exact", "exact, by the cost model")


def test_runs_stay_with_what_they_chose():
    run = Run({}, {}, {}, (BF16, FP16))
    whole = replace(SELECTION, runs=(run,))
    assert restricted(whole, [FP16]).runs == (replace(run, operations=(FP16,)),)
    assert restricted(whole, []).runs is None
    both = joined(restricted(whole, [BF16]), restricted(whole, [FP16]))
    assert [x.operations for x in both.runs] == [(BF16,), (FP16,)]
