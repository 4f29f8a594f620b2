"""An sshd of the tests' own on a free port of this machine, run by whoever runs the tests. Nothing is installed."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.package.userland import fetch_once

PACKAGES = ["openssh-server", "libwrap0"]


def _binary():
    """Give sshd and the folder of its libraries; skips the test where it cannot be had."""
    found = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if found:
        return found, ""
    try:
        folder = fetch_once("amd64", PACKAGES, "sshd")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED OVER SSH: there is no sshd, and Debian's cannot be fetched: {error}")
    libraries = [str(x.parent) for x in folder.rglob("libwrap.so.0")]
    return str(folder / "usr" / "sbin" / "sshd"), ":".join(libraries)


def _descendants(pid):
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            words = (entry / "stat").read_text().rpartition(")")
            parents[int(entry.name)] = (int(words[2].split()[1]), words[0].partition("(")[2])
    found = [pid]
    for parent in found:
        found += [x for x, (above, name) in parents.items() if above == parent and name == "sshd" and x not in found]
    return found


class Sshd:
    """An sshd whose sessions have `path` for their PATH, and an ssh in `bin` that logs in to it."""

    def __init__(self, directory, path):
        if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
            pytest.skip("NOT TESTED OVER SSH: there is no OpenSSH client")
        self._sshd, self._libraries = _binary()
        self.directory, self.bin = directory, directory / "bin"
        self.bin.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name]
            subprocess.run(command, check=True)
        shutil.copyfile(directory / "user.pub", directory / "authorized")
        # Whatever the login shell's own files set, a command finds the device's programs.
        login = directory / "login"
        login.write_text(f'#!/bin/sh\nPATH={path} exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
        login.chmod(0o755)
        (directory / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {directory}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {directory}/authorized\nUsePAM no\nPasswordAuthentication no\n"
            f"PermitRootLogin prohibit-password\nMaxStartups 100\n"
            f"ForceCommand exec {login}\n"
            "SetEnv SHLVL=1\n"  # bash reads no files of the user's, which may start programs, where it is not the first
        )
        (directory / "ssh_config").write_text(
            f"Host *\n  IdentityFile {directory}/user\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n  BatchMode yes\n"
        )
        client = self.bin / "ssh"
        client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
        client.chmod(0o755)
        self._process = None
        self.start()

    @property
    def url(self):
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    def _command(self):
        command = [self._sshd, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        if os.geteuid():
            return command
        # Root's sshd asks for a user and a folder of its own: it gets them in a mount namespace, not on this machine.
        passwd = self.directory / "passwd"
        passwd.write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n")
        script = f'mount --bind {passwd} /etc/passwd && mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *command]

    def start(self):
        log = (self.directory / "sshd.log").open("ab")
        environment = {**os.environ, "LD_LIBRARY_PATH": self._libraries}
        self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, env=environment)
        log.close()
        end = time.monotonic() + 100
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        pytest.skip(f"NOT TESTED OVER SSH: sshd does not start: {(self.directory / 'sshd.log').read_text()[-500:]}")

    def drop(self):
        """End the listener and every session at once, as a cable that is pulled; what they started goes on."""
        for pid in reversed(_descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
