"""The page of `aot report`: its numbers, its markup, and that what is measured and what is predicted stay apart."""

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from test_reports import DIRECT, SELECTION, TMA
from twins import BF16, CONDITIONS, problem_of

from aot import cli, cli_report, report_maps
from aot.candidate import KernelKey
from aot.cost import NAME
from aot.dispatch import DispatchTable, Grid, Tier
from aot.errors import SelectionError, StoreError
from aot.heldout import score
from aot.measurement import Measurement, Record
from aot.record import write_record
from aot.replay import CurvePoint as SearchCurvePoint
from aot.replay import write_curves
from aot.report import page
from aot.report_facts import SearchPoint, facts_of, unchosen
from aot.report_parts import NUM_COLOURS, Bar, Table, microseconds, share
from aot.report_svg import Axis, Kind, element, log_ticks, number, percent, root_axis, short, steps
from aot.selection import Curve, CurvePoint, write_selection
from aot.target import load_target

THOR = load_target("thor")
WIDE = replace(TMA, tile_n=256)
HELD = {problem_of(20, 256, 512): (5.0, 4.0, 4.5), problem_of(64, 512, 128): (10.0, 11.0, 8.0)}
TIMES = {problem_of(16, 256, 512): (4.0, 5.0, 3.2), problem_of(128, 256, 512): (7.5, 6.0, 7.0)}
SIZES = frozenset((problem.n, problem.k, problem.m) for problem in HELD)


def measurement(candidate, problem, time_us, status="ok"):
    low, rounds = (time_us, 7) if status == "ok" else (0.0, 0)
    return Measurement(KernelKey(BF16, candidate), problem, low, low, low, rounds, 0.0, status)


def items(times):
    columns = (TMA, DIRECT, WIDE)
    return [measurement(x, problem, us) for problem, row in times.items() for x, us in zip(columns, row, strict=True)]


def failure(tile_n, status, m=16):
    return measurement(replace(TMA, tile_n=tile_n), problem_of(m, 256, 512), 0.0, status)


FAILURES = (
    failure(32, "not tried: needs 10 bytes of workspace, the limit is 5"),
    failure(32, "not tried: needs 20 bytes of workspace, the limit is 5", 128),
    failure(64, "quarantined: <wrong> & unsafe"),
)
RECORD = Record("thor", (CONDITIONS,), (*items(TIMES), *items(HELD), *FAILURES))
CURVE = Curve(BF16, (CurvePoint(1, 0.4, 9.0, 0.2, 4096, False), CurvePoint(2, 0.0125, 0.1, 0.0, 8192, True)))


def scored():
    (section,) = SELECTION.table.sections
    times = {problem: dict(zip((TMA, DIRECT, WIDE), row, strict=True)) for problem, row in HELD.items()}
    return replace(SELECTION, curves=(CURVE,), heldout=score(section, SELECTION.kernels, times))


def predicted():
    (section,) = SELECTION.table.sections

    def row(x):
        return replace(x, provenance="predicted")

    ladders = tuple(replace(x, rows=tuple(map(row, x.rows))) for x in section.ladders)
    grid = replace(section.grid, cells=tuple(map(row, section.grid.cells)))
    table = DispatchTable((replace(section, ladders=ladders, grid=grid),))
    return replace(SELECTION, provenance="predicted", record=NAME, conditions=(), table=table)


