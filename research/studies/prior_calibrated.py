"""The cost model's constants fitted to published times, and scored on those of other weights. Pure.

A published time is of a library's best kernel and not of a candidate, and there is one time of a problem. So it is put
beside the candidate that the model itself has first there. What `aot.space.calibrate.fit` makes of that:

- Nothing tells one candidate of a problem from another. What all candidates share, which with a record is a level of
  each problem and changes no order, moves the constants here: `MODEL_ERROR` and `LEVEL` are one error of 0.25 in the
  logarithm of each time.
- The fit takes the times for independent. Those of one source share its board, clock and power mode, so that it is
  surer of the constants than the times make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.errors import TargetError
from aot.space.calibrate import Pair, fit, folds
from aot.space.calibration import Calibration
from aot.space.cost import DEFAULTS, Constants
from aot.space.enumeration import legal
from research.studies.prior import Spread, first_choices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.target import Target
    from research.studies.prior import Published

ROUNDS = 4
"""Times that constants are fitted and first choices made anew by them. Source: on Thor's published times the first
choices are settled by then, or go back and forth between candidates of nearly equal times."""

COLD, EVERY = "cold L2", "every source"
"""What is fitted to: the sources whose conditions say that L2 was cold, as the model has it, or all of them."""

ALL_COLD, OTHERS, ALL = f"all of {COLD}", "all others", "all"
"""What is scored beside each source, and each half of those with a cold L2."""


@dataclass(frozen=True)
class Timed:
    """A published problem: the best time of a source, in microseconds, and whether its L2 is said to be cold."""

    source: str
    problem: Problem
    best_us: float
    is_cold: bool


def timed(found: Published) -> list[Timed]:
    """List the published problems with their best times; those of two sources are there twice."""
    return [
        Timed(source.name, problem, min(point.times_us()), source.cold_l2)
        for source in found.source
        for problem, point in zip(source.problems(), source.point, strict=True)
    ]


def groups(points: Sequence[Timed]) -> dict[str, list[Timed]]:
    """Return what may be fitted to."""
    return {COLD: [x for x in points if x.is_cold], EVERY: list(points)}


@dataclass(frozen=True)
class Space:
    """A target and the candidates that first choices are made of, by operation."""

    target: Target
    candidates: Mapping[Operation, Sequence[Candidate]]

    @staticmethod
    def of(problems: Iterable[Problem], target: Target) -> Space:
        """Take all legal candidates of the problems' operations.

        Raises:
            CandidateError: an operation has none.
        """
        operations = dict.fromkeys(problem.operation for problem in problems)
        return Space(target, {operation: legal(operation, target) for operation in operations})

    def first(self, problems: Iterable[Problem], constants: Constants) -> dict[Problem, tuple[Candidate, float]]:
        """Return what the model puts first on each problem by constants, and its predicted time in microseconds."""
        by_operation: dict[Operation, list[Problem]] = {}
        for problem in dict.fromkeys(problems):
            by_operation.setdefault(problem.operation, []).append(problem)
        found: dict[Problem, tuple[Candidate, float]] = {}
        for operation, own in by_operation.items():
            firsts = first_choices(self.candidates[operation], own, self.target, constants)
            found |= dict(zip(own, firsts, strict=True))
        return found


def fit_published(points: Sequence[Timed], space: Space) -> Constants:
    """Fit constants to the best published times, each put beside the model's first choice.

    Constants change first choices, so that these are made anew and fitted to again, up to `ROUNDS` times. Of the rounds
    that one is taken whose own first choices come nearest to the published times.

    Raises:
        SelectionError: there is nothing to fit to.
    """
    times: dict[Problem, float] = {}
    for point in points:
        times[point.problem] = min(point.best_us, times.get(point.problem, np.inf))
    firsts, rounds = space.first(times, DEFAULTS), []
    for _ in range(ROUNDS):
        pairs = {Pair(problem, firsts[problem][0]): us for problem, us in times.items()}
        constants = fit(pairs, space.target)
        firsts = space.first(times, constants)
        errors = np.log([firsts[problem][1] / us for problem, us in times.items()])
        rounds.append((float(np.square(errors).mean()), constants))
        if all(firsts[pair.problem][0] == pair.candidate for pair in pairs):
            break
    return min(rounds, key=lambda x: x[0])[1]


@dataclass(frozen=True)
class Fitted:
    """Constants fitted to a group of published times, to each half of the weights."""

    group: str
    halves: tuple[Constants, Constants]


@dataclass(frozen=True)
class Held:
    """Published over predicted time on weights that were held out, of some points.

    `before` is by the constants that every target starts with, `after` by those fitted to the other half. `scaled` is
    by the first of these, and all times multiplied by one factor, the geometric mean of what the other half lacks: what
    a fit of constants has to be better than.
    """

    group: str
    points: str
    num_points: int
    before: Spread
    after: Spread
    scaled: Spread


@dataclass(frozen=True)
class Changed:
    """How many first choices other constants change; `most` is what an old one then takes of the new one's time."""

    num_changed: int
    num_problems: int
    most: float


