"""What a device is to whoever measures on it: a folder with a bundle, and a run in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from aot.measure.background import State
from aot.measure.feed import Portion
from aot.measure.preflight import Machine


class Device(Protocol):
    """Where a bundle is measured: here (aot.tune.local_device), or far away over SSH (aot.tune.remote)."""

    place: str
    """Where that is, for people."""

    def ship(self, root: Path, names: Iterable[str], mark: str = "") -> int:
        """Copy entries of a folder there; give the number of bytes."""

    def check(self) -> Machine:
        """Ask the device what it is."""

    def start(self, words: list[str]) -> State:
        """Start measuring."""

    def status(self, offset: int) -> State:
        """Look at the run."""

    def hand_over(self, portion: Portion) -> None:
        """Hand the run its next portion."""

    def stop(self) -> bool:
        """Ask the run to end in good order."""

    def forget(self) -> None:
        """Remove the results of earlier runs; none goes on."""

    def fetch(self, path: Path) -> None:
        """Copy the results."""
