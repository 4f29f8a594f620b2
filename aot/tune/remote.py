"""Measure a bundle on a device far away, over the OpenSSH client: `aot tune --on ssh://user@host`.

The device needs Python and its driver: the bundle goes there through ssh and brings numpy where it lacks. The run is
started detached (aot.measure.background) and then looked at, so that a dropped link costs nothing: it is tried again,
and the same command, run again, finds the run and follows it.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from aot.core.errors import DeviceError, OutputError, RemoteError
from aot.core.process import Terminated
from aot.core.scratch import scratch_folder
from aot.core.target import Target
from aot.core.whole_file import write_whole
from aot.measure.background import State
from aot.measure.feed import Portion, line_of
from aot.measure.preflight import Machine, warnings
from aot.tune.bundle import RUNNER, SITE, Bundle, add_numpy, make_runner
from aot.tune.device import Device as AnyDevice
from aot.tune.link import Host, Link, LinkError, persist

T = TypeVar("T")

POLL_S = 2.0
MARK = "shipped.json"
"""On the device, beside the bundle: what was shipped last."""

_RECEIVE = """
import os, shutil, sys, tarfile
folder = sys.argv[1]
new = os.path.join(folder, ".incoming")
shutil.rmtree(new, ignore_errors=True)
os.makedirs(new)
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
    archive.extractall(new)
for name in sorted(os.listdir(new), key=lambda name: name == "shipped.json"):
    old = os.path.join(folder, name)
    if os.path.isdir(old):
        shutil.rmtree(old)
    os.replace(os.path.join(new, name), old)
os.rmdir(new)
"""
_READ_MARK = """
import os, sys
path = os.path.join(sys.argv[1], "shipped.json")
print(open(path).read() if os.path.exists(path) else "")
"""


def pack(root: Path, names: Iterable[str], mark: str = "") -> bytes:
    """Make a compressed archive of some entries of a folder, and of the mark where there is one."""
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=3) as archive:
        for name in names:
            archive.add(root / name, name, filter=lambda entry: None if "__pycache__" in entry.name else entry)
        if mark:
            entry = tarfile.TarInfo(MARK)
            entry.size = len(mark)
            archive.addfile(entry, BytesIO(mark.encode()))
    return out.getvalue()


def shipped(directory: Path) -> list[str]:
    """List the entries of a bundle that go to the device: not the results of measuring here."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith(("results", ".")))


def digest(directory: Path) -> str:
    """Return one number for all that would be shipped of a bundle."""
    found = hashlib.sha256()
    for name in shipped(directory):
        path = directory / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(f"{file.relative_to(directory).as_posix()} ".encode())
                found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


_FORGET = """
import os, sys
for name in os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else ():
    if name.startswith("results.sqlite"):
        os.remove(os.path.join(sys.argv[1], name))
"""


class Device:
    """A bundle's folder on a device, and the run in it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._folder = link.host.folder
        self.place = f"{link.host.login}:{link.host.folder}"

    def _run(self, *words: str, content: bytes = b"") -> bytes:
        out = f"{self._folder}/results.sqlite"
        said = [word if word != "OUT" else out for word in words]
        return self._link.python(f"{self._folder}/run.py", *said, content=content)

    def _parsed(self, content: bytes | str, make: Callable[[Any], T]) -> T:
        """Make something of JSON that the device's Python printed.

        Raises:
            RemoteError: it is not what was expected.
        """
        try:
            return make(json.loads(content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RemoteError(
                f"{self._link.host.login} answered {content[:200]!r}, which is not what run.py prints ({error}); does "
                "the shell print something at login? Let it print nothing where there is no terminal"
            ) from error

    def mark(self) -> str:
        """Return the digest of what was shipped last, empty where nothing was."""
        text = self._link.python("-c", _READ_MARK, self._folder).decode(errors="replace").strip()
        return str(self._parsed(text, lambda x: x["digest"])) if text else ""

    def ship(self, root: Path, names: Iterable[str], mark: str = "") -> int:
        """Copy entries of a folder there, whole or not at all; give the number of bytes sent."""
        content = pack(root, names, json.dumps({"digest": mark}) if mark else "")
        self._link.python("-c", _RECEIVE, self._folder, content=content)
        return len(content)

    def check(self) -> Machine:
        """Ask the device what it is."""
        return self._parsed(self._run("--check"), Machine.from_json)

    def _state(self, *words: str) -> State:
        return self._parsed(self._run("--out", "OUT", "--background", *words), lambda x: State(**x))

    def start(self, words: list[str]) -> State:
        """Start measuring; where a run goes on, leave it."""
        return self._state("start", *words)

    def status(self, offset: int) -> State:
        """Look at the run, and at its log from an offset on."""
        return self._state("status", "--offset", str(offset))

    def hand_over(self, portion: Portion) -> None:
        """Hand a portion to a run that was started with --feed."""
        self._run("--out", "OUT", "--background", "feed", content=line_of(portion).encode())

    def forget(self) -> None:
        """Remove the results of earlier runs; none goes on."""
        self._link.python("-c", _FORGET, self._folder)

    def stop(self) -> bool:
        """Ask the run to end in good order; say whether it is known that it heard."""
        out = f"{self._folder}/results.sqlite"
        return self._link.leave(f"{self._folder}/run.py", "--out", out, "--background", "stop")

    def fetch(self, path: Path) -> None:
        """Bring the results home.

        Raises:
            LinkError: not all of them arrived.
            OutputError: they cannot be written here.
        """
        head, _, content = self._run("--out", "OUT", "--background", "fetch").partition(b"\n")
        sha256, num_bytes = self._parsed(head, lambda x: (x["sha256"], x["bytes"]))
        if hashlib.sha256(content).hexdigest() != sha256:
            raise LinkError(f"{len(content)} of {num_bytes} bytes of the results arrived")
        try:
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error}; the results are still on the device") from error
        write_whole(path, content)


def follow(
    device: Device, say: Callable[[str], None], show: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> State:
    """Show a run's log until it ends. Ctrl-C asks the run to end in good order, and does not wait for it.

    A terminal that is closed leaves it running.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    offset = 0
    try:
        while True:
            state = persist(lambda at=offset: device.status(at), say, sleep)  # type: ignore[misc]
            show(state.log)
            if not state.running and state.offset == offset:
                return state
            offset = state.offset
            sleep(POLL_S if state.running else POLL_S / 4)
    except Terminated:
        say("the run goes on there; the same command finds it again")
        raise
    except KeyboardInterrupt:
        if device.stop():
            say(
                "the run there was asked to end in good order; the same command carries on with it, and with "
                "--budget-seconds 0 brings home what it has"
            )
        else:
            say("the run there could not be told in time; if it goes on, the same command finds it again")
        raise


