"""The families of models that are known without transformers: what the numbers of a configuration make of blocks.

Source of keys and defaults: the configuration and modelling modules of each family in transformers 5.23.0, with which
tests/unit/models/expected.json was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.errors import ShapeFileError
from aot.core.shape_set import Weight
from aot.core.strict_json import shown
from aot.models.blocks import Attention, CrossAttention, FeedForward, LatentAttention, Vocabulary
from aot.models.configuration import RECORD
from aot.models.linears import BATCHES, EXPERT, EXPERTS, SEQUENCES, Block, Part, Rows
from aot.models.towers import clip, completed, dinov2, siglip, vision_parts, vit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.models.configuration import Configuration

ATTENTION, FEED_FORWARD = frozenset({"q", "k", "v", "o"}), frozenset({"gate", "up", "down"})

HEADS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""How the names of classes end that have a projection to the vocabulary."""


def _biased(config: Configuration, key: str, names: frozenset[str], *, default: bool = False) -> frozenset[str]:
    return names if config.flag(key, default=default) else frozenset()


def _attention(config: Configuration, head_dim: int | None = None, kv_heads: int | None = None) -> Attention:
    heads = config.number("num_attention_heads")
    if not config.has("head_dim") and head_dim is None:
        head_dim = config.divided("hidden_size", heads, "the number of heads")
    return Attention(
        heads, config.number("num_key_value_heads", kv_heads or heads), config.number("head_dim", head_dim)
    )


def _vocabulary(config: Configuration, hidden: int, default: int | None = None) -> list[Part]:
    return [Part(Vocabulary(config.number("vocab_size", default)), hidden, rows=BATCHES)]


def _decoder(config: Configuration, attention: Attention, biased: frozenset[str]) -> list[Part]:
    """List a decoder's layers of one kind."""
    hidden, layers = config.number("hidden_size"), config.repeats("num_hidden_layers")
    feed_forward = FeedForward(config.number("intermediate_size"), True)
    return [Part(attention, hidden, layers, biased=biased), Part(feed_forward, hidden, layers, biased=biased)]


def _llama(config: Configuration) -> list[Part]:
    biased = _biased(config, "attention_bias", ATTENTION) | _biased(config, "mlp_bias", FEED_FORWARD)
    return _decoder(config, _attention(config), biased)


def _mistral(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config, kv_heads=8), frozenset())


def _qwen2(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config), frozenset("qkv"))


def _olmo2(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config), _biased(config, "attention_bias", ATTENTION))


def _qwen3(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config, 128), _biased(config, "attention_bias", ATTENTION))


def _phi3(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config), frozenset())


def _gemma2(config: Configuration) -> list[Part]:
    return _decoder(config, _attention(config, 256), _biased(config, "attention_bias", ATTENTION))


def _gemma3_text(config: Configuration) -> list[Part]:
    return _gemma2(completed(config, {"num_attention_heads": 8, "num_key_value_heads": 4}))


def _experts(
    config: Configuration, count_key: str, width_key: str, layers: int, *, is_biased: bool = False
) -> list[Part]:
    """List the routers and the experts of some layers."""
    hidden, count = config.number("hidden_size"), config.repeats(count_key, least=1)
    router = Part(Weight("router", count, hidden), hidden, layers, biased=frozenset({"router"} if is_biased else ()))
    width = FeedForward(config.number(width_key), True)
    biased = FEED_FORWARD if is_biased else frozenset[str]()
    return [router, Part(width, hidden, layers * count, EXPERTS, EXPERT, biased)]


def _mixtral(config: Configuration) -> list[Part]:
    layers = config.repeats("num_hidden_layers")
    attention = Part(_attention(config, kv_heads=8), config.number("hidden_size"), layers)
    return [attention, *_experts(config, "num_local_experts", "intermediate_size", layers)]


