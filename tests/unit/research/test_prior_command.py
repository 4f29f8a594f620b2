"""The study `prior`, and its page and the short one: what they say is what it prints."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from aot.core.shape_set import load_shape_set
from aot.core.target import load_target, target_names
from aot.space.calibration import read_calibration
from research.studies import hand_rule, prior, prior_calibrated, prior_command
from research.studies.prior_command import CALIBRATED, PARTS, SHOWN
from tests.compiling import some
from tests.unit.invoked import study, succeed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "prior.md").read_text(encoding="utf-8")
STUDY = (ROOT / "research" / "studies" / "prior.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^```console\n\$ python -m research\.studies (.*)\n((?:.*\n)*?)```$", STUDY, re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _checked_once():
    """Have each source's points be predicted once, which takes the study a second or two, for all tests."""
    real, found = prior.check_source, {}

    def check_source(source, target, clock):
        key = (source.name, target.name)
        if key not in found:
            found[key] = real(source, target, clock)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prior, "check_source", check_source)
        yield


@cache
def printed(part):
    """Give what the page's command prints, which is run once for all tests."""
    return succeed("prior", "--target", "thor", "--part", part, run=study)


@pytest.mark.parametrize("part", some([x for x in PARTS if x != CALIBRATED], 2))
def test_the_study_quotes_what_is_printed(part):
    assert dict(QUOTED)[f"prior --target thor --part {part}"] == printed(part)


NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")


def test_the_study_quotes_what_constants_are_fitted():
    """A fit's last digits may be another machine's."""
    quoted, found = dict(QUOTED)[f"prior --target thor --part {CALIBRATED}"], printed(CALIBRATED)
    words = [[" ".join(line.split()) for line in NUMBER.sub("#", text).splitlines()] for text in (quoted, found)]
    assert [re.sub("-{2,}", "-", x) for x in words[0]] == [re.sub("-{2,}", "-", x) for x in words[1]]
    numbers = [[float(x) for x in NUMBER.findall(text)] for text in (quoted, found)]
    assert len(numbers[0]) > 300
    assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.0101)


def test_what_is_said_of_fitted_constants_is_true():
    points = prior_calibrated.timed(prior.load_published("thor"))
    found = prior_command._study(load_target("thor"))
    held = {x.points: x for x in found.held if x.group == prior_calibrated.COLD}
    pages = " ".join(STUDY.split()), " ".join(PAGE.split())
    for name in ("ApxInf", "ApxInf FP8"):
        x = held[name]
        figures = [f"{y:.2f}" for spread in (x.before, x.after) for y in (spread.mean, spread.deviation)]
        assert f"| {name}, {x.num_points} points | {' | '.join(figures)} |" in pages[1]
    x = held[prior_calibrated.OTHERS]
    figures = [f"{y:.2f}" for spread in (x.before, x.after) for y in (spread.mean, spread.deviation)]
    assert f"| the other {x.num_points}, to which nothing was fitted | {' | '.join(figures)} |" in pages[1]
    cold = held[prior_calibrated.ALL_COLD]
    assert f"{cold.before.mean:.2f} to {cold.after.mean:.2f} for both" in pages[0]
    assert abs(cold.after.deviation - cold.before.deviation) < 0.01
    rate = found.whole.bandwidth_share * load_target("thor").bandwidth_bytes_per_s
    assert f"`bandwidth_share` of {found.whole.bandwidth_share:.2f} is {rate / 1e9:.0f} GB/s" in pages[0]
    faster = [x for x in points if x.is_cold and moved(x.problem) / x.best_us * 1e6 > rate]
    assert f"{len(faster)} of the {cold.num_points} times with a cold L2 are of products" in pages[0]
    assert f"Marlin's times, which were right before, are now {held['Marlin NVFP4'].after.mean:.2f}" in pages[1]


def moved(problem):
    return problem.operation.num_bytes(problem.m, problem.n, problem.k, 1)


