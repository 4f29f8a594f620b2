"""The charts of what was reached: which marks they have, where, and what their texts say."""

import math
from dataclasses import replace

import pytest

from aot.report.charts import portfolio, regrets, roofline, roundings, search_curves
from aot.select.selection import CurvePoint
from tests.unit.reported import CURVE, SEARCHES, THOR, drawn, measured_facts, predicted_facts
from tests.unit.twins import problem_of

(OPERATION,) = measured_facts().operations
(PREDICTED,) = predicted_facts().operations
REGRET = OPERATION.regret


def curve_of(*points):
    return replace(CURVE, points=points)


def test_a_roofline_of_rows():
    figure = roofline(OPERATION, THOR)
    assert [row[:6] for row in figure.table.rows] == [
        (16, 256, 512, "14.6", "1.0", "4.00"),
        (128, 256, 512, "73.1", "5.6", "6.00"),
    ]
    dots = drawn(figure, "dot")
    assert [dot["class"] for dot in dots] == ["dot s2", "dot s2"]
    assert float(dots[0]["cx"]) < float(dots[1]["cx"])
    assert float(dots[0]["cy"]) > float(dots[1]["cy"])
    assert [mark.text for mark in figure.legend] == ["n\N{MULTIPLICATION SIGN}k below 4M", "the target's roofline"]
    assert "left out" not in figure.caption
    assert {dot["class"] for dot in drawn(roofline(PREDICTED, THOR), "dot")} == {"dot s2 hollow"}
    assert roofline(replace(OPERATION, cells=()), THOR) is None


@pytest.mark.parametrize("time_us", [1e-3, 1e9])
def test_a_roofline_of_one_row_far_from_its_limit_stays_in_its_frame(time_us):
    cell = replace(OPERATION.cells[0], time_us=time_us)
    (dot,) = drawn(roofline(replace(OPERATION, cells=(cell,)), THOR), "dot")
    assert 62 <= float(dot["cx"]) <= 546
    assert 30 <= float(dot["cy"]) <= 360


def test_a_large_weight_has_a_shade_of_its_own():
    cells = tuple(replace(OPERATION.cells[0], problem=problem_of(16, n, 4096)) for n in (256, 1024, 4096, 16384, 65536))
    dots = drawn(roofline(replace(OPERATION, cells=cells), THOR), "dot")
    assert [dot["class"][-2:] for dot in dots] == ["s2", "s3", "s4", "s5", "s5"]


def test_regret_in_and_out_of_sample():
    figure = regrets(OPERATION)
    assert [row[:3] for row in figure.table.rows] == [
        ("in sample", 2, "12.50%"),
        ("held out, tuned n and k, other m", 1, "25.00%"),
        ("held out, other n and k", 1, "25.00%"),
    ]
    (line,) = drawn(figure, "l1")
    assert line["title"] == "in sample: mean 12.50%, worst 25.0%"
    assert "stands in" not in figure.caption
    assert "never timed" not in figure.caption


def test_problems_with_imputed_times_are_told_apart():
    first, second = OPERATION.inside
    figure = regrets(replace(OPERATION, inside=(replace(first, is_own=False), second)))
    assert [row[:3] for row in figure.table.rows][:2] == [
        ("in sample", 1, "0.00%"),
        ("in sample, with imputed times", 2, "12.50%"),
    ]
    assert "On 1 of 2 problems one of the two was measured in the other element type only" in figure.caption
    assert "with these, dotted, the mean is 12.50%" in figure.caption


def test_what_was_never_timed_is_counted_and_not_drawn():
    first, second = OPERATION.outside
    figure = regrets(replace(OPERATION, outside=(first, replace(second, time_us=None))))
    assert "Not among them: 1 whose kernel was never timed on them." in figure.caption
    assert len(figure.table.rows) == 2
    assert regrets(PREDICTED) is None
    assert roundings(PREDICTED) is None


def test_rounding_is_of_what_was_held_out():
    assert [(row[0], row[2]) for row in roundings(OPERATION).table.rows] == [
        ("held out, tuned n and k, other m", "25.00%"),
        ("held out, other n and k", "0.00%"),
    ]
    far = tuple(replace(x, time_us=1e6) for x in OPERATION.outside)
    figure = roundings(replace(OPERATION, outside=far))
    assert figure.table.rows[0][6] == "24999900.00%"
    assert "nan" not in figure.svg


def test_portfolios_of_each_size():
    regret, size = portfolio(CURVE, REGRET, is_predicted=False)
    assert regret.table.rows == ((1, "40.00%", "20.00%", "900.0%", "4"), (2, "1.25%", "0.00%", "10.0%", "~8"))
    assert [dot["title"] for dot in drawn(regret, "dot")] == [
        "1 kernels: worst regret 900.00%, measured",
        "2 kernels: worst regret 10.00%, measured",
        "1 kernels: mean regret 40.00%, measured",
        "2 kernels: mean regret 1.25%, measured",
    ]
    assert "900% stands for a problem" in regret.caption
    assert [dot["class"] for dot in drawn(size, "dot")] == ["dot l1", "dot l1 hollow"]
    assert [dot["title"] for dot in drawn(size, "dot")] == ["1 kernels: 4 KiB, counted", "2 kernels: 8 KiB, estimated"]


def test_a_portfolio_of_one_point_without_regret_or_bytes():
    (figure,) = portfolio(curve_of(CurvePoint(1, 0.0, 0.0, 0.0, 0, False)), REGRET, is_predicted=True)
    assert figure.table.rows == ((1, "0.00%", "0.00%", "0.0%", ""),)
    assert figure.table.note == ""
    assert drawn(figure, "dot") == []
    assert len(drawn(figure, "ring")) == 1


@pytest.mark.parametrize(("last", "ticks"), [(9, 10), (10, 6), (64, 9), (577, 5), (3000, 6)])
def test_any_number_of_kernels_has_an_axis(last, ticks):
    points = (CurvePoint(1, 0.4, 0.5, 0.2, 0, False), CurvePoint(last, 0.01, 0.1, 0.0, 0, False))
    (figure,) = portfolio(curve_of(*points), REGRET, is_predicted=False)
    # The ticks of x stand on one line below the plot.
    assert sum(tick["y"] == "350" for tick in drawn(figure, "tick")) == ticks


def test_search_strategies():
    figure = search_curves([*SEARCHES, replace(SEARCHES[0], fraction=0.5, mean_regret=0.0)])
    assert [mark.text for mark in figure.legend] == ["model", "exhaustive"]
    assert [row[0] for row in figure.table.rows] == ["model", "exhaustive", "model"]
    assert len(drawn(figure, "line")) == 1
    assert len(drawn(figure, "dot")) == 3
    assert search_curves([]) is None


def test_one_strategy_at_one_budget_with_a_name_to_escape():
    point = replace(SEARCHES[0], strategy="<a> & b", fraction=1e-6, mean_regret=1e6)
    figure = search_curves([point])
    assert drawn(figure, "line") == []
    (dot,) = drawn(figure, "dot")
    assert dot["title"].startswith("<a> & b: 0.0% measured")
    assert not math.isnan(float(dot["transform"].split("(")[1].split()[0]))
