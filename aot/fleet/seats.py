"""What a worker does with the tasks that it is given: compile a kernel, receive a bundle, measure a portion of one.

The functions at the end are what a client asks for by name; Dask runs them in a thread of the worker, which waits for
processes. A seat is the worker's plug-in: it has the state that outlives a task.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.compiler import SCRATCH, ArtifactStore, Compiled, compile_one, start_compiler
from aot.compile.process_pool import Died, Resident
from aot.compile.transport import packed
from aot.core.errors import AotError, FleetError
from aot.fleet.connection import reporter, seat_of_this_worker
from aot.measure.feed import Portion
from aot.measure.store_transfer import carry
from aot.measure.tuning_set import read_tuning_set
from aot.tune.link import persist
from aot.tune.remote import digest, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.target import Target
    from aot.core.work import AnyKey, AnyProblem
    from aot.measure.preflight import Machine
    from aot.tune.device import Device

TOPIC = "aot-fleet"
"""Under which workers say that they live."""
COMPILE_LIMIT_S = 900.0
"""A kernel that takes longer is given up by its worker. An assumption: the longest takes a minute of a busy core."""
REPORT_S = 2.0
"""Between two signs of life."""
FEED = "--feed"


@dataclass(frozen=True)
class CompileTask:
    """A kernel to compile, and the place in a store that it has where everything that decides its object is equal."""

    key: AnyKey
    target: Target
    entry: str
    attempt: str


@dataclass(frozen=True)
class CompileResult:
    """What became of it, and the files of its entry in the store, if there is one."""

    outcome: Compiled | Died
    files: dict[str, bytes]
    unlike: str = ""
    """Why this worker must not compile it."""


class CompilerSeat:
    """Processes that compile into a store of the worker's own, where what was compiled before is found again."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "artifacts"
        self._root.mkdir(parents=True, exist_ok=True)
        self._workplace = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=self._root))
        self._idle: dict[str, list[Resident[tuple[AnyKey, Target], Compiled]]] = {}
        self._lock = threading.Lock()

    def compile(self, task: CompileTask, report: Callable[[str], bool]) -> CompileResult:
        """Compile a kernel, unless it is there."""
        store = ArtifactStore(self._root)
        with self._lock:  # CPython 3.11 may fail where several threads parse sources at once
            directory = store.directory(task.key, task.target)
        if directory.relative_to(self._root).as_posix() != task.entry:
            return CompileResult(Compiled(), {}, "has other sources of this family, or another toolchain")
        if store.get(task.key, task.target) is None:
            outcome = self._in_process(task, report)
            if outcome != Compiled():
                return CompileResult(outcome, packed(directory))
        return CompileResult(Compiled(), packed(directory))

    def _in_process(self, task: CompileTask, report: Callable[[str], bool]) -> Compiled | Died:
        with self._lock:
            idle = self._idle.setdefault(task.target.arch, [])
            do = partial(_compile, root=self._root, workplace=self._workplace)
            resident = idle.pop() if idle else Resident(start_compiler, (task.target.arch, self._workplace), do)
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(REPORT_S):
                if not report("compiles"):
                    resident.close()

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            return resident.do((task.key, task.target), COMPILE_LIMIT_S)
        finally:
            stop.set()
            with self._lock:
                idle.append(resident)

    def close(self) -> None:
        """End the processes."""
        for resident in [x for found in self._idle.values() for x in found]:
            resident.close()
        shutil.rmtree(self._workplace, ignore_errors=True)


def _compile(task: tuple[AnyKey, Target], root: Path, workplace: Path) -> Compiled:
    return compile_one(*task, root, workplace)


@dataclass(frozen=True)
class MeasureTask:
    """A portion of a bundle that the worker has by its digest; `words` are the runner's."""

    digest: str
    words: tuple[str, ...]
    portion: Portion
    attempt: str


@dataclass(frozen=True)
class MeasureResult:
    """A store of what was measured; or that there is no such bundle here."""

    store: bytes
    log: str = ""
    lacks_bundle: bool = False


