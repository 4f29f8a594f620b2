"""Scales, ticks and marks of the charts, as numbers and as text."""

from xml.etree import ElementTree as ET

import pytest

from aot.report.svg import (
    Axis,
    Kind,
    Plot,
    element,
    figure,
    log_axis,
    log_ticks,
    m_axis,
    number,
    percent,
    rectangles,
    root_axis,
    short,
    short_m,
    steps,
)


def test_axes():
    axis = Axis("x", 1.0, 100.0, (), Kind.LOG)
    assert [axis.at(value) for value in (0.1, 1.0, 10.0, 1000.0)] == [0.0, 0.0, pytest.approx(0.5), 1.0]
    assert root_axis("x", 0.25).at(0.0) == 0.0
    assert [text for _, text in root_axis("x", 0.25).ticks] == ["0%", "0.5%", "2%", "5%", "10%", "20%"]
    assert log_ticks(0.9, 1100) == (1, 3, 10, 30, 100, 300, 1000)
    assert log_ticks(3, 60) == (5, 10, 20, 50)
    assert (short(1.33e6), short(0.3), percent(9.0), percent(0.005)) == ("1.33M", "0.3", "900%", "0.5%")
    assert steps([0.2, 0.1]) == [(0.0, 0.0), (0.1, 0.0), (0.1, 0.5), (0.2, 0.5), (0.2, 1.0)]


def test_markup_is_escaped():
    assert (
        element("text", "a", x=1.04, class_="b<", title="<&")
        == '<text x="1" class="b&lt;"><title>&lt;&amp;</title>a</text>'
    )
    assert element("path", d="M0") == '<path d="M0"/>'
    assert [number(x) for x in (-0.01, 2.0, 2.25)] == ["0", "2", "2.2"]


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_outside_an_axis_is_put_at_its_end(kind):
    axis = Axis("x", 1.0, 4.0, (), kind)
    assert [axis.at(x) for x in (-5.0, 0.0, 1.0, 4.0, 1e30, float("inf"))] == [0, 0, 0, 1, 1, 1]


def test_an_axis_of_one_value_has_room_on_both_sides():
    axis = log_axis("x", [5.0])
    assert axis.at(5.0) == pytest.approx(0.5)
    assert axis.ticks == ((5.0, "5"),)
    assert m_axis(1).ticks == ((1, "1"),)
    assert 0 < m_axis(1).at(1) < 1
    assert m_axis(8192).ticks[-2:] == ((1024, "1k"), (4096, "4k"))


def test_ticks_of_a_huge_range_stay_few():
    assert log_ticks(1e-3, 1e12) == tuple(10.0**i for i in range(-3, 13, 3))
    texts = [text for _, text in root_axis("x", 9.0).ticks]
    assert texts == ["0%", "10%", "20%", "40%", "80%", "150%", "300%", "600%"]
    assert [text for _, text in root_axis("x", 0.0).ticks] == ["0%", "0.5%", "2%"]
    assert (short(2e9), short(999), short(1e3), short_m(1500), short_m(2048)) == ("2G", "999", "1k", "1500", "2k")


def test_steps_of_nothing_and_of_ties():
    assert steps([]) == [(0.0, 0.0)]
    assert steps([0.5, 0.5]) == [(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.5, 1.0)]
    assert steps([0.0]) == [(0.0, 0.0), (0.0, 1.0)]


def test_a_plot_escapes_its_texts_and_puts_marks_within_its_edges():
    plot = Plot(Axis("a < b", 0, 10, ((5, "<5>"),)), Axis("R&D", 0, 1, ((1, "1"),)), height=100)
    assert plot.points([(0, 0), (10, 1), (99, -9)]) == "M58 130L546 30L546 130"
    chart = ET.fromstring(figure(plot.axes(), plot.total, 'said "so" <now>'))
    assert chart.get("aria-label") == 'said "so" <now>'
    assert chart.get("viewBox") == "0 0 560 182"
    assert [x.text for x in chart.iter("text")] == ["1", "<5>", "a < b", "R&D"]
    # A map has labels of its own, and no grid across.
    assert [x.text for x in ET.fromstring(figure(plot.axes(is_map=True), 1.0, "")).iter("text")] == [
        "1",
        "<5>",
        "a < b",
    ]


def test_rectangles_are_one_path():
    assert rectangles([]) == ""
    assert rectangles([(0, 0, 10, 5.04), (1.0, 2.0, 3.0, 4.0)]) == "M0 0H10V5H0zM1 2H3V4H1z"
