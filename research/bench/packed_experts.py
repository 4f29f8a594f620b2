"""Time a wheel's groups of packed weights beside torch._grouped_mm and a product for each expert, and check them.

    PYTHONPATH=. python research/bench/packed_experts.py --out packed_experts.json

on a machine with an H100 or H200, torch, numpy and a wheel that has the operations, from the repository's root:
`aot build --operations` with `bf16xmxfp4_bf16_kk`, `..._kk_grouped` and `..._kk_gathered`, and the same of `nvfp4` and
`int4g128`. Tokens are routed at random, one of them to other experts in each call, so that weights are read from
memory. Times are medians over interleaved rounds of CUDA-graph replays; a product for each expert knows on the host how
many rows each has. `--random 60` also computes as many problems of random sizes of each format, with NaN in rows of no
group. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a file, beside which this file itself would be found
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aot_gemm
import aot_gemm.torch
import torch

from aot.core.weight_format import Code, format_named
from research.bench.options import positive, write
from research.bench.protocol import capture, interleave, relative_error

FORMATS = ("mxfp4", "nvfp4", "int4g128")
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
WAYS = ("grouped", "gathered", "torch", "each")
"""Methods of `Experts`, in the order of FIELDS."""
TOLERANCE = 0.004
"""Relative Frobenius error: D is rounded to bfloat16 once."""
DTYPE = torch.bfloat16
FIELDS = (
    "model",
    "format",
    "tokens",
    "rows",
    "experts",
    "worst_error",
    "us.grouped",
    "us.gathered",
    "us.torch",
    "us.each",
)


class Model(NamedTuple):
    """The first weights of a model's experts."""

    name: str
    experts: int
    top: int
    n: int
    k: int
    repeated: int
    """Rows of a weight that are drawn; the others are these again."""


MODELS = (
    Model("GPT-OSS-20B", 32, 4, 5760, 2880, 576),
    Model("Qwen3-30B-A3B", 128, 8, 1536, 2048, 512),
    Model("Mixtral-8x7B", 8, 2, 28672, 4096, 512),
)
"""Source: the models' configurations (config.json); gate and up together."""
DRAWN = 4
"""Mixtures that a seed draws."""


def draw_models(seed: int) -> list[Model]:
    """Draw mixtures, n and k evenly in their logarithms."""
    rng, found = random.Random(seed), []  # noqa: S311 - sizes
    for _ in range(DRAWN):
        experts = rng.choice((16, 32, 60, 64, 96, 128))
        n, k = (round(math.exp(rng.uniform(math.log(4), math.log(32)))) * 128 for _ in range(2))
        found.append(Model(f"drawn {experts} {n} {k}", experts, rng.choice((2, 4, 6, 8)), n, k, 128))
    return found


def draw(form: str, experts: int, n: int, k: int, seed: int) -> Any:
    """Draw experts' packed weights on the GPU."""
    of, rng = format_named(form), torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, generator=rng)

    codes = integers(0, 1 << of.code.bits, experts, n, k)
    if of.code is Code.E4M3:
        codes = torch.where((codes & 0x7F) == 0x7F, 0, codes)
    groups, factors, zeros = (experts, n, of.num_groups(k)), None, None
    if of.factor_bits == 16:
        factors = (torch.rand(groups, generator=rng) * 0.15 + 0.05).to(DTYPE)
    elif of.group:
        factors = integers(*((124, 130) if of.elements == "mxfp4" else (0x28, 0x39)), *groups)
    if of.has_zeros:
        zeros = integers(0, 17, *groups)
    scale = torch.rand(experts, 1 if of.is_nvfp4 else n, generator=rng) + 0.5 if of.has_row_factors else None
    return aot_gemm.torch.pack(codes, factors, zeros, format=form, scale=scale).to("cuda")


