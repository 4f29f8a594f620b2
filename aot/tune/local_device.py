"""A device of this machine, with a folder as one far away has: runs are started there, looked at and handed work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from aot.core.errors import RemoteError
from aot.measure import background
from aot.measure.background import State
from aot.measure.feed import Portion, line_of
from aot.measure.preflight import Machine
from aot.measure.store import copy_store

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
        """Copy entries of a folder there; give their number of bytes."""
        del mark  # who runs this knows what it shipped
        found = [self._folder / name for name in names]
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if (root / path.name).is_dir():
                shutil.copytree(root / path.name, path, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(root / path.name, path)
        files = (file for path in found for file in (path.rglob("*") if path.is_dir() else [path]))
        return sum(file.stat().st_size for file in files if file.is_file())

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
