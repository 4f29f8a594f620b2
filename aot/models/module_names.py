"""What checkpoints call the Linears of a model, and which of them the patterns of a configuration name.

A configuration lists modules that are not quantised, or are quantised in another way: by their whole names, by those of
modules that they are in, by globs (ModelOpt), by regular expressions behind `re:` (compressed-tensors), or by the last
parts of a name (AutoAWQ, transformers). Names are those of the checkpoint, which transformers may change.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

from aot.models.blocks import FUSED
from aot.models.linears import EXPERT, Named
from aot.models.name_pattern import NamePattern, PartOfName, TimeLeft

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEAVES = {
    "q": "q_proj query q_lin q to_q",
    "k": "k_proj key k_lin k to_k",
    "v": "v_proj value v_lin v to_v",
    "qkv": "qkv_proj c_attn query_key_value Wqkv qkv",
    "o": "o_proj out_proj out_lin o proj to_out",
    "gate": "gate_proj wi_0 w1",
    "up": "up_proj wi_1 w3 fc1 wi c_fc lin1 dense_h_to_4h",
    "down": "down_proj wo w2 fc2 lin2 dense_4h_to_h weights_out",
    "gate_up": "gate_up_proj weights_in",
    "q_a": "q_a_proj",
    "q_b": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa",
    "kv_b": "kv_b_proj",
    "lm_head": "lm_head proj_out embed_out decoder",
}
"""What transformers' modules call the weights of blocks, by role."""
_PREFIXES = ("vision ", "text ", "encoder ", "decoder ", "pooling ", "shared expert ", EXPERT, "cross ")
_WHOLE = {part: whole for whole, parts in FUSED.items() for part in parts}
_OLDER: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model.language_model.", ("language_model.model.", "model.", "language_model.")),
    ("model.visual.", ("visual.",)),
    ("model.vision_tower.", ("vision_tower.", "vision_tower.vision_model.", "model.vision_tower.vision_model.")),
    ("model.layers.", ("backbone.layers.", "language_model.model.layers.", "model.language_model.layers.")),
    ("lm_head", ("language_model.lm_head",)),
    (".mlp.experts.experts.", (".mlp.experts.", ".block_sparse_moe.experts.")),
    (".mlp.experts.", (".block_sparse_moe.experts.",)),
    (".experts.0.", (".experts.",)),
)
"""How a name of transformers 5 begins, or what is within it, and what a checkpoint may have there. Source: transformers
5.17.0, conversion_mapping.py, and the published checkpoints of Gemma 3, Qwen2-VL and Nemotron-H."""
_ATTENTION: tuple[str, ...] = ("self_attn", "attn", "attention", "mixer")
_FEED_FORWARD: tuple[str, ...] = ("mlp", "feed_forward", "mixer")
_OF_EXPERTS: tuple[str, ...] = ("mlp.experts.0", "feed_forward.experts.0", "mixer.experts.0")
_OF_SHARED: tuple[str, ...] = (
    "mlp.shared_experts",
    "mlp.shared_expert",
    "feed_forward.shared_expert",
    "mixer.shared_experts",
)
_OF_IMAGES = ("model.vision_tower.encoder.layers.{}", "model.visual.blocks.{}", "vision_model.encoder.layers.{}")
_OF_TEXT = ("model.layers.{}", "model.decoder.layers.{}", "model.encoder.layers.{}", "transformer.h.{}")
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=[.*]|$)")
_ONE_EXPERT = re.compile(r"\.experts\.\d+(?=\.|$)")
MAX_PATTERN = 500


