"""Search by Optuna: a genetic algorithm, or Bayesian optimization by tree-structured Parzen estimators.

Both choose a candidate's fields, each as one of the values that the problem's candidates have. What they propose is
often not legal, or was measured: the nearest candidate that is left stands in for it. Both begin with the cost model's
first few. They learn nothing from other problems, and Optuna is installed by the extra `search`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.errors import DependencyError
from aot.kinds.registry import kind_of
from aot.search.residuals import Coordinates, Prior, squared_distances
from aot.search.strategy import ALL_MEASURED, BAYESIAN, EVOLUTIONARY, Search, Stop, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_FIRST = 8
"""Candidates that the cost model chooses, and the size of a generation. Source: as many as get the protocol's rounds
in any case (`TimingPlan.min_survivors`); a generation must be small where a search measures some thirty."""

PATIENCE = 40
"""Measurements without a gain after which a search ends: five generations."""

GAIN = 0.005
"""Share by which a time must be less than the best to be a gain: half of what counts as a tie."""


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise DependencyError(
            f"the strategies {EVOLUTIONARY} and {BAYESIAN} need Optuna, which is not installed ({error}); "
            "pip install 'aot-kernels[search]', or choose the strategy model"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class OptunaSearch:
    """The search on one problem."""

    def __init__(self, task: Task, sampler: Any) -> None:
        optuna = _optuna()
        self._task = task
        self._study = optuna.create_study(sampler=sampler)
        kind = kind_of(task.problem.operation)
        known = [kind.values(x) for x in task.candidates]
        names = dict.fromkeys((*kind.features.fields, *(name for row in known for name in row)))
        rows = [{name: row.get(name, "") for name in names} for row in known]
        choices = {name: sorted({row[name] for row in rows}, key=str) for name in names}
        self._space = {
            name: optuna.distributions.CategoricalDistribution(values)
            for name, values in choices.items()
            if len(values) > 1
        }
        points = Coordinates(Prior(), kind).points(task.candidates)
        self._distances = squared_distances(points, points)
        self._index = {tuple(row[name] for name in self._space): i for i, row in enumerate(rows)}
        self._values = {
            name: np.array([choices[name].index(row[name]) for row in rows], dtype=np.int64) for name in self._space
        }
        self._places = {name: {value: i for i, value in enumerate(choices[name])} for name in self._space}
        self._rows = rows
        self._is_left = np.ones(len(rows), dtype=bool)
        self._first = np.argsort(task.predicted_us, kind="stable")[:NUM_FIRST].tolist()
        for i in self._first:
            self._study.enqueue_trial({name: rows[i][name] for name in self._space})
        self._trial: tuple[int, Any] | None = None
        self._best, self._since = math.inf, 0

    def ask(self) -> int | Stop:
        """Return the candidate that Optuna proposes, or the nearest to it that is left."""
        if not self._is_left.any():
            return Stop(ALL_MEASURED)
        if self._since >= PATIENCE:
            return Stop(f"{self._since} measurements brought no gain")
        if self._trial is None or not self._is_left[self._trial[0]]:
            trial = self._study.ask(self._space)
            self._trial = self._nearest(trial.params), trial
        return self._trial[0]

    def _nearest(self, params: Mapping[str, Any]) -> int:
        """Return the candidate with these fields; else that nearest to it, or that shares most fields."""
        exact = self._index.get(tuple(params[name] for name in self._space))
        if exact is not None and self._is_left[exact]:
            return exact
        wrong = np.zeros(len(self._rows))
        for name, value in params.items():
            wrong += self._values[name] != self._places[name][value]
        if exact is not None:
            wrong = self._distances[exact]
        return int(np.where(self._is_left, wrong, np.inf).argmin())

    def tell(self, index: int, time_us: float | None) -> None:
        """Return Optuna a time, of its own proposal or of another; a failure counts as the trial's, with no time."""
        optuna = _optuna()
        self._is_left[index] = False
        if self._trial is not None and self._trial[0] == index:
            state = optuna.trial.TrialState.FAIL if time_us is None else None
            self._study.tell(self._trial[1], None if time_us is None else math.log(time_us), state=state)
            self._trial = None
        elif time_us is not None:
            params = {name: self._rows[index][name] for name in self._space}
            self._study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self._space, value=math.log(time_us))
            )
        self._since += 1
        if time_us is not None and time_us < self._best * (1 - GAIN):
            self._since = 0
        self._best = min(self._best, time_us or math.inf)


class Evolutionary:
    """A genetic algorithm, Optuna's NSGA-II with one objective."""

    name = EVOLUTIONARY

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        _optuna()

    def search(self, task: Task) -> Search:
        """Start on a problem."""
        return OptunaSearch(task, _optuna().samplers.NSGAIISampler(population_size=NUM_FIRST, seed=self._seed))

    def learn(self, task: Task, times_us: Mapping[int, float]) -> None:
        """Learn nothing from one problem for another."""


class Bayesian(Evolutionary):
    """Tree-structured Parzen estimators."""

    name = BAYESIAN

    def search(self, task: Task) -> Search:
        """Start on a problem."""
        sampler = _optuna().samplers.TPESampler(n_startup_trials=NUM_FIRST, multivariate=True, seed=self._seed)
        return OptunaSearch(task, sampler)
