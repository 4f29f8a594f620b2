"""A small language model, and what tests of models under the wheel share. Needs torch alone."""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn
from torch.nn import functional

BF16 = torch.bfloat16
WIDTH, HEADS, KV_HEADS, INNER = 512, 8, 2, 1536
NUM_LINEARS = 15
"""Of `Net`."""
BOUND = 0.02
"""Relative error of some ten products in a row in bfloat16, each rounded in its own order."""


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        inner = WIDTH // HEADS * KV_HEADS
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, inner, bias=False) for _ in range(2))

    def forward(self, x):
        heads = [y.unflatten(-1, (-1, WIDTH // HEADS)).transpose(-3, -2) for y in (self.k_proj(x), self.v_proj(x))]
        k, v = (y.repeat_interleave(HEADS // KV_HEADS, -3) for y in heads)
        q = self.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(-3, -2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5, -1)
        return self.o_proj((weights @ v).transpose(-3, -2).flatten(-2))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attn, self.mlp = Attention(), Gated()

    def forward(self, x):
        x = x + self.attn(self.first(x))
        return x + self.mlp(self.second(x))


class Net(nn.Module):
    def __init__(self, out=1024):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, out)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def net(device, out=1024):
    return Net(out).to(device, BF16).eval()


def draw(device, *shape):
    return torch.randn(shape).to(device, BF16)


def weights(model):
    return [x.weight for x in model.modules() if isinstance(x, nn.Linear)]


def error(got, expected):
    """Return the norm of the difference over that of what is expected."""
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def beside(model):
    """Return an untouched copy of a model."""
    return copy.deepcopy(model)


def standing(model):
    """Return all that `patch` must leave: what a module has, and where its parameters lie."""
    return {
        name: (type(x), dict(vars(x)), [(y.data_ptr(), y.requires_grad) for y in x.parameters(recurse=False)])
        for name, x in model.named_modules()
    }


def num_bytes(model):
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))


def to_one_bound(got, expected, bound=BOUND):
    found = error(got, expected)
    assert found < bound, found


def package_of(wheel):
    """Return the package whose module for torch is given."""
    return sys.modules[wheel.__name__.rpartition(".")[0]]
