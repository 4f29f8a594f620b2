"""Hold `aot_gemm.torch.patch` against stock on five architectures, and time it on a stack of decoder layers.

    PYTHONPATH=. python research/bench/patch.py --out patch.json --max-seconds 90

Each architecture of `research/bench/architectures.py` runs as it is, patched, patched under torch.compile, unpatched,
and quantized. Errors are against the same model in float32; the patched one's may be at most SLACK times stock's. Then
a stack of decoder layers (see `research/bench/model.py`) is timed: stock, torch.compile, patch, and patch under
torch.compile, each captured in a CUDA graph, in interleaved rounds; `constant` has the promise that weights are
constant. torch.compile is told to refuse a graph break. What the time leaves no room for is left out, and said. With
--no-models the rows alone are timed:

    PYTHONPATH=. python research/bench/patch.py --out patch.json --no-models --layers 4 --max-seconds 130

With --fp8 the rows are of FP8 weights: quantize(model, "fp8") beside the same layers by torch._scaled_mm (see
`research/bench/fp8.py`), each with and without torch.compile. The quantized one's error may be at most FP8_SLACK
times torch's.

    PYTHONPATH=. python research/bench/patch.py --out fp8.json --no-models --fp8 --layers 2 --max-seconds 130
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import torch

from research.bench.architectures import Example, examples
from research.bench.fp8 import with_torch_fp8
from research.bench.host import clocks
from research.bench.model import SLACK, capture_passes, expected_of, make_row
from research.bench.options import add_files, positive, write
from research.bench.protocol import Captured, interleave, relative_error
from research.bench.stack import Shape, Stack, make_stack

ROWS = ("decode-1", "decode-16", "prefill-2048", "prefill-512", "decode-64", "decode-4", "prefill-8192")
"""The first matter most, should the time end."""
WIDTH = 512
"""Of the five architectures."""
BACKEND = "aot_eager"
"""Of torch.compile where results are compared: Inductor would take the time that the rows need."""
ROUTED_SLACK = 2.0
"""In the place of SLACK where tokens are routed to experts: near a tie, rounding sends one elsewhere as a whole."""
FP8_SLACK = 1.1
"""In the place of SLACK where torch's route quantizes too: both round to 3 bits, of other float32 values."""


@dataclass(frozen=True)
class Variants:
    """What is timed on the rows."""

    patches: dict[str, Callable[[Any], Any]]
    """What has a model compute by the wheel and returns its report, by the name of the variant."""
    compiled: dict[str, str]
    """The variants that are timed under torch.compile too, and their names there."""
    ratios: dict[str, tuple[str, str]]
    """By name: the slower variant and the faster one."""
    slack: float
    """How many times the error of stock, or of what stands for it, each other may have."""
    stock: Callable[[Stack], Stack] = copy.deepcopy
    """What makes stock of the stack."""

    @property
    def names(self) -> tuple[str, ...]:
        """List the variants, stock first."""
        return ("stock", *self.patches, *self.compiled.values())


BF16 = Variants(
    {"patch": aot_gemm.torch.patch, "constant": partial(aot_gemm.torch.patch, constant=True)},
    {"stock": "compiled", "patch": "patch_compiled", "constant": "constant_compiled"},
    {
        "patch_over_stock": ("stock", "patch"),
        "patch_compiled_over_compiled": ("compiled", "patch_compiled"),
        "constant_over_stock": ("stock", "constant"),
        "constant_compiled_over_compiled": ("compiled", "constant_compiled"),
    },
    SLACK,
)
FP8 = Variants(
    {"patch": lambda model: aot_gemm.torch.quantize(model, "fp8", constant=True)},
    {"stock": "compiled", "patch": "patch_compiled"},
    {
        "patch_over_stock": ("stock", "patch"),
        "patch_over_compiled": ("compiled", "patch"),
        "patch_compiled_over_compiled": ("compiled", "patch_compiled"),
    },
    FP8_SLACK,
    with_torch_fp8,
)


