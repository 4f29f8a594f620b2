"""Run a bundle on a device: a supervisor that touches no GPU, and the worker process that it starts anew when it dies.

Needs Python 3.10, numpy and cuda-python, nothing else. The supervisor reads a line from the worker for each step; a
worker that is silent too long is killed, and the kernel that the store says was running is quarantined.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import AotError, DeviceError
from aot.gpu import ContextLostError
from aot.store import open_store
from aot.tuning_set import read_tuning_set
from aot.worker import Session, StoppedError, Worker, deadline_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot.tuning_set import TuningSet

LIBRARY_FILE = "kernels.so"
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""
EXIT_CONTEXT_LOST = 75
"""The worker's own: start another. Source: EX_TEMPFAIL of sysexits.h."""
SILENCE_S = 60.0
"""A worker silent this long hangs: its longest honest step, making random inputs or loading CUDA, takes seconds."""
END_S = 20.0
"""Seconds that a worker gets to end after it was told to."""
STEP = "step "
"""Starts each line that a worker reports a step with: done, total, what."""


@dataclass(frozen=True)
class Options:
    """What a run is asked for."""

    bundle: Path
    out: Path
    problems: str | None = None
    kernels: str | None = None
    budget_s: float | None = None


class Progress:
    """A line on stderr: how far, how long still, and what is going on."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._start = time.monotonic()
        self._first: int | None = None
        self._shown = 0.0

    def show(self, done: int, total: int, what: str) -> None:
        """Show a step, at most four a second on a terminal, one in ten seconds elsewhere."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._start = done, now
        if self._silent or (now - self._shown < (0.25 if sys.stderr.isatty() else 10.0) and done < total):
            return
        self._shown = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        eta = f"{(total - done) / rate:.0f} s left" if rate > 0 else "estimating"
        line = f"[{100 * done // max(total, 1):3d}%] {done}/{total}, {eta}: {what}"
        sys.stderr.write(f"\r{line:.140}\033[K" if sys.stderr.isatty() else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty() and not self._silent:
            sys.stderr.write("\n")


def _lines(process: subprocess.Popen[bytes], silence_s: float) -> Iterator[str]:
    """Give the worker's lines until it closes its output.

    Raises:
        TimeoutError: it was silent for too long.
    """
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    descriptor, rest = process.stdout.fileno(), b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], silence_s)
        if not ready:
            raise TimeoutError
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)


def _follow(process: subprocess.Popen[bytes], progress: Progress, silence_s: float) -> None:
    for line in _lines(process, silence_s):
        if line.startswith(STEP):
            done, total, what = line.removeprefix(STEP).split(" ", 2)
            progress.show(int(done), int(total), what)
        elif line:
            # Kernels print here when they cannot run; nothing of it may be lost.
            sys.stderr.write(line + "\n")


