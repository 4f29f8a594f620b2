"""Have the workers of a scheduler do tasks: each with a worker that fits, and with another where one is lost."""

from __future__ import annotations

import asyncio
import queue
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from aot.core.errors import FleetError
from aot.fleet.announcement import Announcement, Role
from aot.fleet.connection import PLUGIN
from aot.fleet.ledger import Attempt, Ledger, Limits
from aot.fleet.seats import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from concurrent.futures import Future

Task = TypeVar("Task")
Result = TypeVar("Result")

LOOK_S = 0.5
"""Between two looks at who is there."""
TURN_S = 0.1
IS_GONE = "is gone"
WAIT_S = 120.0
"""How long a worker that fits is waited for."""
REST_S = 20.0
"""How long a worker that was found slow gets nothing."""
MAX_RESTS = 3
"""After so many it gets nothing more."""
MAX_FAILURES = 3
"""After so many tasks one after the other that a worker failed at, the fault is taken to be its own."""


@dataclass(frozen=True)
class FleetWorker:
    """A worker of ours, as the scheduler tells of it."""

    address: str
    name: str
    seats: int
    announcement: Announcement


@dataclass(frozen=True)
class Done(Generic[Task, Result]):
    """A result that counts, and tasks whose earlier results no longer do."""

    result: Result
    again: tuple[Task, ...] = ()


@dataclass(frozen=True)
class Refused:
    """A result that does not count: the task goes to another worker."""

    reason: str
    is_barred: bool = False
    """Whether the worker gets nothing more at all."""
    is_slow: bool = False
    """Whether it only gets nothing for a while."""
    again: tuple[Any, ...] = ()
    """Tasks whose earlier results no longer count."""


@dataclass(frozen=True)
class Lacking:
    """The worker lacks what it needs, which is sent to it."""


