"""What a receipt says of each operation in a line: how much faster than the library the wheel is."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING

from aot.bench.compare import speedup

if TYPE_CHECKING:
    from aot.bench.receipt import Receipt
    from aot.core.operation import Operation

SLOWER = 0.98
"""Below this a product counts as slower than the library: two runs differ by up to 2%."""


@dataclass(frozen=True)
class Speed:
    """The library's times over the wheel's, of the products of one operation that both were timed on."""

    operation: Operation
    num_products: int
    geomean: float
    least: float
    num_slower: int
    """Products below `SLOWER`."""


def speeds(receipt: Receipt) -> tuple[Speed, ...]:
    """Summarise a receipt: a line for each operation of which a library was timed, in the receipt's order."""
    ratios: dict[Operation, list[float]] = {}
    for product in receipt.products:
        found = speedup(product)
        if found is not None:
            ratios.setdefault(product.problem.operation, []).append(found.median)
    return tuple(
        Speed(operation, len(found), geometric_mean(found), min(found), sum(x < SLOWER for x in found))
        for operation, found in ratios.items()
    )
