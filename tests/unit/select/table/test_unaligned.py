"""Tables for operands that are not aligned: which problems get which section, and what may stand in it."""

from dataclasses import replace

import pytest

from aot.core.alignment import section_loads, unaligned_loads
from aot.core.candidate import KernelKey
from aot.core.dispatch import LOADS, Column, DispatchTable, Grid, Section
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.table_check import table_fault
from aot.core.target import load_target
from aot.families import family_of
from aot.select import pipeline
from aot.select.coverage import GENERAL, answer
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.score.explain import explained
from aot.select.selection import FamilyKernel, read_selection
from aot.select.table import unaligned
from aot.select.table.unaligned import UnalignedTimes
from aot.space.cost import DEFAULTS
from aot.space.enumeration import Patterns, takes_loads
from tests.unit.invoked import coarse_grid
from tests.unit.twins import problem_of

THOR = load_target("thor")
TRIED = ((1, 14, 2048), (256, 14, 2048), (50, 1001, 1280), (16, 4100, 4096), (64, 1152, 588), (8, 512, 75), (1, 7, 588))
"""(m, n, k) that fell to the general kernel."""


@pytest.mark.parametrize(
    ("m", "n", "k", "operation", "loads"),
    [
        (16, 64, 64, Operation.BF16_KK, 0),
        (16, 7, 64, Operation.BF16_KK, 16),
        (16, 64, 588, Operation.BF16_KK, 8),
        (16, 64, 98, Operation.BF16_KK, 4),
        (16, 64, 75, Operation.BF16_KK, 2),
        (1, 64, 75, Operation.BF16_KK, 2),
        (16, 7, 64, Operation.BF16_KN, 2),
        (16, 7, 75, Operation.E4M3_BF16_KK, 0),
        (16, 7, 75, Operation.BF16_KK_BATCHED, 2),
        (16, 7, 75, Operation.BF16_KK_GROUPED, 0),
    ],
)
def test_a_problem_gets_the_section_of_what_its_rows_begin_at(m, n, k, operation, loads):
    assert section_loads(Problem(operation, m, n, k), [operation]) == loads


@pytest.mark.parametrize(
    ("m", "n", "k", "loads"),
    [(1, 64, 64, 0), (1, 64, 36, 8), (1, 64, 75, 2), (17, 7, 64, 16), (17, 64, 100, 8), (12, 1, 64, 16)],
)
def test_of_a_batch_each_product_begins_at_an_aligned_address_too(m, n, k, loads):
    """Rows of one product alone have no stride, but those of a batch are steps apart."""
    assert section_loads(Problem(Operation.BF16_KK_BATCHED, m, n, k, 3), [Operation.BF16_KK_BATCHED]) == loads


def test_one_row_of_x_has_no_stride():
    assert unaligned_loads(problem_of(1, 4096, 75)) == 2  # the weight has
    assert section_loads(problem_of(16, 1, 64), [Operation.BF16_KK]) == 0  # a column of D is a row of B A^T


@pytest.fixture(scope="module")
def thor():
    """Give a predicted selection of one operation with tables for what is not aligned."""
    with pytest.MonkeyPatch.context() as patch:
        coarse_grid(patch)
        guessed = unaligned.predicted([Operation.BF16_KK], THOR, Patterns())
        whole = read_selection(pipeline.COMMITTED / "h200.json.gz")
        section = next(x for x in whole.table.sections if x.operation is Operation.BF16_KK and not x.loads)
        grid = Grid((1,), (1,), (Column((1,), (0,)),))
        table = DispatchTable((Section(Operation.BF16_KK, (), grid, 0),))
        base = replace(whole, target="thor", kernels=(whole.kernels[section.fallback],), table=table)
        return unaligned.renewed(base, [Operation.BF16_KK], KnownTimes({}, unaligned=guessed), THOR, Objective())


def test_times_of_what_is_not_aligned_are_predicted_by_the_constants_that_are_given():
    few = Patterns.parse("*64x64*")
    slower = replace(DEFAULTS, ramp_us=DEFAULTS.ramp_us + 50.0)
    found, other = (unaligned.predicted([Operation.BF16_KK], THOR, few, constants=x) for x in (DEFAULTS, slower))
    rows = [(rows, other[loads][Operation.BF16_KK]) for loads in found for rows in (found[loads][Operation.BF16_KK],)]
    assert rows
    for before, after in rows:
        assert all(min(after[problem].values()) > min(row.values()) + 40 for problem, row in before.items())