class DeviceSeat:
    """A device, and the run of a bundle there that is handed one portion after the other."""

    def __init__(self, device: Device, machine: Machine, folder: Path, poll_s: float) -> None:
        self._device, self._machine, self._folder, self._poll_s = device, machine, folder, poll_s
        self._bundle = ""
        self._problems: tuple[AnyProblem, ...] = ()
        self._lock = threading.RLock()
        """Held by whoever hands a portion to the run, or ends it: two may wait for theirs."""
        self._run = self._number = self._offset = 0
        """Of the run, of the portion that it was handed last, 0 where there is none, and what was read of its log."""
        self._measured: set[int] = set()
        """Problems that were asked for: who asks again does not believe what was measured."""

    def receive(self, number: str, content: bytes) -> None:
        """Take in a bundle, which must have a digest, and ship it to the device.

        Raises:
            FleetError: it has another.
        """
        folder = self._folder / "bundle"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
        if digest(folder) != number:
            raise FleetError(f"a bundle arrived as {digest(folder)[:12]}, expected {number[:12]}; send it again")
        self._end_run()
        self._device.forget()
        prepare(self._device, folder, self._machine, _unsaid)
        self._bundle, self._problems = number, read_tuning_set(folder).problems
        self._measured = set()

    def measure(self, task: MeasureTask, report: Callable[[str], bool]) -> MeasureResult:
        """Measure a portion.

        Raises:
            FleetError: the run ended before it was done, or nobody wants it any more.
        """
        with self._lock:
            if task.digest != self._bundle:
                return MeasureResult(b"", lacks_bundle=True)
            run, number = self._hand_over(task)
        log = self._wait(run, number, report)
        return MeasureResult(self._results([self._problems[i] for i in task.portion.problems]), log)

    def _hand_over(self, task: MeasureTask) -> tuple[int, int]:
        """Hand a portion to the run, which is started where there is none; return the numbers of both."""
        if not self._number:  # a run of another client, or one that was told to end, must not be taken for ours
            self._end_run()
        if not self._number or not self._device.status(0).running:
            self._device.start([FEED, *task.words])
            self._run, self._number, self._offset = self._run + 1, 0, 0
        self._number += 1
        problems = set(task.portion.problems)
        self._device.hand_over(
            replace(task.portion, number=self._number, anew=tuple(sorted(problems & self._measured)))
        )
        self._measured |= problems
        return self._run, self._number

    def _wait(self, run: int, number: int, report: Callable[[str], bool]) -> str:
        """Wait until a run has done a portion; return what it said meanwhile."""
        said, log = 0.0, ""
        while True:
            state = persist(lambda: self._device.status(self._offset), _unsaid)
            log, self._offset = log + state.log, max(state.offset, self._offset)
            is_other = self._run != run
            if state.portion >= number and not is_other:
                return log
            if not state.running or is_other:
                self._number = self._number if is_other else 0
                if state.exit_code == 0 and not is_other:  # its time is over
                    return log
                raise FleetError(f"the run on {self._device.place} ended: {log[-1000:] or 'it said nothing'}")
            # The run itself kills what hangs in it: while it runs, this worker lives.
            if time.monotonic() - said >= REPORT_S:
                said = time.monotonic()
                if not report("measures"):
                    with self._lock:
                        self._end_run()
                    raise FleetError("the client wants it no more")
            time.sleep(self._poll_s)

    def _results(self, problems: list[AnyProblem]) -> bytes:
        with tempfile.TemporaryDirectory(prefix="aot-portion-") as scratch:
            whole, part = Path(scratch, "whole"), Path(scratch, "part")
            self._device.fetch(whole)
            carry(whole, part, problems)
            return part.read_bytes()

    def _end_run(self) -> None:
        """End a run in good order, and wait for it."""
        self._number = 0
        with suppress(AotError, OSError):
            if self._device.status(0).running and self._device.stop():
                end = time.monotonic() + END_S
                while self._device.status(0).running and time.monotonic() < end:
                    time.sleep(self._poll_s)

    def release(self) -> None:
        """Give the device back: what it measured stays."""
        with self._lock:
            if self._number:
                self._number += 1
                with suppress(AotError, OSError):
                    self._device.hand_over(Portion(self._number, is_end=True))
                self._number = 0

    def close(self) -> None:
        """End what goes on."""
        if self._number:
            self._end_run()


END_S = 10.0
"""How long a run that is told to end is waited for."""


def _unsaid(_text: str) -> None:
    pass


def compile_task(task: CompileTask) -> CompileResult:
    """Compile a kernel on the worker that runs this."""
    seat: CompilerSeat = seat_of_this_worker()
    return seat.compile(task, reporter(TOPIC, task.attempt))


def receive_task(number: str, content: bytes) -> None:
    """Take in a bundle on the worker that runs this."""
    seat: DeviceSeat = seat_of_this_worker()
    seat.receive(number, content)


def measure_task(task: MeasureTask) -> MeasureResult:
    """Measure a portion on the worker that runs this."""
    seat: DeviceSeat = seat_of_this_worker()
    return seat.measure(task, reporter(TOPIC, task.attempt))


def release_task() -> None:
    """Give the device of the worker that runs this back."""
    seat: DeviceSeat = seat_of_this_worker()
    seat.release()
