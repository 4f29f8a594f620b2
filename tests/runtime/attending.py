"""A model of attention with a cache, as transformers has it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

BF16 = torch.bfloat16
HIDDEN = 64
DIM, LENGTH = HIDDEN // 2, 9


def linear(n, k, *, bias=False):
    return nn.Linear(k, n, bias=bias, dtype=BF16)


class Rotary(nn.Module):
    """The rotary embedding of transformers' Llama."""

    def __init__(self, *, doubles=True, dim=DIM):
        super().__init__()
        self.doubles = doubles
        self.register_buffer("frequencies", torch.rand(dim // 2))

    def angles_of(self, x):
        """Give cosines and sines of the positions of x (batch, tokens, ...)."""
        angles = torch.arange(x.shape[1])[None, :, None].float() * self.frequencies
        angles = torch.cat((angles, angles if self.doubles else angles + 1), dim=-1)
        return angles.cos().to(x.dtype).unsqueeze(1), angles.sin().to(x.dtype).unsqueeze(1)

    def forward(self, x):
        return turn(x.view(*x.shape[:2], 2, DIM).transpose(1, 2), *self.angles_of(x))


def turn(heads, cos, sin):
    first, second = heads[..., : heads.shape[-1] // 2], heads[..., heads.shape[-1] // 2 :]
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def turn_part(heads, cos, sin):
    """Turn the first elements of heads, as transformers' Phi-3 does, of which there may be no others."""
    dim = cos.shape[-1]
    return torch.cat([turn(heads[..., :dim], cos, sin), heads[..., dim:]], dim=-1)


def copy_at(cache, place, tokens):
    cache.index_copy_(2, place, tokens)


def put_at(cache, place, tokens):
    cache[:, :, place] = tokens


WRITES = (copy_at, put_at)


class Attending(nn.Module):
    """Layers of attention, each with a cache of its own that `write` fills."""

    def __init__(self, write, *, layers=2, reads=None, lies=None, heads_lie=None, turning=turn, dim=DIM):
        super().__init__()
        self.turning = turning
        self.rotary, self.write, self.reads, self.lies, self.heads_lie = Rotary(dim=dim), write, reads, lies, heads_lie
        self.queries = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in range(layers))
        self.pairs = nn.ModuleList(linear(HIDDEN, HIDDEN) for _ in range(layers))

    def forward(self, x, place, caches):
        angles = self.rotary.angles_of(x)
        for query, pair, (keys, values) in zip(self.queries, self.pairs, caches, strict=True):
            heads = [y.view(*x.shape[:2], -1, DIM).transpose(1, 2) for y in (query(x), *pair(x).chunk(2, -1))]
            heads = heads if self.heads_lie is None else self.heads_lie(heads)
            turned = [self.turning(y, *angles) for y in heads[:2]]
            if self.reads is not None:
                x = x + self.reads(keys, turned[1])
            self.write(keys, place, turned[1])
            self.write(values, place, heads[2])
            found = functional.scaled_dot_product_attention(turned[0], keys, values, enable_gqa=True)
            x = x + found.transpose(1, 2).reshape(x.shape)
        return x


def others_of(model, x):
    """Give positions in, and new caches for, what a model is called with beside x."""
    lies = model.lies or (lambda cache: cache)
    caches = [tuple(lies(torch.ones(x.shape[0], 1, LENGTH, DIM, dtype=BF16)) for _ in range(2)) for _ in model.queries]
    return torch.tensor([7, 2, 5])[: x.shape[1]], caches


def check_attending(model, x, compiled):
    """Hold a compiled model's result and caches against the model's own."""
    others, expected_others = others_of(model, x), others_of(model, x)
    expected = model(x, *expected_others)
    torch.testing.assert_close(compiled(x, *others), expected, rtol=0.05, atol=0.05)
    for got, want in zip(others[1], expected_others[1], strict=True):
        for cache, other in zip(got, want, strict=True):
            torch.testing.assert_close(cache, other, rtol=0.05, atol=0.05)
            assert not torch.equal(cache, torch.ones_like(cache))