@pytest.mark.slow
def test_sections_are_made_of_kernels_that_take_their_operands(thor):
    own = [x for x in thor.table.sections if x.loads]
    assert [x.loads for x in own] == [2, 16]
    for section in own:
        named = {i for column in section.grid.columns for i in column.kernels}
        assert named
        assert all(takes_loads(thor.kernels[i].candidate, section.loads) for i in named)
        assert len(named) <= Objective().limits.max_unaligned_kernels
        assert section.grid.n_edges[:2] == (16, 32)
    assert table_fault(thor.table, [FamilyKernel.of(key) for key in thor.kernels]) == ""


@pytest.mark.slow
def test_tables_of_other_operations_stay(thor):
    for others in ([], [Operation.FP16_KK], [Operation.BF16_KN]):
        found = unaligned.renewed(thor, others, KnownTimes({}), THOR, Objective())
        assert (found.kernels, found.table) == (thor.kernels, thor.table)
    without = unaligned.renewed(thor, [Operation.BF16_KK], KnownTimes({}), THOR, Objective())
    assert [x.loads for x in without.table.sections] == [0]


@pytest.mark.slow
def test_a_type_that_was_not_timed_has_the_kernels_of_its_twin(thor):
    fallback = KernelKey(Operation.FP16_KK, thor.kernels[thor.table.sections[0].fallback].candidate)
    kernels = [*thor.kernels, fallback]
    times, sections = UnalignedTimes.of({}, [Operation.FP16_KK], THOR), list(thor.table.sections)
    asked = (Operation.FP16_KK, times, KnownTimes({}), sections, kernels, len(kernels) - 1, THOR, Objective())
    theirs, own = [x for x in sections if x.loads], list(unaligned.sections(*asked))
    assert [x.loads for x in own] == [x.loads for x in theirs]
    for twin, section in zip(theirs, own, strict=True):
        for their, column in zip(twin.grid.columns, section.grid.columns, strict=True):
            named = [kernels[i] for i in column.kernels]
            assert {x.operation for x in named} == {Operation.FP16_KK}
            assert [x.candidate for x in named] == [kernels[i].candidate for i in their.kernels]
        assert kernels[section.fallback] == fallback


@pytest.mark.slow
def test_kernels_for_better_operands_are_refused(thor):
    wrong = [replace(x, scope=replace(x.scope, loads=2)) if x.loads == 16 else x for x in thor.table.sections]
    wrong = [x for x in wrong if x.loads != 2 or x.grid != thor.table.sections[1].grid]
    fault = table_fault(DispatchTable(tuple(wrong)), [FamilyKernel.of(key) for key in thor.kernels])
    assert "the section gives 2 and 1" in fault


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"n_multiple": 2}, {"m_multiple": 64}, {"load_alignment": 4}, {"store_alignment": 2}]
)
def test_a_grid_for_what_is_not_aligned_takes_no_kernel_that_asks_for_more(thor, change):
    place = next(i for i, x in enumerate(thor.table.sections) if x.loads == LOADS[0])
    index = thor.table.sections[place].grid.columns[0].kernels[0]
    kernels = [FamilyKernel.of(key) for key in thor.kernels]
    kernels[index] = replace(kernels[index], **change)
    fault = table_fault(thor.table, kernels)
    assert fault.startswith(f"bf16_kk: grid, column 0: its kernel {index} ")
    assert ("must take all shapes" in fault) == any(x.endswith("multiple") for x in change)


@pytest.mark.slow
def test_the_largest_loads_that_are_given_answer(thor):
    found = {x: thor.table.unaligned_section(Operation.BF16_KK, x) for x in (0, *LOADS)}
    assert {x: y and y.loads for x, y in found.items()} == {0: None, 2: 2, 4: 2, 8: 2, 16: 16}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", TRIED)
@pytest.mark.parametrize("target", ["h200", "h100"])
def test_no_committed_table_leaves_an_odd_size_to_the_general_kernel(target, sizes):
    selection = read_selection(pipeline.COMMITTED / f"{target}.json.gz")
    problem = Problem(Operation.BF16_KK, *sizes)
    multiples = tuple(family_of(key.candidate).multiples(key.candidate) for key in selection.kernels)
    assert answer(selection.table, multiples, problem).kind != GENERAL
    found = explained(selection, problem, load_target(target), {})
    assert "simt" not in found.kernel
    assert "is not a multiple of 8" in found.text or "are not a multiple of 8" in found.text or sizes[0] == 1
