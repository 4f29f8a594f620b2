"""Watch over a worker process, and start it anew when it dies.

The supervisor touches no GPU. It reads a line from the worker for each step; a worker that is silent too long is
killed, and the kernel that the store says was running is quarantined.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from aot.core.errors import DeviceError
from aot.measure.background import END_S, EXIT_INTERRUPTED, hold_lock
from aot.measure.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXIT_CONTEXT_LOST = 75
"""The worker's own: start another. Source: EX_TEMPFAIL of sysexits.h."""
SILENCE_S = 60.0
"""A worker silent this long hangs: its longest honest step, making random inputs or loading CUDA, takes seconds."""
MARGIN_S, MARGIN_SHARE = 3.0, 0.1
"""How long before the end of its budget a run stops, at most, and as a share of the budget: what is in flight, a round
or a check, is brought to its end then, and the device given back."""
STOP_S = 1.0
"""Seconds that a worker gets to end in good order after Ctrl-C; what it has in flight then is measured again."""
PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
MAX_KILLS = 3
"""Workers killed from outside, one after the other, after which to give up."""
STEP = "step "
"""Starts each line that a worker reports a step with: done, total, what."""


def end_with_parent() -> None:
    """Have the kernel kill this process when its supervisor dies, even while it waits for a hung GPU."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:  # it died before that
        os.kill(os.getpid(), signal.SIGKILL)


RESUMING = "resuming"
"""The step before the first measurement, by which all that earlier runs have done is counted at once."""


class Progress:
    """A line on stderr: how far, how long still, and what is going on."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: int | None = None
        self._last = 0
        self._shown = 0.0

    def show(self, done: int, total: int, what: str) -> None:
        """Show a step, at most four a second on a terminal, one in ten seconds elsewhere."""
        now = time.monotonic()
        if self._first is None or done < self._last or what == RESUMING:
            # Another worker counts from the start, and verification is quicker than measuring: neither tells the rate.
            self._first, self._start = done, now
        is_end = self._last < total <= done
        self._last = done
        if now - self._shown < (0.25 if sys.stderr.isatty() else 10.0) and not is_end:
            return
        self._shown = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        eta = f"{(total - done) / rate:.0f} s left" if rate > 0 else "estimating"
        line = f"[{100 * done // max(total, 1):3d}%] {done}/{total}, {eta}: {what}"
        sys.stderr.write(f"\r{line:.140}\033[K" if sys.stderr.isatty() else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def _lines(process: subprocess.Popen[bytes], silence_s: float) -> Iterator[str]:
    """Return the worker's lines until it closes its output.

    The first may take `SILENCE_S` in any case: imports, which take seconds on a slow disk, say nothing of kernels.

    Raises:
        TimeoutError: it was silent for too long.
    """
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    descriptor, rest, limit_s = process.stdout.fileno(), b"", max(silence_s, SILENCE_S)
    while True:
        ready, _, _ = select.select([descriptor], [], [], limit_s)
        limit_s = silence_s
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


def _run_worker(command: list[str], progress: Progress, silence_s: float, lock: int) -> tuple[int, str]:
    """Run one worker to its end; give its exit code, and why its kernel is to blame, empty where it is not."""
    # A session of its own keeps a terminal's Ctrl-C from it: the supervisor passes that on, once. It inherits the lock,
    # so that no other run begins before it is gone, too.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, pass_fds=(lock,))
    try:
        _follow(process, progress, silence_s)
        code = process.wait(silence_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        _kill(process)
        return -signal.SIGKILL, f"hung: no progress for {silence_s:.0f} s"
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()  # in the driver it may take a while to end; the lock that it holds says so
        raise
    # No kernel sends SIGKILL: it came from outside, as when memory runs out.
    blamed = code < 0 and code != -signal.SIGKILL
    return code, f"crashed: the process died of signal {-code}" if blamed else ""


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
    lock: int | None = None,
) -> int:
    """Run workers until one ends by itself, and give its exit code.

    Args:
        command: makes a worker's command line of the seconds that are left of the budget.
        out: the store that workers write; what an earlier run left there is kept and not measured again.
        budget_s: seconds before whose end to stop, in good order.
        silence_s: seconds without a step after which a worker is taken to hang.
        lock: the store's lock, where this process holds it already.

    Raises:
        StoreError: the store is damaged.
        StoreError: another run measures into the store.
        DeviceError: a worker died without a kernel to blame, or was killed time and again.
    """
    start = time.monotonic()
    end = None if budget_s is None else start + budget_s - min(MARGIN_S, MARGIN_SHARE * budget_s)
    progress = Progress()
    num_kills = 0
    try:
        with hold_lock(out, END_S) if lock is None else nullcontext(lock) as held:
            with open_store(out) as store:
                # Left by a run that was killed itself: its kernel may be sound.
                store.clear_in_flight()
            while True:
                left = None if end is None else max(0.0, end - time.monotonic())
                code, reason = _run_worker(command(left), progress, silence_s, held)
                if reason:
                    _quarantine(out, reason)
                num_kills = num_kills + 1 if code == -signal.SIGKILL and not reason else 0
                if num_kills == MAX_KILLS:
                    raise DeviceError(f"the worker was killed {num_kills} times; is memory short? See dmesg")
                if code not in (EXIT_CONTEXT_LOST, -signal.SIGKILL) and not reason:
                    return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        progress.end()
