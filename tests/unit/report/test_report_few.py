"""What is drawn of many rows: few of them, all that stand apart, and the worst of those that do not."""

from dataclasses import replace

import pytest

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.report import few
from aot.report.facts import Cell
from aot.space.roofline import roofline

H200 = load_target("h200")


def cell(m, n=4096, k=4096, *, slowness=2.0, is_measured=True):
    problem = Problem(Operation.BF16_KK, m, n, k)
    found = roofline(problem, H200)
    return Cell(problem, m - 1, False, 0, slowness * found.time_us, is_measured, found)


def test_few_points_are_all_drawn():
    cells = [cell(m) for m in range(1, 11)]
    assert few.points(cells, lambda _: (0.0, 0.0), 10) == cells


def test_of_many_points_each_that_stands_apart_is_drawn_and_the_worst_of_each_heap():
    heap = [cell(m) for m in range(1, 500)]
    worst, apart = cell(500, slowness=9.0), cell(501)
    places = {x.problem.m: (100 + x.problem.m % 2, 50.0) for x in [*heap, worst]} | {501: (300.0, 10.0)}
    found = few.points([*heap, worst, apart], lambda x: places[x.problem.m], 20)
    assert found == [worst, apart]


@pytest.mark.parametrize("count", [299, 300, 301, 20_000])
@pytest.mark.slow
def test_no_more_points_than_asked_for_however_they_lie(count):
    cells = [replace(cell(1), kernel=i) for i in range(count)]
    found = few.points(cells, lambda x: (x.kernel % 171 * 3.0, x.kernel // 171 * 3.0))
    assert len(found) <= few.MOST_POINTS
    assert len(found) == count or len(found) >= few.MOST_POINTS // 3


def test_of_neighbouring_ladders_the_one_with_the_worst_measured_row_is_drawn():
    rows = [[cell(16, n=64 * (i + 1)), cell(64, n=64 * (i + 1), is_measured=False, slowness=99.0)] for i in range(200)]
    rows[77][0] = cell(16, n=64 * 78, slowness=5.0)
    rows[78] = [cell(16, n=64 * 79, slowness=50.0, is_measured=False)]
    found = few.ladders(rows)
    assert len(found) == few.MOST_LADDERS
    assert rows[77] in found
    assert found == sorted(found, key=lambda x: x[0].problem.n)
    assert few.ladders(rows[:60]) == rows[:60]


def test_bands_are_spread_evenly_and_end_with_the_last():
    assert few.bands(5) == [0, 1, 2, 3, 4]
    assert few.bands(100, 4) == [24, 49, 74, 99]


def test_what_is_left_out_is_said():
    assert few.said(3, 3, "points", "all") == ""
    assert few.said(300, 79302, "points", "the worst") == " 300 of 79,302 points are drawn: the worst."
