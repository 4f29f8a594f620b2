"""Who does what: tasks, the workers that have them, and what is given to another because one is silent, slow or gone.

Pure: it is told what happens and when, and says what to start. The same task may be with several workers; the first
result counts, so that a task must be one that may be done twice.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Task = TypeVar("Task")


@dataclass(frozen=True)
class Limits:
    """When a task is given to another worker."""

    silence_s: float
    """A worker that says nothing of its task for so long hangs."""
    slow_ratio: float = 3.0
    """Where nothing else is left to do, a task that takes this many times the median is begun on another worker too."""
    slow_s: float = 5.0
    """And at least so long."""
    max_losses: int = 3
    """Workers that may fail at a task before the task is given up."""
    is_serial: bool = False
    """Whether a worker does one task at a time, so that what has its further seats waits there."""


@dataclass
class Attempt(Generic[Task]):
    """A task that a worker has."""

    number: int
    task: Task
    worker: str
    since: float
    heard: float
    is_lost: bool = False
    """Whether it is given to another; if it comes to its end all the same, and first, it counts."""


@dataclass
class Ledger(Generic[Task]):
    """The tasks of a run; they must be hashable and different."""

    limits: Limits
    tasks: Iterable[Task]
    losses: dict[Task, int] = field(default_factory=dict)
    _todo: deque[Task] = field(default_factory=deque)
    _open: set[Task] = field(default_factory=set)
    _running: dict[int, Attempt[Task]] = field(default_factory=dict)
    _not_by: dict[Task, set[str]] = field(default_factory=dict)
    _seats: Mapping[str, int] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)
    _resting: dict[str, float] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)
    """Workers that have done a task."""
    _durations: list[float] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        """Begin with everything to do."""
        self._todo = deque(self.tasks)
        self._open = set(self._todo)

    @property
    def is_over(self) -> bool:
        """Say whether every task has its result."""
        return not self._open

    @property
    def running(self) -> list[Attempt[Task]]:
        """List what workers have that nothing is known against, oldest first."""
        return [x for x in self._running.values() if not x.is_lost]

    def attempt(self, number: int) -> Attempt[Task] | None:
        """Return what a worker has, or had lost, by its number."""
        return self._running.get(number)

    def set_workers(self, seats: Mapping[str, int]) -> list[Attempt[Task]]:
        """Take in who is there, with how many tasks each can have at a time; return what was lost with those gone."""
        gone = [x for x in self._running.values() if x.worker not in seats]
        self._seats = dict(seats)
        self._silent &= seats.keys()
        for attempt in gone:
            del self._running[attempt.number]
            self._lose(attempt)
        return gone

    def _lose(self, attempt: Attempt[Task]) -> None:
        """Give a task to others, unless another has it already."""
        if attempt.task not in self._open:
            return
        self.losses[attempt.task] = self.losses.get(attempt.task, 0) + 1
        self._not_by.setdefault(attempt.task, set()).add(attempt.worker)
        if attempt.task not in self._todo and all(x.task != attempt.task for x in self.running):
            self._todo.appendleft(attempt.task)

    def _used(self) -> dict[str, int]:
        """Count the tasks that each worker has."""
        used: dict[str, int] = {}
        for attempt in self._running.values():
            used[attempt.worker] = used.get(attempt.worker, 0) + 1
        return used

    def _free(self, now: float) -> list[str]:
        """List the workers that can have a task, those with the most room first; one for each seat."""
        used = self._used()
        able = [x for x in self._seats if x not in self._silent and self._resting.get(x, now) <= now]
        seats = [(used.get(x, 0) + i, x) for x in able for i in range(self._seats[x] - used.get(x, 0))]
        return [worker for count, worker in sorted(seats) if count == 0 or self._may_hold(worker)]

    def _may_hold(self, worker: str) -> bool:
        """Say whether a worker that has a task may have another.

        One that does them one by one may where it has shown that it can, so that it need not wait for its next task
        when it has done one. Near the end nobody holds what another could begin.
        """
        return not self.limits.is_serial or (worker in self._proven and len(self._todo) > len(self._seats))

    def _may_have(self, worker: str, task: Task) -> bool:
        """Say whether a worker may have a task: it has not failed at it, or everybody has."""
        not_by = self._not_by.get(task, set())
        return worker not in not_by or not_by >= self._seats.keys()

    def next(self, now: float) -> list[Attempt[Task]]:
        """Say what to start now: what is to do, and where nothing is, what others are slow at."""
        found: list[Attempt[Task]] = []
        for worker in self._free(now):
            if self._used().get(worker) and not self._may_hold(worker):  # what was just begun left too little
                continue
            task = next((x for x in self._todo if self._may_have(worker, x)), None)
            if task is not None:
                self._todo.remove(task)
            elif not self._todo:
                task = self._slow_task(worker, now)
            if task is None:
                continue
            self._number += 1
            self._running[self._number] = Attempt(self._number, task, worker, now, now)
            found.append(self._running[self._number])
        return found

    def _slow_task(self, worker: str, now: float) -> Task | None:
        if not self._durations:
            return None
        limit_s = max(self.limits.slow_s, self.limits.slow_ratio * statistics.median(self._durations))
        counts: dict[Task, int] = {}
        for attempt in self._running.values():
            counts[attempt.task] = counts.get(attempt.task, 0) + 1
        for attempt in self.running:
            is_slow = now - attempt.since > limit_s and counts[attempt.task] == 1
            if is_slow and attempt.worker != worker and self._may_have(worker, attempt.task):
                return attempt.task
        return None

    def heard(self, number: int, now: float) -> None:
        """Take in that a worker lives and has its task."""
        attempt = self._running.get(number)
        if attempt is not None:
            attempt.heard = now
            self._silent.discard(attempt.worker)

    def overdue(self, now: float) -> list[Attempt[Task]]:
        """Give to others what silent workers have; return that. A silent worker gets nothing more until it speaks."""
        found = [x for x in self.running if now - x.heard > self.limits.silence_s]
        for attempt in found:
            attempt.is_lost = True
            self._silent.add(attempt.worker)
            self._lose(attempt)
        return found

    def finish(self, number: int, now: float) -> bool:
        """Take in a result; say whether it is the first of its task."""
        attempt = self._running.pop(number, None)
        if attempt is None:
            return False
        self._silent.discard(attempt.worker)
        if attempt.task not in self._open:
            return False
        self._open.discard(attempt.task)
        self._proven.add(attempt.worker)
        self._durations.append(now - attempt.since)
        if attempt.task in self._todo:
            self._todo.remove(attempt.task)
        return True

    def fail(self, number: int, *, blames: bool = True) -> None:
        """Take in that a worker failed at a task.

        Args:
            number: of the attempt.
            blames: whether the task may be to blame: the failure counts, and this worker does not have it again.
        """
        attempt = self._running.pop(number, None)
        if attempt is None or attempt.task not in self._open:
            return
        if blames:
            self._lose(attempt)
        elif attempt.task not in self._todo and all(x.task != attempt.task for x in self.running):
            self._todo.appendleft(attempt.task)

    def is_open(self, task: Task) -> bool:
        """Say whether a task has no result yet."""
        return task in self._open

    def give_up(self, task: Task) -> bool:
        """End a task that was lost too often, and that nobody has now; say whether it was."""
        is_lost = self.losses.get(task, 0) >= self.limits.max_losses and task in self._open
        if not is_lost or any(x.task == task for x in self.running):
            return False
        self._open.discard(task)
        if task in self._todo:
            self._todo.remove(task)
        return True

    def rest(self, worker: str, until: float) -> None:
        """Give a worker nothing before a moment."""
        self._resting[worker] = until

    def again(self, task: Task) -> None:
        """Have a task done again whose result no longer counts."""
        if task not in self._open:
            self._open.add(task)
            self._todo.append(task)

    def waits(self, now: float) -> bool:
        """Say whether there is something to do, nobody does anything, and nobody could."""
        return not self.running and bool(self._todo) and not self._free(now)
