from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aot.core.dispatch import (
    MAX_STEP_M,
    Choice,
    Column,
    DispatchTable,
    Grid,
    Ladder,
    Row,
    Section,
    Tier,
    look_up,
    round_up,
    rounded_up,
)
from aot.core.measurement import Provenance
from aot.core.operation import Layout, Operation
from aot.core.strict_json import DecodeError, decode
from tests.golden.manifest import golden_manifest, row
from tests.unit.twins import BF16, problem_of

SIZES = st.integers(1, 2**31 - 1)
EDGES = st.lists(SIZES, min_size=1, max_size=12, unique=True).map(sorted).map(tuple)
ANY_KERNEL = ((1, 1),) * 8


@pytest.mark.parametrize(("value", "index"), [(1, 0), (16, 0), (17, 1), (64, 1), (65, 2), (100, 2), (10**9, 2)])
def test_rounds_up_to_the_next_edge(value, index):
    assert round_up(value, (16, 64, 100)) == index


@pytest.mark.slow
@given(EDGES, SIZES)
def test_rounding_is_total_and_takes_the_least_edge_that_holds(edges, value):
    index = round_up(value, edges)
    assert 0 <= index < len(edges)
    assert edges[index] >= value or index == len(edges) - 1
    assert index == 0 or edges[index - 1] < value


@given(EDGES, SIZES, SIZES)
def test_rounding_is_monotone(edges, one, other):
    small, large = sorted((one, other))
    assert round_up(small, edges) <= round_up(large, edges)


@given(EDGES, SIZES)
def test_rounding_is_idempotent(edges, value):
    index = round_up(value, edges)
    assert round_up(edges[index], edges) == index


@given(EDGES, SIZES)
def test_rounding_clamps(edges, value):
    assert round_up(edges[-1] + value, edges) == len(edges) - 1


GRID = Grid(
    (128, 4096),
    (128, 512, 4096),
    (
        Column((1, 64), (0, 1)),
        Column((64,), (2,)),
        Column((8, 32, 100), (1, 2, 3)),
        Column((16, 4096), (4, 3)),
        Column((1,), (0,)),
        Column((2, MAX_STEP_M), (3, 4)),
    ),
)
LADDERS = (
    Ladder(64, 512, (8, 32), (row(1, 1, 1.0, 0), row(2, 2, 2.0, 0))),
    Ladder(128, 128, (16,), (row(3, 3, 3.0, 0),)),
)
SECTION = Section(BF16, LADDERS, GRID, fallback=7)


@pytest.mark.parametrize(
    ("n", "k", "column"),
    [(1, 1, 0), (128, 128, 0), (1, 129, 1), (128, 513, 2), (129, 1, 3), (4096, 512, 4), (5000, 5000, 5)],
)
def test_k_runs_fastest_in_the_grid(n, k, column):
    assert GRID.place(n, k) == column


def test_a_row_and_a_step_say_the_order_of_tiles():
    first, second = LADDERS[0].rows
    ladders = (replace(LADDERS[0], rows=(replace(first, tile_order=3), replace(second, tile_order=4))), LADDERS[1])
    columns = (*GRID.columns[:2], replace(GRID.columns[2], tile_orders=(0, 7, 8)), *GRID.columns[3:])
    section = replace(SECTION, ladders=ladders, grid=replace(GRID, columns=columns))
    multiples = (*ANY_KERNEL[:2], (1, 16), *ANY_KERNEL[3:])

    def order(m, n, k, **options):
        return look_up(section, problem_of(m, n, k), multiples, **options).tile_order

    assert [order(m, 64, 512) for m in (8, 9)] == [3, 4]
    assert order(9, 64, 512, aligned=False) == 0
    assert [order(m, 128, 4096) for m in (8, 9, 32, 33, 500)] == [0, 7, 7, 8, 8]
    assert order(8, 128, 128) == 0
    strict = (*ANY_KERNEL[:2], (16, 1), *ANY_KERNEL[3:])
    assert look_up(section, problem_of(9, 64, 512), strict).tile_order == 0  # the general kernel takes its own


def test_the_steps_of_a_grid_are_those_of_all_columns():
    assert GRID.num_steps == 2 + 1 + 3 + 2 + 1 + 2
    assert [GRID.corner(i) for i in range(6)] == [(n, k) for n in (128, 4096) for k in (128, 512, 4096)]


@given(EDGES, EDGES, SIZES, SIZES)
def test_a_column_is_found_from_its_corner_which_is_the_least_that_holds(n_edges, k_edges, n, k):
    grid = Grid(n_edges, k_edges, ())
    column = grid.place(n, k)
    assert column in range(len(n_edges) * len(k_edges))
    corner = grid.corner(column)
    assert corner == (n_edges[round_up(n, n_edges)], k_edges[round_up(k, k_edges)])
    assert grid.place(*corner) == column


@given(EDGES, EDGES, SIZES, SIZES, SIZES, SIZES)
def test_larger_weights_get_no_earlier_column(n_edges, k_edges, n, k, more_n, more_k):
    grid = Grid(n_edges, k_edges, ())
    (low_n, low_k), (n, k) = grid.corner(grid.place(n, k)), (min(n + more_n, 2**31 - 1), min(k + more_k, 2**31 - 1))
    found = grid.corner(grid.place(n, k))
    assert (found[0] >= low_n, found[1] >= low_k) == (True, True)
    assert grid.place(n, k) >= grid.place(low_n, low_k)


