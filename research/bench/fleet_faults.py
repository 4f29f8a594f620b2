"""Measure a bundle by a fleet of which workers are killed and hang, beside the same fleet undisturbed.

    aot tune --target h200 --shapes representative --limit 64 --bundle build/fleet
    python -m research.bench.fleet_faults build/fleet --gpus 4 --kill 1 --hang 1 -o build/bench/fleet_faults.json

from the repository's root, with aot-kernels[fleet] installed. Each GPU of this host has a worker in a process of its
own, `aot worker`. Some are killed, and some stopped, while they measure: the stopped ones say nothing any more and
keep what they have. Both runs time every pair of a kernel and a problem, so that their records must have the same ones.

Exit code 0 if they do, with the same outcomes, and the loss of each killed worker was told; else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.tile_order import HEURISTIC
from aot.core.whole_file import write_whole
from aot.fleet.connection import own_scheduler, security_of
from aot.fleet.fleet import open_fleet
from aot.fleet.worker import Offer, gpus_of_this_host
from aot.measure.store import read_store
from aot.select.times.record import from_store
from research.bench.fleet import WORDS, Times, agreement, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.fleet.fleet import Fleet

JOIN_S = 60.0
"""How long the workers have to join."""
PROBLEM = 1
"""Of the parts of a place: a kind, a problem, a kernel and an order of tiles."""
KILL_AT, HANG_AT = 0.25, 0.4
"""When workers are lost: fractions of what the undisturbed run took."""


@dataclass(frozen=True)
class Loss:
    """A worker that is lost: its place among the workers, how, and when, in seconds from the start."""

    worker: int
    signal: int
    at_s: float


@dataclass(frozen=True)
class Done:
    """A run: how long it took, its parts, and what the fleet said of its workers."""

    wall_s: float
    parts_s: dict[str, float]
    said: tuple[str, ...]


@contextmanager
def workers(address: str, offers: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run workers by the options of each, in processes of their own, for the duration of a `with` block."""
    with ExitStack() as stack:
        found = []
        for options in offers:
            words = [sys.executable, "-m", "aot", "worker", address, *options]
            process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)  # which ends a stopped process, too
            found.append(process)
        yield found


def lose(processes: Sequence[subprocess.Popen[bytes]], losses: Sequence[Loss], begins: threading.Event) -> None:
    """Lose workers at their moments, once the run has begun."""
    begins.wait()
    start = time.monotonic()
    for loss in sorted(losses, key=lambda x: x.at_s):
        time.sleep(max(0.0, start + loss.at_s - time.monotonic()))
        processes[loss.worker].send_signal(loss.signal)
        print(f"  worker {loss.worker} gets {signal.Signals(loss.signal).name} after {time.monotonic() - start:.1f} s")


