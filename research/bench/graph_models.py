"""Architectures of transformers at the sizes of published models, for `research/bench/graph.py`.

Weights are random; sizes are those of the models that each function names, with few layers and, for language models
whose head is not what is measured, a small vocabulary. A row is a batch of sequences without a key-value cache, so a
decode row of batch b has the products of b tokens and attention over one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SIZES: dict[str, dict[str, Any]] = {
    # Qwen2.5-0.5B, whose head is its embedding
    "qwen2": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    # Gemma 2 2B: norms in front of and behind each block
    "gemma2": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 1024,
    },
    # Phi-3 mini: query, key and value in one Linear, gate and up in one
    "phi3": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 1024,
        "pad_token_id": 0,
    },
    # Qwen3-30B-A3B with a quarter of its experts
    "qwen3_moe": {
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "vocab_size": 1024,
    },
    # SigLIP so400m: 256 patches an image
    "siglip_vision_model": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
    },
}
IMAGE_TOKENS = 256


@dataclass(frozen=True)
class Input:
    """A row: batch sequences of tokens (int64, (batch, tokens)), or images (batch, 3, 224, 224)."""

    name: str
    m: int
    values: torch.Tensor


class Called(nn.Module):
    """A model that takes one tensor and returns one: logits, or the last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, vocabulary or width)."""
        found: torch.Tensor
        if values.is_floating_point():
            found = self.model(values.to(next(self.parameters()).dtype)).last_hidden_state
        else:
            found = self.model(values, use_cache=False).logits
        return found


def make_model(name: str, num_layers: int, dtype: torch.dtype, device: str) -> Called:
    """Make a model of SIZES; every Linear adds as much as comes in.

    Raises:
        ImportError: there is no transformers.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    sizes = dict(SIZES[name], num_hidden_layers=num_layers)
    config = AutoConfig.for_model(name, **sizes)
    with torch.device(device):
        model = (AutoModel if name.startswith("siglip") else AutoModelForCausalLM).from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return Called(model.eval())


def make_input(name: str, row: str, device: str) -> Input:
    """Make the input of a row: decode-B is a token of each of B sequences, prefill-M is one sequence of M tokens.

    A vision tower takes whole images: one for decode-B's each, and as many as M tokens need for prefill-M.

    Raises:
        ValueError: there is no such row.
    """
    kind, _, text = row.partition("-")
    if kind not in ("decode", "prefill") or not text.isdecimal() or int(text) < 1:
        raise ValueError(f"row is {row!r}; expected decode-B or prefill-M with a count of at least 1: give such a row")
    count = int(text)
    if name.startswith("siglip"):
        images = count if kind == "decode" else -(-count // IMAGE_TOKENS)
        return Input(row, images * IMAGE_TOKENS, torch.randn(images, 3, 224, 224, device=device))
    shape = (count, 1) if kind == "decode" else (1, count)
    return Input(row, count, torch.randint(3, 1000, shape, device=device))
