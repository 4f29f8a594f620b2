from dataclasses import replace

import numpy as np
import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section, Tier
from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.select.score.diff import Change, Difference, compare
from aot.select.selection import SELECTION_VERSION, Selection
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.select.times.inputs import Timed
from aot.space.enumeration import legal
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

H200 = load_target("h200")
FALLBACK = named("simt_64x64_c1x1_direct")
A, B, C = (
    named(f"sm90_quack_{name}")
    for name in ("128x128_c1x1_pingpong", "64x16_c1x1_pingpong_swap", "128x256_c2x1_cooperative")
)
FP16 = Operation.of(ElementType.FLOAT16)
NAMES = {A: f"bf16_kk_{A.name}", B: f"bf16_kk_{B.name}", C: f"bf16_kk_{C.name}"}


class Twice:
    """A model by which the candidates take 1, 2, 3 ... us, in ascending order."""

    def times_us(self, candidates, problems, asked=None):
        del asked
        order = sorted([A, B, C])
        return np.array([[1.0 + order.index(c) for c in candidates] for _ in problems])


def timed(times, model=None):
    return Timed(times, times, "measured", model or Twice())


EDGES = (1024,), (1024, 4096)


def selection(ladders, columns, operation=BF16, shipped=(A, B, C), edges=EDGES):
    """Make a selection: ladders as {(n, k): {m: kernel}}, the grid's columns as {m: kernel}."""
    index = {candidate: 1 + i for i, candidate in enumerate(shipped)}

    def row(candidate):
        return Row(index[candidate], index[candidate], 1.0, "predicted", index[candidate], 1.0)

    rungs = tuple(Ladder(n, k, tuple(x), tuple(map(row, x.values()))) for (n, k), x in sorted(ladders.items()))
    steps = tuple(Column(tuple(x), tuple(index[y] for y in x.values())) for x in columns)
    section = Section(operation, rungs, Grid(*edges, steps), 0)
    kernels = tuple(KernelKey(operation, x) for x in (FALLBACK, *shipped))
    return Selection(
        SELECTION_VERSION, "h200", "measured", "r", (CONDITIONS,), (), (), (), kernels, DispatchTable((section,))
    )


CELLS = [{16: A, 256: B}] * 2
OLD = selection({(512, 512): {64: A, 128: B}}, CELLS)


def test_no_change_is_no_churn():
    found = compare(OLD, OLD, {BF16: [timed({})]})
    assert found == Difference(6, (), (), (), ())
    assert found.churn == 0


def test_the_order_of_the_kernels_does_not_matter():
    new = selection({(512, 512): {64: A, 128: B}}, CELLS, shipped=(C, B, A))
    assert compare(OLD, new, {}).changes == ()


def test_a_changed_row_counts_once_with_its_cost_by_measured_times():
    corner = problem_of(128, 512, 512)
    new = selection({(512, 512): {64: A, 128: C}}, CELLS)
    found = compare(OLD, new, {BF16: [timed({corner: {A: 1.0, B: 10.0, C: 12.0}})]})
    assert found.changes == (Change(Tier.TUNED, corner, B, C, pytest.approx(0.2), True),)
    assert found.churn == 1 / 6


def test_a_changed_cell_without_a_time_is_judged_by_the_model():
    first, second, third = sorted([A, B, C])
    assert (first, second, third) == (B, A, C)
    found = compare(OLD, selection({(512, 512): {64: A, 128: B}}, [CELLS[0], {16: C, 256: B}]), {BF16: [timed({})]})
    assert found.changes == (Change(Tier.GRID, problem_of(16, 1024, 4096), A, C, pytest.approx(3 / 2 - 1), False),)
    # One of the two times is known: the other is the model's, and the cost is called learned.
    times = {problem_of(16, 1024, 4096): {A: 4.0}}
    found = compare(OLD, selection({(512, 512): {64: A, 128: B}}, [CELLS[0], {16: C, 256: B}]), {BF16: [timed(times)]})
    assert [(x.cost, x.is_measured) for x in found.changes] == [(pytest.approx(3 / 4 - 1), False)]


def test_several_records_judge_by_their_geometric_mean():
    corner = problem_of(64, 512, 512)
    new = selection({(512, 512): {64: B, 128: B}}, CELLS)
    records = [timed({corner: {A: 10.0, B: 20.0}}), timed({corner: {A: 10.0, B: 12.5}})]
    (change,) = compare(OLD, new, {BF16: records}).changes
    assert (change.cost, change.is_measured) == (pytest.approx((2 * 1.25) ** 0.5 - 1), True)
    (change,) = compare(OLD, new, {BF16: [records[0], timed({})]}).changes
    assert (change.cost, change.is_measured) == (pytest.approx((2 * 0.5) ** 0.5 - 1), False)