class Job(Protocol[Task, Result]):
    """A sort of task: who can do it, how it is asked for, and what its results are worth."""

    @property
    def role(self) -> Role:
        """Return what workers that do it announce."""

    @property
    def limits(self) -> Limits:
        """Return when a task is given to another."""

    def unlike(self, worker: FleetWorker) -> str:
        """Say why a worker cannot do such tasks; empty if it can."""

    def choose(self, workers: Sequence[FleetWorker]) -> Sequence[FleetWorker]:
        """Choose, of those that can, the ones that do them."""

    def call(self, task: Task, worker: FleetWorker, attempt: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the function to call there, and its arguments."""

    def judge(self, task: Task, worker: FleetWorker, result: Any) -> Done[Task, Result] | Refused | Lacking:
        """Take in what a worker made of a task that nobody else has done."""

    def supply(self, client: Any, worker: FleetWorker) -> None:
        """Send a worker what it lacks."""

    def lost(self, task: Task, reason: str) -> Result:
        """Return the result of a task that worker after worker failed at."""


def workers_of(client: Any) -> tuple[dict[str, FleetWorker], dict[str, str]]:
    """Ask the scheduler who is there; give our workers by address, and why others are none of ours, by name.

    Raises:
        FleetError: the scheduler does not answer.
    """
    try:
        found = client.scheduler_info()["workers"]
    except (OSError, TimeoutError, RuntimeError) as error:
        raise FleetError(f"the scheduler is gone ({error}); start it and run again: what is done is kept") from error
    ours, others = {}, {}
    for address, values in found.items():
        name = str(values.get("name", address))
        try:
            announcement = Announcement.from_json(values[PLUGIN])
        except (KeyError, TypeError, ValueError) as error:
            others[name] = f"announced nothing that this aot knows ({error}); start it with `aot worker`"
            continue
        if values.get("status") == "running":
            ours[address] = FleetWorker(address, name, int(values["nthreads"]), announcement)
    return ours, others


class Engine:
    """Does the tasks of jobs on the workers of a client's scheduler.

    Args:
        client: of Dask distributed.
        say: told what a person should know.
        lives: says whether workers may still come.
    """

    def __init__(self, client: Any, say: Callable[[str], None], lives: Callable[[], bool]) -> None:
        self._client, self._say, self._lives = client, say, lives
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._said: set[str] = set()
        self._barred: dict[str, str] = {}
        self._rests: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._round = 0
        client.subscribe_topic(TOPIC, lambda event: self._events.put(("heard", event[1])))

    def say_once(self, text: str) -> None:
        """Say what has not been said yet."""
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def fitting(self, job: Job[Any, Any]) -> dict[str, FleetWorker]:
        """Return who can do a job's tasks, by address; say of each other why not."""
        ours, others = workers_of(self._client)
        if not ours and not self._lives():
            raise FleetError("the workers of this host have ended; what they said last says why")
        for name, reason in others.items():
            self.say_once(f"worker {name} {reason}")
        able = []
        for worker in (x for x in ours.values() if x.announcement.role == job.role):
            reason = self._barred.get(worker.name) or job.unlike(worker)
            if reason:
                self.say_once(f"worker {worker.name} is not used: it {reason}")
            else:
                able.append(worker)
        return {worker.address: worker for worker in job.choose(able)}

    def run(
        self, tasks: Sequence[Task], job: Job[Task, Result], end: float | None = None
    ) -> Generator[tuple[Task, Result], None, None]:
        """Do tasks; give each with its result as it is known. Where the caller stops early, the rest is called off.

        Args:
            tasks: all different.
            job: what they are.
            end: of time.monotonic(), after which nothing more is begun.

        Raises:
            FleetError: there is no worker that fits, or no scheduler.
        """
        self._round += 1
        turn = _Turn(self, job, Ledger(job.limits, tasks), f"{self._client.id}-{self._round}")
        try:
            while not turn.ledger.is_over:
                if end is not None and time.monotonic() >= end and not turn.ledger.running:
                    return
                turn.look(may_begin=end is None or time.monotonic() < end)
                yield from turn.take()
        finally:
            self._client.cancel(list(turn.futures.values()), force=True)

    def submit(self, job: Job[Any, Any], attempt: Attempt[Any], worker: FleetWorker, name: str) -> Any:
        """Ask a worker for a task; the result is told as an event."""
        function, arguments = job.call(attempt.task, worker, name)
        future = self._client.submit(
            function,
            *arguments,
            key=name,
            workers=[worker.address],
            allow_other_workers=False,
            resources={str(job.role): 1},
            pure=False,
            retries=0,
        )
        future.add_done_callback(lambda x: self._events.put(("ended", x.key)))
        return future

    def fetch(self, name: str, future: Any) -> None:
        """Ask for the result of a task that has ended; its arrival is told as an event.

        Nothing arrives from a worker that is lost meanwhile: who looks at who is there learns that.
        """
        arriving = asyncio.run_coroutine_threadsafe(
            self._client.gather(future, asynchronous=True), self._client.loop.asyncio_loop
        )
        arriving.add_done_callback(lambda x: self._events.put(("arrived", (name, x))))

    def is_there(self, worker: FleetWorker) -> bool:
        """Say whether a worker is there now, and is not about to leave."""
        return worker.address in workers_of(self._client)[0]

    def event(self) -> tuple[str, Any] | None:
        """Return what happened, if something does soon."""
        try:
            return self._events.get(timeout=TURN_S)
        except queue.Empty:
            return None

    def bar(self, worker: FleetWorker, reason: str) -> None:
        """Give a worker nothing more."""
        self._barred[worker.name] = reason

    def count(self, worker: FleetWorker, reason: str = "") -> None:
        """Count what a worker failed at, and bar it at last; with no reason it succeeded."""
        self._failures[worker.name] = self._failures.get(worker.name, 0) + 1 if reason else 0
        if self._failures[worker.name] >= MAX_FAILURES:
            self.bar(worker, reason)

    def rest(self, worker: FleetWorker, reason: str) -> float:
        """Return until when a slow worker gets nothing, of time.monotonic(); the third time it is barred."""
        self._rests[worker.name] = self._rests.get(worker.name, 0) + 1
        if self._rests[worker.name] >= MAX_RESTS:
            self.bar(worker, reason)
        return time.monotonic() + REST_S

    def supply(self, job: Job[Any, Any], worker: FleetWorker) -> None:
        """Send a worker what it lacks."""
        job.supply(self._client, worker)


class _Turn(Generic[Task, Result]):
    """The tasks of one call of `run`."""

    def __init__(self, engine: Engine, job: Job[Task, Result], ledger: Ledger[Task], name: str) -> None:
        self._engine, self._job, self.ledger, self._name = engine, job, ledger, name
        self.futures: dict[str, Any] = {}
        self._workers: dict[str, FleetWorker] = {}
        self._known: dict[str, FleetWorker] = {}
        self._looked, self._waiting = -LOOK_S, time.monotonic()
        self._given_up: list[tuple[Task, Result]] = []

    def look(self, *, may_begin: bool) -> None:
        """See who is there, and give out what there is to do."""
        now, ledger = time.monotonic(), self.ledger
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._workers = self._engine.fitting(self._job)
            self._known |= self._workers
            for attempt in ledger.set_workers({x.address: x.seats for x in self._workers.values()}):
                self._lose(attempt)
        for attempt in ledger.overdue(now):
            self._engine.say_once(f"{self._of(attempt)} says nothing; what it had goes to another")
            self._give_up(attempt, "said nothing")
        for attempt in ledger.next(now) if may_begin else ():
            name = f"{self._name}-{attempt.number}"
            self.futures[name] = self._engine.submit(self._job, attempt, self._workers[attempt.worker], name)
        self._check_waiting(now)

    def _check_waiting(self, now: float) -> None:
        if not self.ledger.waits(now):
            self._waiting = now
            return
        self._engine.say_once(f"waiting for a worker that fits: {self._job.role}")
        if now - self._waiting > WAIT_S:
            raise FleetError(
                f"no worker fits for {WAIT_S:.0f} s, of {len(self._known)} that did; start some with `aot worker`, and "
                "run again: what is done is kept"
            )

    def _of(self, attempt: Attempt[Task]) -> str:
        return f"worker {self._known[attempt.worker].name}"

    def _lose(self, attempt: Attempt[Task]) -> None:
        """Have a task done by another, as the worker that had it is gone."""
        self._engine.say_once(f"{self._of(attempt)} {IS_GONE}; what it had goes to another")
        future = self.futures.pop(f"{self._name}-{attempt.number}", None)
        if future is not None:
            future.cancel(force=True)
        self._give_up(attempt, IS_GONE)

    def _give_up(self, attempt: Attempt[Task], how: str) -> None:
        """End a task at which too many workers were lost."""
        if self.ledger.give_up(attempt.task):
            self._given_up.append((attempt.task, self._job.lost(attempt.task, f"{self._of(attempt)} {how}")))

    def take(self) -> list[tuple[Task, Result]]:
        """Take in what happens next; return the results that count."""
        found, self._given_up = self._given_up, []
        event = self._engine.event()
        if event is None:
            return found
        what, about = event
        if what == "heard":
            prefix, _, number = str(about.get("attempt")).rpartition("-")
            if prefix == self._name:
                self.ledger.heard(int(number), time.monotonic())
        elif what == "ended" and about in self.futures:
            self._fetch(about)
        elif what == "arrived" and about[0] in self.futures:
            del self.futures[about[0]]
            found += self._arrived(*about)
        return found

    def _fetch(self, name: str) -> None:
        """Have the result of a task that has ended sent, if nobody else has done the task meanwhile."""
        number = int(name.rpartition("-")[2])
        attempt = self.ledger.attempt(number)
        if attempt is not None and self.ledger.is_open(attempt.task):
            self._engine.fetch(name, self.futures[name])
            return
        del self.futures[name]
        self.ledger.finish(number, time.monotonic())

    def _arrived(self, name: str, arrived: Future[Any]) -> list[tuple[Task, Result]]:
        number, now = int(name.rpartition("-")[2]), time.monotonic()
        attempt = self.ledger.attempt(number)
        if attempt is None:
            return []
        worker = self._known[attempt.worker]
        if not self.ledger.is_open(attempt.task):
            self.ledger.finish(number, now)
            return []
        verdict = self._verdict(attempt.task, worker, arrived)
        if not isinstance(verdict, Lacking):
            for task in verdict.again:
                self.ledger.again(task)
        if isinstance(verdict, Done):
            self.ledger.finish(number, now)
            self._engine.count(worker)
            return [(attempt.task, verdict.result)]
        if isinstance(verdict, Lacking):
            self.ledger.fail(number, blames=False)
            return []
        return self._refused(attempt, worker, verdict)

    def _verdict(self, task: Task, worker: FleetWorker, arrived: Future[Any]) -> Done[Task, Result] | Refused | Lacking:
        """Say what a result is worth; a worker that lacks something is given it."""
        try:
            result = arrived.result()
        except Exception as error:  # noqa: BLE001 - whatever a worker raises is the worker's failure
            return Refused(f"failed: {type(error).__name__}: {error}")
        verdict = self._job.judge(task, worker, result)
        if isinstance(verdict, Lacking):
            try:
                self._engine.supply(self._job, worker)
            except Exception as error:  # noqa: BLE001 - Dask raises what it likes where the worker has just gone
                return Refused(f"cannot be given what it lacks: {type(error).__name__}: {error}")
        return verdict

    def _refused(self, attempt: Attempt[Task], worker: FleetWorker, verdict: Refused) -> list[tuple[Task, Result]]:
        is_its_own, reason = verdict.is_barred or verdict.is_slow, verdict.reason
        if not is_its_own and not self._engine.is_there(worker):
            reason = IS_GONE  # what it began it did not bring to its end
        self._engine.say_once(f"worker {worker.name} {reason}; what it had goes to another")
        if verdict.is_barred:
            self._engine.bar(worker, reason)
            self._looked = -LOOK_S
        if verdict.is_slow:
            self.ledger.rest(worker.address, self._engine.rest(worker, reason))
        if not is_its_own and reason != IS_GONE:
            self._engine.count(worker, reason)
        self.ledger.fail(attempt.number, blames=not is_its_own)
        if self.ledger.give_up(attempt.task):
            return [(attempt.task, self._job.lost(attempt.task, f"worker {worker.name} {reason}"))]
        return []
