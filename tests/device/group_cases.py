"""Random batches, and groups of rows and of k: their operands, the float64 results, and how far those may be missed.

Groups are cut at random, empty, of one row each, or one holds all rows. They start at 0 or behind; rows may be left
behind the last, or its offset lies behind the rows. Gathers are unsorted, repeat rows, and have indices of no row.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import torch

ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-10}
"""Twice half a unit in the last place of an element."""
ACCUMULATION = {torch.bfloat16: 2**-18, torch.float16: 2**-18, torch.float8_e4m3fn: 2**-11}
"""How far a sum may be missed, as a share of the sum of its terms' magnitudes; products of float8 are added up
with some 13 bits on sm_90."""
TINY = 2**-24
"""The least float16: what is smaller is rounded to a multiple of it."""
GATE = 2**-10
"""The same of the approximated exponential in a gate."""
BLOCK = 128
CUTS = ("random", "empty", "all in one", "ones")


@dataclass(frozen=True)
class Kind:
    """What is grouped, and how."""

    name: str
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.bfloat16, torch.float16)
    is_gathered: bool = False
    is_gated: bool = False
    is_listed: bool = False
    """Whether each weight is an allocation of its own."""
    scales: str | None = None
    """`rows`: a factor for each row of x and of a weight; `blocks`: for each 128 of k, and of n of a weight."""


FP8 = (torch.float8_e4m3fn,)
GROUPED = tuple(
    Kind(" ".join((name, *added)), dtypes, "gathered" in added, "gated" in added, "listed" in added, scales)
    for name, dtypes, scales in (("rows", Kind.dtypes, None), ("fp8 rows", FP8, "rows"), ("fp8 blocks", FP8, "blocks"))
    for added in ((), ("gated",), ("gathered",), ("gathered", "gated"), ("listed",), ("gathered", "gated", "listed"))
)


@dataclass(frozen=True)
class Tail:
    """Rows of x and of the weights that are longer than k, as those of a part `x[:, :k]` are."""

    k: int
    stride: int
    """Elements from row to row: a multiple of 16 bytes, so that tensor cores take them, though k may end inside one."""
    value: float
    """What lies behind k; it is in no product."""


NAN, INF = float("nan"), float("inf")
TAILS = {
    2: (Tail(97, 104, NAN), Tail(100, 104, NAN), Tail(196, 200, INF), Tail(200, 208, NAN), Tail(7, 8, INF)),
    1: (Tail(97, 112, NAN), Tail(100, 112, NAN), Tail(196, 208, NAN), Tail(208, 224, NAN), Tail(7, 16, NAN)),
}
"""Tails by the bytes of an element; float8_e4m3fn has no infinity."""


@dataclass(frozen=True)
class Expected:
    """What a call must give: a result, and how far each element may be from it; NaN where nothing may be written."""

    result: torch.Tensor
    radius: torch.Tensor

    def share(self, found: torch.Tensor) -> float:
        """Return the largest error as a share of what is allowed; infinity where too much or too little is written."""
        untouched = self.result.isnan()
        shares = (found.double() - self.result).abs() / self.radius
        shares[untouched] = 0.0
        shares[(untouched != found.isnan()) | (shares.isnan())] = float("inf")
        return float(shares.max()) if shares.numel() else 0.0


@dataclass(frozen=True)
class Case:
    """A call, and what it must give."""

    text: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    expected: Expected
    whole: torch.Tensor
    """The allocation that `out` is a part of, NaN elsewhere."""


def cut(rng: random.Random, kind: str, rows: int, groups: int) -> list[int]:
    """Share rows out to groups; return where each ends."""
    if kind == "empty":
        return [0] * (groups - 1) + [rows]
    if kind == "all in one":
        return [0 if i < groups // 2 else rows for i in range(groups)]
    if kind == "ones":
        return [min(i + 1, rows) for i in range(groups)]
    return [*sorted(rng.choices(range(rows + 1), k=groups - 1)), rows]


@dataclass(frozen=True)
class Groups:
    rows: int
    """Those that the operand has."""
    ends: tuple[int, ...]
    start: int
    is_start_given: bool
    behind: int
    """Added to the last offset, which then lies behind the rows."""

    @staticmethod
    def draw(rng: random.Random, cuts: str, *, may_start_late: bool = True) -> Groups:
        grouped, num = rng.randrange(1, 400), rng.randrange(1, 25)
        start = rng.randrange(1, 40) if may_start_late and rng.random() < 0.3 else 0
        ends = tuple(start + x for x in cut(rng, cuts, grouped, num))
        left = rng.choice((0, 0, rng.randrange(1, 50)))
        behind = rng.randrange(1, 9000) if left == 0 and ends[-1] == start + grouped and rng.random() < 0.3 else 0
        return Groups(start + grouped + left, ends, start, start > 0 or (may_start_late and rng.random() < 0.1), behind)

    def offsets(self, device: str) -> torch.Tensor:
        """Return what says where they end."""
        ends = [*self.ends[:-1], self.ends[-1] + self.behind]
        return torch.tensor([self.start, *ends] if self.is_start_given else ends, dtype=torch.int32, device=device)

    def runs(self) -> list[tuple[int, int]]:
        """Return where each starts and ends."""
        return list(itertools.pairwise((self.start, *self.ends)))


def _product(x: torch.Tensor, w: torch.Tensor, accumulation: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x @ w^T, and how far its sums may be missed."""
    return x @ w.mT, accumulation * (x.abs() @ w.mT.abs()) + TINY


