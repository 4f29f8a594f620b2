"""Time products of the installed wheel and of torch alone, and inside a captured layer.

    PYTHONPATH=. python research/bench/captured.py --out captured.json
    PYTHONPATH=. python research/bench/captured.py --table captured.json

A product alone has a cold L2 and stands behind itself. In a model its x was written by the norm in front, so that the
L2 holds it, the kernel in front takes part in no programmatic launch, and the sum behind reads what it wrote. So each
product is timed both ways, in the same interleaved rounds of CUDA-graph replays: alone, over operands that exceed the
L2 three times over, and in a layer: torch's RMSNorm of one hidden state, the product by one of as many weights as
exceed the L2, and torch's sum with a residual, whose memory is the same each time. `neighbours_us` is of the norm and
the sum without the product. For `--compiled` weights the layer is compiled by Inductor besides, as it is and with
`aot_gemm.torch.inductor_options()`, for any number of rows: `inductor_us` and `wheel_inductor_us`.

`research/bench/captured_summary.py` says what the difference of the two is made of, and makes the correction.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `captured`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import torch
from aot_gemm._gain import measured_gain

from research.bench.atlas import Pool, ours, theirs
from research.bench.captured_summary import joined, summary
from research.bench.host import clocks
from research.bench.options import add_files, positive, print_table, write
from research.bench.protocol import TOLERANCE, Call, Captured, Operands, capture, interleave, relative_error

WEIGHTS = (
    *((896, 896), (4864, 896), (896, 4864)),  # Qwen2.5 0.5B
    *((1024, 1024), (3072, 1024), (1024, 3072)),  # Qwen3 0.6B, ViT-L
    *((1152, 1152), (4304, 1152), (1152, 4304)),  # SigLIP so400m
    *((2048, 2048), (512, 2048), (8192, 2048), (2048, 8192)),  # Llama 3.2 1B
    *((2560, 2560), (9728, 2560), (2560, 9728)),  # Qwen3 4B
    *((3584, 3584), (18944, 3584), (3584, 18944)),  # Qwen2.5 7B
    *((4096, 4096), (1024, 4096), (6144, 4096), (14336, 4096), (28672, 4096), (4096, 14336)),  # Llama 3 8B
    *((5120, 5120), (17920, 5120)),  # Phi 4
    *((8192, 8192), (10240, 8192), (8192, 28672)),  # Llama 3 70B
)
"""(n, k), of the configurations that the models are published with."""
COMPILED = ((4096, 4096), (1024, 3072), (8192, 2048), (3584, 18944), (1152, 4304), (14336, 4096))
"""Weights that Inductor compiles besides, the first ones where fewer are asked for."""
LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LEAST_COMPILED = 2
"""Rows from which on a graph that is compiled for any number of rows is asked: one row is a graph of its own."""
EPS = 1e-6
GRAPH_US = 1000.0
"""Length of a graph: two thirds of the bench's, so that 390 products take less than four minutes."""


@dataclass(frozen=True)
class Activations:
    """What a layer reads and writes beside the weight, of m, n and k."""

    hidden: torch.Tensor
    """(m, k)."""
    gain: torch.Tensor
    """(k,), of the norm."""
    residual: torch.Tensor
    """(m, n), as are the next two."""
    out: torch.Tensor
    result: torch.Tensor

    @staticmethod
    def drawn(m: int, n: int, k: int, dtype: torch.dtype) -> Activations:
        """Draw the inputs, and make room for the results."""
        hidden, gain, residual = (torch.randn(size, device="cuda").to(dtype) for size in ((m, k), (k,), (m, n)))
        return Activations(hidden, gain, residual, torch.empty_like(residual), torch.empty_like(residual))

    def norm(self) -> torch.Tensor:
        """Return the norm of the hidden state."""
        return torch.nn.functional.rms_norm(self.hidden, self.gain.shape, self.gain, EPS)


def layer_of(product: Call, on: Activations) -> Call:
    """Give a call of a product's weight that enqueues the norm, the product, and the sum."""

    def call(_x: torch.Tensor, weight: torch.Tensor, _out: torch.Tensor) -> None:
        product(on.norm(), weight, on.out)
        torch.add(on.out, on.residual, out=on.result)

    return call


def neighbours_of(on: Activations) -> Call:
    """Give a call that enqueues the norm and the sum alone."""

    def call(_x: torch.Tensor, _weight: torch.Tensor, _out: torch.Tensor) -> None:
        on.norm()
        torch.add(on.out, on.residual, out=on.result)

    return call


Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(hidden, gain, weight, residual) to the layer's result."""


def mark_rows(on: Activations) -> None:
    """Tell torch.compile that the number of rows will change."""
    for tensor in (on.hidden, on.residual):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)  # noqa: SLF001 - what torch documents for it


