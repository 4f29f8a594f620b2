"""Constants fitted to published times: by halves, of times that constants are known to have made."""

from dataclasses import replace

import numpy as np
import pytest

from aot.core.errors import SelectionError, TargetError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.space.calibration import calibration_of, write_calibration
from aot.space.cost import DEFAULTS, NAME, Constants
from research.studies.prior import load_published
from research.studies.prior_calibrated import (
    ALL,
    ALL_COLD,
    COLD,
    EVERY,
    Changed,
    Space,
    Timed,
    calibration,
    changed,
    fit_published,
    groups,
    halves,
    study,
    timed,
)
from tests.unit.accepted import named
from tests.unit.twins import problem_of

THOR = load_target("thor")
POINTS = timed(load_published("thor"))
CANDIDATES = [
    named(f"sm100_persistent_{name}")
    for name in ("128x64_c1x1_static", "128x128_c2x1_static", "256x64_c2x1_static_2cta", "256x256_c2x1_static_2cta")
]
KINDS = (Operation.BF16_KK, Operation.E4M3_FP16_KK)
SPACE = Space(THOR, dict.fromkeys(KINDS, CANDIDATES))
WEIGHTS = ((1024, 1024), (2048, 4096), (4096, 2048), (8192, 1024), (1152, 4304), (2560, 2048))
PROBLEMS = [problem_of(m, n, k, x) for x in KINDS for n, k in WEIGHTS for m in (1, 16, 64, 128, 300, 600, 1000, 2048)]


def made_by(constants, of=PROBLEMS, *, source="x", is_cold=True):
    """Make points whose times are the model's by other constants."""
    return [Timed(source, problem, us, is_cold) for problem, (_, us) in SPACE.first(of, constants).items()]


def test_the_published_points_are_all_there_with_their_best_times():
    assert len(POINTS) == 131
    (point,) = (x for x in POINTS if (x.source, x.problem) == ("ApxInf", problem_of(10, 1024, 4096, Operation.BF16_KN)))
    assert (point.best_us, point.is_cold) == (51.0, True)
    assert {x.source for x in groups(POINTS)[COLD]} == {"ApxInf", "ApxInf FP8"}
    assert groups(POINTS)[EVERY] == POINTS


def test_no_weight_is_in_both_halves():
    first, second = halves(POINTS)
    weights = [{(x.n, x.k) for x in part} for part in (first, second)]
    assert not weights[0] & weights[1]
    assert first | second == {x.problem for x in POINTS}
    assert abs(len(first) - len(second)) <= 11  # the most of one weight
    for part in (first, second):
        assert {x.operation for x in part} >= {Operation.BF16_KN, Operation.E4M3_FP16_KK}


def test_a_first_choice_is_the_fastest_by_the_constants():
    firsts = SPACE.first([*PROBLEMS, *PROBLEMS], DEFAULTS)
    assert list(firsts) == PROBLEMS
    for problem in PROBLEMS[::5]:
        alone = [Space(THOR, {problem.operation: [x]}).first([problem], DEFAULTS)[problem] for x in CANDIDATES]
        assert firsts[problem] == min(alone, key=lambda x: x[1])
    assert len({x for x, _ in firsts.values()}) > 1


@pytest.mark.slow
def test_times_that_known_constants_made_are_found_again_on_the_half_that_was_held_out():
    known = replace(DEFAULTS, bandwidth_share=0.75)
    found = study(made_by(known), SPACE)
    (held,) = (x for x in found.held if (x.group, x.points) == (COLD, ALL))
    assert held.num_points == len(PROBLEMS)
    assert held.before.mean > 1.15
    assert held.after.mean == pytest.approx(1.0, abs=0.01)
    assert held.after.deviation < 0.4 * held.before.deviation < 0.4 * held.scaled.deviation
    assert found.whole.bandwidth_share == pytest.approx(0.75, rel=0.03)
    assert found.whole.ramp_us == pytest.approx(DEFAULTS.ramp_us, rel=0.05)


