"""Weights that `patch` has frozen, and the promise that nobody writes them, for products that a compiler calls too.

An operator of torch carries a tensor and no promise. So the promise is looked up by the weight's address and shape, and
holds only while the tensor that it was made of is alive, lies where it lay, and torch has counted no write of it.
"""

from __future__ import annotations

import weakref
from typing import Any

from . import _operations


class Promise:
    """The promise of one weight, which may be made of the memory of several parameters."""

    __slots__ = ("_address", "_versions", "constant", "owner")

    def __init__(self, weight: Any, parameters: tuple[Any, ...], owner: Any) -> None:
        """Wait until the weight is complete, and note how often torch has counted writes of its parameters.

        Raises:
            AotGemmError: the weight is none that `linear` takes, or its stream is being captured.
        """
        self.constant = _operations.constant(weight)
        self.owner = weakref.ref(owner)
        self._address = weight.data_ptr()
        self._versions = tuple((x, x._version) for x in parameters)  # noqa: SLF001 - torch's documented counter

    @property
    def is_kept(self) -> bool:
        """Say whether nothing that torch counts has written the weight, and it lies where it lay."""
        if self.constant.tensor.data_ptr() != self._address:
            return False
        return all(parameter._version == version for parameter, version in self._versions)  # noqa: SLF001

    def is_of(self, weight: Any) -> bool:
        """Say whether a tensor of the same address and shape is the weight, and not its transpose or a view of bits."""
        own = self.constant.tensor
        return weight is own or (weight.dtype is own.dtype and weight.stride() == own.stride())


_KNOWN: dict[tuple[int, Any], Promise] = {}
"""By address and shape of the weight."""


def promise(weight: Any, parameters: tuple[Any, ...], owner: Any) -> None:
    """Promise of a weight that nobody writes it while it is in use; a new promise takes the place of the old.

    An inference tensor, whose writes torch does not count, gets no promise. A promise ends with its owner.
    """
    if any(x.is_inference() for x in (weight, *parameters)):
        return
    key = weight.data_ptr(), weight.shape
    known = _KNOWN.get(key)
    if known is None or known.owner() is not owner:
        weakref.finalize(owner, _end, key)
    _KNOWN[key] = Promise(weight, parameters, owner)


def _end(key: tuple[int, Any]) -> None:
    """Forget the promise of an owner that is gone, and not that of another whose weight lies there since."""
    found = _KNOWN.get(key)
    if found is not None and found.owner() is None:
        del _KNOWN[key]


def release(weight: Any) -> None:
    """Take a promise back; nothing where there is none."""
    _KNOWN.pop((weight.data_ptr(), weight.shape), None)


def promised(weight: Any) -> Any:
    """Return the weight with its promise, as the products take it, or the weight alone where none is kept."""
    if not _KNOWN:
        return weight
    found = _KNOWN.get((weight.data_ptr(), weight.shape))
    if found is None or not found.is_kept or not found.is_of(weight):
        return weight
    return found.constant
