"""Time grouped products and mixture-of-experts layers beside torch._grouped_mm and transformers, on this machine's GPU.

    PYTHONPATH=. python research/bench/moe.py --out moe.json

from the repository's root, with a wheel of the preset `moe`, torch and, for the layer, transformers. Each product is
that of the experts' first weight, for 16 to 8192 tokens that are routed evenly or with a skew (the logits of expert e
less log(e + 1)); of one stack of weights, and of a list of allocations, which torch's product takes joined. Results are
held against torch's. Medians over interleaved rounds of CUDA-graph replays; the weights exceed the L2 many times over,
so that they are read from memory. The layer has router, permutation and weighted sum in it, ours (the wheel's
examples/moe.py, with the parts that are torch's compiled) and transformers' own block on torch._grouped_mm, eager and
under torch.compile. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a file, beside which this file itself would be found as `moe`
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from research.bench.options import write
from research.bench.protocol import capture, interleave, relative_error

TOKENS = (16, 128, 1024, 8192)
LARGEST_ERROR = 0.01
"""Relative Frobenius error allowed against torch's result: both are rounded to bfloat16."""
LARGEST_FP8_ERROR = 0.08
"""The same of float8 against bfloat16."""


class Model(NamedTuple):
    """The experts of a public model."""

    name: str
    experts: int
    top: int
    hidden: int
    intermediate: int


MODELS = (
    Model("DeepSeek-V2-Lite, 8 of 64", 64, 8, 2048, 1408),
    Model("Qwen3-30B-A3B, 8 of 128", 128, 8, 2048, 768),
    Model("Mixtral-8x7B, 2 of 8", 8, 2, 4096, 14336),
)
"""Source: the models' configurations (config.json); DeepSeek-V2-Lite with 8 choices in place of 6, as the issue that
asked for this bench has it."""


def example(wheel: Any) -> Any:
    """Return the module of the layer that the wheel ships."""
    return importlib.import_module(f"{wheel.__name__}.examples.moe")


class Weights(NamedTuple):
    """The weights of a layer on the device."""

    router: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor

    @staticmethod
    def of(model: Model) -> Weights:
        """Draw weights."""

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / math.sqrt(shape[-1])

        width = 2 * model.intermediate
        return Weights(
            draw(model.experts, model.hidden),
            draw(model.experts, width, model.hidden),
            draw(model.experts, model.hidden, model.intermediate),
        )


def separate(stack: torch.Tensor) -> list[torch.Tensor]:
    """Copy the matrices of a stack to allocations of their own, from the last to the first, so that no step ascends."""
    return [x.clone() for x in reversed(stack.unbind())][::-1]


def routed(wheel: Any, model: Model, tokens: int, *, is_skewed: bool) -> Any:
    """Route tokens at random; gives the `Routes` of the wheel's example."""
    logits = torch.randn(tokens, model.experts, device="cuda")
    if is_skewed:
        logits -= torch.log(torch.arange(1, model.experts + 1, device="cuda"))
    return example(wheel).route(logits, model.top)


def medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Time calls in the same rounds; microseconds."""
    graphs = {name: capture(call, [(), ()]) for name, call in calls.items()}
    return {name: round(statistics.median(times), 2) for name, times in interleave(graphs).items()}


def product_row(wheel: Any, model: Model, experts: Weights, tokens: int, *, is_skewed: bool) -> dict[str, Any]:
    """Time the first product of a layer, without its gate, which torch's has none of; and with gate and gather."""
    routes, linear = routed(wheel, model, tokens, is_skewed=is_skewed), wheel.grouped_linear
    x = torch.randn(tokens, model.hidden, device="cuda", dtype=torch.bfloat16)
    rows, weight, offsets = x[routes.token_of.long()], experts.gate_up, routes.offsets
    transposed = weight.transpose(1, 2)
    out = torch.empty(len(rows), weight.shape[1], device="cuda", dtype=torch.bfloat16)
    gated = torch.empty(len(rows), model.intermediate, device="cuda", dtype=torch.bfloat16)

    def torch_gated() -> torch.Tensor:
        both = torch._grouped_mm(x[routes.token_of.long()], transposed, offs=offsets)  # noqa: SLF001 - torch's name
        return torch.nn.functional.silu(both[:, : model.intermediate]) * both[:, model.intermediate :]

    listed = separate(weight)

    def torch_joined() -> torch.Tensor:
        stack = torch.stack(listed).transpose(1, 2)
        return torch._grouped_mm(rows, stack, offs=offsets)  # noqa: SLF001 - torch's name

    expected = torch._grouped_mm(rows, transposed, offs=offsets)  # noqa: SLF001 - the same
    errors = [
        relative_error(linear(rows, weight, offsets), expected),
        relative_error(linear(rows, listed, offsets), expected),
        relative_error(linear(x, listed, offsets, index=routes.token_of, gate="silu"), torch_gated()),
        relative_error(linear(x, weight, offsets, index=routes.token_of, gate="silu"), torch_gated()),
    ]
    us = medians(
        {
            "wheel": lambda: linear(rows, weight, offsets, out=out),
            "wheel, list": lambda: linear(rows, listed, offsets, out=out),
            "torch": lambda: torch._grouped_mm(rows, transposed, offs=offsets),  # noqa: SLF001 - the same
            "torch, joined list": torch_joined,
            "wheel gathered, SwiGLU": lambda: linear(x, weight, offsets, index=routes.token_of, gate="silu", out=gated),
            "torch gathered, SwiGLU": torch_gated,
        }
    )
    return {"model": model.name, "tokens": tokens, "skew": is_skewed, "us": us, "errors": errors}


def transformers_block(model: Model, experts: Weights) -> Any:
    """Return Qwen3's sparse block of transformers with these weights, on torch._grouped_mm.

    Raises:
        ImportError: there is no transformers, or one without the block.
        AttributeError: its parameters have other names.
    """
    modeling = importlib.import_module("transformers.models.qwen3_moe.modeling_qwen3_moe")
    config: Any = importlib.import_module("transformers").Qwen3MoeConfig(
        hidden_size=model.hidden,
        moe_intermediate_size=model.intermediate,
        num_experts=model.experts,
        num_experts_per_tok=model.top,
        norm_topk_prob=True,
        experts_implementation="grouped_mm",
    )
    with torch.device("cuda"):
        block = modeling.Qwen3MoeSparseMoeBlock(config).to(torch.bfloat16)
    with torch.no_grad():
        block.gate.weight.copy_(experts.router)
        block.experts.gate_up_proj.copy_(experts.gate_up)
        block.experts.down_proj.copy_(experts.down)
    return block