def make_weights(model: Model, form: str) -> tuple[Any, torch.Tensor]:
    """Return packed experts, and the few rows of each that all are, in float32."""
    few = draw(form, model.experts, model.repeated, model.k, len(form))
    data = few.data.repeat(1, model.n // model.repeated, 1)
    shape = model.experts, model.n, model.k
    experts = aot_gemm.torch.PackedExperts(data, few.scale, form, shape, few.dtype)
    return experts, aot_gemm.torch.dequantize(few, dtype=torch.float32)


class Routed(NamedTuple):
    """Tokens and the rows of experts that they become."""

    tokens: torch.Tensor
    index: torch.Tensor
    offsets: torch.Tensor
    counts: list[int]

    @property
    def rows(self) -> torch.Tensor:
        """Return the rows by expert."""
        return self.tokens[self.index.long()]


def route(model: Model, tokens: int) -> list[Routed]:
    """Route tokens several times, one token to all experts in turn, so that no call meets weights in the cache."""
    found = []
    for _ in range(2):
        order = torch.randperm(model.experts // model.top * model.top).reshape(-1, 1, model.top)
        for turn in order if tokens * model.top < 4 * model.experts else order[:1]:
            chosen = torch.stack([turn[0], *(torch.randperm(model.experts)[: model.top] for _ in range(tokens - 1))])
            flat = chosen.reshape(-1)
            sorted_by = torch.sort(flat, stable=True).indices
            counts = torch.bincount(flat, minlength=model.experts)
            found.append(
                Routed(
                    torch.randn(tokens, model.k, device="cuda").to(DTYPE),
                    (sorted_by // model.top).int().cuda(),
                    counts.cumsum(0).int().cuda(),
                    counts.tolist(),
                )
            )
    return found


def exact(rows: torch.Tensor, counts: list[int], few: torch.Tensor, times: int) -> torch.Tensor:
    """Return the products of groups of rows by their weights, in float64."""
    parts = zip(rows.split(counts), few, strict=True)
    return torch.cat([x.double() @ weight.double().t() for x, weight in parts]).repeat(1, times)


class Experts:
    """A model's first product of experts, computed in four ways into one result."""

    def __init__(self, model: Model, form: str) -> None:
        """Draw weights."""
        self.model = model
        self.packed, self.few = make_weights(model, form)
        self.times = model.n // model.repeated
        self.wide = self.few.to(DTYPE).repeat(1, self.times, 1).transpose(1, 2)
        self.apart = list(self.packed)
        self.out = torch.empty(0)

    def grouped(self, routed: Routed, rows: torch.Tensor) -> Any:
        """Multiply rows by expert."""
        return aot_gemm.torch.grouped_linear(rows, self.packed, routed.offsets, out=self.out[: len(rows)])

    def gathered(self, routed: Routed, rows: torch.Tensor) -> Any:
        """Multiply rows of the tokens by an index."""
        given = {"index": routed.index, "out": self.out[: len(rows)]}
        return aot_gemm.torch.grouped_linear(routed.tokens, self.packed, routed.offsets, **given)

    def torch(self, routed: Routed, rows: torch.Tensor) -> Any:
        """Multiply by weights of 16 bits."""
        return torch._grouped_mm(rows, self.wide, offs=routed.offsets)  # noqa: SLF001 - torch's name

    def each(self, routed: Routed, rows: torch.Tensor) -> Any:
        """Multiply the rows of each expert that has some by its weight."""
        start, out = 0, self.out[: len(rows)]
        for weight, count in zip(self.apart, routed.counts, strict=True):
            if count:
                aot_gemm.torch.linear(rows[start : start + count], weight, out=out[start : start + count])
            start += count
        return out


def time_model(model: Model, form: str, tokens_of: list[int], ways: list[str]) -> list[tuple[Any, ...]]:
    """Time a model's first product of experts with so many tokens, in some ways."""
    experts, found = Experts(model, form), []
    for tokens in tokens_of:
        experts.out = torch.empty(tokens * model.top, model.n, device="cuda", dtype=DTYPE)
        given = [(x, x.rows) for x in route(model, tokens)]
        expected = exact(given[0][1], given[0][0].counts, experts.few, experts.times)
        error = max(relative_error(getattr(experts, x)(*given[0]), expected) for x in ways if x != "torch")
        graphs = {x: capture(getattr(experts, x), given) for x in ways}
        us = {name: statistics.median(of_rounds) for name, of_rounds in interleave(graphs).items()}
        used = sum(sum(map(bool, x.counts)) for x, _ in given) / len(given)
        row = (model.name, form, tokens, tokens * model.top, round(used, 1), round(error, 5))
        found.append((*row, *(round(us[x], 2) if x in us else None for x in WAYS)))
        kernel = aot_gemm.plan(tokens * model.top, model.n, model.k, weight_dtype=form, groups=model.experts).kernel
        print(*found[-1], kernel, "" if error <= TOLERANCE else "WRONG", flush=True)
        del graphs, given, expected
    return found


def check_random(form: str, count: int) -> list[str]:
    """Compute groups of random sizes; return what is wrong."""
    rng, wrong, of = torch.Generator().manual_seed(1), [], format_named(form)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=rng))

    for i in range(count):
        groups, n, k = number(1, 40), number(1, 300), -(-number(1, 1500) // of.quantum) * of.quantum
        n = n if number(0, 2) == 0 else -(-n // 8) * 8
        ends = torch.sort(torch.randint(0, number(1, 200), (groups,), generator=rng)).values
        counts = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype)).tolist()
        last, rows = int(ends[-1]), int(ends[-1]) + number(0, 9)
        experts = draw(form, groups, n, k, i)
        x = torch.randn(rows, k, device="cuda").to(DTYPE)
        x[last:] = torch.nan
        bias = torch.randn(groups, n, device="cuda").to(DTYPE) if i % 2 else None
        index, given = None, x
        if i % 3 == 0:
            index = torch.randperm(rows, generator=rng).int().cuda()
            given = torch.empty_like(x)
            given[index.long()] = x
        out = torch.full((rows, n), 7.0, device="cuda", dtype=DTYPE)
        aot_gemm.torch.grouped_linear(given, experts, ends.int().cuda(), bias, index=index, out=out)
        expected = exact(x[:last], counts, aot_gemm.torch.dequantize(experts, dtype=torch.float32), 1)
        if bias is not None:
            expected += bias.double().repeat_interleave(torch.tensor(counts, device="cuda"), 0)
        error = relative_error(out[:last], expected) if last else 0.0
        if not error <= TOLERANCE or not bool((out[last:] == 7.0).all()):
            wrong.append(f"{form} {groups} groups, rows {rows}, n {n}, k {k}, number {i}: error {error:.3g}")
            print("WRONG", wrong[-1], flush=True)
    print(f"{form}: {count} random problems, {len(wrong)} wrong", flush=True)
    return wrong


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", default=",".join(FORMATS), help="formats, by commas")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)), help="tokens, by commas; none where empty")
    parser.add_argument("--ways", default=",".join(WAYS), help="what is timed, by commas")
    parser.add_argument("--drawn", type=positive, metavar="SEED", help="time mixtures that a seed draws too")
    parser.add_argument("--random", type=positive, default=None, help="problems of random sizes to check")
    parser.add_argument("--out", type=Path, help="file of the results")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[tuple[Any, ...]] = []
    wrong: list[str] = []
    models = [*MODELS, *(draw_models(arguments.drawn) if arguments.drawn else ())]
    tokens = [int(x) for x in arguments.tokens.split(",") if x]
    for form in arguments.formats.split(","):
        wrong += check_random(form, arguments.random) if arguments.random else []
        for model in (x for x in models if tokens and x.k % format_named(form).quantum == 0):
            rows += time_model(model, form, tokens, arguments.ways.split(","))
            torch.cuda.empty_cache()
    wrong += [f"{x[0]} {x[1]} tokens {x[2]}" for x in rows if not x[5] <= TOLERANCE]
    device, table = torch.cuda.get_device_name(0), {"columns": FIELDS, "rows": rows}
    write(arguments.out, {"device": device, "torch": torch.__version__, "wrong": wrong, "rows": table})
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
