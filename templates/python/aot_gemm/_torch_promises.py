"""Weights that nobody writes while they are in use, as `patch(model, constant=True)` is told, for compiled calls too.

An operator of torch carries a tensor and no promise. So the promise is looked up by the weight's address and shape. It
holds for a tensor of the same strides and element type, while the parameter that it was made of is alive, lies where it
lay, and torch has counted no write of it. It keeps no memory alive.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from . import _operations
from ._constant import ConstantWeight


class _Promise:
    """The promise of one parameter or buffer."""

    __slots__ = ("_address", "_version", "owner")

    def __init__(self, weight: Any) -> None:
        key = weight.data_ptr(), weight.shape
        self.owner = weakref.ref(weight, partial(_end, key))
        self._address = weight.data_ptr()
        self._version = weight._version  # noqa: SLF001 - torch's documented counter of in-place writes

    def covers(self, weight: Any) -> bool:
        """Say whether a tensor of the promise's address and shape is its parameter, unwritten since."""
        own = self.owner()
        return (
            own is not None
            and own.data_ptr() == self._address  # else it was given other memory, and this is someone else's
            and own._version == self._version  # noqa: SLF001
            and own.dtype is weight.dtype
            and own.stride() == weight.stride()  # else it is another view of that memory, as a transpose is
        )


_KNOWN: dict[tuple[int, Any], _Promise] = {}
"""By address and shape of the weight."""


def _end(key: tuple[int, Any], owner: Any) -> None:
    """Forget the promise of a parameter that is gone, and not that of another that lies there since."""
    found = _KNOWN.get(key)
    if found is not None and found.owner is owner:
        del _KNOWN[key]


def promise(weight: Any) -> None:
    """Promise of a parameter or buffer that nobody writes it while it is in use; waits until it is complete.

    An inference tensor, whose writes torch does not count, gets no promise.

    Raises:
        AotGemmError: the weight is none that `linear` takes, or its stream is being captured.
    """
    if weight.is_inference():
        return
    _operations.constant(weight.detach())
    _KNOWN[weight.data_ptr(), weight.shape] = _Promise(weight)


def release(weight: Any) -> None:
    """Take a promise back; nothing where there is none."""
    for key, found in list(_KNOWN.items()):
        if found.owner() is weight:
            del _KNOWN[key]


def promised(weight: Any, *, is_constant: bool = False) -> Any:
    """Return the weight with its promise, as the products take it, or the weight alone where none is kept.

    Args:
        weight: a tensor.
        is_constant: whether the caller knows of this product that nothing writes the weight any more: `_graph_order`.
    """
    if is_constant:
        return ConstantWeight(weight, weight.data_ptr())
    if not _KNOWN:
        return weight
    address = weight.data_ptr()
    found = _KNOWN.get((address, weight.shape))
    return weight if found is None or not found.covers(weight) else ConstantWeight(weight, address)