def _gpt_oss(config: Configuration) -> list[Part]:
    layers, biased = config.repeats("num_hidden_layers"), _biased(config, "attention_bias", ATTENTION, default=True)
    attention = Part(_attention(config, 64, 8), config.number("hidden_size"), layers, biased=biased)
    return [attention, *_experts(config, "num_local_experts", "intermediate_size", layers, is_biased=True)]


def _sparse_layers(config: Configuration) -> int:
    """Count the layers of Qwen's mixtures that have experts."""
    step, dense = config.number("decoder_sparse_step", 1), set(config.numbers("mlp_only_layers"))
    return sum(i not in dense and (i + 1) % step == 0 for i in range(config.repeats("num_hidden_layers")))


def _qwen_moe(config: Configuration, attention: Attention, biased: frozenset[str]) -> list[Part]:
    hidden, layers, sparse = config.number("hidden_size"), config.repeats("num_hidden_layers"), _sparse_layers(config)
    dense = FeedForward(config.number("intermediate_size"), True)
    return [
        Part(attention, hidden, layers, biased=biased),
        Part(dense, hidden, layers - sparse),
        *_experts(config, "num_experts", "moe_intermediate_size", sparse),
    ]


def _qwen2_moe(config: Configuration) -> list[Part]:
    biased = _biased(config, "qkv_bias", frozenset("qkv"), default=True)
    hidden, sparse = config.number("hidden_size"), _sparse_layers(config)
    shared = FeedForward(config.number("shared_expert_intermediate_size"), True)
    return [
        *_qwen_moe(config, _attention(config), biased),
        Part(shared, hidden, sparse, prefix="shared expert "),
        Part(Weight("shared_expert_gate", 1, hidden), hidden, sparse),
    ]


def _qwen3_moe(config: Configuration) -> list[Part]:
    return _qwen_moe(config, _attention(config), _biased(config, "attention_bias", ATTENTION))


def _deepseek(config: Configuration) -> list[Part]:
    hidden, layers = config.number("hidden_size"), config.repeats("num_hidden_layers")
    attention = LatentAttention(
        config.number("num_attention_heads"),
        kv_rank=config.number("kv_lora_rank"),
        nope_dim=config.number("qk_nope_head_dim"),
        rope_dim=config.number("qk_rope_head_dim"),
        value_dim=config.number("v_head_dim"),
        q_rank=config.number("q_lora_rank") if config.has("q_lora_rank") else None,
    )
    dense = min(config.repeats("first_k_dense_replace"), layers)
    width = config.number("moe_intermediate_size")
    shared = FeedForward(width * config.repeats("n_shared_experts", least=1), True)
    return [
        Part(attention, hidden, layers, biased=_biased(config, "attention_bias", frozenset({"q_a", "kv_a", "o"}))),
        Part(FeedForward(config.number("intermediate_size"), True), hidden, dense),
        *_experts(config, "n_routed_experts", "moe_intermediate_size", layers - dense),
        Part(shared, hidden, layers - dense, prefix="shared expert "),
    ]


def _t5(config: Configuration) -> list[Part]:
    hidden, heads, layers = config.number("d_model"), config.number("num_heads"), config.repeats("num_layers")
    size, is_encoder = config.number("d_kv"), config.architecture in ("T5EncoderModel", "UMT5EncoderModel")
    self_attention, cross = Attention(heads, heads, size), CrossAttention(heads, size)
    feed_forward = FeedForward(config.number("d_ff"), config.text("feed_forward_proj", "relu").startswith("gated"))
    prefix = "" if is_encoder else "encoder "
    found = [Part(x, hidden, layers, prefix=prefix) for x in (self_attention, feed_forward)]
    if is_encoder:
        return found
    layers = config.repeats("num_decoder_layers", layers)
    rows, prefix = BATCHES, "decoder "
    found += [Part(x, hidden, layers, rows, prefix) for x in (self_attention, feed_forward)]
    found.append(Part(cross, hidden, layers, rows, prefix, context=SEQUENCES))
    return found + (_vocabulary(config, hidden) if _has_vocabulary(config) else [])


