"""What measured times say about the cost model's errors: a Gaussian process over candidates and problems, in numpy.

An error is the logarithm of the measured over the predicted time. Errors of similar candidates on similar problems are
alike, and so are a candidate's own on similar problems; each problem has a level of its own. Given what was measured,
on this problem and on others near it, the posterior says for every candidate what its error is and how sure that is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from aot.core.candidate import Candidate
    from aot.core.work import AnyProblem
    from aot.kinds.registry import AnyKind

Array = NDArray[np.float64]

MAX_POINTS = 400
"""Most measurements of other problems that a posterior rests on, the nearest: solving for more takes longer than
measuring. Source: a replay of the H200 record with 300 and with 600 gave the same regret
(research/log/2026-11-21-searches.md)."""


@dataclass(frozen=True)
class Prior:
    """Standard deviations of the parts of an error, in logarithms (0.1 is about 10 percent), and how far they reach.

    Source: the first guess, of the size of the model's errors on the H200 record; in replays of 150 of its problems,
    half or twice of `local`, `own`, `octaves` and the candidates' unit of distance gave no less regret.
    """

    local: float = 0.15
    """What similar candidates share on similar problems."""
    common: float = 0.1
    """What similar candidates share on every problem."""
    own: float = 0.05
    """A candidate's own, on similar problems."""
    level: float = 0.2
    """A problem's, the same for all of its candidates."""
    noise: float = 0.01
    """Of a measurement. Source: half the distance between the quartiles of seven rounds has a median of 0.8 percent."""
    octaves: float = 1.5
    """Doublings of a size after which problems are one unit of distance apart."""


@dataclass(frozen=True)
class Points:
    """Candidates as coordinates: those that are compared by distance, and those that are equal or not."""

    numbers: Array
    kinds: NDArray[np.int64]

    def take(self, indices: Sequence[int]) -> Points:
        """Return some of the points."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Points(self.numbers[chosen], self.kinds[chosen])


@dataclass(frozen=True)
class Observed:
    """What was measured of one problem."""

    place: Array
    points: Points
    errors: Array


class Coordinates:
    """Gives candidates and problems of a kind their coordinates; names get numbers as they are met."""

    def __init__(self, prior: Prior, kind: AnyKind) -> None:
        self._prior, self._kind, self._axes = prior, kind, kind.stated_axes
        self._codes: dict[Hashable, int] = {}

    def _code(self, value: Hashable) -> int:
        return self._codes.setdefault(value, len(self._codes))

    def points(self, candidates: Sequence[Candidate]) -> Points:
        """Place candidates."""
        features = self._kind.features
        values = [self._kind.values(x) for x in candidates]
        numbers = [features.numbers(x) for x in values]
        kinds = [[self._code(word) for word in features.words(x)] for x in values]
        return Points(  # of the same width where there are none
            np.array(numbers, dtype=np.float64).reshape(len(numbers), features.num_numbers),
            np.array(kinds, dtype=np.int64).reshape(len(kinds), len(features.names)),
        )

    def place(self, problem: AnyProblem) -> Array:
        """Place a problem, by the sizes that every file states; another operation is one unit away."""
        sizes = [math.log2(getattr(problem, axis)) / self._prior.octaves for axis in self._axes]
        return np.array([*sizes, float(self._code(problem.operation.tag))])


def _problem_distance(one: Array, others: Array) -> Array:
    """Square the distance of places (..., sizes and operation) from a place."""
    distance: Array = np.square(others[..., :-1] - one[..., :-1]).sum(axis=-1) + (others[..., -1] != one[..., -1])
    return distance


def squared_distances(one: Points, other: Points) -> Array:
    """Square the distances of points, (one, other)."""
    a, b = one.numbers, other.numbers
    squares = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1) - 2 * a @ b.T
    distance: Array = np.maximum(squares, 0.0)
    for i in range(one.kinds.shape[1]):
        distance = distance + (one.kinds[:, i, None] != other.kinds[None, :, i])
    return distance


def _covariance(prior: Prior, problems: Array, candidates: Array) -> Array:
    """Return the covariance of errors from the squared distances of problems and of candidates; no level, no noise."""
    near = np.exp(-0.5 * problems)
    shared = (prior.local**2 * near + prior.common**2) * np.exp(-0.5 * candidates)
    same: Array = shared + prior.own**2 * near * (candidates < 1e-9)
    return same


class Posterior:
    """Errors of one problem's candidates: their mean and covariance, as measurements of them come in."""

    def __init__(self, mean: Array, covariance: Array, noise: float) -> None:
        self.mean, self._covariance, self._noise = mean, covariance, noise

    @property
    def deviation(self) -> Array:
        """Return the standard deviation of each candidate's error."""
        deviation: Array = np.sqrt(np.maximum(self._covariance.diagonal(), 1e-12))
        return deviation

    def observe(self, index: int, error: float) -> None:
        """Take in one candidate's error."""
        column = self._covariance[:, index]
        gain = column / (column[index] + self._noise**2)
        self.mean = self.mean + gain * (error - self.mean[index])
        self._covariance = self._covariance - np.outer(gain, column)


