"""Time a wheel's products of packed weights beside torch's product of the same weights in 16 bits, and check them.

    PYTHONPATH=. python research/bench/packed.py --out packed.json

on a machine with an H100 or H200, torch, numpy and a wheel that has the operations, from the repository's root:
`aot build --operations bf16xint4g128_bf16_kk,bf16xnvfp4_bf16_kk,bf16xmxfp4_bf16_kk`. Times are medians over interleaved
rounds of CUDA-graph replays, with a cold L2 and promised weights. `--random 300` also computes as many problems of
random sizes of each format, a third of them with a bias. `--drawn SEED` takes weights and rows of x that a seed draws,
more than 48 rows, in the place of the usual ones. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import numpy as np
import torch

from aot.core.weight_format import format_named
from research.bench.options import positive, write
from research.bench.protocol import L2_MULTIPLE, capture, interleave, relative_error
from research.bench.weight_only import DTYPES, MOST_BYTES, REPEATED, TOLERANCE, make_weight

WEIGHTS = ((4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096))
"""Rows and k."""
ROWS = (1, 16, 32, 48, 64, 65, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
FORMATS = ("int4g128", "nvfp4", "mxfp4")
FIELDS = ("format", "m", "n", "k", "worst_error", "us.wheel", "us.torch", "kernel")
DRAWN, DRAWN_ROWS = 10, 5
"""Weights that a seed draws, and numbers of rows of x for each."""
LARGEST = (1500, 3000, 3000)
"""m, n and k of a random problem."""
FEW = 300
"""Half of them are less than this."""


def _copies(num_bytes: int) -> int:
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(100, math.ceil(L2_MULTIPLE * l2 / num_bytes), MOST_BYTES // num_bytes))


def _kernel(m: int, n: int, k: int, element: str, form: str) -> str:
    return str(aot_gemm.plan(m, n, k, dtype=element, weight_dtype=form).kernel)


def time_weight(form: str, element: str, n: int, k: int, rows: list[int]) -> list[tuple[Any, ...]]:
    """Time products of a weight with so many rows of x."""
    weight, dtype = make_weight(format_named(form), element, n, k, np.random.default_rng(n + k)), DTYPES[element]
    factors, shape = weight.factors, (n, k)
    own = dtype if format_named(form).factor_bits == 16 else None
    packed = [aot_gemm.torch.PackedWeight(x, factors, form, shape, own).promise() for x in weight.packed]
    wide = weight.values.to(dtype)
    widened = [wide, *(wide.clone() for _ in range(_copies(wide.nbytes) - 1))]
    exact, found = weight.values[:REPEATED].double(), []
    for m in rows:
        x = torch.randn(m, k, device="cuda").to(dtype)
        d = torch.empty(m, n, device="cuda", dtype=dtype)
        result = aot_gemm.torch.linear(x, packed[0])
        expected = (x.double() @ exact.t()).repeat(1, n // REPEATED)
        error = relative_error(result, expected)
        graphs = {
            "wheel": capture(lambda x, w, d: aot_gemm.torch.linear(x, w, out=d), [(x, w, d) for w in packed]),
            "torch": capture(lambda x, w, d: torch.mm(x, w.t(), out=d), [(x, w, d) for w in widened]),
        }
        times = {name: statistics.median(of_rounds) for name, of_rounds in interleave(graphs).items()}
        row = (form, m, n, k, round(error, 5), round(times["wheel"], 2), round(times["torch"], 2))
        found.append((*row, _kernel(m, n, k, element, form)))
        ratio = times["torch"] / times["wheel"]
        print(*found[-1], f"torch takes {ratio:.2f} of it", "WRONG" if not error <= TOLERANCE else "", flush=True)
        del graphs, result, expected, d
    return found


def draw_sizes(seed: int) -> list[tuple[int, int, list[int]]]:
    """Draw weights' n and k, and rows of x, evenly in their logarithms."""
    rng = np.random.default_rng(seed)

    def number(low: int, high: int, step: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))) / step) * step

    sizes = [(number(REPEATED, 24000, REPEATED), number(512, 12288, 128)) for _ in range(DRAWN)]
    return [(n, k, sorted({number(49, 8192, 1) for _ in range(DRAWN_ROWS)})) for n, k in sizes]


def check_random(form: str, element: str, count: int) -> list[str]:
    """Compute problems of random sizes; return what is wrong."""
    rng, dtype, of = np.random.default_rng(1), DTYPES[element], format_named(form)
    wrong = []
    for i in range(count):
        m, n, k = (int(rng.integers(1, most + 1 if rng.random() < 0.5 else FEW)) for most in LARGEST)
        k = -(-k // of.quantum) * of.quantum
        n = n if rng.random() < 0.3 else -(-n // 8) * 8
        weight = make_weight(of, element, REPEATED * -(-n // REPEATED), k, np.random.default_rng(i))
        own, tiles = (dtype if of.factor_bits == 16 else None), -(-n // 16)
        factors = (
            weight.factors if weight.factors is None or weight.factors.numel() == 1 else weight.factors[:n].clone()
        )
        packed = aot_gemm.torch.PackedWeight(weight.packed[0][:tiles].clone(), factors, form, (n, k), own)
        x = torch.randn(m, k, device="cuda").to(dtype)
        bias = torch.randn(n, device="cuda").to(dtype) if i % 3 == 0 else None
        expected = x.double() @ weight.values[:n].double().t() + (0 if bias is None else bias.double())
        error = relative_error(aot_gemm.torch.linear(x, packed, bias), expected)
        if not error <= TOLERANCE:
            wrong.append(f"{form} m {m} n {n} k {k} {_kernel(m, n, k, element, form)}: error {error:.3g}")
            print("WRONG", wrong[-1], flush=True)
    print(f"{form}: {count} random problems, {len(wrong)} wrong", flush=True)
    return wrong


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats, by commas")
    parser.add_argument("--element", default="bfloat16", choices=tuple(DTYPES), help="type of x")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="rows of x, by commas; none where empty")
    parser.add_argument("--drawn", type=positive, metavar="SEED", help="time sizes that a seed draws, in their place")
    parser.add_argument("--random", type=positive, default=None, help="problems of random sizes to check")
    parser.add_argument("--out", type=Path, help="file of the results")
    arguments = parser.parse_args()
    rows: list[tuple[Any, ...]] = []
    wrong: list[str] = []
    usual = [int(x) for x in arguments.rows.split(",") if x]
    sizes = [(n, k, usual) for n, k in WEIGHTS if usual]
    if arguments.drawn:
        sizes = draw_sizes(arguments.drawn)
    for form in arguments.formats.split(","):
        if arguments.random:
            wrong += check_random(form, arguments.element, arguments.random)
        for n, k, of_weight in sizes:
            rows += time_weight(form, arguments.element, n, k, of_weight)
            torch.cuda.empty_cache()
    wrong += [f"{x[0]} m {x[1]} n {x[2]} k {x[3]}" for x in rows if not x[4] <= TOLERANCE]
    device = torch.cuda.get_device_name(0)
    table = {"columns": FIELDS, "rows": rows}
    found = {"device": device, "torch": torch.__version__, "wheel": aot_gemm.__version__}
    found |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "element": arguments.element, "wrong": wrong}
    found["rows"] = table
    if arguments.random:
        found["random_problems"] = dict.fromkeys(arguments.formats.split(","), arguments.random)
    write(arguments.out, found)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
