"""Run another program so that neither an error nor an interrupt leaves it, or anything that it started, behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from aot.errors import PackageError, ResourceError, is_of_the_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FILE_MODE_MASK = 0o022
"""The umask of what is run, so that the modes of the files it makes do not depend on the caller's."""
TAIL_LINES = 40

_children: set[subprocess.Popen[bytes]] = set()
"""Leaders of process groups: see `owned`."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP rather than Ctrl-C: nobody asked for what goes on elsewhere to end."""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def owned(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process and the group that it leads if the `with` block is left by an exception."""
    _children.add(process)
    try:
        yield
    except BaseException:
        _kill_group(process)
        process.wait()
        raise
    finally:
        _children.discard(process)


def kill_children() -> None:
    """Kill all that this process has started and not yet waited for."""
    for process in list(_children):
        _kill_group(process)
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