def check(example: Example) -> dict[str, Any]:
    """Compare one architecture under `patch` with itself."""
    model = example.model
    expected = example.call(copy.deepcopy(model).float())
    stock = example.call(model)
    found: dict[str, Any] = {"name": example.name, "stock_error": relative_error(stock, expected), "failures": []}
    report = aot_gemm.torch.patch(model)
    found |= {"swapped": len(report.swapped), "left": report.left}
    found["patch_error"] = relative_error(example.call(model), expected)
    torch.compiler.reset()
    try:
        found["compiled_error"] = relative_error(example.call(torch.compile(model, backend=BACKEND)), expected)
    except (RuntimeError, aot_gemm.AotGemmError) as error:
        found["failures"].append(f"torch.compile: {type(error).__name__}: {error}"[:500])
    aot_gemm.torch.unpatch(model)
    if not torch.equal(example.call(model), stock):
        found["failures"].append("unpatched, the model gives another result than before")
    allowed = (ROUTED_SLACK if "experts" in example.name else SLACK) * found["stock_error"]
    wrong = [key for key in ("patch_error", "compiled_error") if key in found and not found[key] <= allowed]
    found["failures"] += [f"{key} is {found[key]:.4g}; expected at most {allowed:.4g}" for key in wrong]
    return found


def quantize(example: Example) -> dict[str, Any]:
    """Say how far the quantized products of one architecture are from itself in its own type, and how large it is."""
    stock = example.call(example.model)
    found: dict[str, Any] = {}
    for kind in ("fp8", "int8"):
        model = copy.deepcopy(example.model)
        report = aot_gemm.torch.quantize(model, kind)
        found[f"{kind}_quantized"] = len(report.quantized)
        found[f"{kind}_bytes_ratio"] = round(report.bytes_after / report.bytes_before, 4)
        found[f"{kind}_error"] = relative_error(example.call(model), stock)
    return found