@given(EDGES, SIZES, SIZES)
def test_a_larger_m_gets_no_earlier_step_of_its_column(edges, one, other):
    section = Section(BF16, (), Grid((1,), (1,), (Column(edges, tuple(range(len(edges)))),)), 0)
    kernels = [look_up(section, problem_of(m, 8, 8), ((1, 1),) * len(edges)).kernel for m in sorted((one, other))]
    assert kernels == sorted(kernels)
    assert kernels == [round_up(m, edges) for m in sorted((one, other))]


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((8, 64, 512), Choice(1, Tier.TUNED, 0)),
        ((9, 64, 512), Choice(2, Tier.TUNED, 1)),
        ((9999, 64, 512), Choice(2, Tier.TUNED, 1)),
        ((1, 128, 128), Choice(3, Tier.TUNED, 2)),
        ((1, 64, 513), Choice(1, Tier.GRID, 2)),
        ((8, 64, 513), Choice(1, Tier.GRID, 2)),
        ((9, 64, 513), Choice(2, Tier.GRID, 2)),
        ((33, 64, 513), Choice(3, Tier.GRID, 2)),
        ((101, 64, 513), Choice(3, Tier.GRID, 2)),
        ((16, 512, 64), Choice(4, Tier.GRID, 3)),
        ((17, 512, 64), Choice(3, Tier.GRID, 3)),
        ((2**31 - 1, 2**31 - 1, 2**31 - 1), Choice(4, Tier.GRID, 5)),
    ],
)
def test_tuned_ladders_come_before_the_grid(shape, choice):
    assert look_up(SECTION, problem_of(*shape), ANY_KERNEL) == choice


def test_what_is_not_aligned_gets_the_fallback_before_all_else():
    assert look_up(SECTION, problem_of(8, 64, 512), ANY_KERNEL, aligned=False) == Choice(7, Tier.FALLBACK, 0)


@pytest.mark.parametrize(("m", "n", "kernel"), [(256, 128, 1), (255, 128, 0), (256, 127, 0), (512, 256, 1), (1, 1, 0)])
def test_a_kernel_of_whole_tiles_gives_way_to_the_general_one(m, n, kernel):
    ladder = Ladder(n, 64, (1,), (Row(1, 0, 1.0, "measured", 0, 2.0),))
    section = Section(BF16, (ladder,), Grid((1,), (1,), (Column((1,), (0,)),)), 0)
    assert look_up(section, problem_of(m, n, 64), ((1, 1), (256, 128))) == Choice(kernel, Tier.TUNED, 0)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_adding_a_ladder_changes_no_other_shape(m, n, k, ladder_n, ladder_k):
    assume((n, k) != (ladder_n, ladder_k))
    assume((ladder_n, ladder_k) not in {(x.n, x.k) for x in LADDERS})
    added = Ladder(ladder_n, ladder_k, (1,), (row(6, 6, 1.0, 0),))
    more = replace(SECTION, ladders=tuple(sorted((*LADDERS, added), key=lambda x: (x.n, x.k))))
    problem = problem_of(m, n, k)
    before, after = (look_up(x, problem, ANY_KERNEL) for x in (SECTION, more))
    assert (before.kernel, before.tier) == (after.kernel, after.tier)
    if before.tier is Tier.GRID:
        assert before == after


@given(SIZES, SIZES, SIZES)
def test_every_shape_gets_a_kernel(m, n, k):
    assert 0 <= look_up(SECTION, problem_of(m, n, k), ANY_KERNEL).kernel < 5


def test_a_table_knows_its_sections():
    table = golden_manifest().tables[0].table
    assert [table.section(x.operation) for x in table.sections] == list(table.sections)
    with pytest.raises(KeyError, match="bf16_mn"):
        table.section(Operation.of(BF16.element, Layout.MN))


def test_an_edge_of_a_column_is_no_more_than_can_be_packed():
    assert decode(Column, {"m_edges": [1, MAX_STEP_M], "kernels": [0, 1]}) == Column((1, MAX_STEP_M), (0, 1))
    for edge in (0, MAX_STEP_M + 1):
        with pytest.raises(DecodeError, match=rf"m_edges\[0\]: expected a whole number from 1 to 1048575, got {edge}"):
            decode(Column, {"m_edges": [edge], "kernels": [0]})


@pytest.mark.parametrize(
    ("us", "expected"),
    [(0.0, 0.0), (0.001, 0.001), (0.999, 0.999), (1.0, 1.0), (1.001, 1.01), (2.0051, 2.01), (12345.678, 12400.0)],
)
def test_times_are_rounded_up_to_three_digits(us, expected):
    assert rounded_up(us) == expected
    assert rounded_up(expected) == expected


def test_a_table_with_shorter_times_picks_the_same():
    measured = Row(0, 0, 12.345, Provenance.MEASURED, 1, 23.456, library_us=13.579)
    predicted = Row(1, 0, 12.345, Provenance.PREDICTED, 0, 23.456)
    grid = Grid((64,), (64,), (Column((64,), (0,)),))
    table = DispatchTable((Section(Operation.BF16_KK, (Ladder(64, 64, (16, 64), (measured, predicted)),), grid, 0),))
    (ladder,) = table.shortened.sections[0].ladders
    of_first = Row(0, 0, 12.4, Provenance.MEASURED, 1, 23.5, library_us=13.6)
    assert ladder.rows == (of_first, Row(1, 0, 12.4, Provenance.PREDICTED, 0, 23.5))
    assert replace(ladder, rows=()) == replace(table.sections[0].ladders[0], rows=())
