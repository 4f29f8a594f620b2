"""Measure a bundle by a fleet: portions of it on every device of one kind, into the one store."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aot.core.errors import FleetError, StoreError
from aot.core.target import Target, load_target
from aot.fleet.announcement import Kind, Role, chosen_kind, kind_of_device, measures_unlike, text_of
from aot.fleet.engine import LOOK_S, Done, Engine, FleetWorker, Lacking, Refused, workers_of
from aot.fleet.ledger import Limits
from aot.fleet.seats import MeasureResult, MeasureTask, measure_task, receive_task, release_task
from aot.measure.background import hold_lock
from aot.measure.feed import Portion
from aot.measure.protocol import POWER_LIMITED_TOLERANCE, PROTOCOL, TimingPlan
from aot.measure.store import open_store
from aot.measure.store_transfer import carry, runs_of, void_runs
from aot.measure.supervisor import MARGIN_S, Progress
from aot.measure.tuning_set import TuningSet, read_tuning_set
from aot.tune.remote import digest, pack, shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from aot.core.work import AnyProblem
    from aot.measure.store_transfer import RunsOf

LIMITS = Limits(silence_s=90.0, max_losses=5, is_serial=True)
"""A worker says every two seconds that it measures; its own run kills a kernel that hangs for 60 s."""
PORTIONS = 24
"""For each worker, so that they end together, and little is lost with one: a twenty-fourth of its share."""
LEAST_PORTION = 2
"""Problems of a portion, where there are so many."""
RELEASE_S = 0.5
"""How long the workers are waited for that give their devices back."""


@dataclass(frozen=True)
class Share:
    """A task: kernels to verify, or problems to measure, by their numbers in the bundle."""

    kernels: tuple[int, ...] = ()
    problems: tuple[int, ...] = ()


def _dealt(costs: dict[int, float], count: int) -> list[tuple[int, ...]]:
    """Deal numbers into parts of about equal cost, the costliest part first."""
    parts: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(max(1, count))]
    for number in sorted(costs, key=lambda x: (-costs[x], x)):
        at = min(range(len(parts)), key=lambda i: parts[i][0])
        parts[at] = (parts[at][0] + costs[number], [*parts[at][1], number])
    return [tuple(numbers) for _, numbers in sorted(parts, reverse=True) if numbers]


def shares_of_problems(tuning: TuningSet, numbers: Sequence[int], num_workers: int) -> list[Share]:
    """Cut what is left to measure into tasks."""
    count = min(PORTIONS * num_workers, max(num_workers, len(numbers) // LEAST_PORTION), len(numbers))
    costs = {number: tuning.cost(tuning.problems[number]) for number in numbers}
    return [Share(problems=part) for part in _dealt(costs, count)]


def shares_of_kernels(numbers: Sequence[int], num_workers: int) -> list[Share]:
    """Cut the kernels that are to be verified into tasks: some for each worker, since a kernel may hang one."""
    count = min(2 * num_workers, len(numbers))
    return [Share(kernels=tuple(numbers[i::count])) for i in range(count)]


@dataclass
class Known:
    """What the one store says of a bundle's kernels and problems."""

    tuning: TuningSet
    path: Path
    sound: tuple[int, ...] = ()
    failed: tuple[tuple[int, str], ...] = ()
    done: set[int] = field(default_factory=set)

    def read(self) -> None:
        """Read all of it."""
        self.update(Share())
        with open_store(self.path) as store:
            valid = {measurement.problem for _, measurement in store.measurements()}
            finished = store.finished()
        done = {problem for problem in finished if problem in valid or not self._is_wanted(problem)}
        self.done = {number for number, problem in enumerate(self.tuning.problems) if problem in done}

    def update(self, share: Share) -> None:
        """Read what it says of the kernels, and of the problems that it was just given."""
        with open_store(self.path) as store:
            ids = [store.kernel_id(kernel) for kernel in self.tuning.kernels]
            verified, reasons = store.verified(), store.quarantined()
            for number in share.problems:
                problem = self.tuning.problems[number]
                is_timed = bool(store.latest(problem)) or not self._is_wanted(problem)  # else what there was is void
                if is_timed and store.is_finished(problem):
                    self.done.add(number)
        self.sound = tuple(i for i, number in enumerate(ids) if number in verified)
        self.failed = tuple((i, reasons[number]) for i, number in enumerate(ids) if number in reasons)

    def _is_wanted(self, problem: AnyProblem) -> bool:
        return any(self.tuning.is_wanted(kernel, problem) for kernel in self.tuning.kernels)