def wait_for(fleet: Fleet, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until each process's worker has joined."""
    end = time.monotonic() + JOIN_S
    while len(fleet.devices.client.scheduler_info()["workers"]) < len(processes):
        if time.monotonic() > end or any(x.poll() is not None for x in processes):
            raise SystemExit("not all workers joined; `aot worker` says why")
        time.sleep(0.1)


def measure(bundle: Path, gpus: Sequence[str], folder: Path, losses: Sequence[Loss] = ()) -> tuple[Done, Path]:
    """Measure a bundle by workers of which some are lost; return how it went, and the store."""
    results, said, begins = folder / "results.sqlite", [], threading.Event()
    offers = [["--jobs", "0", "--gpu", gpu, "--folder", str(folder / f"worker-{gpu}")] for gpu in gpus]
    folder.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(f"  {text}")
        said.append(text)

    with (
        own_scheduler(security_of(None)) as address,
        workers(address, offers) as processes,
        open_fleet(address, None, Offer(), say) as fleet,
    ):
        wait_for(fleet, processes)
        threading.Thread(target=lose, args=(processes, losses, begins), daemon=True).start()
        begins.set()
        start = time.monotonic()
        code = fleet.devices.measure(bundle, WORDS, results, None)
        seconds = time.monotonic() - start
    if code:
        raise SystemExit(f"measuring ended with exit code {code}")
    return Done(seconds, dict(fleet.devices.seconds), tuple(said)), results


def losses_of(num_killed: int, num_hung: int, wall_s: float) -> list[Loss]:
    """Say which workers are lost, and when, of a run that takes so long undisturbed."""
    killed = [Loss(i, signal.SIGKILL, KILL_AT * wall_s) for i in range(num_killed)]
    return killed + [Loss(num_killed + i, signal.SIGSTOP, HANG_AT * wall_s) for i in range(num_hung)]


def untold(losses: Sequence[Loss], gpus: Sequence[str], said: Sequence[str]) -> list[str]:
    """List the killed workers of which the fleet did not say that what they had goes to another.

    Of a stopped one it need not: others begin what it is slow at, and the run may end before its silence is too long.
    """
    killed = [x for x in losses if x.signal == signal.SIGKILL]
    names = [f"worker {socket.gethostname()}-gpu-{gpus[x.worker]} " for x in killed]
    told = [x for x in said if "what it had goes to another" in x]
    return [name for name in names if not any(name in x for x in told)]


def outcomes(results: Path) -> dict[tuple[object, ...], str]:
    """Return how the measurement of each pair ended; other orders of tiles are tried of the fastest alone, by noise."""
    return {x.place: str(x.status) for x in from_store(results).measurements if x.tile_order == HEURISTIC}


def winners(times: Times) -> dict[object, tuple[object, ...]]:
    """Return the place of each problem's fastest kernel."""
    found: dict[object, tuple[object, ...]] = {}
    for place in sorted(times, key=lambda x: (times[x], str(x))):
        found.setdefault(place[PROBLEM], place)
    return found


def choices(times: Times, first: Times) -> dict[str, float]:
    """Compare which kernels two runs' times would choose, by the first run's times."""
    chosen, own = winners(times), winners(first)
    both = [x for x in own if x in chosen and chosen[x] in first]
    losses = [first[chosen[x]] / first[own[x]] - 1 for x in both]
    same = sum(chosen[x] == own[x] for x in both)
    return {
        "num_problems": len(both),
        "same": same / len(both),
        "mean_loss": statistics.mean(losses),
        "worst_loss": max(losses),
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="made by `aot tune --bundle`")
    parser.add_argument("--gpus", type=int, default=4, help="how many GPUs of this host")
    parser.add_argument("--kill", type=int, default=1, help="how many workers are killed")
    parser.add_argument("--hang", type=int, default=1, help="how many workers are stopped")
    parser.add_argument("-o", "--out", type=Path, help="where to write the figures")
    values = parser.parse_args()
    gpus = gpus_of_this_host()[: values.gpus]
    if len(gpus) < values.gpus or values.kill + values.hang >= values.gpus:
        parser.error(f"{values.gpus} GPUs of {len(gpus)}: expected as many, and more than are killed and hang")
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    with tempfile.TemporaryDirectory(prefix="aot-fleet-faults-") as scratch:
        calm, calm_results = measure(values.bundle, gpus, Path(scratch, "calm"))
        losses = losses_of(values.kill, values.hang, calm.wall_s)
        lossy, lossy_results = measure(values.bundle, gpus, Path(scratch, "lossy"), losses)
        first, times = times_of(calm_results), times_of(lossy_results)
        same = outcomes(calm_results) == outcomes(lossy_results)
        with read_store(calm_results) as store:
            device = store.all_conditions()[0].device
    num_pairs, median, spread = agreement(times, first)
    missing = untold(losses, gpus, lossy.said)
    found = {
        "device": device,
        "gpus": len(gpus),
        "undisturbed": asdict(calm),
        "disturbed": asdict(lossy),
        "losses": [asdict(x) for x in losses],
        "same_pairs_and_outcomes": same,
        "untold": missing,
        "times": {"num_pairs": num_pairs, "median_ratio": median, "spread_95": spread},
        "choices": choices(times, first),
    }
    print(json.dumps({key: x for key, x in found.items() if key not in ("undisturbed", "disturbed")}, indent=1))
    print(f"undisturbed {calm.wall_s:.1f} s, disturbed {lossy.wall_s:.1f} s")
    if values.out:
        write_whole(values.out, json.dumps(found, indent=1) + "\n")
    return int(not same or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
