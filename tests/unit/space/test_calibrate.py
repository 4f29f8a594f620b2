from dataclasses import replace

import numpy as np
import pytest

from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.space import calibrate
from aot.space.calibrate import (
    FRESH,
    FRESH_WIDTH,
    NUM_PAIRS,
    PER_PROBLEM,
    Pair,
    cross_validate,
    design,
    fit,
    folds,
    score,
)
from aot.space.cost import DEFAULTS, Constants, estimate
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
CANDIDATES = [
    named(f"sm90_quack_{name}")
    for name in (
        *("64x16_c1x1_pingpong_swap", "64x64_c1x1_pingpong", "128x128_c1x1_pingpong", "128x256_c2x1_cooperative"),
        *("256x128_c2x1_cooperative", "64x64_c1x1_pingpong_serial4", "128x64_c1x1_pingpong_separate2"),
        *("128x192_c1x2_pingpong", "64x256_c1x1_pingpong", "192x128_c1x1_cooperative"),
    )
]
PROBLEMS = [problem_of(m, n, k) for m in (1, 48, 300, 2048) for n, k in ((4096, 4096), (1152, 4304), (28672, 2048))]


def invented(constants):
    """Give times that the model has with other constants."""
    times = estimate(CANDIDATES, PROBLEMS, H200, constants).total_us.tolist()
    return {problem: dict(zip(CANDIDATES, row, strict=True)) for problem, row in zip(PROBLEMS, times, strict=True)}


def test_pairs_are_few_on_problems_far_apart():
    pairs = design(dict.fromkeys(PROBLEMS, CANDIDATES), H200, 16)
    assert len(pairs) == len(set(pairs)) == 16
    problems = list(dict.fromkeys(pair.problem for pair in pairs))
    assert [sum(pair.problem == x for pair in pairs) for x in problems] == [PER_PROBLEM] * 4
    assert {x.m for x in problems} >= {1, 2048}
    assert len({pair.candidate for pair in pairs}) >= 6


def test_the_design_knows_no_times():
    available = dict.fromkeys(PROBLEMS, CANDIDATES)
    assert design(available, H200, 16) == design(dict(reversed(available.items())), H200, 16)


@pytest.mark.slow
def test_a_fit_finds_the_order_that_other_constants_make():
    other = Constants(mma_half_edge=60.0, outside_row_ns=4.0, ramp_us=4.0, serial_handover_us=2.0, flops_share=0.8)
    times = invented(other)
    assert score(times, H200, other).spearman == pytest.approx(1.0)
    pairs = design(times, H200, 48)
    found = fit({pair: times[pair.problem][pair.candidate] for pair in pairs}, H200)
    before, after = score(times, H200), score(times, H200, found)
    assert after.spearman > before.spearman
    assert after.top8_mean <= before.top8_mean
    assert found.mma_half_edge > DEFAULTS.mma_half_edge
    assert found.ramp_us > DEFAULTS.ramp_us


def test_times_that_agree_with_the_constants_leave_them():
    times = invented(DEFAULTS)
    measured = {Pair(problem, x): times[problem][x] for problem in PROBLEMS[:4] for x in CANDIDATES[:4]}
    found = fit(measured, H200)
    assert [getattr(found, name) for name in calibrate.NAMES] == pytest.approx(
        [getattr(DEFAULTS, name) for name in calibrate.NAMES], rel=1e-3
    )


def test_times_of_several_operations_are_each_predicted_as_their_own():
    """FP8 takes other times than bf16 by the model, so that those of one for the other would move the constants."""
    pairs = [Pair(replace(x, operation=y), CANDIDATES[1]) for x in PROBLEMS for y in (BF16, Operation.E4M3_BF16_KK)]
    times = {x: float(estimate([x.candidate], [x.problem], H200).total_us[0, 0]) for x in pairs}
    assert all(times[fp8] < 0.9 * times[bf16] for bf16, fp8 in zip(pairs[6::2], pairs[7::2], strict=True))
    found = fit(times, H200)
    assert [getattr(found, name) for name in calibrate.NAMES] == pytest.approx(
        [getattr(DEFAULTS, name) for name in calibrate.NAMES], rel=1e-3
    )


def test_a_fit_needs_measurements():
    with pytest.raises(SelectionError, match="no measurements to calibrate by"):
        fit({}, H200)


def test_scores():
    times = invented(DEFAULTS)
    problem = PROBLEMS[5]
    perfect = score({problem: times[problem]}, H200)
    assert (perfect.spearman, perfect.top8_hits, perfect.top8_near, perfect.top8_mean) == (1.0, 1.0, 1.0, 0.0)
    # Times in the opposite order: the model's first eight of ten are the worst eight.
    upside_down = {x: 1 / us for x, us in times[problem].items()}
    worst = score({problem: upside_down}, H200)
    ranked = sorted(upside_down.values())
    assert worst.spearman == pytest.approx(-1.0)
    assert (worst.top8_hits, worst.top8_near) == (0.0, 0.0)
    assert worst.top8_mean == pytest.approx(ranked[2] / ranked[0] - 1, abs=1e-5)


def test_folds_part_weights():
    parts = folds(PROBLEMS, 3)
    assert sorted(problem for part in parts for problem in part) == sorted(PROBLEMS)
    weights = [{(problem.n, problem.k) for problem in part} for part in parts]
    assert [len(x) for x in weights] == [1, 1, 1]


@pytest.mark.walk
def test_scoring_never_overlaps_with_fitting(monkeypatch, h200_times):
    rows = {problem: row for problem, row in h200_times[BF16].items() if problem.m in (1, 2048)}
    times = {problem: dict(sorted(row.items())[:30]) for problem, row in rows.items()}
    fitted, scored = [], []

    def spy_fit(measured, target, start, width):
        assert 0 < len(measured) <= NUM_PAIRS
        fitted.append({(pair.problem.n, pair.problem.k) for pair in measured})
        return start

    def spy_score(rows, target, constants):
        scored.append({(problem.n, problem.k) for problem in rows})
        return calibrate.Scores(0.0, 0.0, 0.0, 0.0, 0.0, len(rows))

    monkeypatch.setattr(calibrate, "fit", spy_fit)
    monkeypatch.setattr(calibrate, "score", spy_score)
    held = cross_validate(times, H200, num_folds=4)
    assert len(fitted) == 8  # of two starts
    for i, weights in enumerate(fitted):
        before, after = scored[2 * i : 2 * i + 2]
        assert before == after
        assert not weights & after
    assert held[0].after.num_problems == len(times)


@pytest.mark.slow
@pytest.mark.walk
def test_a_fresh_start_orders_the_record_as_well_as_hand_set_constants(h200_times):
    # Fitted on half of the weights, scored on every other problem of the rest.
    first, second = folds(h200_times[BF16], 2)
    rows = {problem: h200_times[BF16][problem] for problem in sorted(first)}
    found, _ = calibrate.calibrate(rows, H200, start=FRESH, width=FRESH_WIDTH)
    held = {problem: h200_times[BF16][problem] for problem in sorted(second)[::2]}
    fresh, hand, fitted = (score(held, H200, x) for x in (FRESH, DEFAULTS, found))
    assert fitted.spearman > fresh.spearman + 0.05
    assert fitted.spearman > hand.spearman - 0.02
    assert np.isfinite(fitted.top8_worst)
