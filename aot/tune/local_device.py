"""A device of this machine, with a folder as one far away has: runs are started there, looked at and handed work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

from aot.core.errors import RemoteError
from aot.measure import background
from aot.measure.background import State
from aot.measure.feed import Portion, line_of
from aot.measure.preflight import Machine
from aot.measure.store import copy_store
from aot.tune.remote import pack

CHECK_S = 60.0
"""How long a device has to say what it is."""


class LocalDevice:
    """A bundle's folder on this machine and the run in it, which ends when this process does.

    Args:
        folder: where to work; it is made.
        environment: what the run is to have besides this process's own, such as CUDA_VISIBLE_DEVICES.
        python: the command that runs Python.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str] | None = None, python: tuple[str, ...] = (sys.executable,)
    ) -> None:
        self._folder = folder.absolute()
        self._environment = {**os.environ, **(environment or {})}
        self._python = python
        self._out = self._folder / "results.sqlite"
        self.place = str(self._folder)

    def ship(self, root: Path, names: Iterable[str], mark: str = "") -> int:
        """Put entries of a folder there; give their number of bytes."""
        content = pack(root, names, mark)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=BytesIO(content), mode="r:gz") as archive:
            archive.extractall(self._folder, filter="data")
        return len(content)

    def check(self) -> Machine:
        """Ask the device what it is, by the runner that was shipped.

        Raises:
            RemoteError: its answer is none.
        """
        command = [*self._python, str(self._folder / "run.py"), "--check"]
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, timeout=CHECK_S, check=True, cwd=self._folder
            )
            return Machine.from_json(json.loads(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
            raise RemoteError(f"{' '.join(command)} did not say what the device is: {error}") from error

    def start(self, words: list[str]) -> State:
        """Start measuring; where a run goes on, leave it."""
        run = [str(self._folder / "run.py"), "--out", str(self._out), "--background", "serve", "--owned", *words]
        return background.start(self._out, [*self._python, *run], self._environment)

    def status(self, offset: int) -> State:
        """Look at the run, and at its log from an offset on."""
        return background.status(self._out, offset)

    def hand_over(self, portion: Portion) -> None:
        """Hand a portion to a run that was started with --feed."""
        background.hand_over(self._out, line_of(portion))

    def stop(self) -> bool:
        """Ask the run to end in good order."""
        background.stop(self._out)
        return True

    def forget(self) -> None:
        """Remove the results of earlier runs; none goes on."""
        for path in self._folder.glob(f"{self._out.name}*"):
            path.unlink(missing_ok=True)

    def fetch(self, path: Path) -> None:
        """Copy the results, as they are at one moment."""
        copy_store(self._out, path)
