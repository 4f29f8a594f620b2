"""A selection for a few problems: they keep their kernels and times, and little else is kept."""

from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Ladder, Row, Scope, Section, look_up
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.select.reuse import narrow as module
from aot.select.reuse.narrow import narrowed
from aot.select.selection import parse_selection, write_selection
from tests.unit.accepted import named
from tests.unit.selections import SELECTION
from tests.unit.twins import BF16, CONDITIONS, problem_of

H200 = load_target("h200")
NAMES = (
    "simt_64x64_c1x1_direct",
    "sm90_one_tile_128x128_c1x1_direct",
    "sm90_partial_tile_128x256_c1x1_cooperative",
    "sm90_quack_128x128_c1x1_pingpong",
    "sm90_quack_64x64_c1x1_pingpong",
    "sm90_quack_64x64_c1x1_pingpong_serial4",
)
KERNELS = tuple(KernelKey(BF16, named(x)) for x in NAMES)
SIMT, ONE, BIG, PLAIN, SMALL, SPLIT = range(6)


def row(kernel, provenance, runner_up, time_us=9.0):
    return Row(kernel, BIG if kernel == SPLIT else kernel, time_us, provenance, runner_up, 10.0)


LADDERS = (
    Ladder(
        512,
        512,
        (16, 256, 512),
        (row(ONE, "measured", SMALL), row(SMALL, "measured", ONE), row(PLAIN, "predicted", ONE)),
    ),
    Ladder(768, 512, (64,), (row(SMALL, "measured", ONE),)),
)
GRID = Grid(
    (512, 1024), (512,), (Column((64, 256, 512), (BIG, BIG, SMALL), (0, 3, 0)), Column((64, 256), (SMALL, PLAIN), None))
)
WHOLE = replace(
    SELECTION,
    target="h200",
    kernels=KERNELS,
    table=DispatchTable((Section(BF16, LADDERS, GRID, SIMT),)),
    provenance="measured",
    conditions=(CONDITIONS,),
)


def kernel_of(selection, problem):
    (section,) = selection.table.sections
    choice = look_up(section, problem, tuple((1, 1) for _ in selection.kernels))
    return selection.kernels[choice.kernel].candidate.name


@pytest.fixture(autouse=True)
def _one_common(monkeypatch):
    monkeypatch.setattr(module, "NUM_COMMON", 1)


def test_the_problems_keep_their_kernels_and_their_times(tmp_path):
    asked = [problem_of(16, 512, 512), problem_of(512, 512, 512), problem_of(200, 1024, 512)]
    found = narrowed(WHOLE, asked, H200)
    assert [kernel_of(found, x) for x in asked] == [NAMES[ONE], NAMES[PLAIN], NAMES[PLAIN]]
    assert {x.candidate.name for x in found.kernels} == {NAMES[x] for x in (SIMT, ONE, BIG, PLAIN)}
    (ladder,) = found.table.sections[0].ladders
    assert (ladder.n, ladder.k, ladder.m_edges) == (512, 512, (16, 256, 512))
    first, second, third = ladder.rows
    assert (first.provenance, first.time_us) == ("measured", 9.0)
    assert (first.runner_up, first.runner_up_us) == (first.kernel, 9.0)  # the other one is left out
    assert (second.provenance, third.provenance) == ("predicted", "predicted")
    assert found.coverage.text.startswith("3 problems: 1 measured, 2 predicted")
    write_selection(tmp_path / "x.json", found)
    assert parse_selection((tmp_path / "x.json").read_bytes(), "x") == found


def test_other_sizes_get_what_is_kept_and_equal_steps_are_one():
    found = narrowed(WHOLE, [problem_of(16, 512, 512)], H200)
    assert {x.candidate.name for x in found.kernels} == {NAMES[x] for x in (SIMT, ONE, BIG)}
    first, second = found.table.sections[0].grid.columns
    assert first.m_edges[:2] == (64, 256)  # of one kernel in two orders of tiles
    assert first.tile_orders[:2] == (0, 3)
    assert second.m_edges == (256,) or len(set(second.kernels)) == 2
    every = {kernel_of(found, problem_of(m, n, 512)) for m in (1, 64, 100, 256, 512) for n in (8, 512, 1024)}
    assert every <= {NAMES[ONE], NAMES[BIG]}


def test_a_kernel_with_a_workspace_keeps_the_one_behind_it():
    rows = (row(SPLIT, "measured", SMALL), *LADDERS[0].rows[1:])
    section = Section(BF16, (replace(LADDERS[0], rows=rows),), GRID, SIMT)
    found = narrowed(replace(WHOLE, table=DispatchTable((section,))), [problem_of(16, 512, 512)], H200)
    first = found.table.sections[0].ladders[0].rows[0]
    assert (NAMES.index(found.kernels[first.kernel].candidate.name), first.provenance) == (SPLIT, "measured")
    assert NAMES.index(found.kernels[first.general].candidate.name) == BIG


def test_it_says_measured_only_where_a_row_is_and_no_scores_of_another_table():
    found = narrowed(WHOLE, [problem_of(200, 1024, 512)], H200)
    assert (found.provenance, found.conditions) == ("predicted", ())
    assert (found.regrets, found.curves, found.heldout, found.references, found.prices) == ((), (), (), (), None)
    assert narrowed(WHOLE, [problem_of(16, 512, 512)], H200).conditions == (CONDITIONS,)


def test_a_problem_that_no_tuned_kernel_takes_is_counted_and_asks_for_none():
    found = narrowed(WHOLE, [problem_of(16, 7, 512), problem_of(16, 512, 512)], H200)
    assert found.coverage.num_general == 1
    assert Operation.BF16_KK in {x.operation for x in found.table.sections}


def test_rows_between_sectors_keep_their_section_where_some_are_asked_for():
    (section,) = WHOLE.table.sections
    grid = Grid((512,), (512,), (Column((64,), (PLAIN,)),))
    between = Section(BF16, (), grid, SIMT, Scope(1, batch_invariant=False, between_sectors=True))
    both = replace(WHOLE, table=DispatchTable((section, between)))
    found = narrowed(both, [problem_of(16, 512, 504)], H200)
    assert [x.between_sectors for x in found.table.sections] == [False, True]
    assert found.kernels[found.table.sections[1].grid.columns[0].kernels[0]].candidate == KERNELS[PLAIN].candidate
    assert not found.table.sections[0].ladders
    assert [x.between_sectors for x in narrowed(both, [problem_of(16, 512, 512)], H200).table.sections] == [False]
