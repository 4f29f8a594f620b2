"""The searches of a tuning, over its store: what was measured is told to the strategy, what it leaves out is noted."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from aot.search.strategies import strategy_of
from aot.search.strategy import EXHAUSTIVE, Limited, Stop, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.measurement import AnyMeasurement
    from aot.core.work import AnyProblem
    from aot.kinds.kind import Tuned
    from aot.measure.store import Store
    from aot.measure.tuning_set import TuningSet
    from aot.search.strategy import Search


class StoredSearch:
    """The search on one problem, in terms of the library's kernels."""

    def __init__(self, search: Search, numbers: Sequence[int], strategy: str) -> None:
        self._search, self._numbers, self.strategy = search, list(numbers), strategy
        self._index = {number: i for i, number in enumerate(numbers)}
        self._left = set(numbers)
        self._start = time.monotonic()
        self.reason = ""

    @property
    def num_left(self) -> int:
        """Count the kernels that were neither measured nor failed."""
        return len(self._left)

    @property
    def seconds(self) -> float:
        """Return the time since the search began."""
        return time.monotonic() - self._start

    def next(self) -> int | None:
        """Return the number of the kernel to measure next; None when the search is over, and then `reason` says why."""
        step = self._search.ask()
        if isinstance(step, Stop):
            self.reason = step.reason
            return None
        return self._numbers[step]

    def tell(self, number: int, time_us: float | None) -> None:
        """Take in what a kernel took; None where it failed."""
        self._left.discard(number)
        self._search.tell(self._index[number], time_us)


class StoredSearches:
    """The strategy of a tuning and what it knows of the store.

    Args:
        tuning: kernels, problems and predictions.
        store: what was measured.
        run: the run that measures.
        kernels: kernels and their ids in the store, by their numbers in the library.
        strategy: one of `aot.search.strategy.NAMES`.
        budget: share of a problem's kernels that may be measured.
    """

    def __init__(
        self,
        tuning: TuningSet,
        store: Store,
        run: int,
        kernels: Mapping[int, tuple[Tuned, int]],
        *,
        strategy: str = EXHAUSTIVE,
        budget: float = 1.0,
    ) -> None:
        self._tuning, self._store, self._run, self._kernels = tuning, store, run, dict(kernels)
        self._strategy, self._budget = strategy_of(strategy), budget

    def is_done(self, problem: AnyProblem, numbers: Sequence[int]) -> bool:
        """Say whether a problem's search with these kernels came to its end."""
        if not self._store.is_finished(problem):
            return False
        rows, found = self._store.latest(problem), self._store.search(problem)
        missing = sum(self._kernels[number][1] not in rows for number in numbers)
        skipped = found.num_skipped if found is not None and found.strategy == self._strategy.name else 0
        return missing <= skipped

    def _task(self, problem: AnyProblem, numbers: Sequence[int]) -> Task:
        predicted = self._tuning.predicted_us.get(problem, {})
        kernels = [self._kernels[number][0] for number in numbers]
        # Without predictions all are alike, and a strategy learns from the measurements alone.
        times = tuple(predicted.get(kernel.name, 1.0) for kernel in kernels)
        return Task(problem, tuple(kernel.key.candidate for kernel in kernels), times)

    def learn(self, problem: AnyProblem, numbers: Sequence[int]) -> None:
        """Let the strategy learn from a finished problem, as the store has it."""
        rows = self._store.latest(problem)
        found = [(number, rows.get(self._kernels[number][1])) for number in numbers]
        times = {i: row.median_us for i, (_, row) in enumerate(found) if row is not None and row.ok}
        self._strategy.learn(self._task(problem, numbers), times)

    def start(self, problem: AnyProblem, numbers: Sequence[int], rows: Mapping[int, AnyMeasurement]) -> StoredSearch:
        """Start, or carry on with, the search on a problem.

        Args:
            problem: whose.
            numbers: the kernels that can run on it.
            rows: what the store holds of the problem, by the kernel's id, oldest first.
        """
        limit = max(1, math.ceil(self._budget * len(numbers) - 1e-9))
        found = StoredSearch(
            Limited(self._strategy.search(self._task(problem, numbers)), limit), numbers, self._strategy.name
        )
        number_of = {self._kernels[number][1]: number for number in numbers}
        for identity, row in rows.items():
            if identity in number_of:
                found.tell(number_of[identity], row.median_us if row.ok else None)
        return found

    def note(self, problem: AnyProblem, search: StoredSearch, num_measured: int) -> None:
        """Note in the store how a search ended."""
        row = (search.strategy, num_measured, search.num_left, search.reason, search.seconds)
        self._store.add_search(self._run, problem, *row)
