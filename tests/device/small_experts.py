"""Modules of experts as transformers has them, for tests on the CPU and on a GPU."""

import functools

import torch
from torch import nn
from torch.nn import functional

SIZES = 4, 256, 128
"""Experts, columns of a token, columns between the products."""


def decorated(forward):
    """Mark a forward as transformers marks those that it may compute in other ways."""

    @functools.wraps(forward)
    def call(self, *operands):
        return forward(self, *operands)

    return call


class Experts(nn.Module):
    """Experts of a gate by halves, weights (experts, n, k)."""

    has_gate, has_bias, is_transposed = True, False, False

    def __init__(self, dtype=torch.bfloat16, sizes=SIZES):
        super().__init__()
        self.num_experts, hidden, width = sizes
        shapes = {"gate_up_proj": (2 * width, hidden), "down_proj": (hidden, width)}
        for name, (n, k) in shapes.items():
            shape = (k, n) if self.is_transposed else (n, k)
            weight = torch.randn(self.num_experts, *shape) / k**0.5
            setattr(self, name, nn.Parameter(weight.to(dtype)))
            if self.has_bias:
                setattr(self, f"{name}_bias", nn.Parameter(torch.randn(self.num_experts, n).to(dtype)))

    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    @decorated
    def forward(self, x, chosen, weights):
        raise AssertionError("computed by the model's own")


class GptOss(Experts):
    """GPT-OSS's: of even and odd columns, transposed, with biases."""

    has_bias = is_transposed = True

    def _apply_gate(self, x):
        gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(gate * 1.702)
