"""List the blocks of a model by walking its modules: only their names and sizes are read."""

from __future__ import annotations

import importlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aot.core.shape_set import Weight
from aot.models import empty
from aot.models.blocks import Attention, CrossAttention, FeedForward, LatentAttention, Vocabulary
from aot.models.linears import BATCHES, EXPERT, EXPERTS, SEQUENCES, Block, Part, Rows
from aot.models.module_names import LEAVES
from aot.models.towers import VISION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.models.configuration import Configuration

_ROLES = {leaf: role for role, leaves in LEAVES.items() for leaf in leaves.split()}
"""What transformers' modules call the weights of blocks."""
_SCATTERED = (
    (re.compile(r"\.attention\.(self|attention)\.(?=\w+$)"), ".attention."),
    (re.compile(r"\.attention\.output\.dense$"), ".attention.o"),
    (re.compile(r"\.intermediate\.dense$"), ".mlp.up"),
    (re.compile(r"\.output\.dense$"), ".mlp.down"),
    (re.compile(r"\.to_out\.0$"), ".to_out"),
    (re.compile(r"\.net\.0\.proj$"), ".up"),
    (re.compile(r"\.net\.2$"), ".down"),
)
"""BERT's manner of a module for each Linear, and that of diffusers, as the other models name them."""
_CROSS = re.compile(r"encoder_attn|EncDecAttention|cross_?attention|cross_attn|crossattention")
_ONE_EXPERT = re.compile(r"\.experts\.\d+(\.|$)")
_SHARED_EXPERT = re.compile(r"\.shared_experts?(\.|$)")


@dataclass(frozen=True)
class _Size:
    """A weight as it stands in a module."""

    n: int
    k: int
    has_bias: bool


@dataclass
class _Group:
    """The weights of one module, by role or by their own name."""

    sizes: dict[str, _Size] = field(default_factory=dict)
    head_dim: int = 0
    """Of an attention, where the module says it."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The numbers of a latent attention."""
    is_cross: bool = False
    """Whether the module says that it attends to another tower."""


def _size(module: Any) -> _Size | None:
    """Return the size of a Linear, of GPT-2's Conv1D, or of a router that is a module of its own."""
    weight, kind = getattr(module, "weight", None), type(module).__name__
    if weight is None or getattr(weight, "ndim", 0) != 2:
        return None
    torch = importlib.import_module("torch")
    n, k = weight.shape
    has_bias = getattr(module, "bias", None) is not None
    if isinstance(module, torch.nn.Linear):
        return _Size(n, k, has_bias)
    if kind == "Conv1D":
        return _Size(k, n, has_bias)
    return _Size(n, k, has_bias) if "router" in kind.lower() or kind.endswith("Gate") else None


def _fused_experts(path: str, module: Any) -> tuple[str, _Group, int] | None:
    """Return the group of experts whose weights are one parameter (count, n, k), or (count, k, n), and their count."""
    up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if getattr(up, "ndim", 0) != 3 or getattr(down, "ndim", 0) != 3 or up is None or down is None:
        return None
    (count, a, b), (_, c, d) = up.shape, down.shape
    has_bias = getattr(module, "gate_up_proj_bias", None) is not None
    # Held (k, n) where the two fit together only so, as gpt-oss's are.
    n, k, width = (b, a, c) if (b, a) == (2 * c, d) and (a, b) != (2 * d, c) else (a, b, d)
    sizes = {"gate_up": _Size(n, k, has_bias), "down": _Size(k, width, has_bias)}
    return f"{path}.experts.0", _Group(sizes), count


def _groups(model: Any, has_logits: Callable[[str], bool]) -> Iterator[tuple[str, _Group, int]]:
    """Yield the path of each module that has weights, these, and how often they stand there.

    Args:
        model: the model.
        has_logits: says of a module whether its `proj_out` makes logits, as Whisper's does.
    """
    groups: dict[str, _Group] = defaultdict(_Group)
    modules, seen = dict(model.named_modules()), set[int]()
    for path, module in modules.items():
        experts = _fused_experts(path, module)
        if experts is not None:
            yield experts
            continue
        packed = getattr(module, "in_proj_weight", None)
        if packed is not None and getattr(packed, "ndim", 0) == 2:
            n, k = packed.shape
            groups[path].sizes["qkv"] = _Size(n, k, module.in_proj_bias is not None)
            groups[path].head_dim = int(module.head_dim)
        size = _size(module)
        if size is None or id(module) in seen:
            continue
        seen.add(id(module))
        named = f".{path}"
        for pattern, text in _SCATTERED:
            named = pattern.sub(text, named)
        parent, _, leaf = named.removeprefix(".").rpartition(".")
        group = groups[parent]
        role = leaf if leaf == "proj_out" and not has_logits(parent) else _ROLES.get(leaf, leaf)
        if leaf == "dense" and parent.endswith("pooler"):
            role = "pooler"
        elif leaf == "dense" and "qkv" in group.sizes:
            role = "o"
        elif leaf.isdigit():
            role = ".".join(named.rsplit(".", 2)[-2:])
        elif leaf == "c_proj":
            role = "down" if "up" in group.sizes else "o"
        group.sizes["router" if "router" in type(module).__name__.lower() or leaf == "router" else role] = size
        # BERT's attention has q, k and v in a module of their own, which states the heads.
        _read_numbers(group, modules.get(parent))
        _read_numbers(group, modules.get(path.rpartition(".")[0]))
    yield from ((path, group, 1) for path, group in groups.items())