@dataclass
class MeasureJob:
    """Portions of a bundle, into a store."""

    bundle: Path
    store: Path
    words: Callable[[], tuple[str, ...]]
    known: Known
    say: Callable[[str], None]
    is_over: Callable[[], bool] = lambda: False
    """Says whether the time for measuring is over, so that portions may come back unfinished."""
    kind: Kind | None = None
    """The kind of device that all times are of; the first workers decide it where the store does not."""
    role: Role = Role.MEASURES
    limits: Limits = LIMITS
    speeds: dict[str, float] = field(default_factory=dict)
    """What the reference kernel takes on each worker's device, by its name, in microseconds."""
    seeds: dict[str, set[int]] = field(default_factory=dict)
    shares: dict[str, list[Share]] = field(default_factory=dict)
    """The runs of each worker, and what it did of what counts."""
    number: str = ""
    packed: bytes = b""
    sent: dict[str, Any] = field(default_factory=dict)
    """The bundle's arrival at each worker, by address; kept, since Dask drops what nobody keeps."""

    def __post_init__(self) -> None:
        """Learn what the bundle is called, and what was measured on before."""
        self.number = digest(self.bundle)
        self.target = load_target(self.known.tuning.target)
        conditions = runs_of(self.store).conditions if self.store.exists() else ()
        if conditions:
            found = conditions[-1]
            self.kind = (found.device, found.num_sms, found.mig, found.power_mode)

    def unlike(self, worker: FleetWorker) -> str:
        """Compare the device with the target, and with the kind that is measured on."""
        reason = measures_unlike(worker.announcement, self.target)
        machine = worker.announcement.machine
        if reason or machine is None or self.kind is None or kind_of_device(machine) == self.kind:
            return reason
        own, kind = text_of(kind_of_device(machine)), text_of(self.kind)
        return f"has {own}; this tuning is of {kind}, and times of two kinds do not stand in one record"

    def choose(self, workers: Sequence[FleetWorker]) -> Sequence[FleetWorker]:
        """Decide for a kind of device, where that is not done, and take the workers that have it."""
        kinds = {x.address: kind_of_device(x.announcement.machine) for x in workers if x.announcement.machine}
        self.kind = chosen_kind(kinds.values(), self.kind)
        return [x for x in workers if kinds.get(x.address) == self.kind]

    def call(self, task: Share, worker: FleetWorker, attempt: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Ask for one portion, with all that is known of kernels by now."""
        del worker
        portion = Portion(0, task.kernels, task.problems, sound=self.known.sound, failed=self.known.failed)
        return measure_task, (MeasureTask(self.number, self.words(), portion, attempt),)

    def judge(self, task: Share, worker: FleetWorker, result: MeasureResult) -> Done[Share, bool] | Refused | Lacking:
        """Take what was measured into the store, if that was on the device that was announced, at its usual speed."""
        if result.lacks_bundle:
            sent = self.sent.get(worker.address)
            return Refused(f"does not take the bundle: {sent.exception()}", is_barred=True) if sent else Lacking()
        part = self.store.with_name(f".{self.store.name}.part")
        try:
            part.write_bytes(result.store)
            found = runs_of(part)
            reason = self._is_another(found)
            if reason:
                return Refused(reason, is_barred=True)
            slow, again = self._compare(worker, task, found)
            if slow:
                return Refused(slow, is_slow=True, again=again)
            problems = [self.known.tuning.problems[number] for number in task.problems]
            carry(part, self.store, problems)
        except StoreError as error:
            return Refused(f"sent results that cannot be read: {error}", is_barred=True)
        finally:
            part.unlink(missing_ok=True)
        self.known.update(task)
        self.seeds.setdefault(worker.name, set()).update(found.seeds)
        is_whole = self.known.done.issuperset(task.problems)
        if not is_whole and not self.is_over():
            said = result.log[-300:].strip() or "it said nothing"
            return Refused(f"ended before its portion was done: {said}", again=again)
        self.shares.setdefault(worker.name, []).append(task)
        return Done(is_whole, again)

    def _is_another(self, found: RunsOf) -> str:
        """Say what is wrong with the device that results are of; empty if nothing is."""
        for conditions in found.conditions:
            kind = (conditions.device, conditions.num_sms, conditions.mig, conditions.power_mode)
            if kind != self.kind and self.kind is not None:
                return f"announced {text_of(self.kind)} and measured on {text_of(kind)}"
        if found.targets != (self.target.name,):
            return f"measured for {', '.join(found.targets) or 'no target'}, expected {self.target.name}"
        return ""

    def _compare(self, worker: FleetWorker, task: Share, found: RunsOf) -> tuple[str, tuple[Share, ...]]:
        """Compare the speed of a device with that of the others, by the reference kernel that all of them time.

        Returns:
            Why this device is slow, empty if it is not; and what slow devices did before that was known.
        """
        times = found.reference_us[-len(task.problems) - 1 :]
        if not task.problems or not times:
            return "", ()
        self.speeds[worker.name] = statistics.median(times)
        usual = statistics.median_low(self.speeds.values())
        is_limited = any(x.protocol == PROTOCOL for x in found.conditions)
        limit = usual * (1 + (POWER_LIMITED_TOLERANCE if is_limited else TimingPlan.reference_tolerance))
        slow = {
            name: f"is slow: the reference kernel takes {us:.2f} us, on others {usual:.2f} us"
            for name, us in self.speeds.items()
            if us > limit
        }
        again = [share for name, text in slow.items() for share in self._void(name, text)]
        return slow.get(worker.name, ""), tuple(again)

    def _void(self, name: str, reason: str) -> list[Share]:
        """Let what a worker measured count no more; return that."""
        shares = self.shares.pop(name, [])
        if shares and void_runs(self.store, self.seeds.get(name, ()), f"the device {reason}"):
            self.say(f"worker {name} {reason}; what it measured is measured again")
        self.known.done -= {number for share in shares for number in share.problems}
        return [share for share in shares if share.problems]

    def supply(self, client: Any, worker: FleetWorker) -> None:
        """Send the bundle to a worker, which keeps it by its digest."""
        self.packed = self.packed or pack(self.bundle, shipped(self.bundle))
        content = client.scatter(self.packed, workers=[worker.address], hash=False)
        # What is asked of the worker after this waits for it there.
        self.sent[worker.address] = client.submit(receive_task, self.number, content, **_alone(worker))

    def lost(self, task: Share, reason: str) -> bool:
        """Leave it unmeasured, and say so."""
        what = (
            f"{len(task.problems)} problems are not measured"
            if task.problems
            else f"{len(task.kernels)} kernels are not verified"
        )
        self.say(f"{what}: {reason}")
        return False


def _alone(worker: FleetWorker) -> dict[str, Any]:
    """Return how a task is bound to a worker, where it has all seats: nothing else is done there meanwhile."""
    seats = {str(Role.MEASURES): worker.seats}
    return {"workers": [worker.address], "resources": seats, "pure": False, "retries": 0}


@dataclass(frozen=True)
class FleetDevices:
    """The workers of a fleet that measure."""

    engine: Engine
    client: Any
    say: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    """How long the parts of the last run took: `begin` until the first result, `verify` and `measure` from then on."""

    def measure(self, bundle: Path, words: Sequence[str], results: Path, budget_s: float | None) -> int:
        """Measure a bundle into a store; carry on where one was left.

        Returns:
            0 when all is measured, or the budget is spent; 1 where something could not be measured.

        Raises:
            FleetError: there is no worker that fits, or no scheduler.
            StoreError: the store is damaged, or another run has it.
        """
        end = None if budget_s is None else time.monotonic() + budget_s
        tuning = read_tuning_set(bundle)

        def own_words() -> tuple[str, ...]:
            left = [] if end is None else ["--budget-seconds", f"{max(1.0, end - time.monotonic()):.0f}"]
            return (*words, *left)

        with hold_lock(results, 0.0):
            known = Known(tuning, results)
            known.read()
            is_over = partial(_is_past, end)
            job = MeasureJob(bundle, results, own_words, known, self.say, is_over)
            workers = _first(lambda: list(self.engine.fitting(job).values()), job.target)
            self.say(f"{len(workers)} workers measure: {', '.join(sorted(x.name for x in workers))}")
            try:
                is_whole = self._measure(job, known, len(workers), end)
            finally:
                self._release(job)
        num_done, num_all = len(known.done), len(tuning.problems)
        rest = "" if num_done == num_all else "; the same command carries on"
        self.say(f"{num_done} of {num_all} problems are measured{rest}")
        return 0 if is_whole or is_over() else 1

    def check(self, target: Target) -> None:
        """Wait for a worker with a device of a target, before anything is compiled for it.

        Raises:
            FleetError: none comes.
        """

        def found() -> list[FleetWorker]:
            measures = [x for x in workers_of(self.client)[0].values() if x.announcement.role == Role.MEASURES]
            return [x for x in measures if not measures_unlike(x.announcement, target)]

        _first(found, target)

    def _measure(self, job: MeasureJob, known: Known, num_workers: int, end: float | None) -> bool:
        """Verify first, each kernel once in all; then measure."""
        progress, tuning = Progress(), known.tuning
        judged = {*known.sound, *(number for number, _ in known.failed)}
        kernels = [number for number in range(len(tuning.kernels)) if number not in judged]
        problems = [number for number in range(len(tuning.problems)) if number not in known.done]
        if not problems:
            return True
        total, done, is_whole = len(kernels) + len(problems), 0, True
        parts = {
            "verify": shares_of_kernels(kernels, num_workers),
            "measure": shares_of_problems(tuning, problems, num_workers),
        }
        since = time.monotonic()
        self.seconds.clear()
        try:
            for part, shares in parts.items():
                for share, is_done in self.engine.run(shares, job, end):
                    if not self.seconds:
                        self.seconds["begin"], since = time.monotonic() - since, time.monotonic()
                    done = min(total, done + len(share.kernels) + len(share.problems))
                    is_whole = is_whole and (is_done or bool(share.kernels))
                    progress.show(done, total, f"{num_workers} workers")
                self.seconds[part], since = time.monotonic() - since, time.monotonic()
        finally:
            progress.end()
        return is_whole and len(known.done) == len(tuning.problems)

    def _release(self, job: MeasureJob) -> None:
        """Give the devices back. One that does not hear of it gives itself back when nobody hands it anything."""
        futures = [
            self.client.submit(release_task, key=f"aot-release-{worker.name}-{time.monotonic_ns()}", **_alone(worker))
            for worker in self.engine.fitting(job).values()
        ]
        end = time.monotonic() + RELEASE_S
        while futures and time.monotonic() < end and not all(x.done() for x in futures):
            time.sleep(0.05)


FIRST_WAIT_S = 60.0
"""How long the first worker that fits is waited for."""


def _is_past(end: float | None) -> bool:
    """Say whether a moment of time.monotonic() is past, or nearly: a run ends a little before its time is over."""
    return end is not None and time.monotonic() >= end - MARGIN_S


def _first(find: Callable[[], list[FleetWorker]], target: Target) -> list[FleetWorker]:
    """Wait until there are workers that fit; return them."""
    end = time.monotonic() + FIRST_WAIT_S
    while not (found := find()):
        if time.monotonic() >= end:
            raise FleetError(
                f"no worker fits: expected a device of {target.name}; see `aot worker --help`, and start one where "
                "there is such a device"
            )
        time.sleep(LOOK_S)
    return found
