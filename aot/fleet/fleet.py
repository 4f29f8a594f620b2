"""Where a command's work is done, if not here: `--cluster`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.fleet.address import check_address
from aot.fleet.announcement import Role
from aot.fleet.compiling import FleetCompilers
from aot.fleet.connection import connected, security_of
from aot.fleet.engine import Engine, workers_of
from aot.fleet.measuring import FleetDevices
from aot.fleet.worker import Offer, local_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.compile.compiler import Compilers

LOCAL = "local"
"""The cluster of this host: its scheduler and workers are started for the command, and end with it."""


@dataclass(frozen=True)
class Fleet:
    """The workers of a scheduler."""

    compilers: FleetCompilers
    devices: FleetDevices
    lives: Callable[[], bool]
    """Says whether workers may still come: with `local`, while the process of this host's workers lives."""

    def compilers_or(self, own: Compilers) -> Compilers:
        """Return the workers that compile, or where the fleet has none, the processes of this machine."""
        ours, _ = workers_of(self.devices.client)
        if any(worker.announcement.role == Role.COMPILES for worker in ours.values()):
            return self.compilers
        self.devices.say("no worker of the cluster compiles; this machine does")
        return own


def _elsewhere() -> bool:
    """Say that workers may come: they are started by others."""
    return True


@contextmanager
def open_fleet(address: str, tls: Path | None, offer: Offer, say: Callable[[str], None]) -> Iterator[Fleet]:
    """Connect to a scheduler, or with `local` start one and this host's workers.

    Args:
        address: of the scheduler, such as `tcp://host:8786` or `tls://host:8786`; or `local`.
        tls: a folder of certificates; None: what Dask's configuration says.
        offer: what this host offers, with `local`.
        say: told what a person should know.

    Raises:
        DependencyError: Dask distributed is not installed.
        FleetError: the address is none, or no scheduler answers there.
    """
    if address != LOCAL:
        check_address(address)
    security = security_of(tls)
    with ExitStack() as stack:
        lives: Callable[[], bool] = _elsewhere
        if address == LOCAL:
            address, lives = stack.enter_context(local_cluster(offer, tls))
        client = stack.enter_context(connected(address, security))
        engine = Engine(client, say, lives)
        yield Fleet(FleetCompilers(engine), FleetDevices(engine, client, say), lives)