def _read_numbers(group: _Group, owner: Any) -> None:
    """Note what an attention says of its heads."""
    names = ("head_dim", "key_value_proj_dim", "attention_head_size")
    head_dim = next(filter(None, (getattr(owner, x, None) for x in names)), None)
    heads, q = getattr(owner, "heads", None), group.sizes.get("q")
    if type(head_dim) is int:
        group.head_dim = head_dim
    elif type(heads) is int and heads > 0 and q is not None:
        group.head_dim = q.n // heads
    group.is_cross = group.is_cross or getattr(owner, "is_cross_attention", None) is True
    for name in ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        value = getattr(owner, name, None)
        if type(value) is int:
            group.numbers[name] = value


def _attention(group: _Group, path: str) -> tuple[Block, set[str]] | None:
    sizes = group.sizes
    o = sizes.get("o")
    if o is None:
        return None
    names = {"q", "k", "v"} if {"q", "k", "v"} <= sizes.keys() else {"qkv"} & sizes.keys()
    if not names:
        return None
    q = sizes["q"].n if "q" in names else o.k
    kv = sizes["k"].n if "q" in names else (sizes["qkv"].n - q) // 2
    head_dim = group.head_dim or kv
    fits = head_dim > 0 and q % head_dim == 0 and kv % head_dim == 0 and kv > 0
    if not fits or o.k != q or ("q" in names and (sizes["v"].n != kv or sizes["q"].k != o.n)):
        return None
    context = sizes["k"].k if "q" in names else o.n
    if "q" in names and sizes["v"].k != context:
        return None
    if group.is_cross or context != o.n or _CROSS.search(path) or path.endswith("head.attention"):
        width = context if context != o.n else None
        return (CrossAttention(q // head_dim, head_dim, width), {*names, "o"}) if q == kv else None
    return Attention(q // head_dim, kv // head_dim, head_dim), {*names, "o"}


def _latent(group: _Group) -> tuple[Block, set[str]] | None:
    sizes, numbers = group.sizes, group.numbers
    if not {"kv_a", "kv_b", "o"} <= sizes.keys() or len(numbers) < 5:
        return None
    q_rank = sizes["q_a"].n if "q_a" in sizes else None
    heads, kv_rank, nope, rope, value = (numbers[x] for x in numbers)
    return LatentAttention(heads, kv_rank, nope, rope, value, q_rank), {"q_a", "q_b", "q", "kv_a", "kv_b", "o"}


def _feed_forward(group: _Group) -> tuple[Block, set[str]] | None:
    sizes = group.sizes
    down = sizes.get("down")
    names = {"gate_up"} & sizes.keys() or {"gate", "up"} & sizes.keys()
    if down is None or not names or names == {"gate"}:
        return None
    rows = sum(sizes[x].n for x in names)
    is_gated = rows == 2 * down.k
    if rows != (1 + is_gated) * down.k or any(sizes[x].k != down.n for x in names):
        return None
    return FeedForward(down.k, is_gated), {*names, "down"}


def _name_gated(group: _Group) -> None:
    """Call a weight by its role that holds a gate and what it multiplies, though its name says nothing of a gate."""
    sizes = group.sizes
    if {"up", "down"} <= sizes.keys() and "gate" not in sizes and sizes["up"].n == 2 * sizes["down"].k:
        sizes["gate_up"] = sizes.pop("up")


def _biased(group: _Group, names: set[str], prefix: str = "") -> frozenset[str]:
    whole = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
    found = [name for name in names if name in group.sizes and group.sizes[name].has_bias]
    return frozenset(prefix + x for name in found for x in whole.get(name, (name,)))


def _place(path: str, towers: dict[str, Any], whole: Any, with_class: set[int]) -> tuple[Rows, str]:
    """Return which rows the weights of a module meet, and its tower."""
    inside = [x for x in towers if path == x or path.startswith(f"{x}.") or not x]
    config = towers[max(inside, key=len)] if inside else whole
    words = path.split(".")
    if getattr(whole, "is_encoder_decoder", False):
        if "decoder" in words:
            return BATCHES, "decoder "
        if "encoder" in words:
            return Rows(num_tokens=getattr(whole, "max_source_positions", 0) or 0), "encoder "
    if "projector" in path:
        config = next((x for x in towers.values() if hasattr(x, "image_size") and hasattr(x, "patch_size")), config)
    image, patch = (getattr(config, key, None) for key in ("image_size", "patch_size"))
    if type(image) is int and type(patch) is int and patch > 0:
        return Rows(num_tokens=max((image // patch) ** 2, 1) + (id(config) in with_class)), VISION
    if any(x.startswith(("vision", "visual")) for x in words):
        return SEQUENCES, VISION
    is_beside = "text_model" in words or config.model_type in ("siglip_text_model", "clip_text_model")
    return SEQUENCES, "text " if is_beside else ""


_OF_A_STEP = re.compile(r"norm|adaln|time|guidance|pooled|label|class_embed|resolution_embed|aspect_ratio_embed")
"""Modules of a diffusion model that meet one row of each image: of the step, its class and what scales the norms."""
_OF_A_PROMPT = re.compile(r"context|caption|text|add_[qkv]_proj|to_add_out")


def _diffused(path: str, whole: Any) -> Rows:
    """Return which rows a module or weight of a diffusion model meets: patches, a prompt's tokens, or one."""
    if _OF_A_STEP.search(path):
        return BATCHES
    size, patch = (whole.get(key) for key in ("sample_size", "patch_size"))
    if _OF_A_PROMPT.search(path) or type(size) is not int or type(patch) is not int or patch < 1:
        return SEQUENCES
    return Rows(num_tokens=max((size // patch) ** 2, 1))


_OF_A_SEQUENCE = {"lm_head", "classifier", "score", "pooler", "head", "visual_projection", "text_projection"}
"""Weights that meet one row of each sequence or image."""


def _parts(path: str, group: _Group, count: int, rows: Rows, tower: str) -> Iterator[Part]:
    """Recognise the blocks of a module; what is in none stands for itself."""
    _name_gated(group)
    left = set(group.sizes)
    context, prefix = rows, tower
    if _ONE_EXPERT.search(path):
        rows, prefix = EXPERTS, EXPERT
    elif _SHARED_EXPERT.search(path):
        prefix = "shared expert "
    elif ".head." in f".{path}.":
        rows, prefix = BATCHES, f"{tower}pooling "
    if tower == "decoder " and _CROSS.search(path):
        context = replace(rows, is_batch=False)
    for found in (_latent(group), _attention(group, path), _feed_forward(group)):
        if found is None or not found[1] & left:
            continue
        block, names = found
        left -= names
        hidden = group.sizes["down" if isinstance(block, FeedForward) else "o"].n
        biased = _biased(group, names, "cross " if isinstance(block, CrossAttention) else "")
        yield Part(block, hidden, count, rows, prefix, biased, context, (path,))
    for name in sorted(left):
        size, biased = group.sizes[name], _biased(group, {name})
        is_one = name in _OF_A_SEQUENCE
        block = Vocabulary(size.n) if name == "lm_head" else Weight(name, size.n, size.k)
        alone = "" if name in ("lm_head", "router", "classifier", "pooler") or "projection" in name else tower
        yield Part(block, size.k, count, BATCHES if is_one else rows, alone, biased, paths=(path,))


def _parts_of_towers(model: Any, whole: Any) -> Iterator[Part]:
    """Yield the blocks of a model of transformers."""
    towers = {x: m.config for x, m in model.named_modules() if hasattr(m, "config") and hasattr(m, "post_init")}
    tokens = [x for x, _ in model.named_parameters() if x.endswith(("cls_token", "class_embedding"))]
    with_class = {id(config) for x, config in towers.items() if any(token.startswith(x) for token in tokens)}
    frames = Rows(num_tokens=getattr(whole, "max_source_positions", 0) or 0)
    for path, group, count in _groups(model, lambda path: not path):
        rows, tower = _place(path, towers, whole, with_class)
        for part in _parts(path, group, count, rows, tower):
            is_crossing = isinstance(part.block, CrossAttention) and tower == "decoder "
            yield replace(part, context=frames) if is_crossing else part


def _parts_of_diffusion(model: Any, whole: Any) -> Iterator[Part]:
    """Yield the blocks of a model of diffusers."""
    for path, group, count in _groups(model, lambda _: False):
        for part in _parts(path, group, count, _diffused(path, whole), ""):
            if isinstance(part.block, Weight):
                yield replace(part, rows=_diffused(f"{path}.{part.block.name}", whole))
            else:
                yield replace(part, context=SEQUENCES if isinstance(part.block, CrossAttention) else None)


def parts_of(config: Configuration) -> list[Part]:
    """Build a model empty and list its blocks, equal ones as one part.

    Raises:
        ShapeFileError: what builds it does not know the family or class, or cannot build such a model.
    """
    model, whole = empty.build(config)
    counts: Counter[Part] = Counter()
    paths: dict[Part, tuple[str, ...]] = defaultdict(tuple)
    for part in (_parts_of_diffusion if config.diffusers_class else _parts_of_towers)(model, whole):
        one = replace(part, count=1)
        counts[one] += part.count
        paths[one] += part.paths
    return [replace(part, count=count, paths=paths[part]) for part, count in counts.items()]
