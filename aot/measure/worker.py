"""Measure a tuning set in one process: verify, then problem after problem, writing each result as it is known.

The process is expendable. What it is about to launch stands in the store first, so that its supervisor
(aot.measure.supervisor) can quarantine a kernel that hangs, crashes or poisons the context, and start another process
that carries on from what the store holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aot.core.measurement import Outcome, Status
from aot.measure.gpu import ContextLostError
from aot.measure.library_times import LIBRARY, LibraryBench
from aot.measure.protocol import survivors
from aot.measure.reference_kernel import ReferenceKernel
from aot.measure.rounds import final_rounds
from aot.measure.search_store import StoredSearches
from aot.measure.session import Steps
from aot.measure.session_kernels import SessionKernels
from aot.measure.session_memory import SessionMemory
from aot.measure.supervisor import RESUMING
from aot.measure.throttling import ThrottlingWatch
from aot.measure.verify import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aot.core.work import AnyProblem
    from aot.measure.bench import ProblemBench
    from aot.measure.search_store import StoredSearch
    from aot.measure.session import Session


def _no_bench(problem: AnyProblem) -> ProblemBench:
    raise AssertionError(problem.name)


@dataclass
class _Stand:
    """What problems are measured with, and those that are done."""

    done: set[AnyProblem]
    too_large: Mapping[AnyProblem, str] = field(default_factory=dict)
    """Problems that there is no memory for, each with the reason."""
    bench: Callable[[AnyProblem], ProblemBench] = _no_bench
    watch: ThrottlingWatch | None = None
    """None where nothing was left to measure."""


class Worker:
    """One pass over what a session's store does not hold yet."""

    def __init__(self, session: Session) -> None:
        self._session, self._store, self._plan = session, session.store, session.plan
        self._rng = np.random.default_rng(session.seed)
        self._kernels = SessionKernels(session)
        self._searches = StoredSearches(
            session.tuning,
            self._store,
            session.run,
            {number: (kernel, self._kernels.ids[number]) for number, kernel in self._kernels.tuned.items()},
            strategy=session.strategy,
            budget=session.search_budget,
        )
        self._takers = self._kernels.takers
        num_pairs = sum(len(self._takers(problem)) for problem in session.tuning.problems)
        self._steps = Steps(session, len(self._kernels.tuned) + num_pairs)
        self._at: _Stand | None = None

    def _verify(self, numbers: Iterable[int]) -> None:
        verified = self._store.verified()
        gpu, kernels = self._session.gpu, self._kernels
        verifier = Verifier(gpu, self._session.kernels, self._rng, lambda: self._steps.tick("verifying"))
        for number in numbers:
            kernel = kernels.tuned[number]
            # One that does not fit could not run here, for which it is not to blame.
            if kernels.is_fit(number) and kernels.ids[number] not in verified and kernels.is_sound(number):
                error = kernels.launch(number, "verifying", lambda k=kernel, i=number: verifier.verify(k, i))  # type: ignore[misc]
                if error is not None:
                    self._store.add_verified(self._session.run, kernels.ids[number], error)
            self._steps.step(f"verified {kernel.name}")
        verifier.close()

    def run(self) -> None:
        """Measure all that is missing, or what the session's portions ask for.

        Raises:
            StoppedError: `stop` said so.
            ContextLostError: a kernel's failure took the context; another process may carry on.
            DeviceError: the device failed outside a kernel, as when memory is short.
        """
        numbers, problems = list(self._kernels.tuned), self._session.tuning.problems
        for number in numbers:
            self._kernels.check_clusters(number)
        if self._session.portions is None:
            self._verify(numbers)
            self._measure_all(problems)
            return
        for portion in self._session.portions(lambda: self._steps.step("waiting for a portion", 0)):
            for index, reason in portion.failed:
                self._kernels.condemn(numbers[index], reason)
            self._verify(numbers[index] for index in portion.kernels)
            for index in portion.anew:
                self._forget(problems[index])
            self._measure_all([problems[index] for index in portion.problems])
            self._session.finished(portion)

    def _forget(self, problem: AnyProblem) -> None:
        """Let what was measured of a problem count no more."""
        self._store.void(self._session.run, problem, "it is to be measured again")
        if self._at is not None:
            self._at.done.discard(problem)

    def _resume(self) -> _Stand:
        """Learn from what the store has, and allocate what the rest needs."""
        tuning = self._session.tuning
        done = {x for x in tuning.problems if self._searches.is_done(x, self._takers(x))}
        for problem in filter(done.__contains__, tuning.problems):
            self._searches.learn(problem, self._takers(problem))
        self._steps.step(RESUMING, sum(len(self._takers(problem)) for problem in done))
        left = [problem for problem in tuning.problems if problem not in done]
        return self._stand(left, done) if left else _Stand(done)

    def _stand(self, problems: Sequence[AnyProblem], done: set[AnyProblem]) -> _Stand:
        memory = SessionMemory(self._session, problems, self._rng)
        reference = ReferenceKernel(self._session, self._kernels, memory)
        arena, too_large = memory.reserve_arena(problems)
        left = [problem for problem in problems if problem not in too_large]
        needs = {self._kernels.need(i, problem)[0] for problem in left for i in self._takers(problem)}
        workspace, limit = memory.reserve_workspace(needs)
        if limit is not None:
            self._kernels.workspace_limit = limit
        watch = ThrottlingWatch(self._plan, reference.read_us, reference.usual_us(), self._session.warn, self._pause)
        watch.start()
        reasons = {problem: str(error) for problem, error in too_large.items()}
        return _Stand(done, reasons, lambda problem: memory.bench(problem, arena, workspace), watch)

    def _measure_all(self, problems: Sequence[AnyProblem]) -> None:
        if not problems:
            return
        stand = self._at = self._at or self._resume()
        for problem in (x for x in problems if x not in stand.done):
            if problem in stand.too_large:
                self._leave_out(problem, stand.too_large[problem])
            elif stand.watch is not None:
                self._measure_steadily(problem, stand.bench, stand.watch)
                self._store.finish(self._session.run, problem)
                self._searches.learn(problem, self._takers(problem))
            stand.done.add(problem)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        self._steps.step("waiting for the device's usual speed", 0)

    def _leave_out(self, problem: AnyProblem, reason: str) -> None:
        """Note of a problem that there is no memory for its operands."""
        self._session.warn(f"{problem.name} is not measured: {reason}")
        for number in self._takers(problem):
            self._kernels.add(number, problem, [], 0.0, Status(Outcome.MEMORY, reason))
        self._store.finish(self._session.run, problem)
        self._steps.step(f"{problem.name}: out of memory", len(self._takers(problem)))

    def _measure_steadily(
        self, problem: AnyProblem, bench: Callable[[AnyProblem], ProblemBench], watch: ThrottlingWatch
    ) -> None:
        """Measure a problem, and again, some times at most, when the device changed its speed meanwhile."""
        for repeat in range(self._plan.max_repeats + 1):
            self._measure(bench(problem))
            change = watch.changed()
            if not change:
                return
            if repeat == self._plan.max_repeats:
                break
            self._session.warn(f"{problem.name} is measured again: {change}")
            self._store.void(self._session.run, problem, change)
            self._steps.step(f"{problem.name}: again", -len(self._takers(problem)))
            watch.settle()
        self._session.warn(f"{problem.name} keeps times of an unsteady device: {change}")
        watch.settle()

    def _measure(self, bench: ProblemBench) -> None:
        library = LibraryBench(self._session, bench)
        try:
            times, errors, search = self._screen(bench)
            self._screen_orders(bench, times, errors)
            library.screen()
            self._rounds(bench, times, errors, library)
            self._searches.note(bench.problem, search, len(times))
        except ContextLostError:
            # Its graphs went with the context; asking to free them would hide the reason.
            raise
        except BaseException:
            if not self._session.gpu.is_lost():
                bench.close()
                library.close()
            raise
        bench.close()
        library.close()

    def _screen(self, bench: ProblemBench) -> tuple[dict[int, float], dict[int, float], StoredSearch]:
        """Time each kernel that the search asks for once; give the sound ones' times in us and relative errors."""
        problem, takers = bench.problem, self._takers(bench.problem)
        rows = self._store.latest(problem)
        able = [i for i in takers if self._kernels.can_run(i, problem, is_known=self._kernels.ids[i] in rows)]
        known = {i: rows[self._kernels.ids[i]] for i in able if self._kernels.ids[i] in rows}
        times = {i: row.median_us for i, row in known.items() if row.ok}
        errors = {i: row.relative_error for i, row in known.items() if row.ok}
        search = self._searches.start(problem, able, rows)
        if len(takers) > search.num_left:
            self._steps.step(f"{problem.name}: {len(known)} known", len(takers) - search.num_left)
        while (number := search.next()) is not None:
            self._screen_one(bench, number, times, errors)
            search.tell(number, times.get(number))
            self._steps.step(f"{problem.name}: screened {self._kernels.tuned[number].name}")
        self._steps.step(f"{problem.name}: {search.reason}", search.num_left)
        return times, errors, search

    def _screen_orders(self, bench: ProblemBench, times: dict[int, float], errors: dict[int, float]) -> None:
        """Time the best kernels once in other orders of their tiles, where there are few."""
        problem, plan = bench.problem, self._plan
        ranked = sorted(times, key=lambda number: (times[number], number))[: plan.ordered_kernels]
        rows = self._store.latest(problem)
        for kernel in (x for x in ranked if times[x] <= plan.ordered_ratio * times[ranked[0]]):
            for number in self._kernels.other_orders(kernel, problem, plan.ordered_waves * self._session.num_sms):
                row = rows.get(self._kernels.ids[number])
                if row is None and self._kernels.is_sound(number):
                    self._screen_one(bench, number, times, errors)
                    self._steps.step(f"{problem.name}: screened {self._kernels.tuned[number].name}", 0)
                elif row is not None and row.ok:
                    times[number], errors[number] = row.median_us, row.relative_error

    def _screen_one(self, bench: ProblemBench, number: int, times: dict[int, float], errors: dict[int, float]) -> None:
        problem = bench.problem
        best = min(times.values(), default=None)

        def screen() -> tuple[float, float]:
            error = bench.check(number)
            return error, bench.screen_us(number, best)

        outcome = self._kernels.launch(number, f"measuring {problem.name}", screen)
        if outcome is None:
            self._kernels.add_failure(number, problem)
            return
        errors[number], times[number] = outcome
        self._kernels.add(number, problem, [times[number]], errors[number])
        bench.keep(survivors(times, self._plan))

    def _rounds(
        self, bench: ProblemBench, times: dict[int, float], errors: dict[int, float], library: LibraryBench
    ) -> None:
        """Time the survivors and the library in the final rounds and store their quartiles."""
        what = f"measuring {bench.problem.name}"
        chosen = survivors(times, self._plan)

        def time_once(number: int, rests: bool) -> float | None:
            if number == LIBRARY:
                return library.round_us(rests=rests)
            if not self._kernels.is_sound(number):
                return None
            self._steps.step(f"{what}: rounds", 0)
            return self._kernels.launch(number, what, lambda: bench.round_us(number, rests=rests))

        takers, replay_us = [*chosen, *library.numbers], bench.num_sets * min(times.values(), default=0.0)
        rounds = final_rounds(bench.problem, takers, self._plan, self._rng, time_once, replay_us)
        library.store(rounds.get(LIBRARY, ()))
        for number in chosen:
            if self._kernels.is_sound(number):
                self._kernels.add(number, bench.problem, rounds[number], errors[number])
            else:
                self._kernels.add_failure(number, bench.problem)
