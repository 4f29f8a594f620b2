"""Calls of the fuzz beside plain products: epilogues with and without factors, gates, and quantisation. Needs no wheel.

Each draw is legal, and goes with what torch makes of the same operands in float64: what a wheel has kernels for must be
within the bound, of quantisation bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.device.group_cases import ACCUMULATION, BLOCK, ROUNDING, TINY

LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
LEAST_SCALE = 2.0**-126
"""Of values that are not all 0."""
SLOPE = 1.13
"""The largest of the activations: GELU's."""
APPROXIMATE = 2.0**-10
"""How far an activation may be missed, as a share of its argument's magnitude: twice tanh.approx's error."""
ONE_ROUNDING = 2.0**-22
"""Twice the rounding of a factor and of a sum to float32."""

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda x: x,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
EPILOGUES = ("none", "relu", "gelu", "gelu_tanh", "silu", "residual", "swiglu", "geglu")
GATES = {"swiglu": "silu", "geglu": "gelu_tanh"}
GRANULARITIES = ("row", "block", "tensor")


@dataclass(frozen=True)
class Call:
    """A call of the package, or of its module for torch, and what says whether its result is right."""

    text: str
    function: str
    is_of_torch: bool
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    is_right: Callable[[Any], torch.Tensor] = field(repr=False)
    """Returns a truth value on the operands' device."""


@dataclass(frozen=True)
class Drawn:
    """Draws of one call, the same whichever process makes it."""

    rng: random.Random
    generator: torch.Generator
    device: str

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normally distributed float32 numbers."""
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def factors(self, *shapes: tuple[int, ...]) -> torch.Tensor:
        """Return factors about 1 of one of the shapes."""
        return self.normal(*self.rng.choice(shapes)).mul(0.5).exp()

    def padded(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a matrix of normally distributed numbers, or NaN, whose rows may lie apart."""
        whole = self.normal(*shape[:-1], shape[-1] + self.rng.choice((0, 0, 16, 3)))
        return whole.to(dtype)[..., : shape[-1]]


