"""A run of a bundle that outlives the connection which started it: started, looked at, stopped and fetched from afar.

Beside the results lie `.lock`, held as long as the run or its worker lives, with the run's process id, and its exit
code once it has ended by itself; `.log`, what it says; `.feed` and `.portion` where it is handed its work bit by bit
(aot.measure.feed). aot.tune.remote asks over SSH and gets a line of JSON.

The code is written under the lock, into the file that is locked. Whoever asks finds the lock held, or the code, or else
learns that the last run was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import StoreError
from aot.measure.store import copy_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it: 128 + SIGINT."""
END_S = 20.0
"""Seconds that a worker which was killed, or one that an earlier run left, gets to end."""
ACTIONS = ("start", "serve", "status", "stop", "fetch", "feed")
START_S = 120.0
"""How long a run may take from its start to its lock: imports, on a slow disk and beside other work."""
FEED, PORTION = "feed", "portion"
"""Suffixes of the files with the portions that a run is handed, and with the number of the one that it did last."""
LOG_PIECE_BYTES = 1 << 16
"""Most of the log that one answer carries."""


def beside(out: Path, suffix: str) -> Path:
    """Name a file that belongs to a results file."""
    return out.with_name(f"{out.name}.{suffix}")


@contextmanager
def hold_lock(out: Path, wait_s: float) -> Iterator[int]:
    """Hold the lock of a results file; gives a descriptor that a child may inherit, and then holds it too.

    Raises:
        StoreError: another run, or what one left behind, holds it for longer than `wait_s`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(beside(out, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        end = time.monotonic() + wait_s
        while not _try_lock(descriptor):
            if time.monotonic() >= end:
                holder = next(iter(_numbers(descriptor)), "unknown")
                raise StoreError(f"process {holder} is measuring into {out}; wait for it, or stop it with kill -INT")
            time.sleep(0.1)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _numbers(descriptor: int) -> list[int]:
    """Read what who has, or had, the lock wrote: its process id, and its exit code once it has ended by itself."""
    return [int(word) for word in os.pread(descriptor, 64, 0).split()]


def _look(out: Path) -> tuple[bool, list[int]]:
    """Return whether somebody holds the lock of a results file, and the numbers in it."""
    try:
        descriptor = os.open(beside(out, "lock"), os.O_RDWR)
    except FileNotFoundError:
        return False, []
    try:
        is_free = _try_lock(descriptor, fcntl.LOCK_SH)  # which another that asks may hold meanwhile
        return not is_free, _numbers(descriptor)
    finally:
        os.close(descriptor)


def holder(out: Path) -> int | None:
    """Return the process id of the run that holds the lock of a results file; None where nobody does."""
    is_held, numbers = _look(out)
    return next(iter(numbers), 0) if is_held else None


@dataclass(frozen=True)
class State:
    """How a run is doing, and what it said since the offset asked for."""

    running: bool
    exit_code: int | None
    offset: int
    log: str
    portion: int = 0
    """Number of the portion that it did last."""


def status(out: Path, offset: int) -> State:
    """Look at a run: whether it lives, and its log from a byte offset on."""
    running, numbers = _look(out)
    exit_code, piece, log = None if running else next(iter(numbers[1:]), None), b"", beside(out, "log")
    if log.exists():
        with log.open("rb") as file:
            offset = offset if offset <= file.seek(0, os.SEEK_END) else 0
            file.seek(offset)
            piece = file.read(LOG_PIECE_BYTES)
    return State(running, exit_code, offset + len(piece), piece.decode(errors="replace"), last_done(out))


def last_done(out: Path) -> int:
    """Return the number of the portion that a run did last; 0 before the first."""
    try:
        return int(beside(out, PORTION).read_text(encoding="ascii") or 0)
    except FileNotFoundError:
        return 0


def hand_over(out: Path, line: str) -> None:
    """Append a line to the feed of a run."""
    with beside(out, FEED).open("a", encoding="ascii") as file:
        file.write(line)


def start(out: Path, command: list[str], environment: Mapping[str, str] | None = None) -> State:
    """Start a run that nothing but itself, a signal or the machine ends; where one goes on, leave it.

    Args:
        out: the results file.
        command: runs `serve` for it.
        environment: its environment; by default this process's.

    Raises:
        StoreError: it did not start.
    """
    is_held, before = _look(out)
    if not is_held:
        out.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (FEED, PORTION):
            beside(out, suffix).unlink(missing_ok=True)
        with beside(out, "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        end = time.monotonic() + START_S
        while True:
            code = process.poll()  # before the look: a run may begin and end between two
            is_held, numbers = _look(out)
            if is_held or numbers != before:
                break
            if code is not None or time.monotonic() >= end:
                text = beside(out, "log").read_text(errors="replace")[-2000:]
                raise StoreError(f"the run did not start (exit code {code}): {text or 'it said nothing'}")
            time.sleep(0.05)
    return status(out, 0)


def serve(out: Path, measure: Callable[[int], int]) -> int:
    """Measure in this process under the lock, and leave the exit code in it.

    Args:
        out: the results file.
        measure: is given the descriptor of the lock, for children to inherit; returns the exit code.

    Raises:
        StoreError: another run, or what one left behind, holds the lock.
    """
    # A shell may have started us with interrupts ignored; `stop` sends one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with hold_lock(out, END_S) as lock:
        try:
            code = measure(lock)
        except KeyboardInterrupt:  # before or after the part that heeds it
            code = EXIT_INTERRUPTED
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks twice gets the code all the same
        os.pwrite(lock, f"{os.getpid()} {code}\n".encode(), 0)
    return code


def stop(out: Path) -> None:
    """Ask a run to end in good order, as Ctrl-C would."""
    process = holder(out)
    if process:
        os.kill(process, signal.SIGINT)


def fetch(out: Path) -> None:
    """Write a whole copy of the results to stdout, after a line of JSON with its size and digest.

    Raises:
        StoreError: there are no results, or they are damaged.
    """
    with tempfile.TemporaryDirectory(prefix="aot-fetch-") as scratch:
        copy = Path(scratch, out.name)
        copy_store(out, copy)
        content = copy.read_bytes()
    head = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + content)
    sys.stdout.buffer.flush()


def answer(action: str, out: Path, offset: int, command: list[str]) -> None:
    """Do what was asked from afar and print the answer."""
    if action == "fetch":
        fetch(out)
        return
    if action == "stop":
        stop(out)
    if action == "feed":
        hand_over(out, sys.stdin.read())
    state = start(out, command) if action == "start" else status(out, offset)
    sys.stdout.write(json.dumps(asdict(state)) + "\n")
