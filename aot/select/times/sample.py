"""Problems that no shape set names: a low-discrepancy sample of sizes, so that a portfolio is chosen for them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.grouping import Grouping
from aot.core.problem import Problem

if TYPE_CHECKING:
    from aot.core.operation import Operation

SIZES = ((1, 8192, 1), (512, 32768, 64), (512, 16384, 64))
"""(least, most, multiple) of m, n and k: what weights of models have, and any m."""

NUM_GROUPS = 32
"""Products of a batch, or groups, that are sampled."""


def sampled_problems(operation: Operation, count: int) -> list[Problem]:
    """Sample problems evenly in the logarithms of m, n and k; the same ones each time, each once.

    Args:
        operation: theirs.
        count: how many points to draw; those that round to one problem count once.
    """
    from scipy.stats import qmc

    groups = 1 if operation.grouping is Grouping.DENSE else NUM_GROUPS
    points = qmc.Halton(3, scramble=False).random(count + 1)[1:]
    chosen = set()
    for point in points.tolist():
        sizes = [low * (high / low) ** x for x, (low, high, _) in zip(point, SIZES, strict=True)]
        rounded = [max(round(size / step) * step, step) for size, (_, _, step) in zip(sizes, SIZES, strict=True)]
        m, n, k = rounded
        chosen.add(Problem(operation, m, n, k, groups))
    return sorted(chosen)
