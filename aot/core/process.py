"""Run another program so that neither an error nor an interrupt leaves it, or anything that it started, behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import PackageError, ResourceError, is_of_the_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FILE_MODE_MASK = 0o022
"""The umask of what is run, so that the modes of the files it makes do not depend on the caller's."""
TAIL_LINES = 40
MAX_PASSES = 20

_children: set[subprocess.Popen[bytes]] = set()
"""Leaders of sessions: see `owned`."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP rather than Ctrl-C: nobody asked for what goes on elsewhere to end."""


def _session(number: int) -> list[int]:
    """List the processes of a session that are not dead yet."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):  # it has ended meanwhile
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == number and state not in "ZX":
                    found.append(int(entry.name))
    return found


def _kill_session(leader: int) -> None:
    """Kill a process with all that it has started; not by its group, since ninja gives each command one of its own."""
    for _ in range(MAX_PASSES):  # one that is killed may have started another just before
        found = _session(leader)
        for number in found:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        if not found:
            return


@contextmanager
def owned(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process, which must lead a session, and all of that if the `with` block is left by an exception."""
    _children.add(process)
    try:
        yield
    except BaseException:
        _kill_session(process.pid)
        process.wait()
        raise
    finally:
        _children.discard(process)


def kill_children() -> None:
    """Kill all that this process has started and not yet waited for."""
    for process in list(_children):
        _kill_session(process.pid)
    if "multiprocessing.process" in sys.modules:
        for child in sys.modules["multiprocessing.process"].active_children():
            child.kill()


def _ignore(_line: str) -> None:
    pass


def run(
    command: list[str],
    what: str,
    *,
    env: Mapping[str, str] | None = None,
    verbose: bool = False,
    each_line: Callable[[str], None] = _ignore,
) -> str:
    """Run a command and return its output, both streams together.

    Args:
        command: the program and its arguments.
        what: what messages call it, such as `building the wheel`.
        env: its environment; by default this process's.
        verbose: echo the command to standard error.
        each_line: called with each line of the output as it is printed.

    Raises:
        PackageError: it does not start, or fails: with the command, its exit code and the end of its output.
        ResourceError: it was killed, or ran out of disk or memory.
    """
    line = shlex.join(command)
    if verbose:
        print(f"+ {line}", file=sys.stderr, flush=True)  # noqa: T201 - what --verbose asks for
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=FILE_MODE_MASK,
        )
    except OSError as error:
        raise PackageError(f"{what} failed: cannot run {line}: {error.strerror}") from error
    lines = []
    with process, owned(process):
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        for content in process.stdout:
            lines.append(content.decode(errors="replace"))
            each_line(lines[-1])
        code = process.wait()
    output = "".join(lines)
    if code == 0:
        return output
    tail = "\n".join(f"    {x}" for x in output.splitlines()[-TAIL_LINES:])
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    text = f"{what} {how}\n  command: {line}\n  output:\n{tail}"
    if code < 0 or is_of_the_machine(output):
        raise ResourceError(f"{text}\n  next: free disk or memory and run again")
    raise PackageError(text)
