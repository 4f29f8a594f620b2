from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aot.core.dispatch import Choice, DispatchTable, Grid, Ladder, Row, Section, Tier, look_up, round_up, table_fault
from aot.core.element import ElementType
from aot.core.measurement import Provenance
from aot.core.operation import Layout, Operation
from tests.golden.manifest import golden_manifest, row
from tests.unit.twins import BF16, problem_of

SIZES = st.integers(1, 2**31 - 1)
EDGES = st.lists(SIZES, min_size=1, max_size=12, unique=True).map(sorted).map(tuple)
ANY_KERNEL = ((1, 1),) * 8


@pytest.mark.parametrize(("value", "index"), [(1, 0), (16, 0), (17, 1), (64, 1), (65, 2), (100, 2), (10**9, 2)])
def test_rounds_up_to_the_next_edge(value, index):
    assert round_up(value, (16, 64, 100)) == index


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


GRID = Grid((1, 64), (128, 4096), (128, 512, 4096), tuple(row(i % 5, i % 5, 1.0 + i, 0) for i in range(12)))
LADDERS = (
    Ladder(64, 512, (8, 32), (row(1, 1, 1.0, 0), row(2, 2, 2.0, 0))),
    Ladder(128, 128, (16,), (row(3, 3, 3.0, 0),)),
)
SECTION = Section(BF16, LADDERS, GRID, fallback=7)


@pytest.mark.parametrize(
    ("m", "n", "k", "cell"),
    [(1, 1, 1, 0), (1, 1, 129, 1), (1, 129, 1, 3), (2, 1, 1, 6), (65, 5000, 5000, 11), (64, 128, 512, 7)],
)
def test_k_runs_fastest_in_the_grid(m, n, k, cell):
    assert GRID.cell(m, n, k) == cell


@given(EDGES, EDGES, EDGES, SIZES, SIZES, SIZES)
def test_a_cell_is_found_from_its_place_and_from_all_that_is_judged_in_it(m_edges, n_edges, k_edges, m, n, k):
    grid = Grid(m_edges, n_edges, k_edges, ())
    cell = grid.cell(m, n, k)
    assert cell in range(len(m_edges) * len(n_edges) * len(k_edges))
    corner = tuple(edges[i] for edges, i in zip((m_edges, n_edges, k_edges), grid.place(cell), strict=True))
    assert grid.cell(*corner) == cell
    assert {grid.cell(*shape) for shape in grid.judged(cell)} == {cell}
    assert grid.judged(cell)[-1] == corner


@given(EDGES, SIZES, SIZES)
def test_a_larger_m_gets_no_earlier_cell(edges, one, other):
    grid = Grid(edges, (64, 128), (64,), ())
    small, large = sorted((one, other))
    assert grid.cell(small, 100, 1) <= grid.cell(large, 100, 1)


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((8, 64, 512), Choice(1, Tier.TUNED, 0)),
        ((9, 64, 512), Choice(2, Tier.TUNED, 1)),
        ((9999, 64, 512), Choice(2, Tier.TUNED, 1)),
        ((1, 128, 128), Choice(3, Tier.TUNED, 2)),
        ((1, 64, 513), Choice(2, Tier.GRID, 2)),
        ((1, 512, 64), Choice(3, Tier.GRID, 3)),
    ],
)
def test_tuned_ladders_come_before_the_grid(shape, choice):
    assert look_up(SECTION, problem_of(*shape), ANY_KERNEL) == choice


def test_what_is_not_aligned_gets_the_fallback_before_all_else():
    assert look_up(SECTION, problem_of(8, 64, 512), ANY_KERNEL, aligned=False) == Choice(7, Tier.FALLBACK, 0)


@pytest.mark.parametrize(("m", "n", "kernel"), [(256, 128, 1), (255, 128, 0), (256, 127, 0), (512, 256, 1), (1, 1, 0)])
def test_a_kernel_of_whole_tiles_gives_way_to_the_general_one(m, n, kernel):
    section = Section(BF16, (), Grid((1,), (1,), (1,), (Row(1, 0, 1.0, "measured", 0, 2.0),)), 0)
    assert look_up(section, problem_of(m, n, 64), ((1, 1), (256, 128))) == Choice(kernel, Tier.GRID, 0)


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_adding_a_ladder_changes_no_other_shape(m, n, k, ladder_n, ladder_k):
    assume((n, k) != (ladder_n, ladder_k))
    assume((ladder_n, ladder_k) not in {(x.n, x.k) for x in LADDERS})
    added = Ladder(ladder_n, ladder_k, (1,), (row(6, 6, 1.0, 0),))
    more = replace(SECTION, ladders=tuple(sorted((*LADDERS, added), key=lambda x: (x.n, x.k))))
    problem = problem_of(m, n, k)
    before, after = (look_up(x, problem, ANY_KERNEL) for x in (SECTION, more))
    assert (before.kernel, before.tier) == (after.kernel, after.tier)


@given(SIZES, SIZES, SIZES)
def test_every_shape_gets_a_kernel(m, n, k):
    assert 0 <= look_up(SECTION, problem_of(m, n, k), ANY_KERNEL).kernel < 5


def test_a_table_knows_its_sections():
    table = golden_manifest().table
    assert [table.section(x.operation) for x in table.sections] == list(table.sections)
    with pytest.raises(KeyError, match="bf16_mn"):
        table.section(Operation.of(BF16.element, Layout.MN))


