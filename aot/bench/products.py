"""The products that a bench is of."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from aot.core.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.operation import Operation
    from aot.core.shape_set import ShapeSet

_Drawn = TypeVar("_Drawn")


def drawn(items: Sequence[_Drawn], limit: int | None, seed: int) -> list[_Drawn]:
    """Shuffle by a seed, so that a run that ends early has a fair part of them; keep `limit` at most.

    Equal arguments give equal lists, on every machine and with every Python from 3.2 on.
    """
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, no secret
    return shuffled[:limit]


def products_of(shapes: ShapeSet, operations: Sequence[Operation], limit: int | None, seed: int) -> list[Problem]:
    """Return the problems of a shape set: of each operation up to `limit`, by `drawn`.

    Args:
        shapes: the set.
        operations: which of its operations; none for those that it is tuned for where nobody asks for others.
        limit: the most problems of each operation; None: all.
        seed: of the draw. Operations whose problems have the same sizes get the same ones.

    Raises:
        ShapeFileError: the set has no problem of these operations.
    """
    asked = shapes.having(operations) if operations else shapes.tuned((), ())
    return [problem for operation in asked for problem in drawn(shapes.problems(operation), limit, seed)]
