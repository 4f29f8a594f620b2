"""The process of a host's workers: one for each device, and one that compiles; and a cluster of this host alone."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import signal
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.compile.process_pool import start_apart
from aot.core.errors import AotError, FleetError, RemoteError
from aot.fleet.address import check_address
from aot.fleet.announcement import Announcement, of_compiler, of_device
from aot.fleet.connection import make_worker, own_scheduler, security_of
from aot.fleet.seats import CompilerSeat, DeviceSeat
from aot.measure.conditions import output_of
from aot.measure.preflight import warnings
from aot.measure.supervisor import end_with_parent
from aot.tune.bundle import RUNNER, make_runner
from aot.tune.link import Host, Link
from aot.tune.local_device import LocalDevice
from aot.tune.remote import Device as RemoteDevice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot.tune.device import Device

POLL_S, SSH_POLL_S = 0.1, 2.0
"""Between two looks at a run: here, and over a link, which takes a process each time."""
DEVICE_SEATS = 2
"""A portion that a device measures, and the next, which its run begins when it has done that one."""
FOLDER = Path("build/worker")
"""Where a worker keeps what it has made and measured, below the working directory."""


@dataclass(frozen=True)
class Offer:
    """What a host offers to a fleet."""

    folder: Path = FOLDER
    jobs: int = 0
    """Processes that compile."""
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them."""
    urls: tuple[str, ...] = ()
    """Devices that are reached by SSH."""


@dataclass(frozen=True)
class Post:
    """A worker that is to be: what it is called, does and announces."""

    name: str
    announcement: Announcement
    seats: int
    seat: CompilerSeat | DeviceSeat


def gpus_of_this_host() -> tuple[str, ...]:
    """List this host's GPUs: those that CUDA_VISIBLE_DEVICES leaves, else all that nvidia-smi lists, else the first."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(x for x in visible.split(",") if x.strip())
    listed = output_of(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]).split()
    if listed:
        return tuple(listed)
    return ("0",) if Path("/etc/nv_tegra_release").exists() else ()


def _only(gpu: str) -> dict[str, str]:
    """Return an environment in which a GPU is the only one; numbers are nvidia-smi's."""
    return {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def device_post(name: str, device: Device, folder: Path, poll_s: float = POLL_S) -> Post:
    """Ask a device what it is, and make its worker.

    Raises:
        RemoteError: it does not answer.
        FleetError: it has no usable GPU.
    """
    runner = folder / "runner"
    runner.mkdir(parents=True, exist_ok=True)
    make_runner(runner)
    device.ship(runner, RUNNER)
    machine = device.check()
    if machine.gpu_error:
        raise FleetError(f"{name} has no usable GPU: {machine.gpu_error}; leave it out, or mend its driver")
    seat = DeviceSeat(device, machine, folder, poll_s)
    return Post(name, of_device(machine, device.place), DEVICE_SEATS, seat)


def posts_of(offer: Offer, say: Callable[[str], None]) -> list[Post]:
    """Make the workers of an offer; a device that does not answer is said and left out.

    Raises:
        FleetError: nothing is left.
    """
    host, found = platform.node(), []
    devices: list[tuple[str, Device]] = [
        (f"{host}-gpu-{gpu}", LocalDevice(offer.folder / f"gpu-{gpu}" / "run", _only(gpu))) for gpu in offer.gpus
    ]
    devices += [(url.removeprefix("ssh://"), RemoteDevice(Link(Host.parse(url, "fleet")))) for url in offer.urls]
    for name, device in devices:
        try:
            poll_s = SSH_POLL_S if isinstance(device, RemoteDevice) else POLL_S
            post = device_post(name, device, offer.folder / name.replace("/", "_"), poll_s)
        except (RemoteError, FleetError) as error:
            say(f"{name} is left out: {error}")
            continue
        machine = post.announcement.machine
        for text in [*(machine.describe()), *(f"warning: {x}" for x in warnings(machine))] if machine else ():
            say(f"{name}: {text}")
        found.append(post)
    if offer.jobs:
        seat = CompilerSeat(offer.folder.absolute())
        # A host may have several processes that compile, and a scheduler takes a name once.
        found.append(Post(f"{host}-compilers-{os.getpid()}", of_compiler(), offer.jobs, seat))
    if not found:
        raise FleetError("this host offers nothing: no device answers, and --jobs is 0; see `aot worker --help`")
    return found


PATIENCE_S = 10.0
"""How long a worker waits for a scheduler before it says so."""


async def serve(posts: Sequence[Post], address: str, security: Any, say: Callable[[str], None]) -> None:
    """Be workers of a scheduler until it ends; one that does not answer yet is waited for, and that is said.

    Raises:
        FleetError: it cannot be reached.
    """
    workers = [make_worker(address, x.name, security, x.announcement.as_json(), x.seats, x.seat) for x in posts]
    joining = asyncio.gather(*workers)
    try:
        done, _ = await asyncio.wait([joining], timeout=PATIENCE_S)
        if not done:
            say(f"no scheduler answers at {address} yet; waiting for one, as `dask scheduler` starts it")
        await joining
    except (OSError, ValueError, RuntimeError) as error:
        raise FleetError(f"cannot join {address}: {error}") from error
    say(f"joined {address} as {', '.join(x.name for x in posts)}")
    await asyncio.gather(*(worker.finished() for worker in workers))


def work(offer: Offer, address: str, tls: Path | None, say: Callable[[str], None]) -> None:
    """Be the workers of this host until the scheduler ends.

    Raises:
        FleetError: nothing is offered, the address is none, or the scheduler cannot be reached.
    """
    check_address(address)
    security = security_of(tls)
    asyncio.run(serve(posts_of(offer, say), address, security, say))


def _work_for(address: str, offer: Offer, tls: Path | None) -> None:
    """Be them for the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        work(offer, address, tls, say)
    except AotError as error:
        say(f"aot: error: {error}")


@contextmanager
def _own_workers(address: str, offer: Offer, tls: Path | None) -> Iterator[Callable[[], bool]]:
    """Run the workers of this host in a process beside this one, which ends with it."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_work_for, args=(address, offer, tls), name="aot-workers")
    start_apart(process)
    try:
        yield process.is_alive
    finally:
        process.terminate()
        process.join(END_S)
        process.kill()


END_S = 1.0
"""How long the workers of this host have to end in good order."""


@contextmanager
def local_cluster(offer: Offer, tls: Path | None) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Run a scheduler and this host's workers for the duration of a `with` block.

    Gives the scheduler's address, and what says whether the workers' process lives.
    """
    with ExitStack() as stack:
        address = stack.enter_context(own_scheduler(security_of(tls)))
        yield address, stack.enter_context(_own_workers(address, offer, tls))
