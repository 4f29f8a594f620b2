"""Fresh processes that do tasks one after the other, and that can be ended at once, whatever they are doing.

The standard library's pool waits for its tasks when it is interrupted, and cannot say which task a dead process had.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.context import SpawnProcess

Task = TypeVar("Task")
Result = TypeVar("Result")

END_S = 0.2
"""How long a killed process is waited for; one that the system does not let go ends later."""
PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(frozen=True)
class Died:
    """The outcome of a task whose process ended under it."""

    exit_code: int | None
    """Negative: the signal that ended it."""


def _serve(
    tasks: Connection, parent: int, start: Callable[..., None], arguments: tuple[Any, ...], do: Callable[[Any], Any]
) -> None:
    """Do tasks until there are no more; what runs in a worker process."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before that
        return
    start(*arguments)
    with suppress(EOFError, OSError):
        while True:
            tasks.send(do(tasks.recv()))


@dataclass
class _Worker(Generic[Task]):
    process: SpawnProcess
    tasks: Connection
    task: Task | None = None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold back the terminal's Ctrl-C; a process that is started meanwhile never sees one, from its first moment on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_apart(process: SpawnProcess) -> None:
    """Start a process that never sees the terminal's Ctrl-C."""
    resource_tracker.ensure_running()  # the first spawn starts it, which would let interrupts through again
    with _without_interrupts():
        process.start()


def _spawn(start: Callable[..., None], arguments: tuple[Any, ...], do: Callable[[Task], Any]) -> _Worker[Task]:
    """Start a process; see `Pool`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, os.getpid(), start, arguments, do), daemon=True)
    start_apart(process)
    theirs.close()
    return _Worker(process, ours)


class Resident(Generic[Task, Result]):
    """One process that is kept for whatever comes, and started again where it has died; as `Pool` has them."""

    def __init__(self, start: Callable[..., None], arguments: tuple[Any, ...], do: Callable[[Task], Result]) -> None:
        self._start, self._arguments, self._do = start, arguments, do
        self._worker: _Worker[Task] | None = None

    def do(self, task: Task, limit_s: float | None = None) -> Result | Died:
        """Do a task and wait for its result, which is the process's death if it takes longer than the limit."""
        worker = self._worker = self._worker or _spawn(self._start, self._arguments, self._do)
        try:
            worker.tasks.send(task)
            if worker.tasks.poll(limit_s):
                result: Result = worker.tasks.recv()
                return result
        except (EOFError, OSError):
            worker.process.join(END_S)
        self.close()
        return Died(worker.process.exitcode)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.process.kill()
            worker.tasks.close()
            worker.process.join(END_S)


@dataclass(frozen=True)
class Pool(Generic[Task, Result]):
    """A number of worker processes.

    `start` is called with `arguments` in each process first; `do` takes a task and returns its result. All must be
    importable by name, and tasks and results be picklable.
    """

    num_processes: int
    start: Callable[..., None]
    arguments: tuple[Any, ...]
    do: Callable[[Task], Result]

    def run(self, tasks: Sequence[Task]) -> Generator[tuple[Task, Result | Died], None, None]:
        """Do tasks; give each with its result as it is known. When the caller stops early, the processes are killed."""
        todo = list(reversed(tasks))
        workers: list[_Worker[Task]] = []
        try:
            while todo or any(worker.task is not None for worker in workers):
                while todo and len(workers) < self.num_processes:
                    workers.append(_spawn(self.start, self.arguments, self.do))
                    self._hand_out(workers[-1], todo)
                ready = wait([worker.tasks for worker in workers if worker.task is not None])
                for worker in [x for x in workers if x.tasks in ready]:
                    task, worker.task = worker.task, None
                    assert task is not None  # noqa: S101 - it had one, or its answer was not waited for
                    try:
                        result: Result | Died = worker.tasks.recv()
                    except (EOFError, OSError):
                        worker.process.join()
                        workers.remove(worker)
                        result = Died(worker.process.exitcode)
                    else:
                        self._hand_out(worker, todo)
                    yield task, result
        finally:
            for worker in workers:
                worker.process.kill()
                worker.tasks.close()
            for worker in workers:
                worker.process.join(END_S)

    @staticmethod
    def _hand_out(worker: _Worker[Task], todo: list[Task]) -> None:
        if todo:
            worker.task = todo.pop()
            with suppress(OSError):  # it died meanwhile: reading its answer says so
                worker.tasks.send(worker.task)