def test_without_times_a_change_has_no_cost():
    new = selection({(512, 512): {64: B, 128: B}}, CELLS)
    for times in ({}, {BF16: []}, {FP16: [timed({})]}):
        found = compare(OLD, new, times)
        assert [(x.old, x.new, x.cost, x.is_measured) for x in found.changes] == [(A, B, None, False)]
        assert found.churn == 1 / 6


def test_buckets_are_cut_where_either_table_has_an_edge():
    new = selection({(512, 512): {32: A, 96: B, 128: B}}, [{64: A, 256: B}], edges=((1024,), (4096,)))
    found = compare(OLD, new, {})
    # The ladder is cut at 32, 64, 96, 128; the grid at m 16, 64, 256 and k 1024, 4096.
    assert found.num_entries == 4 + 3 * 2
    assert [(x.tier, x.corner, x.old, x.new) for x in found.changes] == [
        (Tier.TUNED, problem_of(64, 512, 512), A, B),
        (Tier.GRID, problem_of(64, 1024, 1024), B, A),
        (Tier.GRID, problem_of(64, 1024, 4096), B, A),
    ]


def test_a_column_is_cut_at_its_own_edges_alone():
    new = selection({(512, 512): {64: A, 128: B}}, [CELLS[0], {16: A, 32: C, 256: B}])
    found = compare(OLD, new, {})
    assert found.num_entries == 2 + 2 + 3
    assert [(x.tier, x.corner, x.old, x.new) for x in found.changes] == [(Tier.GRID, problem_of(32, 1024, 4096), B, C)]


def test_edges_that_differ_and_change_nothing_are_no_change():
    new = selection({(512, 512): {64: A, 100: B, 128: B}}, [{8: A, 16: A, 256: B}] * 2)
    found = compare(OLD, new, {})
    assert (found.num_entries, found.changes) == (3 + 6, ())


def test_a_ladder_that_only_one_has_is_no_entry_and_hides_no_cell():
    new = selection({(512, 512): {64: A, 128: B}, (1024, 1024): {16: C}}, [{16: B, 256: B}, CELLS[1]])
    found = compare(OLD, new, {})
    # The cells' corners at (n 1024, k 1024) are answered by the new ladder in one of the two: they are not compared.
    assert (found.num_entries, found.changes) == (2 + 2, ())


def test_kernels_and_operations_of_one_side_are_named():
    old = selection({}, [{8: A}], shipped=(A, B), edges=((8,), (8,)))
    new = selection({}, [{8: A}], shipped=(A, C), edges=((8,), (8,)))
    found = compare(old, new, {})
    assert (found.added, found.dropped, found.operations) == ((NAMES[C],), (NAMES[B],), ())
    other = selection({}, [{8: A}], FP16, (A,), ((8,), (8,)))
    found = compare(old, other, {})
    assert (found.num_entries, found.changes, found.operations) == (0, (), (BF16, FP16))
    assert found.churn == 0
    both = replace(old, table=DispatchTable((*old.table.sections, *other.table.sections)))
    assert compare(both, other, {}).operations == (BF16,)


SILU_MUL = row_operation("bf16_silu_mul")


def rows(*candidates, operation=SILU_MUL):
    """Select for an operation on rows, by times in which the i-th candidate is the best at the i-th number of rows."""
    problems = [RowProblem(operation, 16**i, 4096) for i in range(len(candidates))]
    times = {problem: {x: 5.0 + (i != j) for i, x in enumerate(candidates)} for j, problem in enumerate(problems)}
    return select_stepped((operation,), H200, SteppedTimes({operation: times}), with_heldout=False)


@pytest.mark.slow
def test_tables_of_operations_on_rows_are_compared_at_the_corners_of_either():
    one, other = legal(row_operation("bf16_silu_mul"), H200)[:2]
    found = compare(rows(one), rows(one), {})
    assert (found.changes, found.operations) == ((), ())
    assert found.num_entries > 20
    found = compare(rows(one), rows(one, other), {})
    change = next(x for x in found.changes if x.corner == RowProblem(row_operation("bf16_silu_mul"), 16, 4096))
    assert change == Change(Tier.GRID, change.corner, one, other, None, is_measured=False)
    assert (found.added, found.dropped) == ((f"bf16_silu_mul_{other.name}",), ())
    twin = rows(one, operation=row_operation("fp16_silu_mul"))
    found = compare(rows(one), twin, {})
    assert found.operations == (row_operation("bf16_silu_mul"), row_operation("fp16_silu_mul"))
