"""The families of towers for images and the texts beside them: SigLIP, CLIP, ViT and DINOv2.

Source: as of `aot.models.families`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aot.core.shape_set import Weight
from aot.models.blocks import Attention, CrossAttention, FeedForward
from aot.models.linears import BATCHES, SEQUENCES, Part, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aot.models.configuration import Configuration

VISION = "vision "
SIGLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
"""What published configurations of SigLIP leave out."""
CLIP_VISION = {**SIGLIP, "image_size": 224, "patch_size": 32}
CLIP_TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
SIGLIP_VISION = {**SIGLIP, "image_size": 224, "patch_size": 16}
VIT = {**SIGLIP, "image_size": 224, "patch_size": 16}
DINOV2 = {key: x for key, x in {**VIT, "patch_size": 14, "mlp_ratio": 4}.items() if key != "intermediate_size"}

WITHOUT_CLASS = ("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model")
"""Families whose images have no token for their class."""


def completed(config: Configuration, defaults: Mapping[str, Any]) -> Configuration:
    """Return a configuration with defaults for what is missing or null."""
    return replace(config, values={**defaults, **{key: x for key, x in config.values.items() if x is not None}})


def image_rows(config: Configuration) -> Rows:
    """Return the rows of an image: its patches, and the token of its class."""
    patches = (config.number("image_size") // config.number("patch_size")) ** 2
    return Rows(num_tokens=max(patches, 1) + (config.model_type not in WITHOUT_CLASS))


def _tower(config: Configuration, rows: Rows, prefix: str, biased: frozenset[str]) -> list[Part]:
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    size, layers = config.divided("hidden_size", heads, "the number of heads"), config.repeats("num_hidden_layers")
    blocks = (Attention(heads, heads, size), FeedForward(config.number("intermediate_size"), False))
    return [Part(block, hidden, layers, rows, prefix, biased) for block in blocks]


ALL = frozenset({"q", "k", "v", "o", "up", "down", "cross q", "cross k", "cross v", "cross o"})


def vision_parts(config: Configuration) -> list[Part]:
    """List SigLIP's or CLIP's tower for images; SigLIP's ends with an attention that pools."""
    is_siglip = config.model_type in WITHOUT_CLASS
    config = completed(config, SIGLIP_VISION if is_siglip else CLIP_VISION)
    rows = image_rows(config)
    found = _tower(config, rows, VISION, ALL)
    if is_siglip and config.flag("vision_use_head", default=True):
        hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
        blocks = (CrossAttention(heads, hidden // heads), FeedForward(config.number("intermediate_size"), False))
        found += [Part(block, hidden, 1, BATCHES, f"{VISION}pooling ", ALL, rows) for block in blocks]
    return found


def _typed(config: Configuration, key: str, model_type: str) -> Configuration:
    """Return the configuration of a tower, which may leave out all that is its family's default."""
    if not config.has(key):
        config = replace(config, values={**config.values, key: {}})
    return completed(config.within(key), {"model_type": model_type})


def siglip(config: Configuration) -> list[Part]:
    """List SigLIP: the tower for images, that for texts, and the text's projection."""
    text = completed(_typed(config, "text_config", "siglip_text_model"), SIGLIP)
    hidden = text.number("hidden_size")
    head = Part(
        Weight("head", text.number("projection_size", hidden), hidden), hidden, 1, BATCHES, "text ", frozenset({"head"})
    )
    vision = vision_parts(_typed(config, "vision_config", "siglip_vision_model"))
    return [*vision, *_tower(text, SEQUENCES, "text ", ALL), head]


def clip(config: Configuration) -> list[Part]:
    """List CLIP: the two towers, and their projections to one space."""
    text = completed(_typed(config, "text_config", "clip_text_model"), CLIP_TEXT)
    vision = completed(_typed(config, "vision_config", "clip_vision_model"), CLIP_VISION)
    size = config.number("projection_dim", 512)
    projections = [
        Part(Weight(name, size, tower.number("hidden_size")), 1, rows=BATCHES)
        for name, tower in (("visual_projection", vision), ("text_projection", text))
    ]
    return [*vision_parts(vision), *_tower(text, SEQUENCES, "text ", ALL), *projections]


def _classifier(config: Configuration, width: int) -> list[Part]:
    if not config.architecture.endswith("ForImageClassification"):
        return []
    labels = config.values.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.repeats("num_labels", 2)
    return [Part(Weight("classifier", count, width), 1, 1, BATCHES, biased=frozenset({"classifier"}))] if count else []


def _qkv(config: Configuration) -> frozenset[str]:
    return ALL if config.flag("qkv_bias", default=True) else ALL - frozenset("qkv")


def vit(config: Configuration) -> list[Part]:
    """List ViT, and the classifier where the class of the model has one."""
    config = completed(config, VIT)
    hidden = config.number("hidden_size")
    found = _tower(config, image_rows(config), VISION, _qkv(config))
    if config.architecture == "ViTModel":
        size = config.number("pooler_output_size", hidden)
        found.append(Part(Weight("pooler", size, hidden), hidden, 1, BATCHES, "", frozenset({"pooler"})))
    return [*found, *_classifier(config, hidden)]


def dinov2(config: Configuration) -> list[Part]:
    """List DINOv2, whose feed-forward may be gated."""
    config = completed(config, DINOV2)
    hidden, is_gated = config.number("hidden_size"), config.flag("use_swiglu_ffn", default=False)
    width = hidden * config.number("mlp_ratio")
    if is_gated:
        # Two thirds, rounded up to a multiple of 8, so that three Linears have as many weights as two had.
        width = (int(width * 2 / 3) + 7) // 8 * 8
    attention = _tower(completed(config, {"intermediate_size": width}), image_rows(config), VISION, _qkv(config))[0]
    feed_forward = replace(attention, block=FeedForward(width, is_gated), biased=ALL | {"gate"})
    return [attention, feed_forward, *_classifier(config, 2 * hidden)]
