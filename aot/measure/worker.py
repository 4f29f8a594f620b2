"""Measure a tuning set in one process: verify, then problem after problem, writing each result as it is known.

The process is expendable. What it is about to launch stands in the store first, so that its supervisor
(aot.measure.runner) can quarantine a kernel that hangs, crashes or poisons the context, and start another process that
carries on from what the store holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from aot.core.errors import DeviceError, StoreError, VerificationError
from aot.core.measurement import OK, Measurement, Outcome, Status
from aot.core.operands import GemmCall, matrices
from aot.measure.gpu import ContextLostError, OutOfMemoryError
from aot.measure.inputs import RandomPool
from aot.measure.protocol import ProblemBench, Workspace, num_sets, quartiles, set_bytes, survivors
from aot.measure.rounds import final_rounds
from aot.measure.search_store import StoredSearches
from aot.measure.session import StoppedError
from aot.measure.supervisor import RESUMING
from aot.measure.throttling import ThrottlingWatch
from aot.measure.verify import Verifier, edge_shapes

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.element import ElementType
    from aot.core.problem import Problem
    from aot.measure.search_store import StoredSearch
    from aot.measure.session import Session
    from aot.measure.tuning_set import TunedKernel

T = TypeVar("T")


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
        self._searches = StoredSearches(
            session.tuning,
            self._store,
            session.run,
            {number: (kernel, self._ids[number]) for number, kernel in self._tuned.items()},
            strategy=session.strategy,
            budget=session.search_budget,
        )
        self._reasons = self._store.quarantined()
        self._pools: dict[ElementType, RandomPool] = {}
        self._source_elements = session.source_elements
        self._workspace_limit = self._plan.workspace_limit_bytes
        self._unfit: dict[int, Status] = {}
        self._flush = 0
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

    def _tick(self, what: str) -> None:
        """Show that this process lives."""
        self._session.report(self._done, self._total, what)

    def _attempt(self, number: int, what: str, action: Callable[[], T]) -> T | None:
        """Do something with a kernel; when it fails, quarantine the kernel and give None.

        Raises:
            ContextLostError: the failure took the context with it.
        """
        try:
            return action()
        except OutOfMemoryError:
            raise
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
        verifier = Verifier(self._gpu, self._session.kernels, self._rng, lambda: self._tick("verifying"))
        for number, kernel in self._tuned.items():
            self._check_clusters(number)
            if number in self._unfit:
                pass  # it could not run here, for which it is not to blame
            elif self._ids[number] not in verified and self._is_sound(number):
                error = self._launch(number, "verifying", lambda k=kernel, i=number: verifier.verify(k, i))  # type: ignore[misc]
                if error is not None:
                    self._store.add_verified(self._session.run, self._ids[number], error)
            self._step(f"verified {kernel.name}")
        verifier.close()

    def _check_clusters(self, number: int) -> None:
        """Ask the device whether a cluster of a kernel fits it: on few SMs, or in a MIG slice, it may not."""
        problem, kernels = edge_shapes(self._tuned[number])[-1].problem, self._session.kernels

        def ask() -> int | None:
            # Addresses that are aligned and never read: nothing is launched.
            bound = kernels.bind(GemmCall(problem, 1 << 20, 2 << 20, 3 << 20, *matrices(problem), 5 << 20))
            return kernels.max_active_clusters(number, bound, 4 << 20, kernels.workspace_bytes(number, bound))

        if self._is_sound(number) and self._launch(number, "asking for its clusters", ask) == 0:
            candidate = self._tuned[number].key.candidate
            reason = f"0 active clusters of {candidate.cluster_m}x{candidate.cluster_n} on this device"
            self._unfit[number] = Status(Outcome.CLUSTERS, reason)

    def _pool(self, problem: Problem) -> RandomPool:
        dtype = problem.operation.element
        if dtype not in self._pools:
            self._pools[dtype] = RandomPool(self._gpu, dtype, self._rng, self._source_elements)
        return self._pools[dtype]

    def _need(self, number: int, problem: Problem) -> tuple[int, Status]:
        """Return the workspace bytes of a kernel on a problem, and whether, or why not, it can be tried.

        That it cannot be tried is not held against it.
        """
        kernels, limit = self._session.kernels, self._workspace_limit
        if number in self._unfit:
            return 0, self._unfit[number]
        try:
            need = kernels.workspace_bytes(number, kernels.bind(GemmCall(problem, 0, 0, 0, *matrices(problem))))
        except DeviceError as error:
            return 0, Status(Outcome.REFUSED, str(error))
        if need > limit:
            return 0, Status(Outcome.WORKSPACE, f"needs {need} bytes, the limit is {limit}")
        return need, OK

    def run(self) -> None:
        """Measure all that is missing.

        Raises:
            StoppedError: `stop` said so.
            ContextLostError: a kernel's failure took the context; another process may carry on.
            DeviceError: the device failed outside a kernel, as when memory is short.
        """
        self._verify()
        done = {x for x in self._session.tuning.problems if self._searches.is_done(x, self._takers(x))}
        problems = [problem for problem in self._session.tuning.problems if problem not in done]
        for problem in filter(done.__contains__, self._session.tuning.problems):
            self._searches.learn(problem, self._takers(problem))
        self._step(RESUMING, sum(len(self._takers(problem)) for problem in done))
        if not problems:
            return
        # No more random numbers than the largest problem can be filled with, twice over for the offset.
        self._source_elements = min(self._source_elements, max(map(self._arena_bytes, problems)))
        for problem in problems:
            self._pool(problem)
        if self._plan.flush_bytes:
            self._flush = self._gpu.alloc(self._plan.flush_bytes)
        anchor = self._reference()
        arena, problems = self._reserve_arena(problems)
        workspace = self._reserve_workspace(problems)
        watch = ThrottlingWatch(self._plan, *anchor, self._session.warn, self._pause)
        watch.start()
        for problem in problems:
            self._measure_steadily(problem, arena, workspace, watch)
            self._store.finish(self._session.run, problem)
            self._searches.learn(problem, self._takers(problem))

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._step("waiting for the device's usual speed", 0)

    def _arena_bytes(self, problem: Problem) -> int:
        return num_sets(problem, self._gpu.l2_bytes, self._plan) * set_bytes(problem)

    def _reserve_arena(self, problems: list[Problem]) -> tuple[int, list[Problem]]:
        """Allocate what the largest problem needs; give the address, and the problems that there is memory for."""
        left = list(problems)
        while left:
            largest = max(map(self._arena_bytes, left))
            try:
                return self._gpu.alloc(largest), left
            except OutOfMemoryError as error:
                for problem in [x for x in left if self._arena_bytes(x) == largest]:
                    self._session.warn(f"{problem.name} is not measured: {error}")
                    for number in self._takers(problem):
                        self._add(number, problem, [], 0.0, Status(Outcome.MEMORY, str(error)))
                    self._store.finish(self._session.run, problem)
                    self._step(f"{problem.name}: out of memory", len(self._takers(problem)))
                    left.remove(problem)
        return 0, left

    def _reserve_workspace(self, problems: list[Problem]) -> Workspace:
        """Allocate the largest workspace that can be had; a kernel that needs more on a problem is not tried on it."""
        needs = {self._need(i, problem)[0] for problem in problems for i in self._takers(problem)}
        for size in sorted(needs - {0}, reverse=True):
            try:
                return Workspace(self._gpu.alloc(size), size)
            except OutOfMemoryError as error:
                self._session.warn(f"kernels that need {size} bytes of workspace are not tried: {error}")
                self._workspace_limit = size - 1
        return Workspace(0, 0)

    def _reference(self) -> tuple[Callable[[], float | None], float | None]:
        """Choose the reference kernel (aot.measure.throttling), the first sound kernel on the problem of middle size.

        Gives what times it, and what it usually took. It has operands of its own, so that it can run at any time; where
        they cannot be had, there is no reference kernel.
        """
        problems = sorted(self._session.tuning.problems, key=lambda x: (x.m * x.n * x.k, x))
        problem = problems[len(problems) // 2]
        sound = [i for i in self._takers(problem) if self._is_sound(i) and self._need(i, problem) == (0, OK)]
        if not self._plan.reference_rounds or not sound:
            return lambda: None, None
        try:
            bench = self._bench(problem, self._gpu.alloc(self._arena_bytes(problem)), Workspace(0, 0))
        except OutOfMemoryError as error:
            self._session.warn(f"the device's speed is not watched: {error}")
            return lambda: None, None
        number = sound[0]

        def read_us() -> float | None:
            if not self._is_sound(number):
                return None
            rounds = range(self._plan.reference_rounds)
            us = self._launch(
                number, "timing the reference kernel", lambda: quartiles([bench.round_us(number) for _ in rounds])[1]
            )
            if us is not None:
                self._store.add_reference_time(self._session.run, self._ids[number], problem, us)
            return us

        past = self._store.reference_times(self._ids[number], problem)[-9:]
        return read_us, quartiles(past)[1] if past else None

    def _measure_steadily(self, problem: Problem, arena: int, workspace: Workspace, watch: ThrottlingWatch) -> None:
        """Measure a problem, and again, some times at most, when the device changed its speed meanwhile."""
        for repeat in range(self._plan.max_repeats + 1):
            self._measure(problem, arena, workspace)
            change = watch.changed()
            if not change:
                return
            if repeat == self._plan.max_repeats:
                break
            self._session.warn(f"{problem.name} is measured again: {change}")
            self._store.void(self._session.run, problem, change)
            self._step(f"{problem.name}: again", -len(self._takers(problem)))
            watch.settle()
        self._session.warn(f"{problem.name} keeps times of an unsteady device: {change}")
        watch.settle()

    def _add(self, number: int, problem: Problem, times_us: list[float], error: float, status: Status = OK) -> None:
        low, median, high = quartiles(times_us) if times_us else (0.0, 0.0, 0.0)
        measurement = Measurement(self._tuned[number].key, problem, median, low, high, len(times_us), error, status)
        self._store.add_measurement(self._session.run, self._ids[number], measurement)

    def _add_failure(self, number: int, problem: Problem) -> None:
        self._add(number, problem, [], 0.0, Status(Outcome.FAILED, self._reasons[self._ids[number]]))

    def _bench(self, problem: Problem, arena: int, workspace: Workspace) -> ProblemBench:
        return ProblemBench(
            self._gpu,
            self._session.kernels,
            pool=self._pool(problem),
            arena=arena,
            workspace=workspace,
            problem=problem,
            plan=self._plan,
            rng=self._rng,
            flush=self._flush,
        )

    def _measure(self, problem: Problem, arena: int, workspace: Workspace) -> None:
        bench = self._bench(problem, arena, workspace)
        try:
            times, errors, search = self._screen(bench)
            self._rounds(bench, times, errors)
            self._searches.note(problem, search, len(times))
        except ContextLostError:
            # Its graphs went with the context; asking to free them would hide the reason.
            raise
        except BaseException:
            bench.close()
            raise
        bench.close()

    def _can_run(self, number: int, problem: Problem, *, is_known: bool) -> bool:
        """Say whether a kernel is to be screened; where it is not, and the store does not know, note why."""
        if not self._is_sound(number):
            status = Status(Outcome.QUARANTINED, self._reasons[self._ids[number]])
        else:
            status = self._need(number, problem)[1]
        if status is not OK and not is_known:
            self._add(number, problem, [], 0.0, status)
        return status is OK

    def _screen(self, bench: ProblemBench) -> tuple[dict[int, float], dict[int, float], StoredSearch]:
        """Time each kernel that the search asks for once; give the sound ones' times in us and relative errors."""
        problem, takers = bench.problem, self._takers(bench.problem)
        rows = self._store.latest(problem)
        able = [i for i in takers if self._can_run(i, problem, is_known=self._ids[i] in rows)]
        known = {i: rows[self._ids[i]] for i in able if self._ids[i] in rows}
        times = {i: row.median_us for i, row in known.items() if row.ok}
        errors = {i: row.relative_error for i, row in known.items() if row.ok}
        search = self._searches.start(problem, able, rows)
        if len(takers) > search.num_left:
            self._step(f"{problem.name}: {len(known)} known", len(takers) - search.num_left)
        while (number := search.next()) is not None:
            self._screen_one(bench, number, times, errors)
            search.tell(number, times.get(number))
            self._step(f"{problem.name}: screened {self._tuned[number].name}")
        self._step(f"{problem.name}: {search.reason}", search.num_left)
        return times, errors, search

    def _screen_one(self, bench: ProblemBench, number: int, times: dict[int, float], errors: dict[int, float]) -> None:
        problem = bench.problem
        best = min(times.values(), default=None)

        def screen() -> tuple[float, float]:
            error = bench.check(number)
            return error, bench.screen_us(number, best)

        outcome = self._launch(number, f"measuring {problem.name}", screen)
        if outcome is None:
            self._add_failure(number, problem)
            return
        errors[number], times[number] = outcome
        self._add(number, problem, [times[number]], errors[number])
        bench.keep(survivors(times, self._plan))

    def _rounds(self, bench: ProblemBench, times: dict[int, float], errors: dict[int, float]) -> None:
        """Time the survivors in the final rounds and store their quartiles."""
        what = f"measuring {bench.problem.name}"
        chosen = survivors(times, self._plan)

        def time_once(number: int, rests: bool) -> float | None:
            if not self._is_sound(number):
                return None
            self._step(f"{what}: rounds", 0)
            return self._launch(number, what, lambda: bench.round_us(number, rests=rests))

        rounds = final_rounds(bench.problem, chosen, self._plan, self._rng, time_once)
        for number in chosen:
            if self._is_sound(number):
                self._add(number, bench.problem, rounds[number], errors[number])
            else:
                self._add_failure(number, bench.problem)
