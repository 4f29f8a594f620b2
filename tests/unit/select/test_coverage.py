import pytest

from aot.core.candidate import KernelKey, changed
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Section
from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.sizes import usual_problems
from aot.select import coverage as module
from aot.select.coverage import Coverage, coverage, coverage_of, multiples_of
from aot.select.join import joined
from aot.select.selection import SELECTION_VERSION, Selection
from aot.select.selector import fallback_key
from aot.select.table.stepped import SteppedTimes, select_stepped
from aot.space.enumeration import legal
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
PLAIN = named("sm90_quack_128x128_c1x1_pingpong")
KERNELS = (fallback_key(Operation.BF16_KK, H200), KernelKey(BF16, PLAIN))
MULTIPLES = multiples_of(KERNELS)
MEASURED, PREDICTED = (Row(1, 1, 2.0, provenance, 1, 2.0) for provenance in ("measured", "predicted"))
GRID = Grid((1,), (1,), (Column((1,), (1,)),))
LADDER = Ladder(4096, 4096, (16, 32, 64), (MEASURED, PREDICTED, MEASURED))
TABLE = DispatchTable((Section(BF16, (LADDER,), GRID, 0),))
SELECTION = Selection(SELECTION_VERSION, "h200", "measured", "r", (), (), (), (), KERNELS, TABLE)
GATE = row_operation("bf16_silu_mul")
FP16, MK, KN = (
    Operation.of(ElementType.FLOAT16),
    Operation.of(ElementType.BFLOAT16, Layout.MK),
    Operation.BF16_KN,
)


@pytest.fixture(scope="module")
def rows():
    """Choose kernels of an operation on rows, by one time that was measured."""
    wide = next(x for x in legal(GATE, H200) if x.name == "row_registers_256x1_v8x2")
    return select_stepped((GATE,), H200, SteppedTimes({GATE: {RowProblem(GATE, 16, 4096): {wide: 3.0}}}))


def answer(table, multiples, problem):
    found = module.answer(table, multiples, problem)
    return found.kind, found.reason


def test_the_kernel_that_answers_is_told_and_the_row_where_it_is_of_the_problem():
    found = [
        module.answer(TABLE, MULTIPLES, problem_of(*size)) for size in ((16, 4096, 4096), (15, 4096, 4096), (16, 7, 64))
    ]
    assert [(x.kernel, x.row) for x in found] == [(1, MEASURED), (1, None), (0, None)]
    assert module.answer(TABLE, MULTIPLES, problem_of(16, 4096, 4096, FP16)).kernel is None


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (problem_of(16, 4096, 4096), ("measured", "")),
        (problem_of(64, 4096, 4096), ("measured", "")),
        (problem_of(32, 4096, 4096), ("predicted", "")),
        (problem_of(15, 4096, 4096), ("predicted", "")),  # the row's time is of m 16
        (problem_of(128, 4096, 4096), ("predicted", "")),  # past the last edge
        (problem_of(16, 4096, 4088), ("predicted", "")),
        (problem_of(16, 7, 4096), ("general", "n 7 is not a multiple of 8")),
        (problem_of(16, 4095, 4097), ("general", "n 4095 and k 4097 are not a multiple of 8")),
        (problem_of(1, 7, 4096), ("general", "n 7 is not a multiple of 8")),
        (problem_of(16, 4096, 4096, KN), ("general", "no kernels of layout kn: they were not asked for")),
        (problem_of(1, 4096, 4096, MK), ("predicted", "")),  # a single row of A is contiguous along k too
        (problem_of(4096, 16, 4096), ("predicted", "")),
        (problem_of(16, 4096, 4096, FP16), ("refused", "no kernels of fp16")),
    ],
)
def test_every_problem_is_answered_in_one_of_four_ways(problem, expected):
    assert answer(TABLE, MULTIPLES, problem) == expected


def test_a_single_column_is_measured_where_the_exchanged_row_is():
    table = DispatchTable((Section(BF16, (Ladder(4096, 4096, (1,), (MEASURED,)),), GRID, 0),))
    assert answer(table, MULTIPLES, problem_of(4096, 1, 4096)) == ("measured", "")


def test_a_row_whose_kernel_needs_whole_tiles_is_measured_only_where_they_are_whole():
    direct = next(x for x in (KERNELS[1].candidate, changed(PLAIN, use_tma_store=False)) if not x.gemm.use_tma_store)
    row = Row(2, 1, 2.0, "measured", 1, 2.0)
    table = DispatchTable((Section(BF16, (Ladder(4096, 4096, (16,), (row,)),), GRID, 0),))
    assert answer(table, (*MULTIPLES, (128, 128)), problem_of(16, 4096, 4096)) == ("predicted", "")
    assert answer(table, (*MULTIPLES, (16, 128)), problem_of(16, 4096, 4096)) == ("measured", "")
    assert direct.gemm.tile_m == 128


def test_counts_and_their_line():
    asked = [problem_of(16, 4096, 4096), problem_of(15, 4096, 4096), problem_of(16, 7, 4096), problem_of(17, 7, 4096)]
    found = coverage(SELECTION, [*asked, problem_of(16, 4096, 4096, FP16)])
    assert found == Coverage(
        1, 1, "bf16_kk m15 n4096 k4096", {"n 7 is not a multiple of 8": 2}, {"no kernels of fp16": 1}
    )
    assert found.text == (
        "5 problems: 1 measured, 1 predicted (first bf16_kk m15 n4096 k4096), 2 by the slow general kernel: n 7 is not "
        "a multiple of 8, 1 not answered: no kernels of fp16"
    )
    assert (found.num_problems, found.is_measured) == (5, False)
    whole = coverage(SELECTION, asked[:1])
    assert (whole.text, whole.is_measured) == ("1 problem: 1 measured", True)


def test_operations_on_rows_are_answered_by_measured_steps_by_others_or_by_their_fallback(rows):
    asked = [RowProblem(GATE, *size) for size in ((16, 4096), (15, 4096), (16, 4088), (16, 4097))]
    assert [rows.answer(x).kind for x in asked] == ["measured", "predicted", "predicted", "general"]
    assert rows.answer(asked[3]).reason == "no tuned kernel of bf16_silu_mul takes 4097 columns"
    other = rows.answer(RowProblem(row_operation("bf16_rms_norm"), 16, 4096))
    assert (other.kind, other.reason, other.kernel) == ("refused", "no kernels of bf16_rms_norm", None)


def test_a_shape_set_asks_for_its_products_and_for_the_usual_sizes_of_operations_on_rows(rows):
    shapes = load_shape_set("representative")
    of_rows = coverage_of(rows, shapes)
    assert (of_rows.num_problems, of_rows.num_measured) == (len(usual_problems(GATE)), 1)
    both = coverage_of(joined(SELECTION, rows), shapes, (BF16,))
    assert both.num_problems == len(shapes.problems(BF16)) + of_rows.num_problems
    assert (both.num_refused, coverage_of(SELECTION, shapes, (FP16,)).num_measured) == (0, 0)


def test_many_reasons_are_named_by_their_number():
    problems = [problem_of(16, 8 * i + 1, 64) for i in range(6)] + [problem_of(17, 9, 64)]
    assert coverage(SELECTION, problems).text == (
        "7 problems: 0 measured, 1 predicted (first bf16_kk m16 n1 k64), 6 by the slow general kernel: n 9 is not a "
        "multiple of 8 (2); n 17 is not a multiple of 8 (1); n 25 is not a multiple of 8 (1); n 33 is not a multiple "
        "of 8 (1); and 1 more reasons"
    )
