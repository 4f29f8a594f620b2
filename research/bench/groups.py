"""Time groups, batches and results that repeat bit for bit, as the wheel dispatches them, on this machine's GPU.

    PYTHONPATH=. python research/bench/groups.py --out groups.json

from the repository's root, with a wheel of the presets default, attention and moe, with batch-invariant tables, torch
and, for layers, transformers. In turn: experts' products beside torch._grouped_mm (`grouped`), float8 with blocks of
factors beside bfloat16 (`fp8`), batches beside torch.bmm (`batched`), those of the shape set `batches_heldout`
(`heldout`), deterministic and batch-invariant linear beside the default (`modes`), and whole layers beside
transformers' (`layers`; see research/bench/moe.py). Medians over interleaved rounds of CUDA-graph replays, which read
operands from memory. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `groups`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from aot.core.shape_set import load_shape_set
from research.bench.moe import (
    LARGEST_ERROR,
    LARGEST_FP8_ERROR,
    MODELS,
    TOKENS,
    Model,
    Weights,
    layer_row,
    product_row,
    routed,
)
from research.bench.options import write
from research.bench.protocol import L2_MULTIPLE, capture, interleave, make_sets, relative_error

PARTS = ("grouped", "fp8", "batched", "heldout", "modes", "layers")
BATCHES = (
    ("scores", 32, 512, 512, 128, "kk"),
    ("values", 32, 512, 128, 512, "kn"),
    ("scores", 128, 512, 512, 128, "kk"),
    ("values", 128, 512, 128, 512, "kn"),
    ("scores", 32, 2048, 2048, 128, "kk"),
    ("values", 32, 2048, 128, 2048, "kn"),
    ("scores", 128, 128, 2048, 128, "kk"),
    ("values", 128, 128, 128, 2048, "kn"),
    ("scores", 32, 1024, 1024, 128, "kk"),
    ("values", 32, 1024, 128, 1024, "kn"),
    ("square", 128, 256, 256, 256, "kn"),
    ("square", 32, 512, 512, 512, "kn"),
    ("square", 8, 1024, 1024, 1024, "kn"),
    ("square", 4, 4096, 4096, 4096, "kn"),
)
"""What is multiplied, the products, m, n, k and how B is held: heads of 128, of some batch; and equal sides."""
WEIGHTS = ((4096, 4096), (6144, 4096), (1024, 4096))
"""(n, k) of the modes' linear layers: those of an 8B language model's attention."""
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SMALL = 512
"""Largest m of the mean that the price of a mode is stated by."""
BLOCK = 128
MAX_SETS = 64

Row = dict[str, Any]
Batch = tuple[str, int, int, int, int, str]


def medians(calls: dict[str, Callable[..., object]], sets: Sequence[tuple[Any, ...]]) -> dict[str, float]:
    """Time calls over the same sets of operands, in the same rounds; microseconds."""
    graphs = {name: capture(call, sets) for name, call in calls.items()}
    return {name: round(statistics.median(times), 2) for name, times in interleave(graphs).items()}


def blocks(values: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round values (..., rows, k) to float8 by blocks of some rows and 128 of k; give them and the factors."""
    *lead, count, k = values.shape
    parted = values.float().view(*lead, count // rows, rows, k // BLOCK, BLOCK)
    scale = parted.abs().amax((-3, -1), keepdim=True).clamp_min(1e-12) / 448
    rounded = (parted / scale).to(torch.float8_e4m3fn).view(values.shape)
    return rounded, scale.squeeze(-1).squeeze(-2).contiguous()


def grouped(wheel: Any, tokens: Sequence[int]) -> Iterator[Row]:
    """Time the first product of each model's experts, with even and with skewed loads."""
    for model in MODELS:
        experts = Weights.of(model)
        for count in tokens:
            for is_skewed in (False, True):
                yield product_row(wheel, model, experts, count, is_skewed=is_skewed)


def _eights(experts: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """Round the first weights expert by expert: in float32 all at once would not fit."""
    parts = [blocks(weight, BLOCK) for weight in experts.gate_up]
    return torch.stack([x for x, _ in parts]), torch.stack([x for _, x in parts])


def fp8_row(wheel: Any, model: Model, experts: Weights, eights: tuple[torch.Tensor, torch.Tensor], tokens: int) -> Row:
    """Time a product with blocks of factors beside that of bfloat16; the rows are rounded beforehand."""
    routes = routed(wheel, model, tokens, is_skewed=False)
    x = torch.randn(tokens, model.hidden, device="cuda", dtype=torch.bfloat16)[routes.token_of.long()]
    (rows, scale_x), (weight, scale_w) = blocks(x, 1), eights
    out = torch.empty(len(rows), weight.shape[1], device="cuda", dtype=torch.bfloat16)
    named = {"scale_x": scale_x, "scale_w": scale_w, "out_dtype": torch.bfloat16}
    plain = wheel.grouped_linear(x, experts.gate_up, routes.offsets)
    error = relative_error(wheel.grouped_linear(rows, weight, routes.offsets, **named), plain)
    calls: dict[str, Callable[..., object]] = {
        "wheel": lambda: wheel.grouped_linear(rows, weight, routes.offsets, out=out, **named),
        "bf16": lambda: wheel.grouped_linear(x, experts.gate_up, routes.offsets, out=out),
    }
    return {"model": model.name, "tokens": tokens, "us": medians(calls, [(), ()]), "errors_fp8": [error]}


def fp8(wheel: Any, tokens: Sequence[int]) -> Iterator[Row]:
    """Time float8 of each model's experts."""
    for model in MODELS:
        experts = Weights.of(model)
        eights = _eights(experts)
        for count in tokens:
            yield fp8_row(wheel, model, experts, eights, count)


def batched(wheel: Any, _tokens: Sequence[int]) -> Iterator[Row]:
    """Time batches."""
    return batch_rows(wheel, BATCHES)


def heldout(wheel: Any, _tokens: Sequence[int]) -> Iterator[Row]:
    """Time the batches that no selection is made from, most of which are not aligned."""
    shapes = load_shape_set("batches_heldout")
    problems = [problem for operation in shapes.operations for problem in shapes.problems(operation)]
    return batch_rows(wheel, [("heldout", x.num_groups, x.m, x.n, x.k, x.operation.layout.value) for x in problems])


def batch_rows(wheel: Any, batches: Sequence[Batch]) -> Iterator[Row]:
    """Time batches."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    draw = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    for name, batch, m, n, k, layout in batches:
        num_bytes = 2 * batch * (m * k + n * k + m * n)
        sets = []
        for _ in range(max(2, min(MAX_SETS, math.ceil(L2_MULTIPLE * l2_bytes / num_bytes)))):
            b = draw(batch, n, k).mT if layout == "kk" else draw(batch, k, n)
            sets.append((draw(batch, m, k), b, draw(batch, m, n)))
        a, b, _ = sets[0]
        error = relative_error(wheel.matmul(a, b), torch.bmm(a, b))
        calls: dict[str, Callable[..., object]] = {
            "wheel": lambda a, b, out: wheel.matmul(a, b, out=out),
            "torch": lambda a, b, out: torch.bmm(a, b, out=out),
        }
        plan = wheel.plan(m, n, k, "bfloat16", layout, batch=batch)
        named = {"name": name, "batch": batch, "m": m, "n": n, "k": k, "layout": layout, "kernel": plan.kernel}
        yield named | {"us": medians(calls, sets), "errors": [error]}


def modes(wheel: Any, _tokens: Sequence[int]) -> Iterator[Row]:
    """Time linear layers in each mode; the two modes' results must be those of the default but for rounding."""
    for n, k in WEIGHTS:
        for m in ROWS:
            sets = make_sets(m, n, k, torch.bfloat16)
            x, weight, _ = sets[0]
            expected = wheel.linear(x, weight)
            given: dict[str, dict[str, bool]] = {"default": {}}
            given |= {name: {name: True} for name in ("deterministic", "batch_invariant")}
            errors = [relative_error(wheel.linear(x, weight, **flags), expected) for flags in given.values()]
            calls: dict[str, Callable[..., object]] = {
                name: lambda x, weight, out, flags=flags: wheel.linear(x, weight, out=out, **flags)
                for name, flags in given.items()
            }
            yield {"m": m, "n": n, "k": k, "us": medians(calls, sets), "errors": errors}


def layers(wheel: Any, tokens: Sequence[int]) -> Iterator[Row]:
    """Time whole layers."""
    for model in MODELS:
        experts = Weights.of(model)
        for count in tokens:
            yield layer_row(wheel, model, experts, count)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, or NaN of nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def _speedups(rows: Sequence[Row], ours: str, theirs: str, what: str) -> str:
    found = [row["us"][theirs] / row["us"][ours] for row in rows if ours in row["us"] and theirs in row["us"]]
    least = f"{min(found):.2f}" if found else "none"
    return f"{what}: geometric mean {geometric_mean(found):.3f} of {len(found)}, least {least}"


def _grouped_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        us = row["us"]
        pairs = [(us["wheel"], us["torch"]), (us["wheel gathered, SwiGLU"], us["torch gathered, SwiGLU"])]
        told = "; gathered, SwiGLU ".join(f"{a:8.1f} torch {b:8.1f} {b / a:5.2f}x" for a, b in pairs)
        yield f"{row['model']:26} {row['tokens']:5} {'skewed' if row['skew'] else 'even':6} {told}"
    yield _speedups(rows, "wheel", "torch", "grouped")
    yield _speedups(rows, "wheel gathered, SwiGLU", "torch gathered, SwiGLU", "gathered, SwiGLU")


def _fp8_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        us = row["us"]
        ratio = us["bf16"] / us["wheel"]
        yield f"{row['model']:26} {row['tokens']:5} blocks {us['wheel']:8.1f} bf16 {us['bf16']:8.1f} {ratio:5.2f}x"
    yield _speedups([x for x in rows if x["tokens"] >= 1024], "wheel", "bf16", "fp8, blocks, from 1024 tokens on")


def _batched_lines(rows: Sequence[Row], what: str = "batched") -> Iterator[str]:
    for row in rows:
        us = row["us"]
        sizes = " ".join(f"{x} {row[x]:4}" for x in ("batch", "m", "n", "k"))
        times = f"{us['wheel']:8.1f} bmm {us['torch']:8.1f} {us['torch'] / us['wheel']:5.2f}x"
        yield f"{row['name']} {sizes} {row['layout']} {times} {row['kernel'][:60]}"
    yield _speedups(rows, "wheel", "torch", what)


def _modes_lines(rows: Sequence[Row]) -> Iterator[str]:
    for mode in ("deterministic", "batch_invariant"):
        for n, k in WEIGHTS:
            found = {x["m"]: x["us"][mode] / x["us"]["default"] for x in rows if (x["n"], x["k"]) == (n, k)}
            yield f"{mode:15} n {n} k {k} " + " ".join(f"m{m} {ratio:.2f}" for m, ratio in found.items())
        small = [x["us"][mode] / x["us"]["default"] for x in rows if x["m"] <= SMALL]
        yield f"{mode}: price to m {SMALL} in the geometric mean {geometric_mean(small):.3f} of {len(small)}"


def _layers_lines(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        refused = " ".join(row[x][:60] for x in ("transformers_refused", "fp8_refused") if x in row)
        times = " ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
        yield f"{row['model']:26} {row['tokens']:5} layer {times} {refused}".rstrip()
    for ours in ("wheel", "wheel fp8"):
        yield _speedups(rows, ours, "transformers compiled", f"layer, {ours} beside transformers compiled")


LINES: dict[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "grouped": _grouped_lines,
    "fp8": _fp8_lines,
    "batched": _batched_lines,
    "heldout": partial(_batched_lines, what="heldout"),
    "modes": _modes_lines,
    "layers": _layers_lines,
}
"""What writes the rows of each part."""
MEASURES: dict[str, Callable[[Any, Sequence[int]], Iterator[Row]]] = {
    "grouped": grouped,
    "fp8": fp8,
    "batched": batched,
    "heldout": heldout,
    "modes": modes,
    "layers": layers,
}
"""What measures each part, given the wheel and numbers of tokens."""


def wrong(result: dict[str, Any]) -> list[str]:
    """List the rows whose result is not as expected. A NaN is not."""
    found = []
    for part in PARTS:
        for row in result.get(part, []):
            right = all(x <= LARGEST_ERROR for x in row.get("errors", []))
            if not (right and all(x <= LARGEST_FP8_ERROR for x in row.get("errors_fp8", []))):
                sizes = {key: value for key, value in row.items() if key not in {"us", "kernel"}}
                found.append(f"WRONG {part} {sizes}")
    return found


def summary(result: dict[str, Any]) -> str:
    """Write a line for each row: microseconds, and how many times as fast as the other the wheel is; then the means."""
    lines = [line for part in PARTS if result.get(part) for line in LINES[part](result[part])]
    lines += [f"{part} ended early: {reason}" for part, reason in result.get("refused", {}).items()]
    return "\n".join([*lines, *wrong(result)])


def measure(wheel: Any, values: argparse.Namespace, start: float) -> dict[str, Any]:
    """Measure the parts asked for, until the time is over."""
    result: dict[str, Any] = {"refused": {}}
    for part in values.parts:
        result[part] = []
        tokens = values.layer_tokens if part == "layers" else values.tokens
        try:
            for row in MEASURES[part](wheel, tokens):
                result[part].append(row)
                if time.monotonic() - start > values.max_seconds:
                    result["refused"][part] = "the time was over"
                    return result
        except wheel.AotGemmError as error:
            result["refused"][part] = str(error).splitlines()[0]
        print(f"[{time.monotonic() - start:5.1f} s] {part}: {len(result[part])} rows", file=sys.stderr)
        torch.cuda.empty_cache()
    return result


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (all)")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="numbers of tokens of products")
    parser.add_argument("--layer-tokens", type=int, nargs="+", default=list(TOKENS), help="numbers of tokens of layers")
    parser.add_argument("--max-seconds", type=float, default=300, help="start nothing after this time (300)")
    return parser.parse_args(given)


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    values, start = arguments(), time.monotonic()
    wheel = importlib.import_module(values.package)
    result: dict[str, Any] = {"description": __doc__, "device": torch.cuda.get_device_name()}
    result |= {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    with torch.no_grad():
        result |= measure(wheel, values, start)
    write(values.out, result)
    print(summary(result))
    return 1 if wrong(result) else 0


if __name__ == "__main__":
    sys.exit(main())
