"""What a product is asked for beside its tensors, as the binding takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from . import errors
from ._constant import ConstantWeight
from ._enumerations import BATCH_INVARIANT, DETERMINISTIC, EPILOGUES

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVATIONS: dict[Any, int] = {None: 0} | {x: EPILOGUES.index(x) for x in ("relu", "gelu", "gelu_tanh", "silu")}
"""By name, the number of the epilogue."""
GATES: dict[Any, int] = {"silu": EPILOGUES.index("swiglu"), "gelu_tanh": EPILOGUES.index("geglu")}
"""The same of gated products."""


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
