"""A stack of decoder layers of transformers with random weights, as it is and with its Linears through the wheel."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import aot_gemm
import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, in the words of transformers' configurations."""

    model_type: str = "llama"
    hidden_size: int = 4096
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 14336
    num_hidden_layers: int = 4


class Cache:
    """The keys and values of a batch in front of one more token, which each pass writes to the same last place.

    So a pass can be repeated: it attends to `length` tokens, itself among them, each time. Decoder layers of any
    version of transformers know a cache by its `update` alone.
    """

    def __init__(self, shape: Shape, batch: int, length: int, like: torch.Tensor) -> None:
        """Draw keys and values of (batch, heads, length, head_dim), with the type and device of a tensor."""
        sizes = (batch, shape.num_key_value_heads, length, shape.head_dim)
        device, dtype = like.device, like.dtype
        self.keys = [torch.randn(sizes, device=device, dtype=dtype) for _ in range(shape.num_hidden_layers)]
        self.values = [torch.randn(sizes, device=device, dtype=dtype) for _ in range(shape.num_hidden_layers)]
        self.place = torch.tensor([length - 1], device=device)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token's keys and values, (batch, heads, 1, head_dim); return those of all tokens."""
        self.keys[layer].index_copy_(2, self.place, keys)
        self.values[layer].index_copy_(2, self.place, values)
        return self.keys[layer], self.values[layer]

    def as_type(self, dtype: torch.dtype) -> Cache:
        """Return a copy in another element type."""
        other = copy.copy(self)
        other.keys, other.values = ([x.to(dtype, copy=True) for x in each] for each in (self.keys, self.values))
        return other


class Stack(nn.Module):
    """Decoder layers, their rotary embedding and the last norm; without embedding of tokens and logits."""

    def __init__(self, layers: Sequence[nn.Module], norm: nn.Module, rotary_embedding: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.rotary_embedding = rotary_embedding
        # transformers renamed it in version 4.56.
        known = inspect.signature(layers[0].forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in known else "past_key_value"

    def forward(self, x: torch.Tensor, positions: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        """Return the hidden states (batch, tokens, hidden) of the last layer, normed; attention is causal."""
        embeddings = self.rotary_embedding(x, positions)
        options = {} if cache is None else {self.cache_name: cache}
        for layer in self.layers:
            found = layer(x, position_embeddings=embeddings, **options)
            x = found[0] if isinstance(found, tuple) else found  # a tuple before version 4.54
        return self.norm(x)


def make_stack(shape: Shape, dtype: torch.dtype, device: str) -> Stack:
    """Make a stack of transformers' layers with drawn weights.

    Raises:
        ImportError: there is no transformers.
        ValueError: transformers has no such model, or it refuses the sizes.
        AttributeError: its decoder is not made of layers, norm and rotary_emb.
    """
    from transformers import AutoConfig, AutoModel

    sizes = {key: value for key, value in vars(shape).items() if key != "model_type"}
    config = AutoConfig.for_model(shape.model_type, **sizes, vocab_size=1024, max_position_embeddings=32768)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = AutoModel.from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(before)
    stack = Stack(list(model.layers), model.norm, model.rotary_emb).eval().requires_grad_(requires_grad=False)
    for parameter in stack.parameters():
        parameter.data = parameter.data.to(device=device, dtype=dtype)
    for linear in linears(stack):  # such that each layer adds as much as comes in, whatever its width
        linear.weight.normal_(std=linear.in_features**-0.5)
    return stack


def linears(stack: nn.Module) -> list[nn.Linear]:
    """List the Linears of a stack, in the order of its layers."""
    return [module for module in stack.modules() if isinstance(module, nn.Linear)]


class WheelLinear(nn.Module):
    """A Linear through the wheel, over the same parameters."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the wheel through the operator that torch.compile does not look into."""
        return torch.ops.aot_gemm_bench.linear(x, self.weight, self.bias)


CONSTANT: dict[int, object] = {}
"""Weights that are promised to be constant, by their address."""


def promise_constant(stack: nn.Module) -> None:
    """Promise the wheel that nobody writes the weights of a stack while they are in use."""
    for linear in linears(stack):
        CONSTANT[linear.weight.data_ptr()] = aot_gemm.constant(linear.weight)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return aot_gemm.linear(x, CONSTANT.get(weight.data_ptr(), weight), bias)


def register() -> None:
    """Make the operator aot_gemm_bench::linear: opaque, with a fake result of (..., n) for tracing."""
    schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor"
    operator = torch.library.custom_op("aot_gemm_bench::linear", _linear, mutates_args=(), schema=schema)
    operator.register_fake(lambda x, weight, _bias: x.new_empty((*x.shape[:-1], weight.shape[0])))


def with_wheel(stack: Stack) -> Stack:
    """Return the stack with every Linear through the wheel; parameters are shared."""
    memo = {id(parameter): parameter for parameter in stack.parameters()}
    other = copy.deepcopy(stack, memo)
    for module in list(other.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, WheelLinear(child))
    return other
