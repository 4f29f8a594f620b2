"""The page of `aot report`: its numbers, its markup, and that what is measured and what is predicted stay apart."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from aot.report.facts import facts_of
from aot.report.page import page
from tests.unit.reported import (
    RECORD,
    SEARCHES,
    SECTION,
    SELECTION,
    SIZES,
    THOR,
    measured_facts,
    predicted_facts,
    scored,
    with_section,
)


@pytest.fixture(scope="module")
def text():
    return page(measured_facts())


@pytest.fixture(scope="module")
def predicted_text():
    return page(predicted_facts())


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps the words and the attributes."""

    EMPTY = frozenset({"meta", "wbr", "path", "circle"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], Counter(), [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        if self.open[-1:] == [tag]:
            self.open.pop()
        else:
            assert tag in self.EMPTY, (tag, self.open)

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_tells_its_numbers(text):
    words = " ".join(Reader(text).words)
    for part in (
        "Kernels for thor",
        "Twin, sm_110a, 4 SMs",
        "100 W",
        "1000 MHz",
        "thor: 12 times",
        "mean regret in sample, bf16_kk: 2 kernels, 2 problems",
        "least mean that so many kernels could have, proven",
        "chosen: 2",
        "900% stands for a problem on which none of the kernels was timed",
        "quarantined: <wrong> & unsafe",
        "Rejected by legality",
        "Closest to being chosen",
        "m 16, n 256, k 512: 1.05 TFLOP/s at 14.6 FLOP/B; 4.00 us measured, 26% of the roofline",
        "Search strategies",
    ):
        assert part in words
    assert "1.25%" in words
    assert "1.00%" in words


@pytest.mark.parametrize("which", ["text", "predicted_text"])
def test_the_page_is_one_file_and_well_formed(which, request):
    content = request.getfixturevalue(which)
    reader = Reader(content)
    assert {"script", "link", "img", "iframe", "object", "base"} & set(reader.tags) == set()
    assert "http:" not in content
    assert "https:" not in content
    assert "@import" not in content
    assert set(re.findall(r"url\(([^)]*)\)", content)) == {"#hatch", "#void"}
    links = {value for _, name, value in reader.attributes if name in {"href", "src", "xlink:href"}}
    ids = {value for _, name, value in reader.attributes if name == "id"}
    assert {link.removeprefix("#") for link in links} <= ids
    charts = re.findall(r"<svg.*?</svg>", content, re.DOTALL)
    for chart in charts:
        ET.fromstring(chart)
        assert "nan" not in chart
        assert "inf" not in chart.replace("information", "")
    labels = [value for tag, name, value in reader.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == len(charts) - 1
    assert reader.tags["figure"] == reader.tags["figcaption"] == len(labels)
    assert content.count("As a table") == len(labels)


def test_measured_marks_are_filled_and_predicted_ones_hollow(text, predicted_text):
    dots = re.compile(r'<circle[^>]*class="(dot s[^"]*)"')
    assert {"hollow" in found for found in dots.findall(text)} == {False}
    assert {"hollow" in found for found in dots.findall(predicted_text)} == {True}
    assert len(dots.findall(predicted_text)) == 2
    assert "us measured" not in predicted_text
    assert "us predicted" in predicted_text
    assert 'class="hatching"' in predicted_text
    words = " ".join(Reader(predicted_text).words)
    assert "Nothing on this page was measured: every time is the cost model's" in words
    assert "Not known: nothing was measured" in words
    assert "measured time" not in words


def test_a_predicted_row_beside_measured_ones_is_left_out_and_counted():
    (ladder,) = SECTION.ladders
    rows = (ladder.rows[0], replace(ladder.rows[1], provenance="predicted"))
    content = page(facts_of(with_section(ladders=(replace(ladder, rows=rows),)), THOR, RECORD))
    assert len(re.findall(r'<circle[^>]*class="dot s', content)) == 1
    assert "1 more rows have predicted times and are left out." in content
    assert 'class="void"' in content


def test_equal_facts_give_equal_pages(text):
    assert page(facts_of(scored(), THOR, RECORD, SIZES, SEARCHES)) == text
    assert len(text) < 100_000


def test_without_a_curve_and_without_held_out_problems_the_page_says_so():
    content = page(facts_of(SELECTION, THOR, RECORD))
    assert "No curve was worked out for this selection" in content
    assert "Nothing was held out: regret out of sample is not known." in content
