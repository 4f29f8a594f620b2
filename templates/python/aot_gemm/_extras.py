"""What a product has beside its left and right operand, bias and out, as the tuple that the binding takes."""

from __future__ import annotations

from typing import Any

from . import _dtypes, errors

ACTIVATIONS = {None: 0, "relu": 2, "gelu": 3, "gelu_tanh": 4, "silu": 5}
"""By name, the number of `Epilogue` in operation.h."""
GATES = {"silu": 7, "gelu_tanh": 8}
"""The same of gated products."""
ALLOW_TF32, USE_FAST_ACCUM, INTERLEAVED = 1, 2, 4
"""Bits of the flags, which extras.cc has too."""
NUM_TENSORS = 4
"""How many tensors, or None, the tuple begins with."""

Extras = tuple[Any, Any, Any, Any, int, int, int]
"""scale_x, scale_w, residual, scale_out, epilogue, element type of D or -1, flags."""


def number_of(product: str, activation: Any) -> int:
    """Return the number of an activation, or of a gate where the product is gated.

    Raises:
        UnsupportedError: there is no such.
    """
    known: dict[Any, int] = GATES if product == "gated_linear" else ACTIVATIONS
    try:
        return known[activation]
    except (KeyError, TypeError):
        names = ", ".join(map(repr, known))
        raise errors.UnsupportedError(
            f"{product}: activation is {errors.show(activation)}; expected one of {names}; apply another to the result"
        ) from None


def pack(product: str, activation: Any, tensors: tuple[Any, Any, Any, Any], out_dtype: Any, flags: int) -> Extras:
    """Make the tuple.

    Args:
        product: its name.
        activation: its name, or None; of a gated product, that of the gate.
        tensors: scale_x, scale_w, residual and scale_out, each or None.
        out_dtype: the element type of the result, or None.
        flags: bits of the above.

    Raises:
        UnsupportedError: there is no such activation.
        DtypeError: there is no such element type.
    """
    element = -1 if out_dtype is None else _dtypes.dtype_number(f"{product}: out_dtype", out_dtype)
    return (*tensors, number_of(product, activation), element, flags)