def _extents(rng: random.Random, dtype: torch.dtype) -> tuple[int, int, int]:
    """Draw m, n and k: mostly such as tensor cores take."""
    step = rng.choice((16, 16, 16, 1)) if dtype is torch.float8_e4m3fn else rng.choice((8, 8, 8, 1))
    m = rng.choice((1, rng.randrange(1, 65), rng.randrange(1, 400)))
    return m, step * rng.randrange(1, 600 // step + 1), step * rng.randrange(1, 900 // step + 1)


def _finished(
    epilogue: str, sums: torch.Tensor, radius: torch.Tensor, residual: torch.Tensor | None, *, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what an epilogue makes of sums in float64, and how far a kernel may miss it."""
    if epilogue not in GATES:
        activation = None if epilogue in ("none", "residual") else epilogue
        y = ACTIVATIONS[activation](sums)
        radius = radius if activation is None else SLOPE * radius + APPROXIMATE * sums.abs()
        return (y, radius) if residual is None else (y + residual.double(), radius + ONE_ROUNDING * residual.abs())
    halves = [(x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1) for x in (sums, radius)]
    (gate, linear), (of_gate, of_linear) = halves
    y = ACTIVATIONS[GATES[epilogue]](gate)
    of_gate = SLOPE * of_gate + APPROXIMATE * gate.abs()
    return y * linear, of_gate * (linear.abs() + of_linear) + y.abs() * of_linear


def _is_near(expected: torch.Tensor, radius: torch.Tensor, out: torch.Tensor | None) -> Callable[[Any], torch.Tensor]:
    def is_right(result: Any) -> torch.Tensor:
        if out is not None and result is not out:
            return torch.tensor(False, device=expected.device)
        is_fit = result.shape == expected.shape
        found = result.double() if is_fit else torch.full_like(expected, float("inf"))
        is_nan = expected.isnan()
        return torch.where(is_nan, found.isnan(), (found - expected).abs() <= radius).all()

    return is_right


def _product(drawn: Drawn) -> Call:
    """Draw a call of `linear` or `gated_linear`."""
    rng = drawn.rng
    dtype = rng.choice((torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16, torch.float16))
    is_fp8 = dtype is torch.float8_e4m3fn
    epilogue, (m, n, k) = rng.choice(EPILOGUES), _extents(rng, dtype)
    element = torch.bfloat16 if is_fp8 else dtype
    rows = 2 * n if epilogue in GATES else n
    x, weight = drawn.padded(m, k, dtype=dtype), drawn.padded(rows, k, dtype=dtype)
    if rng.random() < 0.1:
        x[rng.randrange(m), rng.randrange(k)] = float("nan")
    keywords: dict[str, Any] = {}
    wide, wide_w = x.double(), weight.double()
    if is_fp8:
        scale_x = drawn.factors((1,), (m,), (m, 1)) / k**0.5
        scale_w = drawn.factors((1,), (rows,), (rows, 1), (1, rows))
        keywords |= {"scale_x": scale_x, "scale_w": scale_w}
        wide, wide_w = wide * scale_x.double().reshape(-1, 1), wide_w * scale_w.double().reshape(-1, 1)
    sums, magnitude = wide @ wide_w.T, wide.abs() @ wide_w.abs().T
    radius = ACCUMULATION[dtype] * magnitude + ONE_ROUNDING * sums.abs() + TINY
    bias = drawn.normal(rows).to(element) if rng.random() < 0.5 else None
    if bias is not None:
        sums, radius = sums + bias.double(), radius + ONE_ROUNDING * bias.abs()
    residual = drawn.padded(m, n, dtype=element) if epilogue == "residual" else None
    interleaved = epilogue in GATES and rng.random() < 0.5
    y, radius = _finished(epilogue, sums, radius, residual, interleaved=interleaved)
    if epilogue in GATES:
        keywords |= {"activation": GATES[epilogue], "interleaved": interleaved}
    elif residual is not None:
        keywords["residual"] = residual
    elif epilogue != "none":
        keywords["activation"] = epilogue
    out = drawn.padded(m, n, dtype=element).fill_(float("nan")) if rng.random() < 0.5 else None
    if out is not None:
        keywords["out"] = out
    function = "gated_linear" if epilogue in GATES else "linear"
    return Call(
        f"{function} of {dtype} {epilogue} m {m} n {n} k {k}, {sorted(keywords)}, bias {bias is not None}",
        function,
        rng.random() < 0.5,
        (x, weight) if bias is None else (x, weight, bias),
        keywords,
        _is_near(y, radius + ROUNDING[element] * y.abs() + TINY, out),
    )


def quantised(
    x: torch.Tensor, dtype: torch.dtype, granularity: str, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return by torch what `quantize` gives: x in 8 bits, and the scales.

    The divisor is a tensor: by a number torch multiplies with the reciprocal on a GPU, which is another rounding.
    """
    wide, cols = x.float(), x.shape[-1]
    blocks = torch.nn.functional.pad(wide, (0, -cols % BLOCK)).unflatten(-1, (-1, BLOCK))
    if scale is None:
        largest = torch.tensor(LARGEST[dtype], device=x.device)
        if granularity == "tensor":
            most = wide.abs().amax().reshape((1,) * x.ndim)
        else:
            most = blocks.abs().amax(-1) if granularity == "block" else wide.abs().amax(-1, keepdim=True)
        scale = torch.where(most == 0, 1.0, (most / largest).clamp_min(LEAST_SCALE))
    spread = scale.reshape(*x.shape[:-1], 1) if scale.numel() == x.shape[:-1].numel() else scale.reshape(-1)[:1]
    if granularity == "block":
        spread = scale.repeat_interleave(BLOCK, -1)[..., :cols]
    quotient = (wide / spread).clamp(-128.0 if dtype is torch.int8 else -LARGEST[dtype], LARGEST[dtype])
    return (quotient if dtype.is_floating_point else quotient.nan_to_num(nan=0.0).round()).to(dtype), scale


def _are_same(y: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> Callable[[Any], torch.Tensor]:
    def is_right(result: Any) -> torch.Tensor:
        found, scales = result
        if found.shape != y.shape or found.dtype is not dtype or scales.numel() != scale.numel():
            return torch.tensor(False, device=y.device)
        bits, wanted = (x.contiguous().view(torch.uint8) for x in (found, y))
        is_nan = y.float().isnan()
        same = torch.where(is_nan, found.float().isnan(), bits == wanted).all()
        alike = scales.reshape(-1).view(torch.int32) == scale.reshape(-1).view(torch.int32)
        return same & (alike | (scales.reshape(-1).isnan() & scale.reshape(-1).isnan())).all()

    return is_right


def _quantize(drawn: Drawn) -> Call:
    rng = drawn.rng
    dtype, granularity = rng.choice(list(LARGEST)), rng.choice(GRANULARITIES)
    granularity = granularity if granularity != "block" or dtype is torch.float8_e4m3fn else "row"
    element = torch.bfloat16 if granularity == "block" else rng.choice((torch.bfloat16, torch.float16))
    element = torch.bfloat16 if dtype is torch.int8 else element
    step = rng.choice((8, 8, 8, 1))
    shape = [*(rng.randrange(1, 40) for _ in range(rng.randrange(3))), step * rng.randrange(1, 6000 // step)]
    x = drawn.padded(*shape, dtype=element)
    x *= rng.choice((1.0, 1.0, 2.0**-20, 2.0**10))
    for value in rng.choice(((), (), (), (float("nan"),), (float("inf"),), (float("-inf"), 0.0))):
        x[tuple(rng.randrange(extent) for extent in shape)] = value
    if rng.random() < 0.05:
        x.zero_()
    scale = None
    if granularity != "block" and rng.random() < 0.25:
        rows = x.shape[:-1].numel()
        scale = drawn.factors(*(((1,),) if granularity == "tensor" else ((1,), (rows,), (rows, 1))))
    return Call(
        f"quantize of {element} to {dtype} by {granularity} {shape} {x.stride()}, scale given {scale is not None}",
        "quantize",
        rng.random() < 0.5,
        (x, dtype, granularity),
        {} if scale is None else {"scale": scale},
        _are_same(*quantised(x, dtype, granularity, scale), dtype),
    )


def draw_operation(seed: int, index: int, device: str = "cuda") -> Call:
    rng = random.Random(f"{seed}/{index}/operation")
    drawn = Drawn(rng, torch.Generator(device).manual_seed(rng.randrange(2**62)), device)
    return _quantize(drawn) if rng.random() < 0.35 else _product(drawn)
