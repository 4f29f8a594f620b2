"""Which candidate to measure next on a problem, and when to stop: what every search strategy offers, and the plain one.

A strategy sees a tuning problem after problem. For each it is given a task, the legal candidates with the cost model's
times, and asked for one candidate after the other, each time knowing what the ones before took. It keeps what it
learned for the problems to come. Strategies are pure: the same tasks and times give the same proposals, so that a run
that was interrupted carries on as if it had not been, and a record can be replayed (research.studies.replay).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.core.candidate import Candidate
    from aot.core.work import AnyProblem

EXHAUSTIVE = "exhaustive"
RANKED = "ranked"
MODEL = "model"
EVOLUTIONARY = "evolutionary"
BAYESIAN = "bayesian"
NAMES = (EXHAUSTIVE, RANKED, MODEL, EVOLUTIONARY, BAYESIAN)
"""The strategies, as command lines and stores name them."""


@dataclass(frozen=True)
class Task:
    """One problem and what may be measured on it."""

    problem: AnyProblem
    candidates: tuple[Candidate, ...]
    predicted_us: tuple[float, ...]
    """The cost model's time of each candidate; only their ratios matter much."""


@dataclass(frozen=True)
class Stop:
    """Nothing more is worth measuring, and why, for people."""

    reason: str


class Search(Protocol):
    """The search on one problem."""

    def ask(self) -> int | Stop:
        """Return the index in the task of the candidate to measure next; it was not told before. Or stop."""

    def tell(self, index: int, time_us: float | None) -> None:
        """Take in what a candidate took, whoever chose it; None where it gave no time."""


class Strategy(Protocol):
    """A way to search, with what it learned from the problems so far."""

    name: str

    def search(self, task: Task) -> Search:
        """Start on a problem."""

    def learn(self, task: Task, times_us: Mapping[int, float]) -> None:
        """Take in a problem that is finished: the time of each candidate measured, by its index in the task."""


ALL_MEASURED = "every candidate is measured"


class _InOrder:
    """Measures the candidates in the task's order."""

    def __init__(self, task: Task) -> None:
        self._left = dict.fromkeys(range(len(task.candidates)))

    def ask(self) -> int | Stop:
        return next(iter(self._left)) if self._left else Stop(ALL_MEASURED)

    def tell(self, index: int, time_us: float | None) -> None:
        del time_us
        self._left.pop(index, None)


class Exhaustive:
    """Measures every candidate: what other strategies are judged by."""

    name = EXHAUSTIVE

    def search(self, task: Task) -> Search:
        """Start on a problem."""
        return _InOrder(task)

    def learn(self, task: Task, times_us: Mapping[int, float]) -> None:
        """Learn nothing."""


class Limited:
    """A search that also stops after a number of measurements, those told before it began included."""

    def __init__(self, search: Search, limit: int) -> None:
        self._search, self._limit, self._count = search, limit, 0

    def ask(self) -> int | Stop:
        """Ask the search, within the limit."""
        if self._count >= self._limit:
            return Stop(f"the budget of {self._limit} measurements is spent")
        return self._search.ask()

    def tell(self, index: int, time_us: float | None) -> None:
        """Tell the search, and count."""
        self._count += 1
        self._search.tell(index, time_us)
