"""Fit the cost model's constants to a handful of measurements, and score its order on others. Pure.

Which measurements: a few on each of some problems far apart, those that tell the constants apart best by the model's
own derivatives (a D-optimal design). How: least squares on the logarithm of predicted over measured time, each problem
with a level of its own, a robust loss, and the start as a prior. Scores are never taken on what was fitted to:
weights, that is pairs of n and k, are split.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.errors import SelectionError
from aot.space.cost import DEFAULTS, Constants, estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.measurement import Times
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.target import Target

Array = NDArray[np.float64]

NAMES = tuple(field.name for field in fields(Constants))
NUM_PAIRS = 48
"""Measurements to fit to. Source: research/log/2026-11-21-calibrations.md has the scores of 24, 48 and 96."""

MODEL_ERROR = 0.15
"""Standard deviation of the model's error, a logarithm, that a measurement is weighed by. Source: the 0.21 that it has
within a problem on the H200 record, less what the fit is to take away."""

LEVEL = 0.2
"""The same of the error that all candidates of a problem share, which does not change their order."""

PER_PROBLEM = 4
"""Pairs of one problem: their ratios say what the order of candidates hangs on."""

PRIOR_WIDTH = 0.5
"""Standard deviation of a constant's logarithm around its start, for constants set by hand."""

FRESH_WIDTH = 0.8
"""The same around FRESH: about a factor of two either way."""

RATE_WIDTH = 0.4
"""What the widths are multiplied by for the shares of the two rates, which a data sheet gives to some 20 percent."""

BOUND = 2.0
"""Standard deviations that a constant may move."""

NEAR = 2.0
"""A pair that the model gives more than this times the problem's best is not measured: it is not for such that the
model is needed."""

FRESH = Constants(
    mma_half_edge=8.0,
    blocking_epilogue=0.5,
    hidden_epilogue=0.05,
    l2_bytes_a_clock_an_sm=64.0,
    sm_share_of_bandwidth=1.0,
    ramp_us=1.0,
    memory_latency_us=0.6,
    outside_row_ns=0.1,
    unhidden_share=0.05,
    serial_handover_us=0.5,
    flops_share=1.25,
    bandwidth_share=1.12,
)
"""What the fit starts from where nothing was measured yet: an H200's data sheet rates (989 TFLOP/s, 4.8 TB/s) over
those measured that aot/targets/h200.toml has, work that overlaps, bandwidth that is shared evenly, rows
outside the operands nearly free."""


TOP = 8
"""The model's first few, among which the best is to be. Source: the protocol's rounds take eight in any case."""


@dataclass(frozen=True)
class Pair:
    """One measurement to fit to."""

    problem: Problem
    candidate: Candidate


@dataclass(frozen=True)
class Scores:
    """How well the model orders candidates, over problems that nothing was fitted to.

    `spearman` is the mean over problems of the rank correlation of predicted with measured times; `top8_hits` the share
    of problems whose best candidate is among the model's first eight; `top8_near` of those with one within 1 percent of
    the best there; `top8_mean` and `top8_worst` the regret of the best among the eight.
    """

    spearman: float
    top8_hits: float
    top8_near: float
    top8_mean: float
    top8_worst: float
    num_problems: int


RELATIVE_WIDTHS = np.array([RATE_WIDTH if name in ("flops_share", "bandwidth_share") else 1.0 for name in NAMES])


def _vector(constants: Constants) -> Array:
    return np.log([getattr(constants, name) for name in NAMES])


def _constants(logs: Array) -> Constants:
    return Constants(**dict(zip(NAMES, np.exp(logs).tolist(), strict=True)))


def _log_us(pairs: Sequence[Pair], target: Target, constants: Constants) -> Array:
    """Return the logarithm of each pair's predicted time in microseconds; of several operations each is asked apart."""
    found = np.empty(len(pairs))
    by_operation: dict[Operation, list[int]] = {}
    for i, pair in enumerate(pairs):
        by_operation.setdefault(pair.problem.operation, []).append(i)
    for places in by_operation.values():
        problems = list(dict.fromkeys(pairs[i].problem for i in places))
        candidates = list(dict.fromkeys(pairs[i].candidate for i in places))
        times = estimate(candidates, problems, target, constants).total_us
        row, column = ({x: i for i, x in enumerate(some)} for some in (problems, candidates))
        found[places] = np.log([times[row[pairs[i].problem], column[pairs[i].candidate]] for i in places])
    return found


