"""Time a stack of decoder layers with fusion on the graph: by Inductor's hooks, and by the backend without a compiler.

    PYTHONPATH=. python research/bench/graph.py --out graph.json
    PYTHONPATH=. python research/bench/graph.py --out graph.json --rows decode-1 prefill-512 --layers 4
    PYTHONPATH=. python research/bench/graph.py --out models.json --models qwen2 --rows decode-1 prefill-600

Four variants over the same weights, which nothing moves: transformers' layers as they are, under torch.compile, under
torch.compile with `aot_gemm.torch.inductor_options()`, and with the backend "aot_gemm". Rows, weights, captures and
times are those of research/bench/model.py, and so are the errors: relative ones against the stack in float32. With
--models the rows are of whole models (see research/bench/graph_models.py), and a variant that fails is said
with its reason.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `graph`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import torch

from research.bench.graph_models import SIZES, Called, Input, make_input, make_model
from research.bench.model import Row, capture_passes, errors, expected_of, make_row
from research.bench.options import positive, write
from research.bench.protocol import interleave
from research.bench.stack import Shape, Stack, make_stack

ROWS = ("decode-1", "decode-8", "decode-32", "prefill-512")
VARIANTS: dict[str, Callable[[Any], Any]] = {
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


def measure_model(name: str, row: Input, model: Called, reference: Called) -> dict[str, Any]:
    """Run and time the variants of a whole model on a row.

    `VARIANT_of_best` is the better of stock's and torch.compile's times over the variant's.
    """
    graphs, results, failures = {}, {}, {}
    for variant_name, make in VARIANTS.items():
        torch.compiler.reset()
        try:
            variant = make(model)
            results[variant_name] = variant(row.values).clone()
            graphs[variant_name] = capture_passes(lambda variant=variant: variant(row.values), row.m)
        except (RuntimeError, aot_gemm.AotGemmError) as error:
            failures[variant_name] = f"{type(error).__name__}: {error}"[:300]
    times = {key: round(statistics.median(values), 2) for key, values in interleave(graphs).items()}
    found: dict[str, Any] = {"model": name, "row": row.name, "m": row.m, "failures": failures}
    found |= {f"{key}_us": us for key, us in times.items()}
    library = [times[key] for key in ("stock", "compiled") if key in times]
    if library:
        found |= {
            f"{key}_of_best": round(min(library) / times[key], 4) for key in ("inductor", "backend") if key in times
        }
    return found | (errors(results, reference(row.values)) if "stock" in results else {})


def run_models(names: list[str], rows: list[str], num_layers: int, max_seconds: float) -> Iterator[dict[str, Any]]:
    """Measure rows of whole models in bfloat16, one after the other; no row is begun after max_seconds."""
    start = time.monotonic()
    for name in names:
        model = make_model(name, num_layers, torch.bfloat16, "cuda")
        reference = copy.deepcopy(model).float()
        for row in rows:
            if time.monotonic() - start > max_seconds:
                print(f"{name} {row}: left out, {max_seconds:g} s are over", file=sys.stderr)
                continue
            yield measure_model(name, make_input(name, row, "cuda"), model, reference)


def describe() -> dict[str, Any]:
    """Return what is known of a run before its rows."""
    return {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def run_layers(names: list[str], num_layers: int, cache: int) -> Iterator[dict[str, Any]]:
    """Measure rows of a Llama's layers in bfloat16, one after the other."""
    shape = Shape(num_hidden_layers=num_layers)
    rows = [make_row(name, shape, cache, torch.bfloat16, "cuda") for name in names]
    stack = make_stack(shape, torch.bfloat16, "cuda")
    reference = copy.deepcopy(stack).float()
    for row in rows:
        yield measure(row, stack, reference)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--models", nargs="+", choices=list(SIZES), help="whole models in the place of Llama's layers")
    parser.add_argument("--max-seconds", type=float, default=540, help="of --models: begin no row later (540)")
    parser.add_argument("--layers", type=positive, default=4, help="decoder layers (4)")
    parser.add_argument("--cache", type=positive, default=1024, help="tokens of the cache of decode rows (1024)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    values = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one")
    torch.manual_seed(values.seed)
    if values.models:
        rows = run_models(values.models, values.rows, values.layers, values.max_seconds)
    else:
        rows = run_layers(values.rows, values.layers, values.cache)
    result = describe() | {"rows": []}
    with torch.no_grad():
        for row in rows:  # each is kept, so that what ends the run loses none
            result["rows"].append(row)
            write(values.out, result)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
