"""Time the Linears of decoder layers in the order in which a model runs them, by the installed wheel and by torch.mm.

    PYTHONPATH=. python research/bench/layers.py --out layers.json
    PYTHONPATH=. python research/bench/layers.py --table run1.json run2.json

`research/bench/atlas.py` times each product behind itself or behind an ordinary kernel. In a model q, k and v stand
behind each other, as gate and up do, and a kernel that is fast behind itself can be slow behind another
(research/log/2026-11-24-spread.md). Here an ordinary kernel, torch's neg of the hidden states, stands in front of q, of
o, of gate and of down, and what a model computes between is left out. Medians over interleaved rounds of CUDA-graph
replays of as many layers as exceed the L2 three times over; us are of a layer, the ordinary kernels among them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `layers`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import torch

from research.bench.host import clocks
from research.bench.options import add_files, positive, print_table, write
from research.bench.protocol import L2_MULTIPLE, TOLERANCE, Operands, capture, interleave, relative_error


@dataclass(frozen=True)
class Layer:
    """The sizes of a decoder layer: q (q, hidden), k and v (kv, hidden), o (hidden, q), gate, up and down."""

    hidden: int
    q: int
    kv: int
    feed_forward: int

    @property
    def groups(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The products (n, k) that stand behind each other, an ordinary kernel in front of each group."""
        q, kv = (self.q, self.hidden), (self.kv, self.hidden)
        wide = (self.feed_forward, self.hidden)
        return (q, kv, kv), ((self.hidden, self.q),), (wide, wide), ((self.hidden, self.feed_forward),)


LAYERS = {
    "llama-3-8b": Layer(4096, 4096, 1024, 14336),
    "llama-2-7b": Layer(4096, 4096, 4096, 11008),
    "llama-3.2-1b": Layer(2048, 2048, 512, 8192),
    "qwen3-4b": Layer(2560, 4096, 1024, 9728),
    "qwen3-0.6b": Layer(1024, 2048, 1024, 3072),
    "qwen2.5-7b": Layer(3584, 3584, 512, 18944),
    "gemma-3-4b": Layer(2560, 2048, 1024, 10240),
    "gemma-2-9b": Layer(3584, 4096, 2048, 14336),
    "phi-4": Layer(5120, 5120, 1280, 17920),
}
"""Source: the configurations that the models are published with."""
LADDER = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)


def operands(layer: Layer, m: int, dtype: torch.dtype) -> list[tuple[list[list[Operands]]]]:
    """Draw the operands of as many layers as exceed the L2 three times over, by group; each k has one x."""
    sizes = [size for group in layer.groups for size in group]
    num_bytes = 2 * sum(n * k for n, k in sizes)
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    inputs = {k: torch.randn(m, k, device="cuda").to(dtype) for k in dict.fromkeys(k for _, k in sizes)}

    def drawn(n: int, k: int) -> Operands:
        weight = torch.randn(n, k, device="cuda").to(dtype)
        return inputs[k], weight, torch.empty(m, n, dtype=dtype, device="cuda")

    count = max(2, -(-L2_MULTIPLE * l2_bytes // num_bytes))
    return [([[drawn(*size) for size in group] for group in layer.groups],) for _ in range(count)]


def call_of(product: Callable[..., object], hidden: torch.Tensor) -> Callable[[list[list[Operands]]], None]:
    """Give what enqueues a layer."""

    def call(groups: list[list[Operands]]) -> None:
        for group in groups:
            torch.neg(hidden, out=hidden)
            for x, weight, out in group:
                product(x, weight, out)

    return call


def by_wheel(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call the wheel."""
    return aot_gemm.linear(x, weight, out=out)


def by_torch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> object:
    """Call torch."""
    return torch.mm(x, weight.t(), out=out)


def measure(name: str, m: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time a layer, and compare every result of the wheel with torch's."""
    layer = LAYERS[name]
    sets = operands(layer, m, dtype)
    hidden = torch.ones(m, layer.hidden, dtype=dtype, device="cuda")
    graphs = {each: capture(call_of(f, hidden), sets) for each, f in (("wheel", by_wheel), ("torch", by_torch))}
    graphs["wheel"][0].replay()
    error = max(relative_error(out, x @ weight.t()) for x, weight, out in (y for group in sets[0][0] for y in group))
    us = {each: round(statistics.median(values), 3) for each, values in interleave(graphs).items()}
    row = {"layer": name, "m": m, "wheel_us": us["wheel"], "torch_us": us["torch"], "error": round(error, 6)}
    return row | {"speedup": round(us["torch"] / us["wheel"], 4)}


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Give the medians of runs.

    Raises:
        ValueError: they have not measured the same.
    """
    keys = [[(row["layer"], row["m"]) for row in result["rows"]] for result in results]
    if any(key != keys[0] for key in keys):
        raise ValueError("the files of --table have not measured the same layers and m")
    speedups = zip(*([row["speedup"] for row in result["rows"]] for result in results), strict=True)
    rows = [row | {"speedup": statistics.median(x)} for row, x in zip(results[0]["rows"], speedups, strict=True)]
    return results[0] | {"rows": rows}


def summary(result: dict[str, Any]) -> str:
    """Give a table: torch.mm's time over the wheel's, a row for each layer and a column for each m."""
    rows, ladder = result["rows"], list(dict.fromkeys(row["m"] for row in result["rows"]))
    found = {(row["layer"], row["m"]): row["speedup"] for row in rows}
    lines = [f"{result['device']}, {result['dtype']}, torch.mm's time over the wheel's", ""]
    lines += ["| layer | " + " | ".join(map(str, ladder)) + " |", "|---|" + "--:|" * len(ladder)]
    for name in dict.fromkeys(row["layer"] for row in rows):
        cells = (f"{found[name, m]:.3f}" if (name, m) in found else "" for m in ladder)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if rows:
        mean = statistics.geometric_mean(row["speedup"] for row in rows)
        lines += ["", f"geometric mean {mean:.3f}, least {min(row['speedup'] for row in rows):.3f}"]
    return "\n".join(lines)


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16", help="element type (bfloat16)")
    parser.add_argument("--layers", choices=LAYERS, nargs="+", default=list(LAYERS), help="all")
    parser.add_argument("--rows", type=positive, nargs="+", metavar="M", default=list(LADDER), help="rows of x")
    add_files(parser)
    values = parser.parse_args()
    if values.table:
        print_table(parser, values.table, joined, summary)
        return 0
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one, or give --table")
    rows: list[dict[str, Any]] = []
    result = {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dtype": values.dtype,
        "rows": rows,
    }
    torch.manual_seed(0)
    try:
        for name in values.layers:
            rows += [measure(name, m, getattr(torch, values.dtype)) for m in values.rows]
            print(f"{name} is done", file=sys.stderr, flush=True)
        result["clocks_after"] = clocks()
    finally:
        write(values.out, result)
    print(summary(result))
    return 0 if all(row["error"] <= TOLERANCE for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
