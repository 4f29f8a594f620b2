"""What a product is asked for beside its tensors, as the binding takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from . import errors
from ._catalogue import BLOCK_FORMATS
from ._constant import ConstantWeight
from ._enumerations import BATCH_INVARIANT, DETERMINISTIC, EPILOGUES

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVATIONS: dict[Any, int] = {None: 0} | {x: EPILOGUES.index(x) for x in ("relu", "gelu", "gelu_tanh", "silu")}
"""By name, the number of the epilogue."""
GATES: dict[Any, int] = {"silu": EPILOGUES.index("swiglu"), "gelu_tanh": EPILOGUES.index("geglu")}
"""The same of gated products."""
_AT_WILL = {None: 0} | GATES
_OF_PRODUCT: dict[str, dict[Any, int]] = {
    "gated_linear": GATES,
    "packed_gated_linear": GATES,
    "grouped_linear": _AT_WILL,
    "packed_linear": _AT_WILL,
}
"""Those of a product that has others than `ACTIVATIONS`, by its name."""


def weights_of(weights: Sequence[Any], product: str, expected: str) -> tuple[Any, ...]:
    """Return several weights of a product as the binding takes them: tensors, without the promise to be constant.

    Raises:
        ShapeError: there are none.
    """
    if not weights:
        raise errors.ShapeError(f"{product}: got no weights; expected {expected}")
    return tuple(x.tensor if isinstance(x, ConstantWeight) else x for x in weights)


def split_factors(product: str, scale_x: Any, scale_w: Any, scale_out: Any) -> tuple[Any, Any, Any]:
    """Return the factors of x and of the weight, and what D is multiplied by, where they are pairs.

    Raises:
        OperandError: one alone is a pair, a pair is none, or `scale_out` is there beside them.
    """
    pairs = [isinstance(x, (tuple, list)) for x in (scale_x, scale_w)]
    if not any(pairs):
        return scale_x, scale_w, scale_out
    if not all(pairs) or len(scale_x) != 2 or len(scale_w) != 2:
        got = " and ".join(f"{len(x)} tensors" if isinstance(x, (tuple, list)) else "one" for x in (scale_x, scale_w))
        raise errors.OperandError(
            f"{product}: scale_x and scale_w are {got}; expected pairs of both, the factors of blocks and the tensor's "
            "own float32 factor; or tensors, and the product of the tensors' own factors as scale_out="
        )
    if scale_out is not None:
        raise errors.OperandError(
            f"{product}: got scale_out and the tensors' own factors, whose product it is; expected one of the two; "
            "leave scale_out away"
        )
    (factors_x, of_x), (factors_w, of_w) = scale_x, scale_w
    return factors_x, factors_w, of_x * of_w


def is_in_blocks(out_dtype: object) -> bool:
    """Say whether a result is of a format of blocks, by its type."""
    return isinstance(out_dtype, str) and out_dtype in BLOCK_FORMATS


def _split_scale_out(product: str, scale_out: Any) -> tuple[Any, Any]:
    """Return the product of the operands' own factors, where it is given, and the own factor of a result in blocks."""
    if not isinstance(scale_out, (tuple, list)):
        return None, scale_out
    if len(scale_out) == 2:
        return scale_out[0], scale_out[1]
    raise errors.OperandError(
        f"{product}: scale_out is {len(scale_out)} tensors; expected the result's own factor, or a pair: the product "
        "of the own factors of x and of the weight, and the result's own"
    )


def split_result(product: str, out_dtype: Any, out: Any, scale_out: Any) -> tuple[Any, Any, Any, Any]:
    """Return `out`, what D is multiplied by, D's own factor, and the tensor of its factors, of a result by its type.

    Of a format of blocks `out` is a pair, and `scale_out` the result's own factor, or a pair whose second that is.

    Raises:
        OperandError: `out` is no pair, or `scale_out` is one of others than two.
    """
    if not is_in_blocks(out_dtype):
        return out, scale_out, None, None
    scale_d, own = _split_scale_out(product, scale_out)
    if out is None:
        return None, scale_d, own, None
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise errors.OperandError(
            f"{product}: out is no pair beside out_dtype={out_dtype!r}; expected (values, factors), both of which are "
            "written; leave it away to have them allocated"
        )
    return out[0], scale_d, own, out[1]


def join_result(found: Any, own: Any) -> Any:
    """Return what the binding gave as the next product takes it: factors with the result's own one in a pair."""
    if own is None or not isinstance(found, tuple):
        return found
    return found[0], (found[1], own)


def split_listed(
    product: str, scale_x: Any, scale_w: Any, scale_out: Any, weights: Any
) -> tuple[Any, Any, Any, tuple[Any, ...] | None]:
    """Do the same of groups, whose weights may have a tensor of factors each: `scale_w` is then the first one's.

    Args:
        product: the function's name.
        scale_x: of x, a tensor, or a pair.
        scale_w: of the weights: a tensor, a pair, or in the place of factors a list of one for each group.
        scale_out: what D is multiplied by.
        weights: the weights of groups, where each is a tensor of its own; else None.

    Returns:
        The factors of x and of the weights, what D is multiplied by, and the factors of each weight, where they are a
        list; else None.

    Raises:
        OperandError: as of `split_factors`, or weights that are one tensor have a list of factors, or it is empty.
    """
    if weights is None or isinstance(scale_x, (tuple, list)) or not isinstance(scale_w, (tuple, list)):
        scale_x, scale_w, scale_out = split_factors(product, scale_x, scale_w, scale_out)
    if not isinstance(scale_w, (tuple, list)):
        return scale_x, scale_w, scale_out, None
    if weights is None or not scale_w:
        got = f"a list of {len(scale_w)} tensors" if scale_w else "an empty list"
        beside = "weights that are one tensor" if weights is None else f"{len(weights)} weights"
        raise errors.OperandError(
            f"{product}: the factors of the weights are {got}, beside {beside}; expected a list of one for each weight "
            "of a list, or one tensor; with a tensor's own factors scale_x and scale_w are pairs"
        )
    return scale_x, scale_w[0], scale_out, tuple(scale_w)


def mode_flags(*, deterministic: bool, batch_invariant: bool) -> int:
    """Return the flags of what a caller asks of results beside their values."""
    return (DETERMINISTIC if deterministic else 0) | (BATCH_INVARIANT if batch_invariant else 0)


def activation_number(product: str, activation: object) -> int:
    """Return the number of the epilogue that a product's activation is.

    Raises:
        UnsupportedError: the product has no such activation.
    """
    try:
        return _OF_PRODUCT.get(product, ACTIVATIONS)[activation]
    except (KeyError, TypeError):
        refuse_activation(product, activation)


def refuse_activation(product: str, activation: object) -> NoReturn:
    """Raise that a product has no such activation.

    Raises:
        UnsupportedError: always.
    """
    names = ", ".join(map(repr, _OF_PRODUCT.get(product, ACTIVATIONS)))
    raise errors.UnsupportedError(
        f"{product}: activation is {errors.show(activation)}; expected one of {names}; apply another to the result"
    ) from None
