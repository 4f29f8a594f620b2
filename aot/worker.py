"""Measure a tuning set in one process: verify, then problem after problem, writing each result as it is known.

The process is expendable. What it is about to launch stands in the store first, so that its supervisor
(aot.bundle_runner) can quarantine a kernel that hangs, crashes or poisons the context, and start another process that
carries on from what the store holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aot.errors import DeviceError, StoreError, VerificationError
from aot.gpu import ContextLostError
from aot.inputs import SOURCE_ELEMENTS, RandomPool
from aot.measure import ProblemBench, TimingPlan, Workspace, num_sets, quartiles, set_bytes, survivors
from aot.measurement import Measurement
from aot.operands import GemmCall, matrices
from aot.verify import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.gpu import Gpu, Kernels
    from aot.problem import Dtype, Problem
    from aot.store import Store
    from aot.tuning_set import TunedKernel, TuningSet

T = TypeVar("T")


class StoppedError(Exception):
    """The user, or the time budget, ended the run between two measurements; everything is in the store."""


@dataclass
class Session:
    """What one process measures with."""

    gpu: Gpu
    kernels: Kernels
    tuning: TuningSet
    store: Store
    run: int
    seed: int
    plan: TimingPlan = field(default_factory=TimingPlan)
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None
    """Called often with the steps done, the steps in all, and what is being done."""
    stop: Callable[[], bool] = lambda: False
    """Asked between measurements whether to end."""
    source_elements: int = SOURCE_ELEMENTS


class Worker:
    """One pass over what a session's store does not hold yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gpu, self._store, self._plan = session.gpu, session.store, session.plan
        self._rng = np.random.default_rng(session.seed)
        index = {name: i for i, name in enumerate(session.kernels.names)}
        missing = [kernel.name for kernel in session.tuning.kernels if kernel.name not in index]
        if missing:
            raise StoreError(f"the library lacks {len(missing)} kernels, first {missing[0]}; make the bundle again")
        self._tuned: dict[int, TunedKernel] = {index[kernel.name]: kernel for kernel in session.tuning.kernels}
        self._ids = {number: self._store.kernel_id(kernel) for number, kernel in self._tuned.items()}
        self._reasons = self._store.quarantined()
        self._pools: dict[Dtype, RandomPool] = {}
        self._done = 0
        self._total = len(self._tuned) + sum(len(self._takers(problem)) for problem in session.tuning.problems)

    def _takers(self, problem: Problem) -> list[int]:
        return [number for number, kernel in self._tuned.items() if self._session.tuning.is_wanted(kernel, problem)]

    def _is_sound(self, number: int) -> bool:
        return self._ids[number] not in self._reasons

    def _step(self, what: str, count: int = 1) -> None:
        self._done += count
        self._session.report(self._done, self._total, what)
        if self._session.stop():
            raise StoppedError

    def _attempt(self, number: int, what: str, action: Callable[[], T]) -> T | None:
        """Do something with a kernel; when it fails, quarantine the kernel and give None.

        Raises:
            ContextLostError: the failure took the context with it.
        """
        try:
            return action()
        except (DeviceError, VerificationError) as error:
            reason = f"{what}: {error}"
            self._reasons[self._ids[number]] = reason
            self._store.quarantine(self._session.run, self._ids[number], reason)
            if self._gpu.is_lost():
                self._store.clear_in_flight()
                raise ContextLostError(f"{self._tuned[number].name}: {reason}") from error
            return None

    def _launch(self, number: int, what: str, action: Callable[[], T]) -> T | None:
        """Attempt what launches a kernel, with a note in the store for whoever finds this process dead."""
        self._store.set_in_flight(self._session.run, self._ids[number], what)
        outcome = self._attempt(number, what, action)
        self._store.clear_in_flight()
        return outcome

    def _verify(self) -> None:
        verified = self._store.verified()
        verifier = Verifier(self._gpu, self._session.kernels, self._rng)
        for number, kernel in self._tuned.items():
            if self._ids[number] not in verified and self._is_sound(number):
                error = self._launch(number, "verifying", lambda k=kernel, i=number: verifier.verify(k, i))  # type: ignore[misc]
                if error is not None:
                    self._store.add_verified(self._session.run, self._ids[number], error)
            self._step(f"verified {kernel.name}")
        verifier.close()

    def _pool(self, problem: Problem) -> RandomPool:
        dtype = problem.operation.dtype
        if dtype not in self._pools:
            self._pools[dtype] = RandomPool(self._gpu, dtype, self._rng, self._session.source_elements)
        return self._pools[dtype]

    def _need(self, number: int, problem: Problem) -> tuple[int, str]:
        """Give the workspace bytes of a kernel on a problem, or why it is not tried, which is not held against it."""
        kernels, limit = self._session.kernels, self._plan.workspace_limit_bytes
        try:
            need = kernels.workspace_bytes(number, kernels.bind(GemmCall(problem, 0, 0, 0, *matrices(problem))))
        except DeviceError as error:
            return 0, f"not tried: {error}"
        if need > limit:
            return 0, f"not tried: needs {need} bytes of workspace, the limit is {limit}"
        return need, ""

    def _pending(self, problem: Problem) -> bool:
        rows = self._store.latest(problem)
        return not self._store.is_finished(problem) or any(
            self._ids[number] not in rows for number in self._takers(problem)
        )

    def run(self) -> None:
        """Measure all that is missing.

        Raises:
            StoppedError: `stop` said so.
            ContextLostError: a kernel's failure took the context; another process may carry on.
            DeviceError: the device failed outside a kernel, as when memory is short.
        """
        self._verify()
        problems = [problem for problem in self._session.tuning.problems if self._pending(problem)]
        skipped = [problem for problem in self._session.tuning.problems if problem not in set(problems)]
        self._step("resuming", sum(len(self._takers(problem)) for problem in skipped))
        if not problems:
            return
        arena = self._gpu.alloc(
            max(num_sets(problem, self._gpu.l2_bytes, self._plan) * set_bytes(problem) for problem in problems)
        )
        needs = (self._need(i, problem)[0] for problem in problems for i in self._takers(problem))
        size = max(needs, default=0)
        workspace = Workspace(self._gpu.alloc(size) if size else 0, size)
        for problem in problems:
            self._measure(problem, arena, workspace)
            self._store.finish(self._session.run, problem)

    def _add(self, number: int, problem: Problem, times_us: list[float], error: float, status: str = "ok") -> None:
        low, median, high = quartiles(times_us) if times_us else (0.0, 0.0, 0.0)
        measurement = Measurement(self._tuned[number].key, problem, median, low, high, len(times_us), error, status)
        self._store.add_measurement(self._session.run, self._ids[number], measurement)

    def _measure(self, problem: Problem, arena: int, workspace: Workspace) -> None:
        bench = ProblemBench(
            self._gpu,
            self._session.kernels,
            pool=self._pool(problem),
            arena=arena,
            workspace=workspace,
            problem=problem,
            plan=self._plan,
            rng=self._rng,
        )
        try:
            self._rounds(bench, *self._screen(bench))
        except ContextLostError:
            # Its graphs went with the context; asking to free them would hide the reason.
            raise
        except BaseException:
            bench.close()
            raise
        bench.close()

    def _screen(self, bench: ProblemBench) -> tuple[dict[int, float], dict[int, float]]:
        """Time each kernel once; give the times in us, and the relative errors, of those that are sound."""
        problem = bench.problem
        rows = self._store.latest(problem)
        times: dict[int, float] = {}
        errors: dict[int, float] = {}
        for number in self._takers(problem):
            row = rows.get(self._ids[number])
            if row is not None and row.ok and self._is_sound(number):
                times[number], errors[number] = row.median_us, row.relative_error
            elif row is None:
                self._screen_one(bench, number, times, errors)
            self._step(f"{problem.name}: screened {self._tuned[number].name}")
        return times, errors

    def _screen_one(self, bench: ProblemBench, number: int, times: dict[int, float], errors: dict[int, float]) -> None:
        problem = bench.problem
        if not self._is_sound(number):
            self._add(number, problem, [], 0.0, f"quarantined: {self._reasons[self._ids[number]]}")
            return
        _, obstacle = self._need(number, problem)
        if obstacle:
            self._add(number, problem, [], 0.0, obstacle)
            return
        best = min(times.values(), default=None)

        def screen() -> tuple[float, float]:
            error = bench.check(number)
            return error, bench.screen_us(number, best)

        outcome = self._launch(number, f"measuring {problem.name}", screen)
        if outcome is None:
            self._add(number, problem, [], 0.0, f"failed: {self._reasons[self._ids[number]]}")
            return
        errors[number], times[number] = outcome
        self._add(number, problem, [times[number]], errors[number])
        bench.keep(survivors(times, self._plan))

    def _rounds(self, bench: ProblemBench, times: dict[int, float], errors: dict[int, float]) -> None:
        """Time the survivors in interleaved rounds and store their quartiles."""
        what = f"measuring {bench.problem.name}"
        chosen = survivors(times, self._plan)
        rounds: dict[int, list[float]] = {number: [] for number in chosen}
        for i in range(self._plan.final_rounds):
            for number in self._rng.permutation(chosen).tolist():
                if self._is_sound(number):
                    us = self._launch(number, what, lambda n=number: bench.round_us(n))  # type: ignore[misc]
                    rounds[number] += [] if us is None else [us]
            self._step(f"{bench.problem.name}: round {i + 1}", 0)
        for number in chosen:
            if self._is_sound(number):
                self._add(number, bench.problem, rounds[number], errors[number])
            else:
                self._add(number, bench.problem, [], 0.0, f"failed: {self._reasons[self._ids[number]]}")


def deadline_stop(budget_s: float | None, is_interrupted: Callable[[], bool]) -> Callable[[], bool]:
    """Make a `stop` that says yes after an interrupt, or once the budget in seconds is spent."""
    end = None if budget_s is None else time.monotonic() + budget_s
    return lambda: is_interrupted() or (end is not None and time.monotonic() >= end)
