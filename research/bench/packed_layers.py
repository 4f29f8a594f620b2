"""Time a mixture's experts that `quantize` has made narrow beside transformers' own in 16 bits, on this machine's GPU.

    PYTHONPATH=. python research/bench/packed_layers.py --out packed_layers.json
    PYTHONPATH=. python research/bench/packed_layers.py --format fp8_block --model Qwen3-30B-A3B --tokens 1 16 64 1024

from the repository's root, with torch, transformers, numpy and a wheel of what `aot doctor` names for such a model: of
MXFP4 `bf16xmxfp4_bf16_kk_grouped`, `..._kk_gathered`, `bf16_gpt_oss_mul` and `bf16_silu_mul`. A module of experts is
what is timed: rows into the order of experts, inputs rounded where the format has them so, both products, the gate
between them and the weighted sum; not the router. Weights are random. Both are
computed as they are and under torch.compile; transformers' on torch._grouped_mm. Tokens are routed at random, one of
them to other experts in each call, so that weights are read from memory. `us` are medians over interleaved rounds of
CUDA-graph replays, `host_us` those of calls one behind the other without a graph. Where the wheel has the gate in the
product, the module without that is timed too ("gate apart"), and without an index ("rows copied"); where its tables say
from how many rows on tokens are copied, both ways ("rows gathered"). Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a file, beside which this file itself would be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import torch
import transformers
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from research.bench.options import positive, write
from research.bench.protocol import capture, interleave, relative_error

TOKENS = (1, 16, 64)
LARGEST_ERROR = 0.02
"""Relative Frobenius error beside torch's products of the unpacked weights: each rounds to bfloat16 several times."""
NARROW_INPUTS = {"fp8": 0.08, "fp8_block": 0.08}
"""The same of formats whose products round inputs to e4m3, by which each is off by 2.6%: two that the gate multiplies,
and one behind it, are 4.6%."""
DTYPE = torch.bfloat16
CALLS = 50
"""That are timed one behind the other."""


class Model(NamedTuple):
    """The experts of a public model."""

    name: str
    top: int
    make: Callable[[], Any]


def _gpt_oss() -> Any:
    config: Any = transformers.GptOssConfig(
        hidden_size=2880, intermediate_size=2880, num_local_experts=32, num_experts_per_tok=4
    )
    config._experts_implementation = "grouped_mm"  # noqa: SLF001 - what the module asks, beside no model
    return GptOssExperts(config)


def _qwen3() -> Any:
    config: Any = transformers.Qwen3MoeConfig(
        hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8
    )
    config._experts_implementation = "grouped_mm"  # noqa: SLF001 - the same
    return Qwen3MoeExperts(config)


MODELS = (Model("GPT-OSS-20B", 4, _gpt_oss), Model("Qwen3-30B-A3B", 8, _qwen3))
"""Source: the models' configurations (config.json)."""


def make(model: Model) -> Any:
    """Return a module of experts of random weights on the GPU."""
    with torch.device("cuda"):
        torch.set_default_dtype(DTYPE)
        made = model.make()
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for x in made.parameters():
            x.normal_(std=x.shape[1] ** -0.5)
    return made.eval()


def route(model: Model, experts: Any, tokens: int) -> list[tuple[Any, Any, Any]]:
    """Route tokens several times, one token to all experts in turn, so that no call meets weights in the cache."""
    found, hidden = [], experts.kind.hidden
    for turn in torch.randperm(experts.kind.experts).reshape(-1, 1, model.top):
        others = [torch.randperm(experts.kind.experts)[: model.top] for _ in range(tokens - 1)]
        chosen = torch.stack([turn[0], *others]).cuda()
        weights = torch.rand(tokens, model.top, device="cuda").softmax(-1).to(DTYPE)
        found.append((torch.randn(tokens, hidden, device="cuda").to(DTYPE), chosen, weights))
    return found


def others(ours: Any) -> dict[str, Any]:
    """Return modules of the same weights that leave more to kernels of their own, or have tokens in one way alone."""
    kernels, ways, made = ours.kernels, {}, {}
    if kernels.is_gated:
        ways["gate apart"] = kernels._replace(is_gated=False)
        ways["rows copied"] = kernels._replace(is_gated=False, is_gathered=False)
    elif kernels.copied_from is not None:
        ways["rows gathered"] = kernels._replace(copied_from=None)
        ways["rows copied"] = kernels._replace(copied_from=0)
    for name, found in ways.items():
        made[name] = copy.copy(ours)
        made[name].kernels = found
    return made


def host_us(call: Callable[..., object], given: list[tuple[Any, ...]]) -> float:
    """Time calls one behind the other, in microseconds each."""
    for operands in given[:3]:
        call(*operands)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(CALLS):
        call(*given[i % len(given)])
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


def time_model(model: Model, form: str, tokens_of: list[int]) -> list[dict[str, Any]]:
    """Time a model's experts with so many tokens."""
    theirs = make(model)
    holder = torch.nn.ModuleDict({"experts": copy.deepcopy(theirs)})
    print(aot_gemm.torch.quantize(holder, form), flush=True)
    ours, found, largest = holder["experts"], [], NARROW_INPUTS.get(form, LARGEST_ERROR)
    print(ours.kernels, flush=True)
    for tokens in tokens_of:
        given = route(model, ours, tokens)
        torch._dynamo.reset()  # noqa: SLF001 - torch's name
        calls = {"packed": ours, "16 bits": theirs}
        calls |= {f"{name}, compiled": torch.compile(x, dynamic=False) for name, x in calls.items()}
        calls |= others(ours)
        expected = ours.by_torch(*given[0], ours.biases)
        error = max(relative_error(call(*given[0]), expected) for x, call in calls.items() if "16 bits" not in x)
        graphs = {name: capture(call, given) for name, call in calls.items()}
        us = {name: round(statistics.median(x), 2) for name, x in interleave(graphs).items()}
        host = {name: round(host_us(call, given), 1) for name, call in calls.items()}
        row = {"model": model.name, "format": form, "tokens": tokens, "error": round(error, 5)}
        found.append(row | {"us": us, "host_us": host})
        print(found[-1], "" if error <= largest else "WRONG", flush=True)
        del graphs
    return found


def main() -> int:
    """Run from the command line; 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--format", default="mxfp4", help="of the narrow weights (mxfp4)")
    parser.add_argument("--model", choices=[x.name for x in MODELS], action="append", help="by default all")
    parser.add_argument("--tokens", type=positive, nargs="+", default=list(TOKENS), help="numbers of tokens")
    values = parser.parse_args()
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result |= {"transformers": transformers.__version__, "date": time.strftime("%Y-%m-%d", time.gmtime()), "rows": []}
    with torch.no_grad():
        for model in [x for x in MODELS if x.name in (values.model or [y.name for y in MODELS])]:
            result["rows"] += time_model(model, values.format, values.tokens)
            write(values.out, result)
    largest = NARROW_INPUTS.get(values.format, LARGEST_ERROR)
    return 0 if all(x["error"] <= largest for x in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
