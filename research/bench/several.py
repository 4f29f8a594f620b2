"""Time products of one x by several weights: in one launch, one after the other, and torch's, on this machine's GPU.

    PYTHONPATH=. python research/bench/several.py --out several.json

from the repository's root, with a wheel that has `bf16_kk_many`, and torch. Sizes are drawn evenly in the logarithms,
and no tuning saw them: k of 512 to 8192, the first weight's rows of 256 to 8192, those of two others an eighth to all
of it, each a multiple of 8, and rows of x of 1 to 1024. `one` is one launch, `apart` the wheel's products one after the
other, `torch` torch's. Medians over interleaved rounds of CUDA-graph replays, whose weights exceed the L2 three times
over. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `several`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import torch
from aot_gemm import _operations

from research.bench.host import clocks
from research.bench.options import positive, write
from research.bench.protocol import TOLERANCE, capture, interleave, num_sets, relative_error

SHARES = (1, 2, 4, 8)
"""Times that the first weight has the rows of each other one: as many heads of query for one of key and value."""
EDGES = (16, 64, 128, 256, 512, 1024)
"""Upper edges of the rows of x that means are given of."""
WAYS = ("one", "apart")
SLOWER = 0.98
"""A speed below which a problem is called slower than torch's products."""

Row = dict[str, Any]
Weights = list[torch.Tensor]


def draw(count: int, seed: int) -> list[tuple[int, tuple[int, ...], int]]:
    """Draw problems: rows of x, those of each weight, and k."""
    rng = random.Random(seed)  # noqa: S311 - sizes of a bench

    def extent(low: int, high: int, step: int) -> int:
        return step * max(1, round(math.exp(rng.uniform(math.log(low), math.log(high))) / step))

    found = []
    for _ in range(count):
        k, first = extent(512, 8192, 8), extent(256, 8192, 8)
        other = max(8, first // rng.choice(SHARES) // 8 * 8)
        found.append((extent(1, 1024, 1), (first, other, other), k))
    return found


def measure(m: int, sizes: tuple[int, ...], k: int) -> Row:
    """Run and time a problem."""
    dtype, total = torch.bfloat16, sum(sizes)
    x = torch.randn(m, k, device="cuda").to(dtype)
    outs = [torch.empty(m, n, device="cuda", dtype=dtype) for n in sizes]
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    sets = [
        ([torch.randn(n, k, device="cuda").to(dtype) for n in sizes],) for _ in range(num_sets(m, total, k, l2_bytes))
    ]

    def apart(product: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]) -> Callable[[Weights], None]:
        def call(weights: Weights) -> None:
            for weight, out in zip(weights, outs, strict=True):
                product(x, weight, out)

        return call

    calls: dict[str, Callable[[Weights], object]] = {
        "one": lambda weights: _operations.linear_many(x, weights, [None] * len(weights), out=outs),
        "apart": apart(lambda x, weight, out: aot_gemm.linear(x, weight, out=out)),
        "torch": apart(lambda x, weight, out: torch.mm(x, weight.t(), out=out)),
    }
    expected, errors = [torch.mm(x, weight.t()) for weight in sets[0][0]], list[float]()
    for way in WAYS:
        calls[way](*sets[0])
        errors += [relative_error(out, y) for out, y in zip(outs, expected, strict=True)]
    error = float(torch.tensor(errors).max())  # NaN where one is
    us = {
        key: statistics.median(times)
        for key, times in interleave({key: capture(call, sets) for key, call in calls.items()}).items()
    }
    row: Row = {"m": m, "sizes": list(sizes), "k": k, "error": round(error, 6)}
    row |= {"kernel": aot_gemm.plan(m, total, k, "bfloat16", many=True).kernel}
    row |= {f"{key}_us": round(value, 3) for key, value in us.items()}
    return row | {f"{key}_speedup": round(us["torch"] / us[key], 4) for key in WAYS}


def mean(values: Sequence[float]) -> float:
    """Give the geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def summary(rows: Sequence[Row]) -> str:
    """Give torch's time over each way's, by rows of x: mean, share below 0.98 and worst."""
    lines = []
    for low, high in (*zip((0, *EDGES), EDGES, strict=False), (0, EDGES[-1])):
        some = [x for x in rows if low < x["m"] <= high]
        if some:
            parts = [f"{way} {_said([x[f'{way}_speedup'] for x in some])}" for way in WAYS]
            lines.append(f"m {low + 1} to {high}, {len(some)} problems: {'; '.join(parts)}")
    return "\n".join(lines)


def _said(values: Sequence[float]) -> str:
    return f"{mean(values):.3f}, {sum(x < SLOWER for x in values) / len(values):.1%}, {min(values):.3f}"


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=positive, default=120, help="how many are drawn (120)")
    parser.add_argument("--seed", type=int, default=0, help="of the problems")
    parser.add_argument("--max-seconds", type=float, default=120, help="begin no problem after this time (120)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    values = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one")
    torch.manual_seed(values.seed)
    result: dict[str, Any] = {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seed": values.seed,
        "clocks": clocks(),
        "rows": [],
    }
    start = time.monotonic()
    for m, sizes, k in draw(values.problems, values.seed):
        if time.monotonic() - start > values.max_seconds:
            break
        result["rows"].append(measure(m, sizes, k))
    write(values.out, result)
    wrong = [x for x in result["rows"] if not x["error"] <= TOLERANCE]  # NaN is not
    print(summary(result["rows"]))
    for row in wrong:
        print(f"wrong: {row}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
