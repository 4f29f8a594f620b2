"""Search by the cost model, as it is (`ranked`) or corrected by what was measured (`model`).

Either measures first what may well be the best, and ends when no other candidate's optimistic bound is below the best.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from aot.kinds.registry import kind_of
from aot.search.residuals import Coordinates, Observed, Posterior, Prior, nearest, posterior
from aot.search.strategy import ALL_MEASURED, MODEL, RANKED, Search, Stop, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.work import AnyProblem

CURIOSITY = 0.5
"""Standard deviations by which a candidate's time is taken to be better than expected when the next is chosen. Source:
replays of the H200 record; 0 and 1 gave a little more regret (research/log/2026-11-21-searches.md)."""

DOUBT = 1.2
"""Standard deviations by which a candidate's time may be better than expected and still not be tried. Source: as above;
research/log/2026-11-21-searches.md says what else was tried."""

LEAST = 20
"""Measurements of a problem without which its search does not end: the posterior is surer of itself than it may be.
Source: as above; a larger LEAST with a smaller DOUBT measures less at the same regret."""

TOLERANCE = 0.005
"""What a candidate must be able to gain over the best to be tried: half of a tie (aot.select.selector)."""


QUANTILE = 0.05
"""Share of the errors seen that are below the optimistic one by which `ranked` bounds a time."""

FEW = 20
"""Errors without which no quantile is taken, so that nothing is left out."""


def _no_other(bound_us: float, best_us: float) -> Stop:
    return Stop(f"no other can win: at best {bound_us:.2f} us, the best has {best_us:.2f} us")


class ModelSearch:
    """The search on one problem: a posterior of the model's errors, which each measurement sharpens."""

    def __init__(self, task: Task, errors: Posterior, doubt: float, least: int) -> None:
        self._errors, self._doubt, self._least = errors, doubt, least
        self._log_us = np.log(np.array(task.predicted_us, dtype=np.float64))
        self._is_left = np.ones(len(task.candidates), dtype=bool)
        self._best, self._count = math.inf, 0

    def ask(self) -> int | Stop:
        """Return the candidate whose time may well be the least, or say that none can beat the best."""
        if not self._is_left.any():
            return Stop(ALL_MEASURED)
        expected, deviation = self._log_us + self._errors.mean, self._errors.deviation
        bound = float((expected - self._doubt * deviation)[self._is_left].min())
        if self._count >= self._least and bound >= self._best + math.log1p(-TOLERANCE):
            return _no_other(math.exp(bound), math.exp(self._best))
        curiosity = CURIOSITY if math.isfinite(self._best) else 0.0
        return int(np.where(self._is_left, expected - curiosity * deviation, np.inf).argmin())

    def tell(self, index: int, time_us: float | None) -> None:
        """Correct the errors of all candidates by one's."""
        self._is_left[index] = False
        self._count += 1
        if time_us is not None:
            log_us = math.log(time_us)
            self._best = min(self._best, log_us)
            self._errors.observe(index, log_us - self._log_us[index])


class Model:
    """The strategy: its memory is what was measured of each problem, as errors of the model."""

    name = MODEL

    def __init__(self, prior: Prior | None = None, doubt: float = DOUBT, least: int = LEAST) -> None:
        self._prior, self._doubt, self._least = prior or Prior(), doubt, least
        self._known: dict[str, tuple[Coordinates, list[Observed]]] = {}

    def _of_kind(self, problem: AnyProblem) -> tuple[Coordinates, list[Observed]]:
        """Return what there is of a problem's kind: kinds say nothing of each other."""
        kind = kind_of(problem.operation)
        return self._known.setdefault(kind.name, (Coordinates(self._prior, kind), []))

    def search(self, task: Task) -> Search:
        """Start on a problem."""
        coordinates, memory = self._of_kind(task.problem)
        place, points = coordinates.place(task.problem), coordinates.points(task.candidates)
        errors = posterior(self._prior, place, points, nearest(place, memory))
        return ModelSearch(task, errors, self._doubt, self._least)

    def learn(self, task: Task, times_us: Mapping[int, float]) -> None:
        """Remember a problem."""
        if not times_us:
            return
        chosen = sorted(times_us)
        errors = np.log([times_us[i] / task.predicted_us[i] for i in chosen])
        coordinates, memory = self._of_kind(task.problem)
        points = coordinates.points([task.candidates[i] for i in chosen])
        memory.append(Observed(coordinates.place(task.problem), points, errors))


class _RankedSearch:
    """The candidates in the model's order, until the optimistic bound of the next one is not below the best."""

    def __init__(self, task: Task, errors: list[float]) -> None:
        self._task, self._errors, self._seen = task, errors, list[float]()
        self._left = dict.fromkeys(np.argsort(task.predicted_us, kind="stable").tolist())
        self._best_us = math.inf

    def ask(self) -> int | Stop:
        if not self._left:
            return Stop(ALL_MEASURED)
        index: int = next(iter(self._left))
        errors = [*self._errors, *self._seen]
        if len(errors) >= FEW and math.isfinite(self._best_us):
            bound_us = self._task.predicted_us[index] * math.exp(float(np.quantile(errors, QUANTILE)))
            if bound_us >= self._best_us * (1 - TOLERANCE):
                return _no_other(bound_us, self._best_us)
        return index

    def tell(self, index: int, time_us: float | None) -> None:
        self._left.pop(index, None)
        if time_us is not None:
            self._best_us = min(self._best_us, time_us)
            self._seen.append(math.log(time_us / self._task.predicted_us[index]))


class Ranked:
    """The strategy of the model's order: of other problems it knows no more than how wrong the model was in all."""

    name = RANKED

    def __init__(self) -> None:
        self._errors: list[float] = []

    def search(self, task: Task) -> Search:
        """Start on a problem."""
        return _RankedSearch(task, self._errors)

    def learn(self, task: Task, times_us: Mapping[int, float]) -> None:
        """Remember the errors."""
        self._errors += [math.log(time / task.predicted_us[i]) for i, time in sorted(times_us.items())]
