"""The adversary: in which order warps, CTAs and asynchronous operations go on."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.constraints import Word


class Mode(Word):
    """One way to choose what goes on next. Whatever a mode does is reproduced by its seed."""

    RANDOM = "random"
    """Any warp that can, in turns of up to 64 instructions; operations complete now and then."""
    EAGER = "eager"
    """Operations complete as soon as they are issued."""
    LAZY = "lazy"
    """Operations complete only when no warp can go on."""
    PRIORITY = "priority"
    """Warps have an order of precedence, which changes now and then."""
    STRICT = "strict"
    """Warps have an order of precedence that never changes."""
    STRICT_EAGER = "strict_eager"
    STRICT_LAZY = "strict_lazy"
    HOLD_STORES = "hold_stores"
    """TMA stores read shared memory, and write, as late as they can."""
    HOLD_STORE_WRITES = "hold_store_writes"
    """TMA stores write as late as they can."""
    HOLD_LOADS = "hold_loads"
    """TMA loads and cp.async arrive as late as they can."""
    HOLD_MESSAGES = "hold_messages"
    """st.async and answers of cluster launch control arrive as late as they can."""
    HOLD_PRODUCTS = "hold_products"
    """wgmma and tcgen05.mma complete as late as they can."""
    HOLD_FRONT = "hold_front"
    """The kernel in front ends as late as it can."""
    BEHIND_ITSELF = "behind_itself"
    """What is launched is launched twice, so that the second kernel begins as early as the first one lets it."""


HELD = {
    Mode.HOLD_STORES: frozenset({"tma.store.read", "tma.store.write"}),
    Mode.HOLD_STORE_WRITES: frozenset({"tma.store.write"}),
    Mode.HOLD_LOADS: frozenset({"tma.load", "cp.async", "cp.async.arrive"}),
    Mode.HOLD_MESSAGES: frozenset({"st.async", "clc"}),
    Mode.HOLD_PRODUCTS: frozenset({"wgmma", "tcgen05.mma", "tcgen05.cp"}),
    Mode.HOLD_FRONT: frozenset({"front"}),
}
"""The kinds of operations that a mode holds back until nothing else can go on."""


@dataclass(frozen=True)
class Schedule:
    """A mode and its seed."""

    mode: Mode = Mode.RANDOM
    seed: int = 0

    @property
    def held(self) -> frozenset[str]:
        """Return the kinds of operations that are held back."""
        return HELD.get(self.mode, frozenset())

    @property
    def is_strict(self) -> bool:
        """Say whether warps have an order of precedence that never changes."""
        return self.mode in (Mode.STRICT, Mode.STRICT_EAGER, Mode.STRICT_LAZY)

    @property
    def has_priorities(self) -> bool:
        """Say whether warps have an order of precedence."""
        return self.is_strict or self.mode is Mode.PRIORITY

    def completion(self, *, can_step: bool) -> float:
        """Return the chance that the next step completes an operation, and no warp goes on."""
        if self.mode in (Mode.LAZY, Mode.STRICT_LAZY):
            return 0.0 if can_step else 1.0
        if self.mode in (Mode.EAGER, Mode.STRICT_EAGER):
            return 1.0
        return 0.3 if can_step else 1.0
