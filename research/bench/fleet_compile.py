"""Compile many kernels by several workers of a cluster on this host, of which one is killed meanwhile.

    python -m research.bench.fleet_compile --target h200 --operations bf16_kk --limit 500 --workers 4 --kill 1 \
        -o build/bench/fleet_compile.json

from the repository's root, with aot-kernels[fleet] installed; needs no GPU. Each worker is an `aot worker` with one
compiler in a process of its own; store and workers begin empty. A sample is then compiled by the usual pool of
processes, into another empty store, and compared by the hashes of objects and PTX.

Exit code 0 if every kernel has its artifact or its failure, the sample's objects are the same, and it was told that a
killed worker's kernels went to another; else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.artifact import Artifact
from aot.compile.compiler import ArtifactStore, Processes, compile_kernels
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.core.whole_file import write_whole
from aot.fleet.connection import own_scheduler, security_of
from aot.fleet.fleet import open_fleet
from aot.fleet.worker import Offer
from aot.kinds.named_operations import all_named_operations
from aot.space.enumeration import Patterns
from aot.tune.kinds import TuningRequest, tuning_keys
from research.bench.fleet_faults import wait_for, workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.target import Target
    from aot.core.work import AnyKey

PRUNE = 2.0
KILL_AT = 0.3
"""A worker is killed when this part of the kernels has its artifact."""
SAMPLE = 8
"""Kernels that are compiled again by the pool."""


@dataclass(frozen=True)
class Compiling:
    """What became of the kernels."""

    host: str
    cores: int
    num_workers: int
    num_killed: int
    num_kernels: int
    num_artifacts: int
    num_failures: int
    seconds: float
    said: tuple[str, ...]
    sample_differs: tuple[str, ...]
    """Kernels of the sample whose object or PTX the pool compiled otherwise."""

    @property
    def is_right(self) -> bool:
        """Say whether nothing is missing, different or untold."""
        is_told = self.num_killed == sum("is gone; what it had goes to another" in x for x in self.said)
        return self.num_artifacts + self.num_failures == self.num_kernels and not self.sample_differs and is_told


def keys_of(target: Target, operations: str, kernels: str, limit: int) -> list[AnyKey]:
    """List the kernels, as `aot compile` would."""
    request = TuningRequest(
        load_shape_set("representative"),
        all_named_operations(operations).operations,
        Patterns.parse(kernels or None),
        limit,
        PRUNE,
    )
    return list(dict.fromkeys(tuning_keys(request, target)))[:limit]


def compile_by_fleet(
    keys: Sequence[AnyKey], target: Target, folder: Path, num_workers: int, num_killed: int
) -> tuple[float, list[object], tuple[str, ...]]:
    """Compile into an empty store by workers, of which some are killed; return seconds, results and what was said."""
    said: list[str] = []
    offers = [["--jobs", "1", "--no-gpu", "--folder", str(folder / f"worker-{i}")] for i in range(num_workers)]
    store = folder / "store"
    with (
        own_scheduler(security_of(None)) as address,
        workers(address, offers) as processes,
        open_fleet(address, None, Offer(), said.append) as fleet,
    ):
        wait_for(fleet, processes)

        def kill() -> None:
            while sum(1 for _ in store.rglob("result.json")) < KILL_AT * len(keys):
                time.sleep(0.2)
            for process in processes[:num_killed]:
                process.send_signal(signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        start = time.monotonic()
        results = compile_kernels(keys, target, store, compilers=fleet.compilers)
        return time.monotonic() - start, list(results), tuple(said)


def differing(keys: Sequence[AnyKey], target: Target, folder: Path) -> tuple[str, ...]:
    """Compile some kernels by the pool, and list those that came out otherwise than by the fleet."""
    compile_kernels(keys, target, folder / "pool", compilers=Processes(1))
    found = []
    for key in keys:
        one, other = (ArtifactStore(folder / name).get(key, target) for name in ("store", "pool"))
        kernels = [x.kernel if isinstance(x, Artifact) else None for x in (one, other)]
        if kernels[0] != kernels[1]:
            found.append(key.name)
    return tuple(found)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--operations", default="bf16_kk", help="by tag, with commas between")
    parser.add_argument("--kernels", default="", help="patterns on candidate names")
    parser.add_argument("--limit", type=int, default=500, help="how many kernels")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kill", type=int, default=1, help="how many workers are killed")
    parser.add_argument("-o", "--out", type=Path, help="where to write the figures")
    values = parser.parse_args()
    target = load_target(values.target)
    keys = keys_of(target, values.operations, values.kernels, values.limit)
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    with tempfile.TemporaryDirectory(prefix="aot-fleet-compile-") as name:
        folder = Path(name)
        seconds, results, said = compile_by_fleet(keys, target, folder, values.workers, values.kill)
        artifacts = [x for x in results if isinstance(x, Artifact)]
        step = max(1, len(artifacts) // SAMPLE)
        sample = [x for x, made in zip(keys, results, strict=True) if isinstance(made, Artifact)][::step][:SAMPLE]
        found = Compiling(
            platform.processor() or platform.machine(),
            os.cpu_count() or 1,
            values.workers,
            values.kill,
            len(keys),
            len(artifacts),
            len(results) - len(artifacts),
            seconds,
            said,
            differing(sample, target, folder),
        )
    print(json.dumps(asdict(found) | {"is_right": found.is_right}, indent=1))
    if values.out:
        write_whole(values.out, json.dumps(asdict(found), indent=1) + "\n")
    return 0 if found.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