def compiled_layers(n: int, k: int, dtype: torch.dtype) -> dict[str, Layer]:
    """Compile a layer of a weight (n, k) for any number of rows, by Inductor alone and with the wheel's products."""

    def layer(hidden: torch.Tensor, gain: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.rms_norm(hidden, gain.shape, gain, EPS)
        return torch.nn.functional.linear(x, weight) + residual

    torch.compiler.reset()
    found: dict[str, Layer] = {
        "inductor": torch.compile(layer, fullgraph=True),
        "wheel_inductor": torch.compile(layer, fullgraph=True, options=aot_gemm.torch.inductor_options()),
    }
    on = Activations.drawn(LADDER[4], n, k, dtype)
    mark_rows(on)
    weight = torch.randn(n, k, device="cuda").to(dtype)
    for made in found.values():
        made(on.hidden, on.gain, weight, on.residual)
    return found


def call_of(layer: Layer, on: Activations) -> Call:
    """Give a call of a product's weight that enqueues a compiled layer."""

    def call(_x: torch.Tensor, weight: torch.Tensor, _out: torch.Tensor) -> None:
        layer(on.hidden, on.gain, weight, on.residual)

    return call


def compare(m: int, n: int, k: int, pool: Pool, layers: dict[str, Layer]) -> dict[str, Any]:
    """Time wheel and torch on one product, alone and in layers, in the same rounds; compare their results.

    Args:
        m: rows of x.
        n: rows of the weight.
        k: columns of both.
        pool: where the operands are.
        layers: compiled ones by the name of their time, or none.

    Raises:
        AotGemmError: the wheel refuses the product, or fails.
        OutOfMemoryError: the operands do not fit.
    """
    dtype = pool.inputs.dtype
    sets: list[Operands] = pool.sets(m, n, k)
    compiled = layers if m >= LEAST_COMPILED else {}
    on = Activations.drawn(m, n, k, dtype)
    calls: dict[str, Call] = {"wheel": ours, "torch": theirs, "neighbours": neighbours_of(on)}
    calls |= {f"{name}_layer": layer_of(calls[name], on) for name in ("wheel", "torch")}
    graphs: dict[str, Captured] = {name: capture(call, sets, GRAPH_US) for name, call in calls.items()}
    row: dict[str, Any] = {"m": m, "n": n, "k": k}
    try:
        graphs |= {name: capture(call_of(layer, on), sets, GRAPH_US) for name, layer in compiled.items()}
    except Exception as error:  # noqa: BLE001 - the other columns are worth having without
        row["compiled_failure"] = f"{type(error).__name__}: {error}"[:300]
    results = []
    for name in ("wheel", "torch"):
        calls[f"{name}_layer"](*sets[0])
        results.append(on.result.clone())
    name, gain = str(dtype).removeprefix("torch."), measured_gain(m, n, k, dtype)
    planned = aot_gemm.plan(m, n, k, name)
    row |= {"kernel": planned.kernel, "tier": planned.tier, "table_gain": gain}
    us = {f"{name}_us": round(median(values), 3) for name, values in interleave(graphs).items()}
    return row | us | {"error": round(relative_error(*results), 6)}


def in_turn(seed: int, num_compiled: int, rows: Sequence[int]) -> Iterator[tuple[tuple[int, int], bool, list[int]]]:
    """Give weights, whether Inductor compiles them, and the rows of each: compiled ones first, others at random."""
    rest = [x for x in WEIGHTS if x not in COMPILED[:num_compiled]]
    random.Random(seed).shuffle(rest)  # noqa: S311 - of an order
    for weight in (*COMPILED[:num_compiled], *rest):
        yield weight, weight not in rest, list(rows)


def run(result: dict[str, Any], values: argparse.Namespace, report: Callable[[str], None]) -> None:
    """Measure until the time is over; put rows and failures into `result`, as they come."""
    start = time.monotonic()
    dtype = getattr(torch, values.dtype)
    pool = Pool([(n, k, m) for n, k in WEIGHTS for m in values.rows], dtype)
    for (n, k), is_compiled, rows in in_turn(values.seed, values.compiled, values.rows):
        layers: dict[str, Layer] = {}
        if is_compiled and time.monotonic() - start < values.max_seconds:
            try:
                layers = compiled_layers(n, k, dtype)
            except Exception as error:  # noqa: BLE001 - the other columns are worth having without
                reason = f"{type(error).__name__}: {error}"[:300]
                result["failures"].append({"m": 0, "n": n, "k": k, "reason": reason})
        for m in rows:
            if time.monotonic() - start > values.max_seconds:
                result["left_out"].append((m, n, k))
                continue
            try:
                result["rows"].append(compare(m, n, k, pool, layers))
            except (aot_gemm.AotGemmError, torch.OutOfMemoryError) as error:
                reason = f"{type(error).__name__}: {error}"
                result["failures"].append({"m": m, "n": n, "k": k, "reason": reason})
        report(f"n {n}, k {k}: {len(result['rows'])} products")
    wrong = (x for x in result["rows"] if not x["error"] <= TOLERANCE)  # NaN is not
    result["failures"] += [{**{x: row[x] for x in "mnk"}, "reason": f"relative error {row['error']}"} for row in wrong]
    result["seconds"] = round(time.monotonic() - start, 1)
    result["clocks_after"] = clocks()


def main() -> int:
    """Run from the command line; 1 if a result was wrong or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16", help="element type (bfloat16)")
    parser.add_argument("--rows", type=positive, nargs="+", metavar="M", default=list(LADDER), help="rows of x")
    parser.add_argument("--compiled", type=int, default=len(COMPILED), help="weights that Inductor compiles, too")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which weights are measured")
    parser.add_argument("--max-seconds", type=float, default=200, help="start no product after this time (200)")
    add_files(parser)
    values = parser.parse_args()
    if values.table:
        print_table(parser, values.table, joined, summary)
        return 0
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one, or give --table")
    result: dict[str, Any] = {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dtype": values.dtype,
        "rows": [],
        "left_out": [],
        "failures": [],
    }
    torch.manual_seed(values.seed)
    start = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - start:5.1f} s] {line}", file=sys.stderr, flush=True)

    try:
        with torch.no_grad():
            run(
                result, values, lambda x: print(f"[{time.monotonic() - start:5.1f} s] {x}", file=sys.stderr, flush=True)
            )
    finally:
        write(values.out, result)
    print(summary(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