SEARCHES = (SearchPoint("model", 0.1, 30.0, 0.002, 0.05), SearchPoint("exhaustive", 1.0, 300.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def facts():
    return facts_of(scored(), THOR, RECORD, SIZES, SEARCHES)


@pytest.fixture(scope="module")
def text(facts):
    return page(facts)


@pytest.fixture(scope="module")
def predicted_text():
    return page(facts_of(predicted(), THOR, None))


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


def test_the_facts_of_an_operation(facts):
    (x,) = facts.operations
    assert [(cell.problem.m, cell.after, cell.is_last, cell.is_measured) for cell in x.cells] == [
        (16, 0, False, True),
        (128, 16, True, True),
    ]
    assert x.cells[0].fraction == pytest.approx(x.cells[0].limit.time_us / 4.0)
    assert [(s.found.chosen, s.found.regret, s.is_own) for s in x.inside] == [
        (TMA, pytest.approx(0.25), True),
        (DIRECT, 0.0, True),
    ]
    assert [(y.tier, y.rounding, y.regret) for y in x.outside] == [
        (Tier.TUNED, pytest.approx(0.25), pytest.approx(0.25)),
        (Tier.GRID, 0.0, pytest.approx(0.25)),
    ]
    assert [(y.candidate, y.num_best, y.largest_problem.m) for y in x.unchosen] == [(WIDE, 1, 16)]
    assert x.unchosen[0].mean_gain == pytest.approx(0.125)
    assert facts.num_measurements == 12


def test_failures_are_joined_where_only_figures_differ(facts):
    found = facts.operations[0].failures
    assert [(x.reason, x.num_pairs, x.num_kernels) for x in found] == [
        ("not tried: needs … bytes of workspace, the limit is 5", 2, 1),
        ("quarantined: <wrong> & unsafe", 1, 1),
    ]
    assert found[0].example == f"{replace(TMA, tile_n=32).name} on m16 n256 k512: {FAILURES[0].status}"


def test_the_page_tells_its_numbers(text):
    words = " ".join(Reader(text).words)
    for part in (
        "GEMM kernels for thor",
        "Twin, sm_90a, 4 SMs",
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
        "m 16, n 256, k 512: 1.05 TFLOP/s at 14.6 FLOP/B; 4.00 us measured, 26% of the limit",
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
    (section,) = SELECTION.table.sections
    (ladder,) = section.ladders
    rows = (ladder.rows[0], replace(ladder.rows[1], provenance="predicted"))
    table = DispatchTable((replace(section, ladders=(replace(ladder, rows=rows),)),))
    content = page(facts_of(replace(SELECTION, table=table), THOR, RECORD))
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


def test_a_record_that_is_not_the_selections_is_refused():
    with pytest.raises(SelectionError, match="rests on the record thor, which is not here; give --record"):
        facts_of(SELECTION, THOR, None)
    other = replace(RECORD, conditions=(replace(CONDITIONS, driver="2"), CONDITIONS))
    with pytest.raises(SelectionError, match="from 1 runs of the record thor, whose conditions are not those of the 2"):
        facts_of(SELECTION, THOR, other)
    with pytest.raises(
        SelectionError, match=r"tier 1: the record thor and the held-out shapes give 0 problems, .* on 1;"
    ):
        facts_of(scored(), THOR, RECORD, ())


def test_unchosen_needs_a_shipped_kernel_and_a_gain():
    times = {problem_of(8, 8, 8): {TMA: 2.0, DIRECT: 3.0}}
    assert unchosen(times, {TMA}) == ()
    assert unchosen(times, {WIDE}) == ()
    (found,) = unchosen(times, {DIRECT})
    assert (found.candidate, found.mean_gain, found.num_problems) == (TMA, 0.5, 1)


def test_eight_kernels_have_colours_of_their_own(facts):
    (x,) = facts.operations
    cells = tuple(replace(x.cells[0], kernel=i, problem=problem_of(16 + i, 256, 512)) for i in range(12))
    classes = report_maps.colours(replace(x, cells=cells))
    assert len(classes) == NUM_COLOURS
    assert list(classes.values()) == [f"k{i + 1}" for i in range(NUM_COLOURS)]


def test_cells_of_one_kernel_are_one_rectangle():
    (section,) = SELECTION.table.sections
    first, other = section.grid.cells[0], replace(section.grid.cells[0], kernel=2)
    grid = Grid((1, 2), (8, 16, 24), (64,), (first, first, first, first, first, other))
    found = report_maps._stacks(grid, 0)
    assert {(run.kernel, run.first, run.last): stack for run, stack in found.items()} == {
        (1, 0, 1): [(0, 1)],
        (1, 0, 0): [(2, 2)],
        (2, 1, 1): [(2, 2)],
    }


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


def test_entries():
    table = Table(("a", "b"), (("x", Bar("1.5%", 0.5)), ("y", "~2")))
    assert table.alignments == ("", "n")
    assert [microseconds(x) for x in (1234.5, 12.34, 1.234)] == ["1234", "12.3", "1.23"]
    assert (share(0.01234, 2), share(-1e-9), share(0.5, 0)) == ("1.23%", "0.0%", "50%")


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_selection(tmp_path / "s.json", replace(SELECTION, curves=(CURVE,)))
    write_record(tmp_path / "r.jsonl.gz", RECORD)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.main, ["report", *arguments])


def test_the_command_writes_the_page(workplace):
    point = SearchCurvePoint("model", 0.1, 0.1, 9.0, 30.0, 0.002, 0.01, 0.05, 0.9, 2, 1)
    write_curves(cli_report.SEARCHES / "thor.json", "thor", "thor", [point])
    result = run("--selection", "s.json", "--record", "r.jsonl.gz")
    assert result.output == "build/report/thor.html: 0.04 MiB, measured\n"
    content = (workplace / "build/report/thor.html").read_text()
    assert "model: 10.0% measured, mean regret 0.20%, 30 s" in content
    assert [x.name for x in (workplace / "build/report").iterdir()] == ["thor.html"]


def test_the_command_names_what_is_wrong(workplace):
    result = run("--selection", "s.json")
    assert (result.exit_code, "the record thor, which is not here" in result.stderr) == (SelectionError.exit_code, True)
    (workplace / "x.json").write_text('{"version": 1}')
    result = run("--selection", "s.json", "--record", "r.jsonl.gz", "--search", "x.json")
    assert (result.exit_code, "cannot read the searches x.json" in result.stderr) == (StoreError.exit_code, True)
    write_curves(workplace / "x.json", "h200", "h200", [])
    result = run("--selection", "s.json", "--record", "r.jsonl.gz", "--search", "x.json")
    assert "x.json is version 1 of h200; expected version 1 of thor; give --search" in result.stderr
    assert not (workplace / "build").exists()
