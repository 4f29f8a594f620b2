"""Compile by a fleet: satisfies aot.compile.compiler.Compilers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.compile.compiler import ArtifactStore, Compiled
from aot.compile.process_pool import Died
from aot.compile.transport import unpack
from aot.fleet.announcement import Role, compiles_unlike
from aot.fleet.engine import Done, Engine, FleetWorker, Lacking, Refused
from aot.fleet.ledger import Limits
from aot.fleet.seats import CompileResult, CompileTask, compile_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from aot.core.target import Target
    from aot.core.work import AnyKey

LIMITS = Limits(silence_s=30.0)
"""A worker says every two seconds that it compiles."""
OWN_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""Signals by which a compiler ends that crashed over a kernel, as it would anywhere."""


@dataclass(frozen=True)
class CompileJob:
    """Kernels of a target, into a store."""

    target: Target
    root: Path
    workplace: Path
    role: Role = Role.COMPILES
    limits: Limits = LIMITS

    def unlike(self, worker: FleetWorker) -> str:
        """Compare the versions of what compiles."""
        return compiles_unlike(worker.announcement)

    def choose(self, workers: Sequence[FleetWorker]) -> Sequence[FleetWorker]:
        """Take all: they compile the same objects."""
        return workers

    def call(self, task: AnyKey, worker: FleetWorker, attempt: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Ask for one kernel."""
        del worker
        entry = ArtifactStore(self.root).directory(task, self.target).relative_to(self.root).as_posix()
        return compile_task, (CompileTask(task, self.target, entry, attempt),)

    def judge(
        self, task: AnyKey, worker: FleetWorker, result: CompileResult
    ) -> Done[AnyKey, Compiled | Died] | Refused | Lacking:
        """Put what arrived into the store, if it is what its hashes say."""
        del worker
        refused = self._refused(task, result)
        return refused or Done(result.outcome)

    def _refused(self, task: AnyKey, result: CompileResult) -> Refused | None:
        outcome = result.outcome
        if result.unlike:
            return Refused(result.unlike, is_barred=True)
        if isinstance(outcome, Died):
            is_own = -(outcome.exit_code or 0) in OWN_CRASHES
            return None if is_own else Refused(f"lost its compiler of {task.name} (exit code {outcome.exit_code})")
        if outcome.machine or outcome.missing or outcome.changed:
            what = outcome.machine or outcome.missing or "its sources change meanwhile"
            return Refused(f"cannot compile: {what}", is_barred=True)
        fault = unpack(result.files, task, self.target, self.root, self.workplace) if result.files else ""
        return Refused(f"sent an artifact of {task.name} that is none: {fault}", is_barred=True) if fault else None

    def supply(self, client: Any, worker: FleetWorker) -> None:
        """Send nothing: a worker that compiles lacks nothing."""

    def lost(self, task: AnyKey, reason: str) -> Compiled:
        """Hold the loss against the machines, for which no kernel is to blame."""
        return Compiled(machine=f"{task.name}: given up by the fleet: {reason}")


@dataclass(frozen=True)
class FleetCompilers:
    """The workers of a fleet that compile."""

    engine: Engine

    def compile(
        self, keys: Sequence[AnyKey], target: Target, root: Path, workplace: Path
    ) -> Generator[tuple[AnyKey, Compiled | Died], None, None]:
        """Compile each key on some worker; its artifact is in the store when it is given.

        Raises:
            FleetError: there is no worker that fits, or no scheduler.
        """
        return self.engine.run(keys, CompileJob(target, root, workplace))
