"""The Linears of a model: its blocks, how often each stands in it, and what rows they meet."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aot.core.constraints import MAX_EXTENT
from aot.core.errors import ShapeFileError
from aot.core.shape_set import Weight
from aot.models.blocks import FUSED, Attention, CrossAttention, FeedForward, LatentAttention, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

Block = Attention | CrossAttention | LatentAttention | FeedForward | Vocabulary | Weight
"""What stands in a layer; a weight that is none of the others stands for itself, and every GPU has all of it."""


@dataclass(frozen=True)
class Rows:
    """Which m a Linear meets: those of batches, of batches and whole sequences, of experts, or of inputs of a size."""

    is_batch: bool = False
    """Whether it meets a row of each sequence only, as logits and the steps of a decoder do."""
    is_expert: bool = False
    """Whether it meets the part of the tokens that its expert is chosen for."""
    num_tokens: int = 0
    """Rows of one input, such as the patches of an image; 0 where the inputs are of any length."""


SEQUENCES, BATCHES, EXPERTS = Rows(), Rows(is_batch=True), Rows(is_expert=True)

EXPERT = "expert "
"""What the names of experts' weights begin with."""


REPLICATED = ("router", "shared_expert_gate", "classifier", "pooler", "head", "visual_projection", "text_projection")
"""Small weights that stand for themselves, and that no serving shares."""


@dataclass(frozen=True)
class Part:
    """Blocks of one kind and size."""

    block: Block
    hidden: int
    """The width of the layers; of no meaning for a weight that stands for itself."""
    count: int = 1
    """How often the block stands in the model."""
    rows: Rows = SEQUENCES
    prefix: str = ""
    """What the weights' names begin with: the tower, or `expert `."""
    biased: frozenset[str] = frozenset()
    """The names, without the prefix, of those weights that have a bias."""
    context: Rows | None = None
    """What the keys and values of an attention to another tower meet."""
    paths: tuple[str, ...] = field(default=(), compare=False)
    """The modules that have it; empty where the family alone is known."""


@dataclass(frozen=True)
class Named:
    """Weights of one name among those of one size."""

    name: str
    count: int
    paths: tuple[str, ...] = ()
    """The modules that have them; empty where the family alone is known."""


@dataclass(frozen=True)
class Linear:
    """Weights of one size in a model that meet the same rows, under all their names."""

    names: tuple[Named, ...]
    n: int
    k: int
    rows: Rows
    has_bias: bool

    @property
    def name(self) -> str:
        """Return all names."""
        return ", ".join(x.name for x in self.names)

    @property
    def count(self) -> int:
        """Return how many there are in the model."""
        return sum(x.count for x in self.names)


def _divide(number: int, ways: int, meaning: str) -> None:
    if number % ways:
        raise ShapeFileError(
            f"--tensor-parallel {ways} does not divide the model's {number} {meaning}; give a number that does"
        )


def _shared(block: Block, ways: int) -> Block:
    """Return what one of several GPUs has of a block (ShapeFileError where they cannot share it)."""
    if isinstance(block, Weight):
        return block
    if isinstance(block, FeedForward):
        _divide(block.width, ways, "columns of a feed-forward")
    elif isinstance(block, Vocabulary):
        # A vocabulary is padded to what can be shared.
        block = Vocabulary(-(-block.size // ways) * ways)
    else:
        _divide(block.heads, ways, "heads")
    if isinstance(block, Attention) and ways % block.kv_heads:
        _divide(block.kv_heads, ways, "key-value heads")
    return block.shared(ways)


def listed_whole(parts: Iterable[Part]) -> list[Weight]:
    """List the weights of which every GPU has all, though tensor parallelism might share them."""
    found = (part.block for part in parts if isinstance(part.block, Weight) and part.block.name not in REPLICATED)
    return list(dict.fromkeys(found))


def _weights(part: Part, ways: int) -> Iterable[Weight]:
    block = _shared(part.block, ways)
    return [block] if isinstance(block, Weight) else block.weights(part.hidden)


def linears(parts: Iterable[Part], *, ways: int = 1, fused: bool = True, unfused: bool = True) -> list[Linear]:
    """List the Linears of a model, those of one size and of the same rows as one.

    Args:
        parts: the model.
        ways: the number of GPUs that share each layer by tensor parallelism.
        fused: whether to list what is computed as one, such as query, key and value.
        unfused: whether to list the parts of these.

    Raises:
        ShapeFileError: the GPUs cannot share a block, or a weight is too large.
    """
    found: dict[tuple[int, int, Rows, bool], dict[str, Named]] = defaultdict(dict)
    for part in parts:
        weights = list(_weights(part, ways))
        pieces = {x for weight in weights for x in FUSED.get(weight.name, ())}
        for weight in weights:
            if not part.count or (not fused and weight.name in FUSED) or (not unfused and weight.name in pieces):
                continue
            if max(weight.n, weight.k) > MAX_EXTENT:
                raise ShapeFileError(
                    f"the weight {part.prefix}{weight.name} is {weight.n} x {weight.k}; expected at most {MAX_EXTENT} "
                    "each: mend the configuration's numbers"
                )
            has_bias = not part.biased.isdisjoint(FUSED.get(weight.name, (weight.name,)))
            is_context = weight.name in ("cross k", "cross v", "cross kv")
            rows = part.context if is_context and part.context is not None else part.rows
            names = found[weight.n, weight.k, rows, has_bias]
            name = part.prefix + weight.name
            known = names.get(name, Named(name, 0))
            names[name] = replace(known, count=known.count + part.count, paths=(*known.paths, *part.paths))
    return [Linear(tuple(names.values()), n, k, rows, has_bias) for (n, k, rows, has_bias), names in found.items()]