def _gated(y: torch.Tensor, radius: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return SwiGLU of the halves of y, and how far it may be missed; 1.1 is more than SiLU's slope."""
    (gate, linear), (of_gate, of_linear) = y.chunk(2, -1), radius.chunk(2, -1)
    silu = torch.nn.functional.silu(gate)
    missed = 1.1 * of_gate * (linear.abs() + of_linear) + silu.abs() * of_linear + GATE * (gate * linear).abs()
    return silu * linear, missed


def _drawn(dtype: torch.dtype, device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def _out(rng: random.Random, dtype: torch.dtype, device: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return NaNs, and the allocation that they are a part of: rows may be longer than what is written."""
    padding = rng.choice((0, 8, 40))
    whole = torch.full((*shape[:-1], shape[-1] + padding), float("nan"), dtype=dtype, device=device)
    return whole[..., : shape[-1]], whole


def _extents(rng: random.Random, kind: Kind) -> tuple[int, int]:
    """Draw n and k: mostly such as tensor cores take, in 16 bits odd ones too."""
    if kind.scales:
        step = BLOCK if kind.scales == "blocks" and kind.is_gated else 8
        return step * rng.randrange(1, 5 if step == BLOCK else 50), 16 * rng.randrange(1, 40)
    step = rng.choice((8, 8, 8, 8, 1))
    return step * rng.randrange(1, 50), step * rng.randrange(1, 70)


def _scaled(kind: Kind, values: torch.Tensor, rows_of_block: int) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Draw the factors of an operand (..., rows, k), and return them with the values times their factors."""
    if kind.scales is None:
        return None, values.double()
    *lead, rows, k = values.shape
    if kind.scales == "rows":
        scale = torch.rand(*lead, rows, 1, device=values.device) + 0.5
        return scale, values.double() * scale.double()
    scale = torch.rand(*lead, -(-rows // rows_of_block), -(-k // BLOCK), device=values.device) + 0.5
    spread = scale.double().repeat_interleave(BLOCK, -1)[..., :k].repeat_interleave(rows_of_block, -2)
    return scale, values.double() * spread[..., :rows, :]


def with_tail(values: torch.Tensor, tail: Tail | None) -> torch.Tensor:
    """Return values (..., rows, k) in rows of a tail's stride; behind the last row's k the allocation ends."""
    if tail is None:
        return values
    *_, rows, k = values.shape
    size = values.numel() // k * tail.stride - (tail.stride - k)
    memory = torch.full((size,), tail.value, device=values.device).to(values.dtype)
    strides = (rows * tail.stride, tail.stride, 1)
    return memory.as_strided(values.shape, strides[3 - values.ndim :]).copy_(values)


def scattered(rng: random.Random, stack: torch.Tensor, tail: Tail | None = None) -> list[torch.Tensor]:
    """Return the matrices of a stack as allocations of their own, in no order and at no one step."""
    order = rng.sample(range(len(stack)), len(stack))
    kept, spacers = {}, []
    for i in order:
        spacers.append(torch.empty(rng.randrange(1, 6000), dtype=torch.uint8, device=stack.device))
        kept[i] = with_tail(stack[i].clone(), tail)
    return [kept[i] for i in range(len(stack))]


def grouped_case(kind: Kind, rng: random.Random, device: str, tail: Tail | None = None) -> Case:
    """Draw a call of `grouped_linear` for groups of rows; with a tail if one is given, and else in a third of them."""
    cuts, dtype = rng.choice(CUTS), rng.choice(kind.dtypes)
    groups, (n, k) = Groups.draw(rng, cuts), _extents(rng, kind)
    if tail is None and rng.random() < 1 / 3:
        tail = rng.choice(TAILS[dtype.itemsize])
    if tail is not None:
        k = tail.k
    element = torch.bfloat16 if kind.scales else dtype
    x = _drawn(dtype, device, rng.randrange(1, 100) if kind.is_gathered else groups.rows, k)
    weight = _drawn(dtype, device, len(groups.ends), (1 + kind.is_gated) * n, k)
    (scale_x, values), (scale_w, weights) = _scaled(kind, x, 1), _scaled(kind, weight, BLOCK)
    x = with_tail(x, tail)
    if scale_w is not None and kind.scales == "rows":
        scale_w = scale_w.squeeze(-1)
    out, whole = _out(rng, element, device, groups.rows, n)
    keywords: dict[str, Any] = {
        "out": out,
        "scale_x": scale_x,
        "scale_w": scale_w,
        "gate": "silu" if kind.is_gated else None,
    }
    if kind.is_gathered:
        drawn = [rng.randrange(-3, len(x) + 3) for _ in range(groups.rows)]
        index = torch.tensor(drawn, dtype=torch.int32, device=device)
        is_row = (index >= 0) & (index < len(x))
        values = values[index.long().clamp(0, len(x) - 1)] * is_row[:, None]
        keywords["index"] = index
    result = torch.full(whole.shape, float("nan"), dtype=torch.float64, device=device)
    radius = torch.ones_like(result)
    for (start, end), of_group in zip(groups.runs(), weights, strict=True):
        y, missed = _product(values[start:end], of_group, ACCUMULATION[dtype])
        y, missed = _gated(y, missed) if kind.is_gated else (y, missed)
        result[start:end, :n], radius[start:end, :n] = y, missed + ROUNDING[element] * y.abs()
    text = f"{kind.name} {dtype} n {n} k {k} {cuts} {groups} {tail}"
    weight = scattered(rng, weight, tail) if kind.is_listed else with_tail(weight, tail)
    return Case(text, (x, weight, groups.offsets(device)), keywords, Expected(result, radius), whole)


def runs_case(rng: random.Random, device: str) -> Case:
    """Draw a call of `grouped_linear` for runs of k: the gradients of weights."""
    cuts, dtype = rng.choice(CUTS), rng.choice(Kind.dtypes)
    groups, step = Groups.draw(rng, cuts, may_start_late=False), rng.choice((8, 8, 8, 1))
    m, n = (step * rng.randrange(1, 30) for _ in range(2))
    a, b = (_drawn(dtype, device, groups.rows, x) for x in (m, n))
    out, whole = _out(rng, dtype, device, len(groups.ends), m, n)
    result = torch.full(whole.shape, float("nan"), dtype=torch.float64, device=device)
    radius = torch.ones_like(result)
    for i, (start, end) in enumerate(groups.runs()):
        y, missed = _product(a[start:end].double().mT, b[start:end].double().mT, ACCUMULATION[dtype])
        result[i, :, :n], radius[i, :, :n] = y, missed + ROUNDING[dtype] * y.abs()
    text = f"runs of k {dtype} m {m} n {n} {cuts} {groups}"
    return Case(text, (a.mT, b.mT, groups.offsets(device)), {"out": out}, Expected(result, radius), whole)


def _leading(rng: random.Random) -> list[list[int]]:
    """Draw the leading dimensions of two operands that broadcast."""
    whole = [rng.choice((1, 2, 3, 7)) for _ in range(rng.randrange(1, 4))]
    return [[1 if rng.random() < 0.2 else x for x in whole] for _ in range(2)]


def batch_case(rng: random.Random, device: str) -> Case:
    """Draw a call of `matmul` for a batch: broadcast, expanded at a stride of 0, or heads that stand between rows."""
    dtype, step = rng.choice(Kind.dtypes), rng.choice((8, 8, 8, 1))
    m, n, k = rng.randrange(1, 200), step * rng.randrange(1, 40), step * rng.randrange(1, 64)
    first, second = _leading(rng)
    way = rng.choice(("plain", "expanded", "heads"))
    a = _drawn(dtype, device, *first, m, k)
    b = _drawn(dtype, device, *second, n, k).mT if rng.random() < 0.5 else _drawn(dtype, device, *second, k, n)
    if way == "expanded":
        b = b[(0,) * len(second)].expand(*second, k, n)
    elif way == "heads":
        a = _drawn(dtype, device, 2, m, 5, k).transpose(1, 2)
        b = _drawn(dtype, device, 2, n, 5, k).permute(0, 2, 3, 1)
    y, missed = _product(a.double(), b.double().mT, ACCUMULATION[dtype])
    out, whole = _out(rng, dtype, device, *y.shape)
    result = torch.full(whole.shape, float("nan"), dtype=torch.float64, device=device)
    radius = torch.ones_like(result)
    result[..., :n], radius[..., :n] = y, missed + ROUNDING[dtype] * y.abs()
    text = f"batch {dtype} {way} {tuple(a.shape)} {a.stride()} {tuple(b.shape)} {b.stride()}"
    return Case(text, (a, b), {"out": out}, Expected(result, radius), whole)
