"""Time a stack of decoder layers from transformers, of random weights, with the installed wheel and without.

    PYTHONPATH=. python research/bench/model.py --out model.json
    PYTHONPATH=. python research/bench/model.py --out model.json --rows decode-1 prefill-2048 --layers 4
    PYTHONPATH=. python research/bench/model.py --table run1.json run2.json run3.json

Four variants over the same weights: transformers' layers as they are, the same with every Linear through the wheel, and
both under torch.compile, where the wheel is an operator that the compiler does not look into. Each is captured in a
CUDA graph of several passes; times are medians over interleaved rounds of replays, a pass each. A row decode-B is one
token of each of B sequences whose key-value cache has --cache tokens, the new one among them; a row prefill-T is one
sequence of T tokens, without a cache. Beside them stand the Linears alone, back to back in a graph, by torch and by the
wheel; their share is torch's over the time of torch.compile. Results are compared with those of the stack in float32:
the wheel's error may be at most SLACK times that of the stack as it is.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, beside which this file itself would be found as `model`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import torch

from research.bench.host import clocks
from research.bench.options import add_files, positive, print_table, write
from research.bench.protocol import Captured, capture, interleave, relative_error, spread
from research.bench.stack import Cache, Shape, Stack, linears, make_stack, promise_constant, register, with_wheel

ROWS = (
    *("decode-1", "decode-4", "decode-16", "decode-32", "decode-64"),
    *("prefill-128", "prefill-512", "prefill-2048", "prefill-8192"),
)
VARIANTS = ("stock", "wheel", "compiled", "compiled_wheel")
GEMMS = ("gemms", "gemms_wheel")
RATIOS = {"speedup": ("stock", "wheel"), "compiled_speedup": ("compiled", "compiled_wheel")}
SLACK = 1.25
"""How many times the error of the stack as it is the wheel's may be: both round to 16 bits after every product, each in
its own order of summation."""
PASSES, PASSES_ROWS = 8, 4096
"""Passes of a graph at most, and the rows of x that they may have together. All graphs of a row have as many, since
starting one takes some microseconds."""

Passes = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """What a row runs: hidden states (batch, tokens, hidden), positions (1, tokens) and a cache."""

    name: str
    x: torch.Tensor
    positions: torch.Tensor
    cache: Cache | None

    @property
    def m(self) -> int:
        """Return the rows that each Linear meets."""
        return self.x.shape[0] * self.x.shape[1]


def make_row(name: str, shape: Shape, cache_length: int, dtype: torch.dtype, device: str) -> Row:
    """Draw the inputs of a row, such as decode-16 or prefill-2048.

    Raises:
        ValueError: there is no such row.
    """
    kind, _, number = name.partition("-")
    if kind not in ("decode", "prefill") or not number.isdecimal() or int(number) < 1:
        raise ValueError(f"there is no row {name!r}; expected decode-BATCH or prefill-TOKENS, such as {ROWS[0]}")
    batch, tokens = (int(number), 1) if kind == "decode" else (1, int(number))
    x = torch.randn(batch, tokens, shape.hidden_size, device=device).to(dtype)
    if kind == "prefill":
        return Row(name, x, torch.arange(tokens, device=device)[None], None)
    positions = torch.full((1, 1), cache_length - 1, device=device)
    return Row(name, x, positions, Cache(shape, batch, cache_length, x))


def variants(stack: Stack, mode: str | None) -> dict[str, Stack]:
    """Return the four variants; the compiled ones compile with their first pass."""
    torch.compiler.reset()  # or the compiler would give up after some shapes
    both = {"stock": stack, "wheel": with_wheel(stack)}
    compiled = {name: torch.compile(both[name], fullgraph=True, dynamic=False, mode=mode) for name in both}
    return {**both, "compiled": compiled["stock"], "compiled_wheel": compiled["wheel"]}


def gemms(stack: Stack, m: int) -> dict[str, Passes]:
    """Return passes over a stack's Linears alone, by torch and by the wheel; each k has one input, (m, k)."""
    found = linears(stack)
    weight = found[0].weight
    inputs = {
        k: torch.randn(m, k, device=weight.device).to(weight.dtype)
        for k in dict.fromkeys(linear.in_features for linear in found)
    }
    functions = {"gemms": torch.nn.functional.linear, "gemms_wheel": torch.ops.aot_gemm_bench.linear}

    def passes(function: Callable[..., object]) -> Passes:
        return lambda: [function(inputs[linear.in_features], linear.weight, linear.bias) for linear in found]

    return {name: passes(function) for name, function in functions.items()}


def errors(results: Mapping[str, torch.Tensor], expected: torch.Tensor) -> dict[str, float]:
    """Return each result's relative Frobenius error, and the largest differences from stock."""
    found = {f"{name}_error": relative_error(result, expected) for name, result in results.items()}
    stock = results["stock"].float()
    for name, result in results.items():
        if name != "stock":
            found[f"{name}_difference"] = float((result.float() - stock).abs().max())
    return {name: round(value, 6) for name, value in found.items()}


