"""Linears of FP8 by torch alone: what a model with FP8 weights has without the wheel."""

from __future__ import annotations

import copy

import torch
from torch import nn

from research.bench.stack import Stack

LARGEST = torch.finfo(torch.float8_e4m3fn).max
LEAST = 1e-12
"""A scale factor is at least this, so that a row of zeros divides by no zero."""


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x (rows, k) in e4m3, and the factors (rows, 1) of its rows; torch.compile makes one kernel of it."""
    wide = x.float()
    scale = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(LEAST)
    return (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


class Fp8Linear(nn.Module):
    """A Linear by torch._scaled_mm: weights quantized by rows beforehand, inputs with each call."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = quantize_rows(linear.weight)
        self.weight, self.scale = (nn.Parameter(x, requires_grad=False) for x in (weight, scale.t().contiguous()))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute x @ weight^T, (..., n), of x (..., k)."""
        rows, factors = quantize_rows(x.reshape(-1, x.shape[-1]))
        found: torch.Tensor = torch._scaled_mm(  # noqa: SLF001 - what torch has, and users call
            rows, self.weight.t(), factors, self.scale, bias=self.bias, out_dtype=x.dtype
        )
        return found.view(*x.shape[:-1], found.shape[-1])


def with_torch_fp8(stack: Stack) -> Stack:
    """Return a copy of a stack with every Linear by torch._scaled_mm."""
    other = copy.deepcopy(stack)
    for module in list(other.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, Fp8Linear(child))
    return other