@pytest.mark.slow
def test_what_is_scored_was_not_fitted_to():
    """The halves are of other constants: each is predicted by the other's."""
    first, second = halves(made_by(DEFAULTS))
    slow = replace(DEFAULTS, bandwidth_share=0.75)
    points = [*made_by(slow, sorted(first)), *made_by(DEFAULTS, sorted(second))]
    held = {x.points: x for x in study(points, SPACE).held if x.group == COLD}
    one, two = (held[f"{ALL_COLD}, half {i}"] for i in (1, 2))
    assert (one.num_points, two.num_points) == (len(first), len(second))
    assert (one.before.mean > 1.1, two.before.mean) == (True, pytest.approx(1.0))
    assert one.after.mean == pytest.approx(one.before.mean, rel=0.02)
    assert two.after.mean < 0.92
    assert two.scaled.mean == pytest.approx(1 / one.before.mean)


@pytest.mark.slow
def test_the_model_is_fitted_to_what_is_asked_for_alone():
    warm = made_by(replace(DEFAULTS, bandwidth_share=0.7), source="warm", is_cold=False)
    points = [*made_by(DEFAULTS), *warm]
    fitted = {x.group: x.halves for x in study(points, SPACE).fitted}
    assert all(x.bandwidth_share == pytest.approx(1.0, abs=0.01) for x in fitted[COLD])
    # A problem that has two times is fitted to the better one: the warm ones are the slower here.
    assert fitted[EVERY] == fitted[COLD]
    faster = made_by(replace(DEFAULTS, bandwidth_share=1.3), source="fast", is_cold=False)
    assert fit_published([*points, *faster], SPACE).bandwidth_share > 1.1


@pytest.mark.slow
def test_a_fit_settles_on_its_own_first_choices():
    points = made_by(replace(DEFAULTS, flops_share=0.6, ramp_us=3.5))
    found = fit_published(points, SPACE)
    firsts = SPACE.first(PROBLEMS, found)
    errors = np.log([firsts[x.problem][1] / x.best_us for x in points])
    before = np.log(
        [us / x.best_us for x, (_, us) in zip(points, SPACE.first(PROBLEMS, DEFAULTS).values(), strict=True)]
    )
    assert np.abs(errors).mean() < 0.25 * np.abs(before).mean()


@pytest.mark.parametrize(
    ("points", "name", "count"),
    [
        ([], COLD, 0),
        (made_by(DEFAULTS, PROBLEMS[:4]), COLD, 1),
        (made_by(DEFAULTS, is_cold=False), COLD, 0),
        ([*made_by(DEFAULTS, is_cold=False), *made_by(DEFAULTS, PROBLEMS[:4])], COLD, 1),
    ],
)
def test_too_few_weights_are_refused(points, name, count):
    with pytest.raises(TargetError) as caught:
        study(points, SPACE)
    assert str(caught.value) == (
        f"published times ({name}) are of {count} weights (n, k); expected some in each of the two halves, of which "
        "one is fitted to and the other scored; add points of other weights to the file"
    )


def test_a_fit_needs_points():
    with pytest.raises(SelectionError, match="no measurements to calibrate by"):
        fit_published([], SPACE)


def test_changed_first_choices_are_counted():
    assert changed(PROBLEMS, SPACE, DEFAULTS) == Changed(0, len(PROBLEMS), 1.0)
    other = replace(DEFAULTS, mma_half_edge=0.01, flops_share=0.05)
    found, firsts = changed(PROBLEMS, SPACE, other), [SPACE.first(PROBLEMS, x) for x in (DEFAULTS, other)]
    assert found.num_changed == sum(firsts[0][x][0] != firsts[1][x][0] for x in PROBLEMS) > 0
    assert found.most > 1.0


@pytest.mark.slow
def test_a_written_calibration_says_what_it_is_of(tmp_path):
    points = [*made_by(replace(DEFAULTS, bandwidth_share=0.8)), *made_by(DEFAULTS, PROBLEMS[:3], source="y")]
    found = study(points, SPACE)
    write_calibration(tmp_path / "c.toml", calibration(found))
    read = calibration_of(tmp_path / "c.toml", "thor")
    assert read == calibration(found)
    assert isinstance(read.constants, Constants)
    (held,) = (x for x in found.held if (x.group, x.points) == (COLD, ALL_COLD))
    assert read.source == (
        f"calibrated on published times: 99, of x and y; fitted to half, published over predicted was "
        f"{held.after.mean:.2f}, spread {held.after.deviation:.2f} on the rest; before {held.before.mean:.2f}, spread "
        f"{held.before.deviation:.2f}"
    )
    assert read.model == f"{NAME}, constants: {read.source}"