@dataclass(frozen=True)
class Study:
    """What fitting to published times gives."""

    target: str
    sources: tuple[str, ...]
    """Those whose L2 is said to be cold."""
    fitted: tuple[Fitted, ...]
    held: tuple[Held, ...]
    whole: Constants
    """Fitted to all points with a cold L2: what a calibration has."""


def halves(points: Sequence[Timed]) -> tuple[frozenset[Problem], frozenset[Problem]]:
    """Split the published problems by weight: no n and k are in both parts, of whatever source and operation.

    Raises:
        TargetError: a part has no time of a group, to fit to or to score on.
    """
    first, second = folds({x.problem for x in points}, 2)
    for name, group in groups(points).items():
        if not all(any(x.problem in part for x in group) for part in (first, second)):
            weights = {(x.problem.n, x.problem.k) for x in group}
            raise TargetError(
                f"published times ({name}) are of {len(weights)} weights (n, k); expected some in each of the two "
                "halves, of which one is fitted to and the other scored; add points of other weights to the file"
            )
    return first, second


def _ratios(points: Iterable[Timed], space: Space, constants: Constants) -> dict[Timed, float]:
    some = list(points)
    firsts = space.first([x.problem for x in some], constants)
    return {x: x.best_us / firsts[x.problem][1] for x in some}


def _held(group: str, points: Sequence[Timed], space: Space, fitted: Fitted) -> list[Held]:
    """Score each half of all points by what was fitted to the other half's points of a group."""
    before = _ratios(points, space, DEFAULTS)
    after: dict[Timed, float] = {}
    scaled: dict[Timed, float] = {}
    parts = halves(points)
    for own, other, constants in zip(parts, reversed(parts), reversed(fitted.halves), strict=True):
        scored = [x for x in points if x.problem in own]
        factor = Spread.of(before[x] for x in groups(points)[group] if x.problem in other).mean
        after |= _ratios(scored, space, constants)
        scaled |= {x: before[x] / factor for x in scored}
    rows = [(name, [x for x in points if x.source == name]) for name in dict.fromkeys(x.source for x in points)]
    cold = groups(points)[COLD]
    rows += [(f"{ALL_COLD}, half {i}", [x for x in cold if x.problem in part]) for i, part in enumerate(parts, start=1)]
    rows += [(ALL_COLD, cold), (OTHERS, [x for x in points if not x.is_cold]), (ALL, list(points))]
    return [
        Held(group, name, len(some), *(Spread.of(ratios[x] for x in some) for ratios in (before, after, scaled)))
        for name, some in rows
        if some
    ]


def study(points: Sequence[Timed], space: Space) -> Study:
    """Fit constants to each half of the published times, and score them on the other half.

    Raises:
        TargetError: the times are of too few weights.
    """
    parts = halves(points)
    fitted = []
    for name, group in groups(points).items():
        first, second = (fit_published([x for x in group if x.problem in part], space) for part in parts)
        fitted.append(Fitted(name, (first, second)))
    held = tuple(row for x in fitted for row in _held(x.group, points, space, x))
    cold = groups(points)[COLD]
    sources = tuple(dict.fromkeys(x.source for x in cold))
    return Study(space.target.name, sources, tuple(fitted), held, fit_published(cold, space))


def changed(problems: Collection[Problem], space: Space, constants: Constants) -> Changed:
    """Count the problems whose first choice is another one by other constants.

    Args:
        problems: one or more.
        space: has their operations.
        constants: the others.
    """
    before, after = (space.first(problems, x) for x in (DEFAULTS, constants))
    moved = {problem for problem, (candidate, _) in after.items() if before[problem][0] != candidate}
    losses = [1.0]
    for problem in moved:
        alone = Space(space.target, {problem.operation: [before[problem][0]]})
        losses.append(alone.first([problem], constants)[problem][1] / after[problem][1])
    return Changed(len(moved), len(after), max(losses))


def calibration(found: Study) -> Calibration:
    """Make the calibration of the times with a cold L2; it says what it is of, and how it did on what was held out."""
    (held,) = (x for x in found.held if (x.group, x.points) == (COLD, ALL_COLD))
    told = [f"{x.mean:.2f}, spread {x.deviation:.2f}" for x in (held.after, held.before)]
    source = (
        f"calibrated on published times: {held.num_points}, of {' and '.join(found.sources)}; fitted to half, "
        f"published over predicted was {told[0]} on the rest; before {told[1]}"
    )
    return Calibration(found.target, source, found.whole)
