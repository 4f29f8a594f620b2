"""What a table may be held against: each fault is named, with its section and its place."""

from dataclasses import dataclass, replace
from itertools import product

import pytest

from aot.core.dispatch import MAX_STEP_KERNELS, MAX_STEP_M, Column, DispatchTable, Grid, Ladder, Section
from aot.core.element import ElementType
from aot.core.measurement import Provenance
from aot.core.operation import Layout, Operation
from aot.core.table_check import table_fault, takes_aligned
from tests.golden.manifest import row
from tests.unit.core.test_dispatch import GRID, LADDERS, SECTION
from tests.unit.twins import BF16


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


def test_a_grid_tells_so_many_orders_of_kernels_apart():
    choices = list(product(range(11, 11 + 456), range(9)))
    kernels = (*KERNELS, *(Incumbent(orders_tiles=True) for _ in range(456)))

    def of(count):
        column = column_of(0, tuple(range(1, count + 1)), *zip(*choices[:count], strict=True))
        return DispatchTable((replace(SECTION, **column),))

    others = len({x for column in GRID.columns[1:] for x in column.choices})
    assert table_fault(of(MAX_STEP_KERNELS - others), kernels) == ""
    fault = "bf16_kk: the grid has kernels in 4097 orders of tiles; it tells 4096 apart"
    assert table_fault(of(MAX_STEP_KERNELS - others + 1), kernels) == fault


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