def _derivatives(pairs: Sequence[Pair], target: Target, constants: Constants) -> Array:
    """Return the derivatives of the logarithm of each pair's time by that of each constant, (pair, constant)."""
    start, step = _vector(constants), 0.02
    base = _log_us(pairs, target, constants)
    moved = [_log_us(pairs, target, _constants(start + step * row)) for row in np.eye(len(NAMES))]
    slopes: Array = (np.column_stack(moved) - base[:, None]) / step
    return slopes


def _apart(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Choose problems far apart in m, n and k, from the middle one outward."""
    places = np.log2(np.array([(x.m, x.n, x.k) for x in problems], dtype=np.float64))
    chosen = [int(np.square(places - np.median(places, axis=0)).sum(axis=1).argmin())]
    while len(chosen) < min(count, len(problems)):
        distance = np.square(places[:, None] - places[None, chosen]).sum(axis=2).min(axis=1)
        chosen.append(int(distance.argmax()))
    return [problems[i] for i in chosen]


def design(
    available: Mapping[Problem, Iterable[Candidate]],
    target: Target,
    count: int = NUM_PAIRS,
    start: Constants = DEFAULTS,
) -> list[Pair]:
    """Choose what to measure: problems far apart, and on each the pairs whose ratio says most about the constants.

    On each problem the model's first choice, and greedily those about whose time the constants known so far say least.

    Args:
        available: candidates that may be measured, by problem.
        target: the device.
        count: pairs to choose.
        start: constants to begin with.
    """
    spread = np.diag((FRESH_WIDTH * RELATIVE_WIDTHS) ** 2)
    chosen: list[Pair] = []
    for problem in _apart(sorted(available), -(-count // PER_PROBLEM)):
        candidates = sorted(available[problem])
        predicted = estimate(candidates, [problem], target, start).total_us[0]
        first = int(predicted.argmin())
        near = np.flatnonzero(predicted <= NEAR * predicted[first]).tolist()
        pairs = [Pair(problem, candidates[i]) for i in near]
        slopes = _derivatives(pairs, target, start)
        # A problem's level is free, so that its first pair says nothing of the constants and others their ratio to it.
        slopes = (slopes - slopes[near.index(first)]) / (2**0.5 * MODEL_ERROR)
        taken = [near.index(first)]
        while len(taken) < min(PER_PROBLEM, len(pairs)):
            gains = np.einsum("ij,jk,ik->i", slopes, spread, slopes)
            gains[taken] = -1.0
            best = int(gains.argmax())
            column = spread @ slopes[best]
            spread = spread - np.outer(column, column) / (1 + gains[best])
            taken.append(best)
        chosen += [pairs[i] for i in taken]
    return chosen[:count]


def fit(
    measured: Mapping[Pair, float], target: Target, start: Constants = DEFAULTS, width: float = PRIOR_WIDTH
) -> Constants:
    """Fit the constants to times in microseconds.

    Where every problem has one pair, its level is no longer apart from the constants: the time is weighed by
    `MODEL_ERROR` and `LEVEL` together, 0.25, and moves the constants by what all candidates share, too.

    Args:
        measured: what each pair took; of one operation or of several.
        target: the device.
        start: constants to begin with, and to stay near.
        width: standard deviation of their logarithms.

    Raises:
        SelectionError: there is nothing to fit to.
    """
    if not measured:
        raise SelectionError("there are no measurements to calibrate by; tune a few problems first")
    pairs, origin, widths = list(measured), _vector(start), width * RELATIVE_WIDTHS
    logs = np.log([measured[pair] for pair in pairs])
    same = np.array([[x.problem == y.problem for y in pairs] for x in pairs])
    whiten = np.linalg.inv(np.linalg.cholesky(MODEL_ERROR**2 * np.eye(len(pairs)) + LEVEL**2 * same))

    def misfit(offsets: Array) -> Array:
        errors = whiten @ (_log_us(pairs, target, _constants(origin + widths * offsets)) - logs)
        # The loss is soft for what is far off; the prior's own terms stay within where it is a square.
        return np.concatenate([errors, offsets])

    from scipy.optimize import least_squares

    found = least_squares(misfit, np.zeros(len(NAMES)), bounds=(-BOUND, BOUND), loss="soft_l1", diff_step=0.02)
    rounded = {
        name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(origin + widths * found.x), strict=True)
    }
    return replace(start, **rounded)


def calibrate(
    times: Times, target: Target, *, count: int = NUM_PAIRS, start: Constants = DEFAULTS, width: float = PRIOR_WIDTH
) -> tuple[Constants, list[Pair]]:
    """Choose a few of the times and fit the constants to them; give the constants and the pairs."""
    pairs = design(times, target, count, start)
    return fit({pair: times[pair.problem][pair.candidate] for pair in pairs}, target, start, width), pairs


def score(times: Times, target: Target, constants: Constants = DEFAULTS) -> Scores:
    """Score the model's order on times; problems with fewer than three candidates have no order to speak of.

    Raises:
        SelectionError: there are no others.
    """
    from scipy.stats import spearmanr

    correlations, regrets = [], []
    for problem in sorted(times):
        row = times[problem]
        if len(row) < 3:
            continue
        measured = np.array(list(row.values()))
        predicted = estimate(list(row), [problem], target, constants).total_us[0]
        correlations.append(float(spearmanr(predicted, measured).statistic))
        first = np.argsort(predicted, kind="stable")[:TOP]
        regrets.append(float(measured[first].min() / measured.min() - 1))
    if not regrets:
        raise SelectionError(
            "no problem has times of three candidates to score by; give another --record, or --folds 0"
        )
    return Scores(
        round(float(np.mean(correlations)), 4),
        round(float(np.mean(np.array(regrets) == 0)), 4),
        round(float(np.mean(np.array(regrets) <= 0.01)), 4),
        round(float(np.mean(regrets)), 5),
        round(max(regrets), 5),
        len(regrets),
    )


def folds(problems: Iterable[Problem], count: int) -> list[frozenset[Problem]]:
    """Split problems so that those of one weight, one n and k, are in one part, and parts are of about one size."""
    weights: dict[tuple[int, int], list[Problem]] = {}
    for problem in sorted(problems):
        weights.setdefault((problem.n, problem.k), []).append(problem)
    parts: list[list[Problem]] = [[] for _ in range(count)]
    for weight in sorted(weights, key=lambda x: (-len(weights[x]), x)):
        min(parts, key=len).extend(weights[weight])
    return [frozenset(part) for part in parts]


@dataclass(frozen=True)
class Held:
    """Scores over all folds, each fold's taken with constants fitted to the others."""

    label: str
    before: Scores
    after: Scores


def _join(scores: Sequence[Scores]) -> Scores:
    counts = np.array([x.num_problems for x in scores])

    def mean(name: str) -> float:
        return round(float(np.average([getattr(x, name) for x in scores], weights=counts)), 5)

    worst = max(x.top8_worst for x in scores)
    correlation, hits, near, regret = map(mean, ("spearman", "top8_hits", "top8_near", "top8_mean"))
    return Scores(correlation, hits, near, regret, worst, int(counts.sum()))


def cross_validate(times: Times, target: Target, *, count: int = NUM_PAIRS, num_folds: int = 5) -> list[Held]:
    """Score the model before and after calibration, from the constants set by hand and from FRESH ones.

    Each fold's problems are scored with constants that were fitted to pairs of the other folds' problems only.

    Raises:
        SelectionError: the times are too few to split.
    """
    parts = [part for part in folds(times, num_folds) if part]
    if len(parts) < 2:
        raise SelectionError(
            f"the times are of {len(parts)} weight in {num_folds} folds; scoring needs two of each, so that one is "
            "fitted to and another scored; give another --record, or --folds 0"
        )
    held = []
    for label, start, width in (("set by hand", DEFAULTS, PRIOR_WIDTH), ("fresh", FRESH, FRESH_WIDTH)):
        before, after = [], []
        for part in parts:
            fitted, _ = calibrate(
                {x: row for x, row in times.items() if x not in part}, target, count=count, start=start, width=width
            )
            scored = {x: row for x, row in times.items() if x in part}
            before.append(score(scored, target, start))
            after.append(score(scored, target, fitted))
        held.append(Held(label, _join(before), _join(after)))
    return held