def check_machine(machine: Machine, target: Target, say: Callable[[str], None]) -> None:
    """Compare a device with the target; say what it is and what to mind.

    Raises:
        DeviceError: the target's kernels cannot run there.
    """
    for line in machine.describe():
        say(line)
    if machine.gpu_error:
        raise DeviceError(f"the device has no usable GPU: {machine.gpu_error}")
    if machine.machine != target.machine or machine.compute_capability != target.compute_capability:
        raise DeviceError(
            f"{machine.gpu} on {machine.machine} has compute capability {machine.compute_capability}; target "
            f"{target.name} is {target.compute_capability} on {target.machine}; give the device's own --target"
        )
    for text in warnings(machine, target.num_sms):
        say(f"warning: {text}")


def prepare(
    device: AnyDevice,
    directory: Path,
    machine: Machine,
    say: Callable[[str], None],
    *,
    has_bundle: bool = False,
    verbose: bool = False,
) -> None:
    """Ship what a device lacks of a bundle, and numpy where it has none."""
    if not has_bundle:
        names, number = shipped(directory), digest(directory)
        size = persist(lambda: device.ship(directory, names, number), say)
        say(f"shipped {size / 2**20:.1f} MiB to {device.place}")
    if not machine.has_numpy:
        with scratch_folder("aot-site-") as scratch:
            add_numpy(scratch, machine.python, machine.machine, machine.glibc, verbose=verbose)
            size = persist(lambda: device.ship(scratch, [SITE]), say)
            say(f"shipped numpy, {size / 2**20:.1f} MiB")


class Tuning:
    """The steps of one tuning from afar."""

    def __init__(self, url: str, target: Target, say: Callable[[str], None], *, verbose: bool = False) -> None:
        self._target, self._say, self._verbose = target, say, verbose
        self._host = Host.parse(url, target.name)
        self._device = Device(Link(self._host, verbose=verbose))
        self._machine: Machine | None = None
        self._shipped = ""

    def inspect(self, scratch: Path) -> None:
        """Look for a run that goes on there; where there is none, check the device, before anything is compiled.

        Raises:
            DeviceError: the target's kernels cannot run there.
            RemoteError: it cannot be reached, or has no Python.
        """
        self._shipped = self._device.mark()  # a device that cannot be reached at all is told at once
        if self._shipped and persist(lambda: self._device.status(0), self._say).running:
            return
        make_runner(scratch)
        persist(lambda: self._device.ship(scratch, RUNNER), self._say)
        self._machine = persist(self._device.check, self._say)
        check_machine(self._machine, self._target, self._say)

    def measure(self, bundle: Bundle, words: list[str], results: Path, show: Callable[[str], None]) -> int:
        """Ship a bundle, run it or join the run that goes on, and bring the results home; give the run's exit code.

        Raises:
            RemoteError: another bundle is being measured there, or the run died.
        """
        number = digest(bundle.directory)
        if self._machine is None and number != self._shipped:
            raise RemoteError(
                f"{self._host.login} is measuring another bundle in {self._host.folder}; wait for it, or give another "
                f"folder: --on ssh://{self._host.login}/FOLDER"
            )
        if self._machine is None:
            self._say("a run of this bundle goes on there")
        else:
            has_bundle = number == self._shipped
            prepare(
                self._device, bundle.directory, self._machine, self._say, has_bundle=has_bundle, verbose=self._verbose
            )
            persist(lambda: self._device.start(words), self._say)
        state = follow(self._device, self._say, show)
        try:
            persist(lambda: self._device.fetch(results), self._say)
        except LinkError:
            raise
        except RemoteError:
            if not state.exit_code:
                raise
            return state.exit_code  # it ended before it measured anything, and its log said why
        if state.exit_code is None:
            raise RemoteError(f"the run on {self._host.login} was killed; the same command carries on with it")
        return state.exit_code
