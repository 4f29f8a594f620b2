"""The only module that imports Dask distributed, an optional package: clients, schedulers and workers are made here."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aot.core.errors import DependencyError, FleetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CONNECT_S = 15.0
"""How long a scheduler is tried to be reached."""
WORKER_TTL = "30 s"
"""How long a scheduler of ours believes that a worker lives which says nothing. Workers say something each second."""
CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")
"""What a folder of --cluster-tls holds: the authority's certificate, and a certificate and key for this machine."""
LOGGERS = ("distributed", "distributed.client", "distributed.gc")
"""Those of Dask that have a level of their own."""
PLUGIN = "aot"
"""What the seat of a worker is called among its plug-ins."""


def distributed() -> Any:
    """Return the module.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        import dask
        import distributed
    except ImportError as error:
        raise DependencyError(
            f"a cluster needs Dask distributed, which cannot be imported ({error}); install it on this machine and on "
            "each worker: pip install 'aot-kernels[fleet]', or in a checkout .venv/bin/pip install -c constraints.txt "
            "'.[fleet]'"
        ) from error
    # Nothing of a fleet is moved between workers to be worked on, and large messages are what artifacts are.
    dask.config.set(
        {"distributed.scheduler.work-stealing": False, "distributed.admin.large-graph-warning-threshold": "4GB"}
    )
    for name in LOGGERS:  # what a person should know is said by the fleet itself
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


def security_of(folder: Path | None) -> Any:
    """Return the TLS settings of a folder, or else what Dask's own configuration says.

    Raises:
        FleetError: a file of it is missing.
    """
    if folder is None:
        return distributed().Security()
    missing = [name for name in CERTIFICATES if not (folder / name).is_file()]
    if missing:
        raise FleetError(
            f"{folder} lacks {', '.join(missing)}; --cluster-tls takes a folder with {', '.join(CERTIFICATES)}: see "
            "docs/fleet.md"
        )
    authority, certificate, key = (str(folder / name) for name in CERTIFICATES)
    roles = {
        f"tls_{role}_{kind}": path
        for role in ("client", "scheduler", "worker")
        for kind, path in (("cert", certificate), ("key", key))
    }
    return distributed().Security(require_encryption=True, tls_ca_file=authority, **roles)


@contextmanager
def connected(address: str, security: Any) -> Iterator[Any]:
    """Connect to a scheduler for the duration of a `with` block.

    Raises:
        FleetError: it does not answer.
    """
    module = distributed()
    try:
        client = module.Client(address, security=security, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise FleetError(
            f"no scheduler answers at {address}: {error}; start one with `dask scheduler`, give tls:// and "
            "--cluster-tls where it asks for certificates, or give --cluster local"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=1.0)


@contextmanager
def own_scheduler(security: Any) -> Iterator[str]:
    """Run a scheduler in this process, for this host alone; gives its address."""
    module = distributed()
    import dask

    protocol = "tls://" if security.get_connection_args("scheduler").get("ssl_context") else "tcp://"
    with (
        dask.config.set({"distributed.scheduler.worker-ttl": WORKER_TTL}),
        module.LocalCluster(
            n_workers=0, processes=False, host="127.0.0.1", protocol=protocol, dashboard_address=None, security=security
        ) as cluster,
    ):
        yield cluster.scheduler_address


class Seat(Protocol):
    """What a worker has for its tasks."""

    def close(self) -> None:
        """End what goes on."""


def make_worker(
    address: str, name: str, security: Any, announcement: Mapping[str, object], seats: int, seat: Seat
) -> Any:
    """Make a worker that is not yet started: it announces what it is, and takes a number of tasks at a time."""
    module = distributed()

    class Plugin(module.WorkerPlugin):  # type: ignore[name-defined, misc]
        """Holds the worker's seat."""

        def __init__(self) -> None:
            self.name, self.seat = PLUGIN, seat

        def teardown(self, worker: Any) -> None:
            """End what goes on at the seat."""
            del worker
            self.seat.close()

    def announced(_worker: Any) -> Mapping[str, object]:
        return announcement

    return module.Worker(
        address,
        name=name,
        nthreads=seats,
        resources={announcement["role"]: seats},
        memory_limit=0,
        security=security,
        startup_information={PLUGIN: announced},
        plugins=(Plugin(),),
        dashboard=False,
    )


def seat_of_this_worker() -> Any:
    """Return the seat of the worker that runs the calling task."""
    return distributed().get_worker().plugins[PLUGIN].seat


def reporter(topic: str, attempt: str) -> Callable[[str], bool]:
    """Make what a task tells its client that it lives, with a text; it returns whether the task is still wanted."""
    worker = distributed().get_worker()
    key = worker.get_current_task()

    def report(text: str) -> bool:
        worker.log_event(topic, {"attempt": attempt, "text": text})
        task = worker.state.tasks.get(key)
        return task is not None and task.state not in ("cancelled", "released", "forgotten")

    return report