def layer_row(wheel: Any, model: Model, experts: Weights, tokens: int) -> dict[str, Any]:
    """Time whole layers, router, permutation and weighted sum among them."""
    layer = example(wheel)
    x = torch.randn(tokens, model.hidden, device="cuda", dtype=torch.bfloat16)
    route, combine, quantize = (torch.compile(f) for f in (layer.route, layer.combine, layer.quantize_rows))
    plain = layer.Experts(experts.gate_up, experts.down)
    quantized = plain.quantized()

    def computed(weights: Any) -> torch.Tensor:
        routes = route(torch.nn.functional.linear(x, experts.router), model.top)
        result: torch.Tensor = combine(layer.multiply(x, routes, weights, quantize), routes)
        return result

    calls: dict[str, Callable[[], object]] = {
        "wheel": lambda: computed(plain),
        "wheel fp8": lambda: computed(quantized),
    }
    row: dict[str, Any] = {"model": model.name, "tokens": tokens, "errors": []}
    expected = layer.MixtureOfExperts(experts.router, plain, model.top)(x)
    row["errors"].append(relative_error(computed(plain), expected))
    try:
        row["errors_fp8"] = [relative_error(computed(quantized), expected)]
    except wheel.UnsupportedError as error:
        row["fp8_refused"] = str(error).splitlines()[0]
        del calls["wheel fp8"]
    try:
        block = transformers_block(model, experts)
        whole: Any = torch.compile(block)
        batch = x[None]
        row["errors"].append(relative_error(expected, _first(block(batch))[0]))
        calls |= {"transformers": lambda: block(batch), "transformers compiled": lambda: whole(batch)}
    except (ImportError, AttributeError, TypeError) as error:
        row["transformers_refused"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return row | {"us": medians(calls)}


def _first(result: Any) -> Any:
    """Return the hidden states of what a block gives, which may be a tuple."""
    return result[0] if isinstance(result, tuple) else result


def rows(values: argparse.Namespace, wheel: Any, start: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is measured, with the kind of row, until the time is over."""
    for model in MODELS:
        experts = Weights.of(model)
        for tokens in values.tokens:
            for is_skewed in (False, True):
                if time.monotonic() - start > values.max_seconds:
                    return
                yield "products", product_row(wheel, model, experts, tokens, is_skewed=is_skewed)
            if values.layers and time.monotonic() - start <= values.max_seconds:
                yield "layers", layer_row(wheel, model, experts, tokens)


def is_right(result: dict[str, Any]) -> bool:
    """Say whether all results are as torch's are. A NaN is not."""
    found = [*result["products"], *result["layers"]]
    right = all(error <= LARGEST_ERROR for row in found for error in row["errors"])
    return right and all(error <= LARGEST_FP8_ERROR for row in found for error in row.get("errors_fp8", []))


def summary(result: dict[str, Any]) -> str:
    """Write a line for each row: microseconds, and how many times as fast as torch's the wheel is."""
    lines = []
    for row in result["products"]:
        us = row["us"]
        gathered = us["torch gathered, SwiGLU"] / us["wheel gathered, SwiGLU"]
        skew = "skewed" if row["skew"] else "even"
        lines.append(
            f"{row['model']}, {row['tokens']} tokens, {skew}: {us['wheel']:.1f} us, torch {us['torch']:.1f}: "
            f"{us['torch'] / us['wheel']:.2f}x; "
            f"of a list {us['wheel, list']:.1f}, torch joined {us['torch, joined list']:.1f}; "
            f"gathered with SwiGLU {us['wheel gathered, SwiGLU']:.1f}, {gathered:.2f}x"
        )
    lines += [f"{row['model']}, {row['tokens']} tokens, layer: {json.dumps(row['us'])}" for row in result["layers"]]
    ratios = [row["us"]["torch"] / row["us"]["wheel"] for row in result["products"]]
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        lines.append(f"geometric mean over {len(ratios)} products: {mean:.3f}x, least {min(ratios):.3f}x")
        lists = [row["us"]["wheel"] / row["us"]["wheel, list"] for row in result["products"]]
        mean = math.exp(statistics.fmean(map(math.log, lists)))
        lines.append(f"lists of weights beside one stack: {mean:.3f}x, least {min(lists):.3f}x")
    return "\n".join(lines)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--package", default="aot_gemm", help="name of the wheel's package (aot_gemm)")
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="numbers of tokens")
    parser.add_argument("--no-layers", dest="layers", action="store_false", help="time products only")
    parser.add_argument("--max-seconds", type=float, default=140, help="start nothing after this time (140)")
    return parser.parse_args(given)


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    values, start = arguments(), time.monotonic()
    wheel = importlib.import_module(values.package)
    result: dict[str, Any] = {"description": __doc__, "products": [], "layers": []}
    result |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    with torch.no_grad():
        for kind, row in rows(values, wheel, start):
            result[kind].append(row)
            print(f"[{time.monotonic() - start:5.1f} s] {row['model']} {row['tokens']} {row['us']}", file=sys.stderr)
    write(values.out, result)
    print(summary(result))
    return 0 if is_right(result) else 1


if __name__ == "__main__":
    sys.exit(main())
