"""The blocks of layers: how the numbers of a configuration become weights (out_features n, in_features k)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aot.core.constraints import Extent
from aot.core.shape_set import Weight

ALIGNMENT = 8
"""Elements of 16 bits in the 16 bytes that TMA and vector loads need rows to be a multiple of."""


@dataclass(frozen=True)
class Attention:
    """Attention by heads of one size, with as many key-value heads or fewer."""

    heads: Extent
    kv_heads: Extent
    head_dim: Extent

    def weights(self, hidden: int) -> list[Weight]:
        """List the projections, apart and fused."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {"q": q, "k": kv, "v": kv, "qkv": q + 2 * kv}
        return [Weight(name, n, hidden) for name, n in sizes.items()] + [Weight("o", hidden, q)]

    def shared(self, ways: int) -> Attention:
        """Return what one of several GPUs has; key-value heads fewer than those are repeated."""
        return replace(self, heads=self.heads // ways, kv_heads=max(self.kv_heads // ways, 1))


@dataclass(frozen=True)
class CrossAttention:
    """Attention to what another tower computed: keys and values are fused, queries stand apart from them."""

    heads: Extent
    head_dim: Extent
    context: Extent | None = None
    """The width of the other tower; None where it is that of the layers."""

    def weights(self, hidden: int) -> list[Weight]:
        """List the projections, keys and values apart and fused."""
        q = self.heads * self.head_dim
        context = {"k": q, "v": q, "kv": 2 * q}
        found = [Weight(f"cross {name}", n, self.context or hidden) for name, n in context.items()]
        return [Weight("cross q", q, hidden), *found, Weight("cross o", hidden, q)]

    def shared(self, ways: int) -> CrossAttention:
        """Return what one of several GPUs has."""
        return replace(self, heads=self.heads // ways)


@dataclass(frozen=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: queries, keys and values through low ranks."""

    heads: Extent
    kv_rank: Extent
    nope_dim: Extent
    rope_dim: Extent
    value_dim: Extent
    q_rank: Extent | None = None
    """None where queries are projected at once."""

    def weights(self, hidden: int) -> list[Weight]:
        """List the projections, and those down to the ranks fused."""
        q, kv_a = self.heads * (self.nope_dim + self.rope_dim), self.kv_rank + self.rope_dim
        found = [
            Weight("kv_a", kv_a, hidden),
            Weight("kv_b", self.heads * (self.nope_dim + self.value_dim), self.kv_rank),
            Weight("o", hidden, self.heads * self.value_dim),
        ]
        if self.q_rank is None:
            return [Weight("q", q, hidden), *found]
        down = [Weight("q_a", self.q_rank, hidden), Weight("q_a and kv_a", self.q_rank + kv_a, hidden)]
        return [*down, Weight("q_b", q, self.q_rank), *found]

    def shared(self, ways: int) -> LatentAttention:
        """Return what one of several GPUs has: its heads, and all of the projections down to the ranks."""
        return replace(self, heads=self.heads // ways)


@dataclass(frozen=True)
class FeedForward:
    """Two Linears, or three where a gate multiplies the first."""

    width: Extent
    is_gated: bool

    def weights(self, hidden: int, prefix: str = "") -> list[Weight]:
        """List the Linears, gate and up apart and fused."""
        names = {"gate": 1, "up": 1, "gate_up": 2} if self.is_gated else {"up": 1}
        up = [Weight(prefix + name, self.width * count, hidden) for name, count in names.items()]
        return [*up, Weight(f"{prefix}down", hidden, self.width)]

    def shared(self, ways: int) -> FeedForward:
        """Return what one of several GPUs has."""
        return replace(self, width=self.width // ways)


@dataclass(frozen=True)
class Experts:
    """A router, gated feed-forwards of which it chooses, and perhaps one that every token meets."""

    count: Extent
    width: Extent
    shared_width: Extent | None = None


@dataclass(frozen=True)
class Vocabulary:
    """The projection to a vocabulary's logits."""

    size: Extent

    def weights(self, hidden: int) -> list[Weight]:
        """List the one Linear."""
        return [Weight("lm_head", self.size, hidden)]

    def shared(self, ways: int) -> Vocabulary:
        """Return what one of several GPUs has."""
        return replace(self, size=self.size // ways)


FUSED = {
    "qkv": ("q", "k", "v"),
    "cross kv": ("cross k", "cross v"),
    "q_a and kv_a": ("q_a", "kv_a"),
    "gate_up": ("gate", "up"),
}
"""The weights that are computed as one, by the name of that one."""


def is_aligned(weight: Weight) -> bool:
    """Say whether the tuned kernels take a weight as it lies."""
    return weight.n % ALIGNMENT == 0 and weight.k % ALIGNMENT == 0
