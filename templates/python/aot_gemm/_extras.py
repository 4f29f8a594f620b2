"""What a product has beside its left and right operand, bias and out, as the tuple that the binding takes."""

from __future__ import annotations

from typing import Any, NoReturn

from . import errors

ACTIVATIONS: dict[Any, int] = {None: 0, "relu": 2, "gelu": 3, "gelu_tanh": 4, "silu": 5}
"""By name, the number of `Epilogue` in operation.h."""
GATES: dict[Any, int] = {"silu": 7, "gelu_tanh": 8}
"""The same of gated products."""
ALLOW_TF32, USE_FAST_ACCUM, INTERLEAVED, DETERMINISTIC, BATCH_INVARIANT = 1, 2, 4, 8, 16
"""Bits of the flags, which extras.cc has too."""
NUM_TENSORS = 6
"""How many tensors, or None, the tuple begins with."""

Extras = tuple[Any, Any, Any, Any, Any, Any, int, int, int]
"""scale_x, scale_w, residual, scale_out, offsets, index, epilogue, element type of D or -1, flags."""


def deterministic(extras: Extras | None) -> Extras:
    """Return what a product has besides, which must then be deterministic."""
    *others, flags = extras or (*[None] * NUM_TENSORS, 0, -1, 0)
    return *others, flags | DETERMINISTIC  # type: ignore[return-value]


def mode_flags(*, deterministic: bool, batch_invariant: bool) -> int:
    """Return the flags of what a caller asks of results beside their values."""
    return (DETERMINISTIC if deterministic else 0) | (BATCH_INVARIANT if batch_invariant else 0)


def refuse_activation(product: str, activation: object) -> NoReturn:
    """Raise that a product has no such activation.

    Raises:
        UnsupportedError: always.
    """
    gates = {"gated_linear": GATES, "grouped_linear": {None: 0} | GATES}
    names = ", ".join(map(repr, gates.get(product, ACTIVATIONS)))
    raise errors.UnsupportedError(
        f"{product}: activation is {errors.show(activation)}; expected one of {names}; apply another to the result"
    ) from None