def test_fitted_constants_are_written_where_they_are_asked_for(tmp_path):
    path = tmp_path / "c.toml"
    text = succeed("prior", "--target", "thor", "--part", CALIBRATED, "-o", path, run=study)
    assert f"next: aot tune --target thor --calibration {path}" in text
    found = read_calibration(path, "thor")
    assert found.constants == prior_command._study(load_target("thor")).whole
    assert found.source.startswith("calibrated on published times: 100, of ApxInf and ApxInf FP8; fitted to half, ")
    result = study("prior", "--part", "points", "-o", path)
    assert result.exit_code == 2
    assert f"means nothing without --part {CALIBRATED}; leave it out, or use it with --part" in result.stderr


def test_fitted_constants_are_given_to_programs():
    found = json.loads(succeed("prior", "--part", CALIBRATED, "--json", run=study))[CALIBRATED]
    assert found["calibration"]["constants"] == found["study"]["whole"] != found["before"]
    assert {x["group"] for x in found["study"]["held"]} == {prior_calibrated.COLD, prior_calibrated.EVERY}
    assert found["changed"]["num_problems"] == 252


def test_the_study_quotes_each_part_once():
    assert len(QUOTED) == len(PARTS)


@pytest.mark.walk
def test_without_a_part_all_are_printed():
    assert succeed("prior", run=study) == "\n".join(printed(part) for part in PARTS)


