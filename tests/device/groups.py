"""Random batches and groups, as `matmul` and `grouped_linear` of the installed wheel compute them, against float64.

    python -m tests.device.groups --count 300

from the repository's root, with the wheel and torch installed. Prints a line for each operation. Exit code 1 if a
result was wrong, or something beside `out` or in no group was written, or an error was not the package's own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.device.group_cases import GROUPED, Case, batch_case, grouped_case, runs_case

MAX_TOLD = 3

Draw = Callable[[random.Random, str], Case]


@dataclass
class Tally:
    """What became of an operation's calls."""

    count: int = 0
    unsupported: int = 0
    """Calls that the wheel has no kernels for."""
    wrong: int = 0
    worst: float = 0.0
    """The largest error as a share of what is allowed."""
    told: list[str] = field(default_factory=list)
    """The first calls that were wrong."""

    def add(self, share: float, text: str) -> None:
        """Count a call."""
        self.worst = max(self.worst, share)
        if share > 1:
            self.wrong += 1
            self.told = [*self.told, f"{share:.3g}: {text}"][:MAX_TOLD]


def draws() -> dict[str, tuple[str, Draw]]:
    """Return the function of the package that computes each operation, and what draws a call of it."""
    rows: dict[str, tuple[str, Draw]] = {x.name: ("grouped_linear", partial(grouped_case, x)) for x in GROUPED}
    return {"batches": ("matmul", batch_case), **rows, "runs of k": ("grouped_linear", runs_case)}


def check(
    package: Any, name: str, count: int, seed: int = 1, device: str = "cuda", until: float = float("inf")
) -> Tally:
    """Make random calls of an operation.

    Args:
        package: the wheel's.
        name: of `draws`.
        count: calls to make, beside those that the wheel has no kernels for.
        seed: what they are drawn by.
        device: where the operands are.
        until: the time, by time.monotonic(), from which on no call is begun.
    """
    function, draw = draws()[name]
    tally = Tally()
    torch.manual_seed(seed)
    rng = random.Random(f"{seed} {name}")
    while tally.count < count and tally.unsupported < count and time.monotonic() < until:
        case = draw(rng, device)
        try:
            getattr(package, function)(*case.arguments, **case.keywords)
        except package.UnsupportedError:
            tally.unsupported += 1
            continue
        tally.count += 1
        tally.add(case.expected.share(case.whole), case.text)
    return tally


def line(name: str, tally: Tally) -> str:
    """Write what became of an operation's calls."""
    lacking = f", no kernels for {tally.unsupported}" if tally.unsupported else ""
    told = "".join(f"\n  {x}" for x in tally.told)
    return f"{name}: {tally.count} calls{lacking}, wrong {tally.wrong}, worst {tally.worst:.2f} of the bound{told}"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="calls of each operation (300)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn by (1)")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no call after this time (600)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args(given)


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    values = arguments()
    package = importlib.import_module(values.package)
    until = time.monotonic() + values.seconds
    found = {}
    for name in draws():
        found[name] = check(package, name, values.count, values.seed, until=until)
        print(line(name, found[name]), flush=True)
    if values.out:
        values.out.write_text(json.dumps({name: asdict(x) for name, x in found.items()}, indent=1) + "\n")
    return 1 if any(x.wrong for x in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