@dataclass(frozen=True)
class Incumbent:
    operation: Operation = BF16
    num_strides: int = 1
    m_multiple: int = 1
    n_multiple: int = 1


FP16_KN, KN = Operation.of(ElementType.FLOAT16, Layout.KN), Operation.of(ElementType.BFLOAT16, Layout.KN)
KERNELS = (*(Incumbent(),) * 7, Incumbent(KN, 2), Incumbent(m_multiple=128), Incumbent(KN), Incumbent(FP16_KN, 2))
"""0 to 6 take all, 7 is the fallback, 8 needs whole tiles, 9 and 10 are of other operations."""


def ladder_of(*rows, edges=(1,)):
    return {"ladders": (Ladder(1, 1, edges, rows),)}


def cells_of(index, changed):
    return {"grid": replace(GRID, cells=(*GRID.cells[:index], changed, *GRID.cells[index + 1 :]))}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        (ladder_of(row(8, 0, 1.0, 8)), ""),
        ({"grid": replace(GRID, cells=GRID.cells[1:])}, "the grid has 11 cells, its edges give 12"),
        ({"grid": replace(GRID, m_edges=(64, 1))}, "grid: its edges in m must ascend from 1 or more, and not be empty"),
        ({"grid": replace(GRID, n_edges=(0, 1))}, "grid: its edges in n must ascend from 1 or more, and not be empty"),
        ({"grid": Grid((1,), (1,), (), ())}, "grid: its edges in k must ascend from 1 or more, and not be empty"),
        ({"ladders": LADDERS[::-1]}, "its ladders must ascend by (n, k), each once"),
        ({"ladders": (LADDERS[0], LADDERS[0])}, "its ladders must ascend by (n, k), each once"),
        (ladder_of(edges=()), "ladder n 1 k 1: its edges in m must ascend from 1 or more, and not be empty"),
        (
            {"ladders": (replace(LADDERS[0], m_edges=(8, 8)),)},
            "ladder n 64 k 512: its edges in m must ascend from 1 or more, and not be empty",
        ),
        ({"ladders": (replace(LADDERS[0], m_edges=(8,)),)}, "ladder n 64 k 512: 2 rows for 1 edges in m"),
        (ladder_of(row(11, 0, 1.0, 0)), "ladder n 1 k 1, row 0: its kernel is 11; there are 11 kernels"),
        (ladder_of(row(0, 11, 1.0, 0)), "ladder n 1 k 1, row 0: its general kernel is 11; there are 11 kernels"),
        (ladder_of(row(0, 0, 1.0, -1)), "ladder n 1 k 1, row 0: its runner-up is -1; there are 11 kernels"),
        (
            ladder_of(row(0, 0, 1.0, 0), row(9, 0, 1.0, 0), edges=(1, 2)),
            "ladder n 1 k 1, row 1: its kernel 9 is for bf16_kn",
        ),
        (cells_of(5, row(0, 10, 1.0, 0)), "grid, cell 5: its general kernel 10 is for fp16_kn"),
        (cells_of(11, row(0, 0, 1.0, 9)), "grid, cell 11: its runner-up 9 is for bf16_kn"),
        (
            cells_of(0, row(0, 8, 1.0, 0)),
            "grid, cell 0: its general kernel 8 takes only multiples of 128 in m and 1 in n; it must take all shapes",
        ),
        (cells_of(0, row(0, 0, 0.0, 0)), "grid, cell 0: it was measured at 0.0 us; a time is above 0"),
        (cells_of(0, row(0, 0, float("inf"), 0)), "grid, cell 0: it was measured at inf us; a time is above 0"),
        (cells_of(0, row(0, 0, float("nan"), 0)), "grid, cell 0: it was measured at nan us; a time is above 0"),
        (cells_of(0, replace(row(0, 0, 0.0, 0), provenance=Provenance.PREDICTED)), ""),
        ({"fallback": 11}, "the fallback is kernel 11; there are 11 kernels"),
        ({"fallback": 10}, "the fallback 10 is for fp16"),
        ({"fallback": 0}, "the fallback 0 must take both strides of its operands, and all shapes"),
    ],
)
def test_faults_of_a_table_are_named_with_section_and_row(change, fault):
    table = DispatchTable((replace(SECTION, **change),))
    assert table_fault(table, KERNELS) == (f"bf16_kk: {fault}" if fault else "")


def test_the_fault_of_a_later_section_is_its_own():
    cell = Grid((1,), (1,), (1,), (row(9, 9, 1.0, 0),))
    table = DispatchTable((SECTION, Section(KN, (), cell, 7)))
    assert table_fault(table, KERNELS) == "bf16_kn: grid, cell 0: its runner-up 0 is for bf16_kk"


def test_a_fallback_needs_both_strides_and_all_shapes():
    kernels = (*KERNELS[:7], Incumbent(num_strides=2, n_multiple=8))
    fault = "bf16_kk: the fallback 7 must take both strides of its operands, and all shapes"
    assert table_fault(DispatchTable((SECTION,)), kernels) == fault


def test_an_operation_has_one_section():
    fault = "bf16_kk: the table has more than one section for it"
    assert table_fault(DispatchTable((SECTION, SECTION)), KERNELS) == fault


def test_a_table_of_nothing_is_none():
    assert table_fault(DispatchTable(()), KERNELS) == "11 kernels in 0 sections; expected at least one of each"
    assert table_fault(DispatchTable((SECTION,)), ()) == "0 kernels in 1 sections; expected at least one of each"