def _whisper(config: Configuration) -> list[Part]:
    hidden, frames = config.number("d_model"), Rows(num_tokens=config.number("max_source_positions", 1500))
    found = []
    for tower, rows in (("encoder", frames), ("decoder", BATCHES)):
        heads, layers = config.number(f"{tower}_attention_heads"), config.repeats(f"{tower}_layers")
        size = config.divided("d_model", heads, "the number of heads")
        biased, prefix = frozenset({"q", "v", "o", "up", "down", "cross q", "cross v", "cross o"}), f"{tower} "
        blocks: list[Block] = [Attention(heads, heads, size), FeedForward(config.number(f"{tower}_ffn_dim"), False)]
        blocks += [CrossAttention(heads, size)] if tower == "decoder" else []
        found += [Part(x, hidden, layers, rows, prefix, biased, frames) for x in blocks]
    return found + (_vocabulary(config, hidden) if _has_vocabulary(config) else [])


def _has_vocabulary(config: Configuration) -> bool:
    return not config.architecture or config.architecture.endswith(HEADS)


DECODERS: dict[str, Callable[[Configuration], list[Part]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma2,
    "gemma2": _gemma2,
    "granite": _llama,
    "smollm3": _llama,
    "olmo2": _olmo2,
    "gemma3_text": _gemma3_text,
    "phi3": _phi3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
}
"""Language models of a decoder alone."""

OTHERS: dict[str, Callable[[Configuration], list[Part]]] = {
    "siglip": siglip,
    "siglip_vision_model": vision_parts,
    "clip": clip,
    "clip_vision_model": vision_parts,
    "vit": vit,
    "dinov2": dinov2,
    "whisper": _whisper,
    "t5": _t5,
}

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
"""What published configurations leave out whose tower is a Llama, as OpenVLA's. Source: transformers 5.23.0,
LlamaConfig."""

TOWERS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
"""Keys of the configurations within that of a model which is no family of its own."""
KNOWN = tuple(sorted({*DECODERS, *OTHERS, "gemma3"}))


def _language(config: Configuration, *, is_whole: bool) -> list[Part]:
    """List a language model; one that is a tower has a vocabulary whatever its own class."""
    found = DECODERS[config.model_type](config)
    if is_whole and not _has_vocabulary(config):
        return found
    default = 262208 if config.model_type == "gemma3_text" else None
    return found + _vocabulary(config, config.number("hidden_size"), default)


def is_known(config: Configuration) -> bool:
    """Say whether the table has a family itself."""
    return not config.diffusers_class and config.model_type in KNOWN


def is_joined(config: Configuration) -> bool:
    """Say whether a model is one of towers, of which the table does not know what joins them."""
    return config.model_type not in (*DECODERS, *OTHERS, "gemma3")


def towers_of(config: Configuration) -> list[str]:
    """Return the keys of the configurations within that of a model."""
    return [key for key in TOWERS if config.has(key)]


def parts_of(config: Configuration, *, is_whole: bool = True) -> list[Part]:
    """List the blocks of a model of a known family, and of the towers of one that has them.

    Raises:
        ShapeFileError: the family is not known, or a number is missing or wrong.
    """
    if config.diffusers_class:
        raise ShapeFileError(
            f"{config.where}: {config.diffusers_class} is a model of diffusers, which builds it: pip install diffusers "
            f"beside aot, and run the command again; {RECORD}"
        )
    kind = config.model_type
    if kind in DECODERS:
        return _language(config, is_whole=is_whole)
    if kind in OTHERS:
        return OTHERS[kind](config)
    towers = [config.within(key) for key in towers_of(config)]
    if not towers or not all(tower.has("model_type") for tower in towers):
        raise ShapeFileError(
            f"{config.where}: the family {shown(kind)} is not known; known without transformers: {', '.join(KNOWN)}; "
            f"transformers knows more: pip install transformers beside aot, and run the command again; {RECORD}"
        )
    whole = (completed(x, LLAMA) if x.model_type == "llama" else x for x in towers)
    return [part for tower in whole for part in parts_of(tower, is_whole=False)]
