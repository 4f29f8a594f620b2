from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aot.core.dispatch import (
    MAX_STEP_KERNELS,
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
    table_fault,
    takes_aligned,
)
from aot.core.element import ElementType
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


@dataclass(frozen=True)
class Incumbent:
    operation: Operation = BF16
    num_strides: int = 1
    m_multiple: int = 1
    n_multiple: int = 1
    orders_tiles: bool = False


FP16_KN, KN = Operation.of(ElementType.FLOAT16, Layout.KN), Operation.of(ElementType.BFLOAT16, Layout.KN)
KERNELS = (
    *(Incumbent(orders_tiles=i == 5) for i in range(7)),
    Incumbent(KN, 2),
    Incumbent(m_multiple=128),
    Incumbent(KN),
    Incumbent(FP16_KN, 2),
)
"""0 to 6 take all, 5 in any order of tiles; 7 is the fallback, 8 needs whole tiles, 9 and 10 are for others."""


@pytest.mark.parametrize(
    ("m_multiple", "n_multiple", "takes"),
    [(1, 1, True), (1, 4, True), (1, 8, True), (1, 16, False), (1, 3, False), (2, 1, False), (8, 8, False)],
)
def test_alignment_of_16_bytes_gives_multiples_of_8_in_n_and_none_in_m(m_multiple, n_multiple, takes):
    for operation in (BF16, FP16_KN):
        kernel = Incumbent(operation, m_multiple=m_multiple, n_multiple=n_multiple)
        assert takes_aligned(kernel) is takes


def ladder_of(*rows, edges=(1,)):
    return {"ladders": (Ladder(1, 1, edges, rows),)}


def column_of(index, m_edges, kernels, tile_orders=None):
    columns = (*GRID.columns[:index], Column(m_edges, kernels, tile_orders), *GRID.columns[index + 1 :])
    return {"grid": replace(GRID, columns=columns)}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        (ladder_of(row(8, 0, 1.0, 8)), ""),
        ({"grid": replace(GRID, columns=GRID.columns[1:])}, "the grid has 5 columns, its edges give 6"),
        ({"grid": replace(GRID, n_edges=(0, 1))}, "grid: its edges in n must ascend from 1 or more, and not be empty"),
        ({"grid": replace(GRID, n_edges=(2, 2))}, "grid: its edges in n must ascend from 1 or more, and not be empty"),
        ({"grid": Grid((1,), (), ())}, "grid: its edges in k must ascend from 1 or more, and not be empty"),
        *(
            (column_of(i, edges, (0,) * len(edges)), f"grid, column {i}: its edges in m must ascend from 1 or {rest}")
            for i, edges in ((0, (64, 1)), (5, (8, 8)), (2, (0, 1)), (3, ()))
            for rest in ["more, and not be empty"]
        ),
        (column_of(1, (1, 2), (0,)), "grid, column 1: 1 kernels for 2 edges in m"),
        (column_of(1, (1, 2), (0, 0, 0)), "grid, column 1: 3 kernels for 2 edges in m"),
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
        (ladder_of(row(0, 10, 1.0, 0)), "ladder n 1 k 1, row 0: its general kernel 10 is for fp16_kn"),
        (ladder_of(row(0, 0, 1.0, 9)), "ladder n 1 k 1, row 0: its runner-up 9 is for bf16_kn"),
        (
            ladder_of(row(0, 8, 1.0, 0)),
            (
                "ladder n 1 k 1, row 0: its general kernel 8 takes only multiples of 128 in m and 1 in n; it must take "
                "all shapes"
            ),
        ),
        *(
            (ladder_of(row(0, 0, us, 0)), f"ladder n 1 k 1, row 0: it was measured at {us} us; a time is above 0")
            for us in (0.0, float("inf"), float("nan"))
        ),
        (ladder_of(replace(row(0, 0, 0.0, 0), provenance=Provenance.PREDICTED)), ""),
        (column_of(5, (1, 2), (0, 11)), "grid, column 5: it names kernel 11; there are 11 kernels"),
        (column_of(0, (1,), (-1,)), "grid, column 0: it names kernel -1; there are 11 kernels"),
        (column_of(5, (1, 2), (10, 0)), "grid, column 5: its kernel 10 is for fp16_kn"),
        (
            column_of(2, (1, 2), (0, 8)),
            "grid, column 2: its kernel 8 takes only multiples of 128 in m and 1 in n; it must take all aligned shapes",
        ),
        (ladder_of(replace(row(5, 5, 1.0, 5), tile_order=8)), ""),
        (
            ladder_of(replace(row(0, 0, 1.0, 0), tile_order=3)),
            "ladder n 1 k 1, row 0: its tiles are to be taken in order 3; its kernel 0 has one order alone",
        ),
        (column_of(2, (1, 2), (0, 5), (0, 8)), ""),
        (column_of(2, (1, 2), (0, 5), (8,)), "grid, column 2: 1 orders of tiles for 2 kernels"),
        (
            column_of(2, (1, 2), (5, 0), (4, 8)),
            "grid, column 2: tiles are to be taken in order 8; its kernel 0 has one order alone",
        ),
        ({"fallback": 11}, "the fallback is kernel 11; there are 11 kernels"),
        ({"fallback": 10}, "the fallback 10 is for fp16"),
        ({"fallback": 0}, "the fallback 0 must take both strides of its operands, and all shapes"),
    ],
)
def test_faults_of_a_table_are_named_with_section_and_place(change, fault):
    table = DispatchTable((replace(SECTION, **change),))
    assert table_fault(table, KERNELS) == (f"bf16_kk: {fault}" if fault else "")


def test_the_fault_of_a_later_section_is_its_own():
    grid = Grid((1,), (1,), (Column((1,), (0,)),))
    table = DispatchTable((SECTION, Section(KN, (), grid, 7)))
    assert table_fault(table, KERNELS) == "bf16_kn: grid, column 0: its kernel 0 is for bf16_kk"


@pytest.mark.parametrize(
    ("n_multiple", "fault"),
    [
        (8, ""),
        (
            16,
            (
                "bf16_kk: grid, column 0: its kernel 11 takes only multiples of 1 in m and 16 in n; it must take all "
                "aligned shapes"
            ),
        ),
    ],
)
def test_a_column_takes_a_kernel_that_asks_for_no_more_than_alignment(n_multiple, fault):
    table = DispatchTable((replace(SECTION, **column_of(0, (1,), (11,))),))
    assert table_fault(table, (*KERNELS, Incumbent(n_multiple=n_multiple))) == fault


def test_a_grid_tells_so_many_kernels_apart():
    assert (MAX_STEP_M + 1) * MAX_STEP_KERNELS == 2**32
    last = MAX_STEP_KERNELS - 1
    table = DispatchTable((replace(SECTION, **column_of(0, (1,), (last,))),))
    kernels = (*KERNELS, *(Incumbent(),) * (MAX_STEP_KERNELS - len(KERNELS)))
    assert table_fault(table, kernels) == ""
    fault = "bf16_kk: there are 4097 kernels; a grid tells 4096 apart"
    assert table_fault(table, (*kernels, Incumbent())) == fault


def test_an_edge_of_a_column_is_no_more_than_can_be_packed():
    assert decode(Column, {"m_edges": [1, MAX_STEP_M], "kernels": [0, 1]}) == Column((1, MAX_STEP_M), (0, 1))
    for edge in (0, MAX_STEP_M + 1):
        with pytest.raises(DecodeError, match=rf"m_edges\[0\]: expected a whole number from 1 to 1048575, got {edge}"):
            decode(Column, {"m_edges": [edge], "kernels": [0]})


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
