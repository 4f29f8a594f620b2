"""Time a stack of decoder layers with fusion on the graph: by Inductor's hooks, and by the backend without a compiler.

    PYTHONPATH=. python bench/graph.py --out graph.json
    PYTHONPATH=. python bench/graph.py --out graph.json --rows decode-1 prefill-512 --layers 4

Four variants over the same weights, which nothing moves: transformers' layers as they are, under torch.compile, under
torch.compile with `aot_gemm.torch.inductor_options()`, and with the backend "aot_gemm". Rows, weights, captures and
times are those of bench/model.py, and so are the errors: relative ones against the stack in float32.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `graph`
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aot_gemm
import aot_gemm.torch
import torch

from bench.model import Row, capture_passes, errors, expected_of, make_row
from bench.options import positive, write
from bench.protocol import interleave
from bench.stack import Shape, Stack, make_stack

ROWS = ("decode-1", "decode-8", "decode-32", "prefill-512")
VARIANTS: dict[str, Callable[[Stack], Any]] = {
    "stock": lambda stack: stack,
    "compiled": lambda stack: torch.compile(stack, fullgraph=True, dynamic=False),
    "inductor": lambda stack: torch.compile(
        stack, fullgraph=True, dynamic=False, options=aot_gemm.torch.inductor_options()
    ),
    "backend": lambda stack: torch.compile(stack, fullgraph=True, dynamic=False, backend="aot_gemm"),
}


def measure(row: Row, stack: Stack, reference: Stack) -> dict[str, Any]:
    """Run and time the variants on a row, each captured in a CUDA graph, in interleaved rounds."""
    graphs, results = {}, {}
    for name, make in VARIANTS.items():
        torch.compiler.reset()
        variant = make(stack)
        results[name] = variant(row.x, row.positions, row.cache).clone()
        graphs[name] = capture_passes(lambda variant=variant: variant(row.x, row.positions, row.cache), row.m)
    times = {name: round(statistics.median(values), 2) for name, values in interleave(graphs).items()}
    found: dict[str, Any] = {"row": row.name, "m": row.m} | {f"{name}_us": us for name, us in times.items()}
    found |= {f"{name}_speedup": round(times["compiled"] / us, 4) for name, us in times.items()}
    return found | errors(results, expected_of(reference, row))


def run(names: list[str], num_layers: int, cache: int) -> dict[str, Any]:
    """Measure rows of a Llama's layers in bfloat16."""
    shape = Shape(num_hidden_layers=num_layers)
    with torch.no_grad():
        rows = [make_row(name, shape, cache, torch.bfloat16, "cuda") for name in names]
        stack = make_stack(shape, torch.bfloat16, "cuda")
        reference = copy.deepcopy(stack).float()
        weights = [(x.mlp.gate_proj.weight.data_ptr(), x.mlp.up_proj.weight.data_ptr()) for x in stack.layers]
        return {
            "description": __doc__,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "wheel": aot_gemm.__version__,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "gates_in_front": sum(gate < up for gate, up in weights),
            "rows": [measure(row, stack, reference) for row in rows],
        }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--layers", type=positive, default=4, help="decoder layers (4)")
    parser.add_argument("--cache", type=positive, default=1024, help="tokens of the cache of decode rows (1024)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    values = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one")
    torch.manual_seed(values.seed)
    result = run(values.rows, values.layers, values.cache)
    write(values.out, result)
    for row in result["rows"]:
        print(", ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
