"""What a number of kernels costs: regret and bytes of portfolios of every size, so that a size can be chosen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.select.portfolio.choose import Budget, Choice
from aot.select.portfolio.objects import each_its_own
from aot.select.selection import Curve, CurvePoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aot.core.candidate import Candidate
    from aot.core.measurement import Times
    from aot.core.operation import Operation
    from aot.core.problem import Problem

SIZES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96)
"""Numbers of kernels that a curve has points for, and the one that was chosen."""


def portfolio_bytes(candidates: tuple[Candidate, ...], known: Mapping[Candidate, int]) -> tuple[int, bool]:
    """Add up what kernels take in the wheel, and say whether some are an estimate: the mean of those that are known."""
    sizes = [known[candidate] for candidate in candidates if candidate in known]
    mean = sum(known.values()) / len(known) if known else 0.0
    missing = len(candidates) - len(sizes)
    return sum(sizes) + round(mean * missing), missing > 0


def curve(
    operation: Operation,
    times: Times,
    beside: Times,
    chosen: int,
    kernel_bytes: Mapping[Candidate, int],
    *,
    is_general: Callable[[Candidate], bool],
    object_of: Callable[[Candidate], Candidate] = each_its_own,
    weights: Mapping[Problem, float] | None = None,
    references: Mapping[Problem, float] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Curve:
    """Choose portfolios of all sizes and give the regret and the bytes of each.

    Args:
        operation: whose kernels.
        times: microseconds by problem and candidate, measured or learned; a small portfolio needs all of them.
        beside: further problems that the choice counts, as in `choose`.
        chosen: a size that must have a point.
        kernel_bytes: compressed bytes of the kernels that are compiled.
        is_general: as in `choose`.
        object_of: as in `choose`.
        weights: as in `choose`.
        references: as in `choose`.
        progress: told each size before it is tried.
    """
    points: list[CurvePoint] = []
    arranged = Choice.of(
        times, beside=beside, weights=weights, references=references, is_general=is_general, object_of=object_of
    )
    for size in sorted({*SIZES, chosen}):
        progress(size)
        found = arranged.portfolio(Budget(size))
        num_bytes, is_estimate = portfolio_bytes(found.objects, kernel_bytes)
        regrets = round(found.mean_regret, 5), round(found.worst_regret, 5), round(found.mean_bound, 5)
        if points and len(found.objects) <= points[-1].num_kernels:
            break  # no more kernels help
        points.append(CurvePoint(len(found.objects), *regrets, num_bytes, is_estimate))
    return Curve(operation, tuple(points))