class Modules:
    """Modules that patterns name."""

    def __init__(self, patterns: Iterable[object]) -> None:
        """Read patterns; what is none, or no regular expression, names nothing."""
        self._everywhere: list[NamePattern | PartOfName] = []
        left = TimeLeft()
        self._in_layer: dict[int, list[NamePattern | PartOfName]] = defaultdict(list)
        texts = (x for x in patterns if isinstance(x, str) and 0 < len(x) <= MAX_PATTERN)
        for text in dict.fromkeys(_ONE_EXPERT.sub(".experts.0", x) for x in texts):
            if text.startswith("re:"):
                self._everywhere += _read(text.removeprefix("re:"), left)
                continue
            number = _NUMBER.search(text)
            held = self._everywhere if number is None else self._in_layer[int(number[1])]
            if "*" in text:
                held += _read(rf"(?:.*\.)?{'.*'.join(map(re.escape, text.split('*')))}(?:\..*)?$", left)
            else:
                held.append(PartOfName(text))

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._everywhere or self._in_layer)

    def have(self, names: tuple[str, ...]) -> bool:
        """Say whether a module is named that is known under any of these names.

        Raises:
            ShapeFileError: a pattern takes too long to be matched.
        """
        number = _NUMBER.search(names[0])
        patterns = [*self._everywhere, *(self._in_layer.get(int(number[1]), ()) if number else ())]
        return any(pattern.match(name) for name in names for pattern in patterns)


def _read(text: str, left: TimeLeft) -> list[NamePattern]:
    try:
        return [NamePattern(text, left)]
    except ValueError:
        return []


def parts_of(named: Named) -> tuple[Named, ...]:
    """Return what weights that are computed as one are made of; of others themselves."""
    tower, role = _split(named.name)
    parts = FUSED.get(role)
    if parts is None and f"cross {role}" in FUSED and tower.endswith("cross "):
        parts = tuple(x.removeprefix("cross ") for x in FUSED[f"cross {role}"])
    return tuple(Named(tower + x, named.count, named.paths) for x in parts) if parts else (named,)


def places_of(named: Named, num_experts: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """Give each place of a model that has such weights: the names of the module, and how many weights there are.

    Where the modules are known, the names are theirs and what older checkpoints call them; else those of the layers
    that most models have.

    Args:
        named: weights of one name, that are no several as one.
        num_experts: that a layer has, of a mixture.
    """
    tower, role = _split(named.name)
    leaves = LEAVES.get(role, f"{role} {role.rpartition('.')[2]} {'gate' * (role == 'router')}").split()
    leaves += LEAVES.get(_WHOLE.get(role, ""), "").split()
    per_place = num_experts if tower.endswith(EXPERT) and "shared" not in tower else 1
    if named.paths:
        per_place = max(named.count // len(named.paths), 1)
        for path in named.paths:
            yield _names((path,), tuple(leaves)), per_place
        return
    for number in range(max(named.count // per_place, 1)):
        yield _names(_likely(tower, role, number), tuple(leaves)), min(per_place, named.count)


def _split(name: str) -> tuple[str, str]:
    """Return the tower that a name begins with, if any, and the weight's role."""
    found = 0
    while begin := next((x for x in _PREFIXES if name.startswith(x, found)), ""):
        found += len(begin)
    return name[:found], name[found:]


def _likely(tower: str, role: str, number: int) -> tuple[str, ...]:
    """Return the modules that such weights of a layer may be in, where the family alone is known."""
    if role == "lm_head":
        return ("",)
    layers = [x.format(number) for x in (_OF_IMAGES if tower.startswith("vision ") else _OF_TEXT)]
    if "shared expert " in tower:
        parents = _OF_SHARED
    elif EXPERT in tower:
        parents = _OF_EXPERTS
    else:
        parents = _FEED_FORWARD if role in ("gate", "up", "gate_up", "down", "router") else _ATTENTION
    return tuple(f"{x}.{parent}" for x in layers for parent in parents)


@cache
def _names(paths: tuple[str, ...], leaves: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a Linear in one of some modules may be called."""
    found = dict.fromkeys(f"{path}.{leaf}" if path else leaf for path in paths for leaf in leaves)
    for text, others in _OLDER:
        for name in tuple(found):
            is_there = text in name if text.startswith(".") else name.startswith(text)
            found |= dict.fromkeys(name.replace(text, other, 1) for other in others if is_there)
    return tuple(found)
