"""A mixture-of-experts layer of two calls of `grouped_linear`: gather, gate and up with SwiGLU; down; weighted sum.

    out = moe(x, route(x @ router.T, top=8), gate_up, down, aot_gemm.grouped_linear)

The rows of an expert are a group. Which token a row is of is an index, by which the first call reads x while it loads
it, so that no permuted copy is made. The second call's rows lie in the order of the experts too; each token then sums
its own, in the order of its choices, so that results are the same from run to run. Nothing waits for the host: all of
it can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

GroupedLinear = Callable[..., torch.Tensor]
"""`grouped_linear` of the wheel, or what stands for it."""

MAX_E4M3 = 448.0
"""Largest finite float8_e4m3fn."""


class Routes(NamedTuple):
    """Which experts each token goes to, and where its rows lie. `rows` is tokens times choices."""

    weights: torch.Tensor
    """(tokens, choices), float32: what a token's rows are multiplied by."""
    token_of: torch.Tensor
    """(rows), int32: the token of each row, rows in the order of the experts."""
    offsets: torch.Tensor
    """(experts), int32: where the rows of each expert end."""
    places: torch.Tensor
    """(tokens, choices): the row of each token's choice."""


def route(logits: torch.Tensor, top: int) -> Routes:
    """Choose the experts of each token: softmax over all, the largest `top`, whose weights sum up to 1.

    Args:
        logits: (tokens, experts), of the router.
        top: choices of a token.
    """
    tokens, experts = logits.shape
    weights, chosen = torch.softmax(logits.float(), dim=-1).topk(top, dim=-1)
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(experts, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    token_of, offsets = (order // top).to(torch.int32), counts.cumsum(0, dtype=torch.int32)
    return Routes(weights / weights.sum(-1, keepdim=True), token_of, offsets, places.view(tokens, top))


def combine(rows: torch.Tensor, routes: Routes) -> torch.Tensor:
    """Sum each token's rows (rows, hidden), times their weights, in float32; gives (tokens, hidden)."""
    return (rows[routes.places].float() * routes.weights[..., None]).sum(1).to(rows.dtype)


def moe(
    x: torch.Tensor, routes: Routes, gate_up: torch.Tensor, down: torch.Tensor, linear: GroupedLinear
) -> torch.Tensor:
    """Compute the layer.

    Args:
        x: (tokens, hidden).
        routes: of `route`.
        gate_up: (experts, 2 intermediate, hidden): the gate's rows, then the linear ones.
        down: (experts, hidden, intermediate).
        linear: `grouped_linear`.
    """
    inner = linear(x, gate_up, routes.offsets, index=routes.token_of, gate="silu")
    return combine(linear(inner, down, routes.offsets), routes)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of the last dimension to float8_e4m3fn; give it, and the factors (..., 1) to multiply it by."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / MAX_E4M3
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


class Fp8Experts(NamedTuple):
    """The weights of the experts as float8, with a factor for each row of each."""

    gate_up: torch.Tensor
    gate_up_scale: torch.Tensor
    """(experts, 2 intermediate), float32."""
    down: torch.Tensor
    down_scale: torch.Tensor
    """(experts, hidden), float32."""

    @staticmethod
    def of(gate_up: torch.Tensor, down: torch.Tensor) -> Fp8Experts:
        """Quantise weights as `moe` takes them."""
        (first, first_scale), (second, second_scale) = quantise_rows(gate_up), quantise_rows(down)
        return Fp8Experts(first, first_scale.squeeze(-1), second, second_scale.squeeze(-1))


def moe_fp8(
    x: torch.Tensor,
    routes: Routes,
    experts: Fp8Experts,
    linear: GroupedLinear,
    quantise: Callable[[torch.Tensor], Any] = quantise_rows,
) -> torch.Tensor:
    """Compute the layer with float8 operands: a token is quantised once, and not once for each of its experts.

    Args:
        x: (tokens, hidden).
        routes: of `route`.
        experts: the weights.
        linear: `grouped_linear`.
        quantise: `quantise_rows`, or it compiled.
    """
    tokens, scale = quantise(x)
    named: dict[str, Any] = {"index": routes.token_of, "gate": "silu", "out_dtype": torch.bfloat16}
    inner = linear(tokens, experts.gate_up, routes.offsets, scale_x=scale, scale_w=experts.gate_up_scale, **named)
    rows, scale = quantise(inner)
    named = {"scale_x": scale, "scale_w": experts.down_scale, "out_dtype": torch.bfloat16}
    return combine(linear(rows, experts.down, routes.offsets, **named), routes)