def measure(
    name: str, stacks: dict[str, Stack], kind: Variants, reference: Stack, cache: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Time the variants on a row, such as decode-16: the stacks, and some of them under torch.compile.

    Errors are against the reference, as it is, in float32.
    """
    row = make_row(name, Shape(), cache, torch.bfloat16, "cuda")
    torch.compiler.reset()
    compiled = {y: torch.compile(stacks[x], fullgraph=True, dynamic=False) for x, y in kind.compiled.items()}
    expected = expected_of(copy.deepcopy(reference).float(), row) if row.m <= 2048 else None
    found: dict[str, Any] = {"row": name, "m": row.m, "failures": []}
    graphs: dict[str, Captured] = {}
    for key, variant in (stacks | compiled).items():
        start = time.monotonic()
        try:
            result = variant(row.x, row.positions, row.cache).clone()
            graphs[key] = capture_passes(lambda variant=variant: variant(row.x, row.positions, row.cache), row.m)
            found[f"{key}_error"] = None if expected is None else relative_error(result, expected)
        except (RuntimeError, aot_gemm.AotGemmError) as error:
            found["failures"].append(f"{key}: {type(error).__name__}: {error}"[:500])
        say(f"{name} {key}: {time.monotonic() - start:.1f} s")
    times = {key: statistics.median(values) for key, values in interleave(graphs).items()}
    found |= {f"{key}_us": round(value, 2) for key, value in times.items()}
    found |= {key: round(times[a] / times[b], 4) for key, (a, b) in kind.ratios.items() if a in times and b in times}
    limit = kind.slack * (found.get("stock_error") or float("inf"))
    wrong = [x for x in kind.names if x not in ("stock", "compiled") and (found.get(f"{x}_error") or 0.0) > limit]
    found["failures"] += [f"{x}: error {found[f'{x}_error']:.4g}; expected at most {limit:.4g}" for x in wrong]
    return found


def train(say: Callable[[str], None]) -> dict[str, Any]:
    """Compare a training step's loss and gradients of a small language model, patched and as it is."""
    example = examples(WIDTH, torch.bfloat16, "cuda")[0]
    model = example.model.train()

    def step() -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        loss = example.call(model).float().square().mean()
        loss.backward()
        return float(loss.detach()), [x.grad.clone() for x in model.parameters() if x.grad is not None]

    loss, gradients = step()
    with aot_gemm.torch.patched(model):
        got, other = step()
    errors = [relative_error(a, b) for a, b in zip(other, gradients, strict=True)]
    say(f"training step: loss {got:.5f} against {loss:.5f}, gradients off by {max(errors):.3g} at worst")
    return {"loss": got, "stock_loss": loss, "worst_gradient_error": max(errors)}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW")
    parser.add_argument("--fp8", action="store_true", help="time FP8 weights, beside torch._scaled_mm")
    parser.add_argument(
        "--no-models", action="store_true", help="leave out the five architectures and the training step"
    )
    parser.add_argument("--layers", type=positive, default=2, help="decoder layers (2)")
    parser.add_argument(
        "--cache", type=positive, default=1024, help="tokens of the key-value cache of decode rows (1024)"
    )
    parser.add_argument("--max-seconds", type=float, default=85.0, help="begin no row after this (85)")
    add_files(parser)
    return parser.parse_args()


def check_all(five: list[Example], result: dict[str, Any], out: Path, say: Callable[[str], None]) -> None:
    """Compare each architecture with itself."""
    for example in five:
        found = check(example)
        result["architectures"].append(found)
        write(out, result)
        errors = {key: f"{value:.3g}" for key, value in found.items() if key.endswith("_error")}
        say(f"{example.name}: {found['swapped']} swapped, {errors} {found['failures']}")


def time_rows(
    values: argparse.Namespace, kind: Variants, start: float, result: dict[str, Any], say: Callable[[str], None]
) -> None:
    """Time the variants on the rows, as far as the time goes."""
    stack = make_stack(Shape(num_hidden_layers=values.layers), torch.bfloat16, "cuda")
    stacks = {"stock": kind.stock(stack)} | {name: copy.deepcopy(stack) for name in kind.patches}
    reports = {name: patch(stacks[name]) for name, patch in kind.patches.items()}
    result["report"] = str(reports["patch"])
    for name in values.rows:
        if time.monotonic() - start > values.max_seconds:
            say(f"{name} is left out: {values.max_seconds:g} s are over")
            continue
        row = measure(name, stacks, kind, stack, values.cache, say)
        result["rows"].append(row)
        write(values.out, result)
        say(f"{name}: { ({key: row.get(key) for key in kind.ratios}) } {row['failures']}")


def main() -> int:
    """Check, measure, print and write."""
    values, start = parse(), time.monotonic()
    kind = FP8 if values.fp8 else BF16

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:5.1f} s  {text}", file=sys.stderr, flush=True)

    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "wheel": aot_gemm.__version__}
    result: dict[str, Any] = {**found, "weights": "fp8" if values.fp8 else "bf16", "architectures": [], "rows": []}
    five = [] if values.no_models else examples(WIDTH, torch.bfloat16, "cuda")
    with torch.no_grad():
        check_all(five, result, values.out, say)
        time_rows(values, kind, start, result, say)
    if not values.no_models:
        result["training"] = train(say)
    with torch.no_grad():
        for example, row in zip(five, result["architectures"], strict=True):
            quantized = quantize(example)
            row.update(quantized)
            say(f"{example.name}: {quantized}")
    result["clocks"] = clocks()
    write(values.out, result)
    for row in result["rows"]:
        texts = [f"{key} {row[f'{key}_us']:.0f} us" for key in kind.names if f"{key}_us" in row]
        print(f"{row['row']}: {', '.join(texts)}; { ({key: row.get(key) for key in kind.ratios}) } {row['failures']}")
    return 1 if any(x["failures"] for x in (*result["architectures"], *result["rows"])) else 0


if __name__ == "__main__":
    sys.exit(main())