def nearest(place: Array, memory: Sequence[Observed], max_points: int = MAX_POINTS) -> list[Observed]:
    """Choose the observed problems nearest to a place, up to a number of measurements in all, and one in any case."""
    if not memory:
        return []
    order = np.argsort(_problem_distance(place, np.array([x.place for x in memory])), kind="stable")
    chosen: list[Observed] = []
    for i in order.tolist():
        if chosen and sum(len(x.errors) for x in chosen) + len(memory[i].errors) > max_points:
            break
        chosen.append(memory[i])
    return chosen


@dataclass(frozen=True)
class _Seen:
    """What was measured of several problems, in a row: one entry for each measurement."""

    errors: Array
    places: Array
    points: Points
    among: Array
    """The covariance of the errors with each other, the noise of measuring among them."""

    @staticmethod
    def of(prior: Prior, known: Sequence[Observed]) -> _Seen:
        errors = np.concatenate([x.errors for x in known])
        places = np.concatenate([np.repeat(x.place[None], len(x.errors), axis=0) for x in known])
        number = np.repeat(np.arange(len(known)), [len(x.errors) for x in known])
        numbers, kinds = (np.concatenate([getattr(x.points, name) for x in known]) for name in ("numbers", "kinds"))
        points = Points(numbers, kinds)
        among = _covariance(prior, _problem_distance(places[:, None], places[None]), squared_distances(points, points))
        among += prior.level**2 * (number[:, None] == number) + prior.noise**2 * np.eye(len(errors))
        return _Seen(errors, places, points, among)

    def cross(self, prior: Prior, place: Array, candidates: Array) -> Array:
        """Return the covariance of candidates' errors on a problem with those seen, by squared distances of both."""
        return _covariance(prior, _problem_distance(place, self.places)[None], candidates)


def posterior(prior: Prior, place: Array, points: Points, memory: Sequence[Observed]) -> Posterior:
    """Return the errors of candidates on a problem, from what was measured on others.

    Args:
        prior: how errors vary.
        place: the problem's.
        points: the candidates'.
        memory: other problems' measurements; choose few (`nearest`), for the time grows with the cube of their number.
    """
    count = len(points.numbers)
    own = _covariance(prior, np.zeros((count, count)), squared_distances(points, points)) + prior.level**2
    known = [x for x in memory if len(x.errors)]
    if not known:
        return Posterior(np.zeros(count), own, prior.noise)
    seen = _Seen.of(prior, known)
    cross = seen.cross(prior, place, squared_distances(points, seen.points))
    solved = np.linalg.solve(seen.among, np.column_stack([seen.errors, cross.T]))
    return Posterior(cross @ solved[:, 0], own - cross @ solved[:, 1:], prior.noise)


def expected_errors(prior: Prior, places: Sequence[Array], points: Points, memory: Sequence[Observed]) -> Array:
    """Return the mean of `posterior` for candidates on several problems, (problem, candidate), by one memory.

    Args:
        prior: how errors vary.
        places: the problems'.
        points: the candidates'.
        memory: measurements of other problems, or of these; the time grows with the cube of their number, once.
    """
    known = [x for x in memory if len(x.errors)]
    if not known:
        return np.zeros((len(places), len(points.numbers)))
    seen = _Seen.of(prior, known)
    solved, distances = np.linalg.solve(seen.among, seen.errors), squared_distances(points, seen.points)
    return np.array([seen.cross(prior, place, distances) @ solved for place in places])