def rows_of(text, heading):
    """Give the cells of the table under a heading: those of its lines, by the columns' widths."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    spans = [match.span() for match in re.finditer("-+", lines[start + 2])]
    body = lines[start + 3 :]
    end = next((i for i, line in enumerate(body) if not line), len(body))
    return [[line[first : last if last < len(line) else None].strip() for first, last in spans] for line in body[:end]]


def test_the_points_are_those_published_beside_the_models():
    rows = rows_of(printed("points"), "Published times")
    found, target = prior.load_published("thor"), load_target("thor")
    checks = [x for source in found.source for x in prior.check_source(source, target, found.clock)]
    assert len(rows) == len(checks) == sum(len(source.point) for source in found.source)
    for row, x in zip(rows, checks, strict=True):
        assert row[:2] == [x.source, x.problem.name]
        figures = [x.library_us, x.best_us, x.roofline_us, x.predicted_us, x.slow_us]
        assert [float(row[i]) for i in (2, 3, 4, 5, 7)] == pytest.approx(figures, abs=0.051)
        assert [float(row[i]) for i in (6, 8)] == pytest.approx([x.ratio, x.slow_ratio], abs=0.0051)
        assert row[9] == ("-" if x.best_us <= x.predicted_us else f"{100 * x.explained:.0f}%")
    assert {row[9] == "-" for row in rows} == {True, False}


def test_the_summary_is_of_the_points():
    points = rows_of(printed("points"), "Published times")
    lines = printed("summary").split("TIRx-kernels: ")[0] + "\n"
    summary = rows_of(lines, "Published best")
    assert sum(int(row[2]) for row in summary) == len(points)
    for source in {row[0] for row in summary}:
        of_source = [row for row in summary if row[0] == source]
        ratios = [float(row[6]) for row in points if row[0] == source]
        assert min(float(row[4]) for row in of_source) == min(ratios)
        assert max(float(row[5]) for row in of_source) == max(ratios)
        assert all(float(row[4]) <= float(row[3]) <= float(row[5]) for row in of_source)


@pytest.mark.walk
def test_the_rule_is_compared_on_every_weight_of_the_set():
    weights = {(weight.n, weight.k) for model in load_shape_set("representative").models for weight in model.weights}
    assert set(SHOWN) <= weights
    text = printed("rule")
    assert text.startswith(f"The hand rule on the {len(weights)} weights of `representative`, fp16, ")
    found = hand_rule.compare_weights(sorted(weights), load_target("thor"))
    rows = rows_of(text, "The hand rule")
    assert [int(row[0]) for row in rows] == list(hand_rule.ROWS)
    for row in rows:
        of_row = [x for x in found if x.problem.m == int(row[0])]
        assert row[2] == f"{sum(x.agrees for x in of_row)} of {len(weights)}"
        assert float(row[4]) == pytest.approx(max(x.loss for x in of_row), abs=0.0051)
        assert int(row[6]) == max(x.rank for x in of_row)
    assert text.count("\n4096 x 4096 ") == text.count("\n2560 x 2048 ") == len(hand_rule.ROWS)


@pytest.mark.walk
def test_a_tile_that_is_not_in_the_space_is_said_to_be_so(monkeypatch):
    monkeypatch.setattr(hand_rule, "SMALL", hand_rule.Tile(64, 128, 4, 4, use_2cta=False))
    rows = rows_of(succeed("prior", "--part", "rule", run=study), "The hand rule")
    assert [row[0] for row in rows if row[3] == "not in the space"] == ["1", "16", "64", "80"]


def test_the_pages_sentences_are_true():
    target, found = load_target("thor"), prior.load_published("thor")
    checks = {
        (x.source, x.problem.operation.tag, x.problem.m): x
        for source in found.source[:2]
        for x in prior.check_source(source, target, found.clock)
    }
    tirx, torch = (checks[x, "bf16_kk", 4096] for x in ("TIRx-kernels", "torch-performance"))
    assert f"bf16 4096^3: predicted {tirx.predicted_us:.0f} us. Published: {tirx.best_us:.0f} us at best" in PAGE
    assert f"and {tirx.library_us:.0f} us by cuBLAS (TIRx-kernels), {torch.best_us:.0f} us by cuBLAS" in PAGE
    assert f"The model is {torch.ratio:.1f} to {tirx.ratio:.1f} times too good." in PAGE
    assert f"{tirx.slow_us:.0f} us: still {torch.slow_ratio:.1f} to {tirx.slow_ratio:.1f} times." in PAGE
    assert f"explains {100 * tirx.explained:.0f}% of what is missing to TIRx-kernels' best" in PAGE
    assert f"best, {100 * torch.explained:.0f}% of the other" in PAGE
    large = [x.ratio for (_, _, m), x in checks.items() if m >= 8192]
    assert f"8192^3 and larger: {min(large):.1f} to {max(large):.1f} times too good" in PAGE
    apxinf = prior.Spread.of(x.ratio for x in prior.check_source(found.source[3], target, found.clock))
    assert f"(ApxInf): {apxinf.mean:.2f} times too good, {apxinf.least:.2f} to {apxinf.most:.2f}" in PAGE
    fp8, marlin, tf32 = (
        prior.Spread.of(x.ratio for x in prior.check_source(source, target, found.clock)) for source in found.source[4:]
    )
    assert f"TF32 squares by torch: {tf32.least:.2f} of the predicted at 1024^3, " in PAGE
    assert f"up to {tf32.most:.1f} above" in PAGE
    assert f"(ApxInf FP8): {fp8.mean:.2f} times too good, {fp8.least:.2f} to {fp8.most:.2f}" in PAGE
    assert f"Marlin's {marlin.least:.2f} to {marlin.most:.2f} of the predicted, {marlin.mean:.2f} in the mean" in PAGE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "h200",
            "aot: error: no published times of 'h200' to hold the prior against; there are of: thor; give --target",
        ),
        (
            "xavier",
            f"aot: error: no target 'xavier'; there are: {', '.join(target_names())}; see `aot targets`",
        ),
    ],
)
def test_another_target_is_refused(target, message):
    result = study("prior", "--target", target)
    assert (result.exit_code, result.stdout, result.stderr) == (4, "", f"{message}\n")


def test_the_help_says_what_is_predicted_and_published():
    text = succeed("prior", "--help", run=study)
    assert "another assumption, not a fit" in " ".join(text.split())
    assert list(PARTS) == ["assumptions", "summary", "points", "rule", "calibrated"]
    assert all(part in text for part in PARTS)
