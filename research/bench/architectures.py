"""Five architectures of transformers with random weights, small or large, and a call of each.

A dense and a mixture-of-experts language model, a vision tower, a diffusion transformer and a speech model: what
`aot_gemm.torch.patch` is tried on, in the tests with a stand-in for the products, on a GPU by
`research/bench/patch.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Example:
    """A model, and a call of it with fixed inputs."""

    name: str
    model: nn.Module
    call: Callable[[nn.Module], torch.Tensor]


def _drawn(model: nn.Module, dtype: torch.dtype, device: str) -> nn.Module:
    """Draw weights such that every Linear adds as much as comes in; norms and what is no matrix stay."""
    model = model.to(device=device, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


def _tokens(count: int, device: str) -> torch.Tensor:
    return torch.randint(3, 100, (2, count), device=device)


def _language(width: int, *, experts: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": width // 4,
        "num_hidden_layers": 2,
        "vocab_size": 128,
    }
    if experts:
        sizes |= {"moe_intermediate_size": width // 2, "num_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model("qwen3_moe" if experts else "qwen3", **sizes)
    return AutoModelForCausalLM.from_config(config)


def _vision(width: int) -> Any:
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 4, "num_hidden_layers": 2}
    return AutoModel.from_config(AutoConfig.for_model("siglip_vision_model", **sizes, image_size=64, patch_size=16))


def _diffusion(width: int) -> Any:
    from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

    sizes = {"hidden_size": width, "num_attention_heads": 4, "head_dim": width // 4, "num_hidden_layers": 2}
    encoder = {
        "enc_channels": [64, 64, 64, 64, 192],
        "enc_dim": 32,
        "enc_emb_dim": 48,
        "emb_dim": 64,
        "num_embeds": 100,
    }
    more = {"enc_res2net_scale": 2, "look_backward_layers": [0], "look_ahead_layers": [1], "dropout": 0.0}
    return Qwen2_5OmniToken2WavDiTModel(Qwen2_5OmniDiTConfig(**sizes, **encoder, **more))


def _speech(width: int) -> Any:
    from transformers import AutoConfig, AutoModel

    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * width)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    lengths = {"max_source_positions": 50, "max_target_positions": 32}
    return AutoModel.from_config(
        AutoConfig.for_model("whisper", d_model=width, vocab_size=128, **sizes, **ids, **lengths)
    )


def examples(width: int = 64, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> list[Example]:
    """Make the five, each of two layers of a width that is a multiple of 64.

    Raises:
        ImportError: there is no transformers.
    """
    torch.manual_seed(0)
    ids, images = _tokens(12, device), torch.randn(2, 3, 64, 64, device=device, dtype=dtype)
    sound = torch.randn(2, 80, 100, device=device, dtype=dtype)
    mel, code = torch.randn(2, 16, 80, device=device, dtype=dtype), torch.randint(0, 100, (2, 8), device=device)
    speaker = torch.randn(2, 16, 48, device=device, dtype=dtype)
    step = torch.tensor(0.5, device=device, dtype=dtype)

    def denoise(model: Any) -> torch.Tensor:
        given = (x.to(model.dtype) for x in (mel, mel, speaker))
        found: torch.Tensor = model(*given, code, step.to(model.dtype))
        return found

    made = [
        ("dense language model", _language(width, experts=False), lambda model: model(ids, use_cache=False).logits),
        ("mixture of experts", _language(width, experts=True), lambda model: model(ids, use_cache=False).logits),
        ("vision tower", _vision(width), lambda model: model(images.to(model.dtype)).last_hidden_state),
        ("diffusion transformer", _diffusion(width), denoise),
        (
            "speech model",
            _speech(width),
            lambda model: model(sound.to(model.dtype), decoder_input_ids=ids, use_cache=False).last_hidden_state,
        ),
    ]
    return [Example(name, _drawn(model, dtype, device), call) for name, model, call in made]
