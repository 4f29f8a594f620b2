"""What a product has beside its left and right operand, bias and out, as the tuple that the binding takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from . import errors
from ._constant import ConstantWeight
from ._enumerations import EPILOGUES

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVATIONS: dict[Any, int] = {None: 0} | {x: EPILOGUES.index(x) for x in ("relu", "gelu", "gelu_tanh", "silu")}
"""By name, the number of the epilogue."""
GATES: dict[Any, int] = {"silu": EPILOGUES.index("swiglu"), "gelu_tanh": EPILOGUES.index("geglu")}
"""The same of gated products."""
ALLOW_TF32, USE_FAST_ACCUM, INTERLEAVED, DETERMINISTIC, BATCH_INVARIANT = 1, 2, 4, 8, 16
"""Bits of the flags, which extras.cc has too."""
NUM_TENSORS = 6
"""How many tensors, or None, the tuple begins with."""

NUM_EXTRAS = 9
"""How many elements it has, where no weights of groups follow."""

Extras = tuple[Any, ...]
"""scale_x, scale_w, residual, scale_out, offsets, index, epilogue, element type of D or -1, flags; then, where the
weights of groups or of a gate are tensors of their own, a tuple of them, of which the right operand is the first."""


def flags_alone(flags: int) -> Extras:
    """Return what a product has besides that has flags and nothing else."""
    return (*[None] * NUM_TENSORS, 0, -1, flags)


def deterministic(extras: Extras | None) -> Extras:
    """Return what a product has besides, which must then be deterministic."""
    given = extras or flags_alone(0)
    flags = given[NUM_EXTRAS - 1] | DETERMINISTIC
    return (*given[: NUM_EXTRAS - 1], flags, *given[NUM_EXTRAS:])


def weights_of(weights: Sequence[Any], product: str, expected: str) -> tuple[Any, ...]:
    """Return several weights of a product as the binding takes them: tensors, without the promise to be constant.

    Raises:
        ShapeError: there are none.
    """
    if not weights:
        raise errors.ShapeError(f"{product}: got no weights; expected {expected}")
    return tuple(x.tensor if isinstance(x, ConstantWeight) else x for x in weights)


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
