"""Measure a bundle with one, two and four GPUs of this host: how much faster, and whether the times agree.

    aot tune --target h200 --shapes representative --limit 64 --bundle build/fleet
    python -m research.bench.fleet build/fleet --gpus 1,1,2,4 -o build/bench/fleet.json

from the repository's root, with aot-kernels[fleet] installed. Every pair of a kernel and a problem is timed in each run
(`--strategy exhaustive`). Two runs with one GPU tell the noise: the ratio of two times of a pair. A fleet's times are
held against those of the first run likewise; GPUs of one kind run at slightly different clocks, which is in it. A long
campaign is measured once with one GPU, `--gpus 1,2,4 --noise 1.04`, where the noise is known of a short one. What a
fleet does where workers are lost is research.bench.fleet_faults.

Exit code 0 if the median ratio of each fleet is within the 95% of the two runs that lie nearest to 1, else 1.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from aot.core.whole_file import write_whole
from aot.fleet.fleet import LOCAL, open_fleet
from aot.fleet.worker import Offer, gpus_of_this_host
from aot.measure.store import read_store
from aot.select.times.record import from_store

EXHAUSTIVE = ("--strategy", "exhaustive")
WORDS = (*EXHAUSTIVE, "--no-reference")
FINAL_ROUNDS = 2
"""Rounds from which on a time is one of the final ones; a screening is one round."""
Times = dict[tuple[object, ...], float]
"""Of pairs of a kernel and a problem, in microseconds."""


@dataclass(frozen=True)
class Run:
    """One run: its GPUs, how long it took with its workers there already, and how its times differ from the first's."""

    gpus: int
    wall_s: float
    parts_s: dict[str, float]
    """Until the first result, then of verifying, then of measuring."""
    times_as_fast: float
    num_pairs: int
    median_ratio: float
    spread_95: float
    """What 95% of the ratios are within: the larger of a ratio and its inverse."""
    device: str
    drivers: tuple[str, ...]


def measure(
    bundle: Path, gpus: tuple[str, ...], folder: Path, words: tuple[str, ...]
) -> tuple[float, dict[str, float], Path]:
    """Measure a bundle on some GPUs, with words for its run.py; return the seconds, in parts too, and the store."""
    results = folder / "results.sqlite"
    with open_fleet(LOCAL, None, Offer(folder / "worker", gpus=gpus), lambda text: print(f"  {text}")) as fleet:
        while len(fleet.devices.client.scheduler_info()["workers"]) < len(gpus):
            if not fleet.lives():
                raise SystemExit("the workers of this host ended before they had joined; their reason is above")
            time.sleep(0.1)
        start = time.monotonic()
        code = fleet.devices.measure(bundle, words, results, None)
        seconds = time.monotonic() - start
    if code:
        raise SystemExit(f"measuring on {len(gpus)} GPUs ended with exit code {code}")
    return seconds, dict(fleet.devices.seconds), results


def times_of(results: Path) -> Times:
    """Return the final times of a store, in microseconds."""
    found = from_store(results).measurements
    return {x.place: x.median_us for x in found if x.ok and x.num_rounds >= FINAL_ROUNDS}


def agreement(times: Times, first: Times) -> tuple[int, float, float]:
    """Compare two runs' times of the pairs that both have; return their number, the median ratio and `spread_95`."""
    logs = [math.log(times[place] / us) for place, us in first.items() if place in times]
    spread = sorted(map(abs, logs))[math.ceil(0.95 * len(logs)) - 1]
    return len(logs), math.exp(statistics.median(logs)), math.exp(spread)


def compared(gpus: int, seconds: float, parts: dict[str, float], results: Path, first: tuple[float, Times]) -> Run:
    """Hold a run against the first."""
    with read_store(results) as store:
        conditions = store.all_conditions()
    return Run(
        gpus,
        seconds,
        parts,
        first[0] / seconds,
        *agreement(times_of(results), first[1]),
        conditions[0].device,
        tuple(sorted({x.driver for x in conditions})),
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="made by `aot tune --bundle`")
    parser.add_argument("--gpus", default="1,1,2,4", help="how many GPUs each run has; the first has one")
    parser.add_argument("--noise", type=float, help="spread_95 of two runs with one GPU; by default the second run's")
    parser.add_argument(
        "--reference", action="store_true", help="time the library beside the kernels, as a campaign does"
    )
    parser.add_argument("--results", type=Path, help="where to keep the last run's measurements, for `aot import`")
    parser.add_argument("-o", "--out", type=Path, help="where to write the figures")
    values = parser.parse_args()
    own, counts = gpus_of_this_host(), [int(x) for x in values.gpus.split(",")]
    alone = [1] if values.noise else [1, 1]
    if counts[: len(alone)] != alone or max(counts) > len(own):
        parser.error(f"--gpus {values.gpus}: expected {alone} first, and no more than the {len(own)} GPUs of this host")
    words = EXHAUSTIVE if values.reference else WORDS
    runs: list[Run] = []
    first: tuple[float, Times] | None = None
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="aot-fleet-bench-") as scratch:
            seconds, parts, results = measure(values.bundle, own[:count], Path(scratch), words)
            first = first or (seconds, times_of(results))
            runs.append(compared(count, seconds, parts, results, first))
            if values.results:
                shutil.copyfile(results, values.results)
        print(json.dumps(asdict(runs[-1])))
    if values.out:
        found = {"device": runs[0].device, "drivers": runs[0].drivers, "runs": [asdict(x) for x in runs]}
        write_whole(values.out, json.dumps(found, indent=1) + "\n")
    noise = values.noise or runs[1].spread_95
    return int(any(not 1 / noise <= x.median_ratio <= noise for x in runs[len(alone) :]))


if __name__ == "__main__":
    sys.exit(main())
