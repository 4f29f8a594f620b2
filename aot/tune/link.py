"""The link to a device: its Python run through the OpenSSH client, tried again where the link drops."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from aot.core.errors import RemoteError

T = TypeVar("T")

SSH = ("ssh", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""A link that says nothing for 15 s is taken for lost."""
SSH_FAILED = 255
"""Exit code of ssh's own failures. Source: ssh(1)."""
LEAVE_S = 0.8
"""How long an interrupted command waits for the device to hear of it."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
GIVE_UP_S = 6 * 3600.0
"""How long a device may be out of reach before the command ends; the run goes on there."""


class LinkError(RemoteError):
    """The connection failed; the same may work a moment later."""


@dataclass(frozen=True)
class Host:
    """Where to log in, and the folder to work in, below the home folder unless it is absolute."""

    login: str
    port: int | None
    folder: str

    @staticmethod
    def parse(url: str, target: str) -> Host:
        """Read `ssh://[user@]host[:port][/folder]`.

        Raises:
            RemoteError: it is no such address.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RemoteError(f"{url}: {error}; expected ssh://user@host or ssh://user@host:port/folder") from error
        if parts.scheme != "ssh" or not parts.hostname or parts.password or parts.query or parts.fragment:
            raise RemoteError(f"cannot read {url!r}; expected ssh://user@host or ssh://user@host:port/folder")
        login = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname
        if login.startswith("-"):
            raise RemoteError(f"{url}: a login cannot begin with -")
        return Host(login, port, parts.path.rstrip("/") or f"aot-tuning/{target}")


class Link:
    """Runs the device's Python through ssh."""

    def __init__(self, host: Host, *, verbose: bool = False) -> None:
        self.host = host
        self._verbose = verbose

    def _command(self, *words: str) -> list[str]:
        port = [] if self.host.port is None else ["-p", str(self.host.port)]
        command = [*SSH, *port, self.host.login, shlex.join(["python3", *words])]
        if self._verbose:
            sys.stderr.write(f"+ {shlex.join(command)}\n")
        return command

    def leave(self, *words: str) -> bool:
        """Run python3 with arguments there, and wait for it no longer than LEAVE_S; say whether it succeeded by then.

        It goes on by itself, out of reach of the terminal's Ctrl-C.
        """
        null = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                self._command(*words), stdin=null, stdout=null, stderr=null, start_new_session=True
            )
            return process.wait(LEAVE_S) == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def python(self, *words: str, content: bytes = b"") -> bytes:
        """Run python3 with arguments there, `content` on its stdin; gives its stdout.

        Raises:
            LinkError: there is no connection, or it broke.
            RemoteError: the program failed; the message has the end of what it said.
        """
        command = self._command(*words)
        try:
            done = subprocess.run(command, input=content, capture_output=True, check=False)
        except OSError as error:
            raise RemoteError(f"cannot run ssh: {error.strerror}; install the OpenSSH client") from error
        text = done.stderr.decode(errors="replace").strip()
        if done.returncode == SSH_FAILED:
            raise LinkError(f"no connection to {self.host.login}: {text or 'it was closed'}")
        if done.returncode:
            said = text[-2000:] or "nothing"
            raise RemoteError(f"on {self.host.login}, python3 failed with exit code {done.returncode}; it said: {said}")
        return done.stdout


def persist(action: Callable[[], T], say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> T:
    """Do something over the link until the link holds, waiting longer each time.

    Raises:
        LinkError: it did not in GIVE_UP_S.
    """
    pause, waited = FIRST_RETRY_S, 0.0
    while True:
        try:
            return action()
        except LinkError as error:
            if waited >= GIVE_UP_S:
                raise LinkError(f"{error}; the run goes on there: the same command finds it again") from error
            say(f"{error}; a run goes on there meanwhile; trying again in {pause:.0f} s")
            sleep(pause)
            waited, pause = waited + pause, min(2 * pause, LAST_RETRY_S)
