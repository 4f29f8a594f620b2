"""In which order a kernel adds up the products of an element of D: what `GemmFamily.sum_order` says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.families import family_of

if TYPE_CHECKING:
    from aot.core.candidate import KernelKey


def order_of(key: KernelKey) -> str:
    """Name the order of a kernel of an operation; empty where there is none.

    A family whose candidates have several orders for the sake of some operations alone has `order_in`, which tells them
    of an operation.
    """
    family = family_of(key.candidate)
    order_in = getattr(family, "order_in", None)
    return str(family.sum_order(key.candidate) if order_in is None else order_in(key.candidate, key.operation))