def _run_worker(command: list[str], progress: Progress, silence_s: float) -> tuple[int, str]:
    """Run one worker to its end; give its exit code, and why its kernel is to blame, empty where it is not."""
    # A session of its own keeps a terminal's Ctrl-C from it: the supervisor passes that on, once.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        _follow(process, progress, silence_s)
        code = process.wait(silence_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        _kill(process)
        return -signal.SIGKILL, f"hung: no progress for {silence_s:.0f} s"
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _kill(process)
        raise
    return code, f"crashed: the process died of signal {-code}" if code < 0 else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker.

    Raises:
        DeviceError: it does not go, as when the driver waits for the GPU.
    """
    process.kill()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"worker {process.pid} hangs in the driver and cannot be killed; restart the device"
        ) from error


def _quarantine(out: Path, reason: str) -> None:
    """Quarantine the kernel that was in flight.

    Raises:
        DeviceError: none was, so that starting again would end the same way.
    """
    with open_store(out) as store:
        flight = store.in_flight()
        if flight is None:
            raise DeviceError(f"the worker {reason}, with no kernel running; look at its output, then run again")
        store.quarantine(flight.run, flight.kernel, f"{flight.what}: {reason}")
        store.clear_in_flight()


def supervise(
    command: Callable[[float | None], list[str]],
    out: Path,
    budget_s: float | None = None,
    *,
    silence_s: float = SILENCE_S,
    silent: bool = False,
) -> int:
    """Run workers until one ends by itself, and give its exit code.

    Args:
        command: makes a worker's command line of the seconds that are left of the budget.
        out: the store that workers write; what an earlier run left there is kept and not measured again.
        budget_s: seconds after which to end, in good order.
        silence_s: seconds without a step after which a worker is taken to hang.
        silent: show no progress.

    Raises:
        StoreError: the store is damaged.
        DeviceError: a worker died without a kernel to blame.
    """
    start = time.monotonic()
    progress = Progress(silent)
    with open_store(out) as store:
        store.clear_in_flight()
    try:
        while True:
            left = None if budget_s is None else max(0.0, budget_s - (time.monotonic() - start))
            code, reason = _run_worker(command(left), progress, silence_s)
            if reason:
                _quarantine(out, reason)
            elif code != EXIT_CONTEXT_LOST:
                return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        progress.end()


_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from aot.bundle_runner import main; sys.exit(main())"
"""Starts a worker of this very package: `-m` would take an `aot` of the working directory first."""


def _worker_command(options: Options, left_s: float | None) -> list[str]:
    here = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", _START, here, str(options.bundle), "--worker", "--out", str(options.out)]
    command += ["--problems", options.problems] if options.problems else []
    command += ["--kernels", options.kernels] if options.kernels else []
    return command + ([] if left_s is None else ["--budget-seconds", f"{left_s:.3f}"])


def run_bundle(options: Options, *, silent: bool = False) -> int:
    """Measure a bundle on this machine's GPU into `options.out`, resuming what is there.

    Returns:
        0 when all is measured or the budget is spent, EXIT_INTERRUPTED after Ctrl-C, else the error's exit code; the
        worker has printed what it was.

    Raises:
        StoreError: the bundle or the store cannot be read, or the patterns leave nothing.
        DeviceError: the worker died without a kernel to blame.
    """
    read_tuning_set(options.bundle).filtered(options.kernels, options.problems)
    return supervise(lambda left: _worker_command(options, left), options.out, options.budget_s, silent=silent)


def step_reporter(interval_s: float = 0.1) -> Callable[[int, int, str], None]:
    """Make a `report` that prints steps on stdout for the supervisor, at most one in an interval."""
    last = 0.0

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= interval_s or done == total:
            last = now
            # Unbuffered, and it fails when the supervisor is gone: no worker outlives it.
            os.write(1, f"{STEP}{done} {total} {what}\n".encode())

    return report


def interrupt_flag() -> Callable[[], bool]:
    """Let Ctrl-C set a flag, so that no measurement or commit is cut in two; give what asks for the flag."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    return lambda: bool(seen)


def finish_worker(worker: Worker) -> int:
    """Run a worker to its end and give its process's exit code."""
    try:
        worker.run()
    except StoppedError:
        return EXIT_INTERRUPTED
    except ContextLostError as error:
        sys.stderr.write(f"\nquarantined {error}\n")
        return EXIT_CONTEXT_LOST
    except BrokenPipeError:
        return EXIT_INTERRUPTED
    return 0


def _work(options: Options) -> int:
    """Measure in this process, the only kind that touches the GPU."""
    from aot.conditions import make_conditions, read_state
    from aot.device import CudaGpu, read_properties
    from aot.kernel_library import KernelLibrary
    from aot.measure import PROTOCOL

    is_interrupted = interrupt_flag()
    stop = deadline_stop(options.budget_s, is_interrupted)
    tuning = read_tuning_set(options.bundle).filtered(options.kernels, options.problems)
    properties = read_properties()
    _check_arch(tuning, properties.compute_capability, properties.name)
    gpu = CudaGpu(properties)
    kernels = KernelLibrary(options.bundle / LIBRARY_FILE)
    state = read_state(properties.pci_bus_id)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    seed = secrets.randbits(62)
    with open_store(options.out) as store:
        run = store.add_run(tuning.target, seed, make_conditions(properties, state, tuning.arch, PROTOCOL, date))
        session = Session(gpu, kernels, tuning, store, run, seed, report=step_reporter(), stop=stop)
        code = finish_worker(Worker(session))
        if code != EXIT_CONTEXT_LOST:
            state = read_state(properties.pci_bus_id)
            store.add_clocks(run, state.sm_clock_mhz, state.memory_clock_mhz)
    return 0 if code == EXIT_INTERRUPTED and not is_interrupted() else code


def _check_arch(tuning: TuningSet, capability: tuple[int, int], name: str) -> None:
    there = f"sm_{capability[0]}{capability[1]}"
    if tuning.arch.rstrip("af") != there:
        raise DeviceError(f"the kernels are for {tuning.arch}, {name} is {there}; make a bundle for this target")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line: `run.py` of a bundle, and the worker that the supervisor starts."""
    parser = argparse.ArgumentParser(prog="run.py", description="Measure the bundle's kernels on this machine's GPU.")
    parser.add_argument("bundle", type=Path, help="the bundle's directory")
    parser.add_argument("--out", type=Path, required=True, help="results file; a second run carries on in it")
    parser.add_argument("--problems", help="measure only problems whose name contains or matches this")
    parser.add_argument("--kernels", help="measure only kernels whose name contains or matches this")
    parser.add_argument("--budget-seconds", type=float, help="end in good order after this long")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    values = parser.parse_args(arguments)
    options = Options(values.bundle, values.out, values.problems, values.kernels, values.budget_seconds)
    try:
        return _work(options) if values.worker else run_bundle(options)
    except AotError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