def capture_passes(passes: Passes, m: int) -> Captured:
    """Capture several passes over m rows."""
    count = max(1, min(PASSES, PASSES_ROWS // m))
    return capture(lambda *_: passes(), [(torch.empty(0),) * 3] * count, 0)


def expected_of(reference: Stack, row: Row) -> torch.Tensor:
    """Return the result in float32."""
    cache = None if row.cache is None else row.cache.as_type(torch.float32)
    return reference(row.x.float(), row.positions, cache)


def measure(
    row: Row, stack: Stack, reference: Stack, mode: str | None, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run and time the variants on a row; one that fails has no time, and its reason stands under `failures`."""
    result: dict[str, Any] = {"row": row.name, "m": row.m, "failures": {}}
    graphs: dict[str, Captured] = {}
    results: dict[str, torch.Tensor] = {}
    for name, variant in variants(stack, mode).items():
        start = time.monotonic()
        try:
            results[name] = variant(row.x, row.positions, row.cache).clone()
            graphs[name] = capture_passes(lambda variant=variant: variant(row.x, row.positions, row.cache), row.m)
        except (RuntimeError, aot_gemm.AotGemmError) as error:
            result["failures"][name] = f"{type(error).__name__}: {error}"[:2000]
            results.pop(name, None)
        report(f"{row.name} {name}: {time.monotonic() - start:.1f} s to compile and capture")
    graphs |= {name: capture_passes(passes, row.m) for name, passes in gemms(stack, row.m).items()}
    times = interleave(graphs)
    result |= {f"{name}_us": round(statistics.median(values), 2) for name, values in times.items()}
    result |= {f"{name}_spread": round(spread(values), 4) for name, values in times.items()}
    if "stock" in results:
        result |= errors(results, expected_of(reference, row))
    dtype = str(row.x.dtype).removeprefix("torch.")
    sizes = dict.fromkeys((linear.out_features, linear.in_features) for linear in linears(stack))
    result["kernels"] = {f"n{n} k{k}": aot_gemm.plan(row.m, n, k, dtype).kernel for n, k in sizes}
    return with_ratios(result)


def with_ratios(row: dict[str, Any]) -> dict[str, Any]:
    """Add what follows of a row's times: the speeds, the share of the Linears, and what is wrong with a result."""
    found = {
        name: round(row[f"{slow}_us"] / row[f"{fast}_us"], 4)
        for name, (slow, fast) in RATIOS.items()
        if f"{slow}_us" in row and f"{fast}_us" in row
    }
    whole = row.get("compiled_us", row.get("stock_us"))
    if whole is not None:
        found["gemm_share"] = round(row["gemms_us"] / whole, 4)
    wrong = {}
    for name in ("wheel", "compiled_wheel"):
        error, allowed = row.get(f"{name}_error"), SLACK * row.get("stock_error", 0)
        if error is not None and not error <= allowed:  # NaN is not
            wrong[f"{name} result"] = f"relative error {error}; expected at most {allowed:.6f}"
    return {**row, **found, "failures": row["failures"] | wrong}


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join runs of one wheel and one stack: times are medians over the runs, of the rows that all have.

    Raises:
        ValueError: the runs differ in device, versions or sizes, or have no row in common.
    """
    keys = ("device", "torch", "transformers", "wheel", "dtype", "shape", "cache", "mode", "constant")
    kinds = [{key: run[key] for key in keys} for run in results]
    wrong = next((kind for kind in kinds if kind != kinds[0]), None)
    if wrong is not None:
        raise ValueError(f"runs differ: {kinds[0]} and {wrong}; give runs of one kind")
    by_name = [{row["row"]: row for row in run["rows"]} for run in results]
    rows = []
    for name, row in by_name[0].items():
        if all(name in found for found in by_name):
            each = [found[name] for found in by_name]
            times = [key for key in row if key.endswith("_us") and all(key in x for x in each)]
            medians = {key: round(statistics.median(x[key] for x in each), 2) for key in times}
            kept = {key: value for key, value in row.items() if not key.endswith("_us")}
            failures = {key: value for x in each for key, value in x["failures"].items()}
            rows.append(with_ratios({**kept, **medians, "failures": failures}))
    if not rows:
        raise ValueError("the runs have no row in common; give runs of the same --rows")
    return {**results[0], "rows": rows, "num_runs": len(results)}


def _cell(row: Mapping[str, Any], name: str, ratio: str | None = None) -> str:
    if f"{name}_us" not in row:
        return "-"
    speed = f", {row[ratio]:.3f}x" if ratio in row else ""
    return f"{row[f'{name}_us']:.0f} us{speed}"


def summary(result: dict[str, Any]) -> str:
    """Render the table as Markdown."""
    shape = result["shape"]
    runs = f"medians of {result['num_runs']} runs" if "num_runs" in result else "one run"
    versions = ", ".join(f"{name} {result[name]}" for name in ("torch", "transformers", "wheel"))
    lines = [
        f"{result['device']}, {versions}, {result['date']}, {runs}",
        ", ".join([result["dtype"], *(f"{key} {value}" for key, value in shape.items()), f"cache {result['cache']}"]),
        "",
        "| row | stock | with the wheel | torch.compile | with the wheel | Linears alone | by the wheel | share |",
        "|---" * 8 + "|",
    ]
    for row in result["rows"]:
        cells = [_cell(row, "stock"), _cell(row, "wheel", "speedup"), _cell(row, "compiled")]
        cells += [_cell(row, "compiled_wheel", "compiled_speedup"), _cell(row, "gemms"), _cell(row, "gemms_wheel")]
        share = f"{row['gemm_share']:.0%}" if "gemm_share" in row else "-"
        lines.append(f"| {row['row'].replace('-', ' ')} | {' | '.join(cells)} | {share} |")
    lines += ["", "relative error against float32, and the largest difference from stock:"]
    for row in result["rows"]:
        texts = [f"{name} {row[f'{name}_error']:.2g}" for name in VARIANTS if f"{name}_error" in row]
        texts += [f"{name} {row[f'{name}_difference']:.2g} off" for name in VARIANTS if f"{name}_difference" in row]
        lines.append(f"{row['row']}: {', '.join(texts)}")
    lines += [f"{row['row']} {name} failed: {why}" for row in result["rows"] for name, why in row["failures"].items()]
    return "\n".join(lines)


def describe(shape: Shape, values: argparse.Namespace) -> dict[str, Any]:
    """Say what is measured."""
    import transformers

    return {
        "description": __doc__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "wheel": aot_gemm.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "dtype": values.dtype,
        "shape": asdict(shape),
        "cache": values.cache,
        "mode": values.mode,
        "constant": values.constant,
        "rows": [],
    }


def run(
    result: dict[str, Any],
    names: Sequence[str],
    max_seconds: float,
    report: Callable[[str], None],
    device: str = "cuda",
) -> None:
    """Measure rows until the time is over; put them into `result`, as they come.

    Raises:
        ValueError: transformers refuses the sizes, or there is no such row.
    """
    shape, dtype = Shape(**result["shape"]), getattr(torch, result["dtype"])
    start = time.monotonic()
    with torch.no_grad():
        rows = [make_row(name, shape, result["cache"], dtype, device) for name in names]
        stack = make_stack(shape, dtype, device)
        reference = copy.deepcopy(stack).float()
        register()
        if result["constant"]:
            promise_constant(stack)
        for i, row in enumerate(rows):
            if time.monotonic() - start > max_seconds:
                report(f"{max_seconds:g} s are over: {len(rows) - i} rows are left out")
                break
            result["rows"].append(measure(row, stack, reference, result["mode"], report))
    result["seconds"] = round(time.monotonic() - start, 1)
    result["clocks_after"] = clocks()


def arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = Shape()
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help=f"default: {' '.join(ROWS)}")
    parser.add_argument("--layers", type=positive, default=shape.num_hidden_layers, help="decoder layers (4)")
    parser.add_argument(
        "--cache", type=positive, default=1024, help="tokens of the key-value cache of decode rows (1024)"
    )
    parser.add_argument(
        "--type", default=shape.model_type, help="transformers' model_type: llama, qwen3, gemma (llama)"
    )
    parser.add_argument("--hidden", type=positive, default=shape.hidden_size, help="hidden_size (4096)")
    parser.add_argument("--heads", type=positive, default=shape.num_attention_heads, help="num_attention_heads (32)")
    parser.add_argument("--kv-heads", type=positive, default=shape.num_key_value_heads, help="num_key_value_heads (8)")
    parser.add_argument("--head-dim", type=positive, default=shape.head_dim, help="head_dim (128)")
    parser.add_argument(
        "--intermediate", type=positive, default=shape.intermediate_size, help="intermediate_size (14336)"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16", help="element type (bfloat16)")
    parser.add_argument("--mode", help="of torch.compile, such as max-autotune-no-cudagraphs; its default if left out")
    parser.add_argument("--constant", action="store_true", help="promise the wheel that weights are constant")
    parser.add_argument("--max-seconds", type=float, default=540, help="start no row after this time (540)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    add_files(parser)
    return parser, parser.parse_args()


def main() -> int:
    """Run from the command line; 1 if a variant failed or is wrong."""
    parser, values = arguments()
    if values.table:
        print_table(parser, values.table, joined, summary)
        return 0
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here; run this where there is one, or give --table")
    sizes = (values.hidden, values.heads, values.kv_heads, values.head_dim, values.intermediate, values.layers)
    start = time.monotonic()
    torch.manual_seed(values.seed)
    result: dict[str, Any] = {"rows": []}

    def report(line: str) -> None:
        print(f"[{time.monotonic() - start:5.1f} s] {line}", file=sys.stderr, flush=True)

    try:
        result = describe(Shape(values.type, *sizes), values)
        run(result, values.rows, values.max_seconds, report)
    except (ImportError, ValueError, TypeError, AttributeError) as error:  # transformers refuses, or has changed
        parser.error(str(error))
    finally:
        if result["rows"]:
            write(values.out, result)
    print(summary(result))
    return 1 if any(row["failures"] for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
