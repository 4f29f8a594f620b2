"""What a selection must show before a wheel is built of it, and what is said of how it answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aot.core.errors import CoverageError, SelectionError
from aot.select.coverage import Coverage, coverage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.operation import Operation
    from aot.core.shape_set import ShapeSet
    from aot.select.selection import Selection

MAX_UNMEASURED = 0.25
"""Largest share of an operation's held-out problems whose kernel may have no time there. Those are not left out at
random: the cost model pruned the kernel there, so that it is likelier slow than where it was timed; with more than a
quarter unscored, the scores say little of the whole. Source: the committed H200 selection has 15 percent in fp16."""

FEWEST_OF_MEAN = 5
"""Held-out problems of an operation's tier from which on their mean is judged: an assumption. That of one or two is
those problems' own loss, which the limit of the worst is for. Of an H200's `bf16_mn` one was held out, of 1.4 us."""


def _check_scored(selection: Selection) -> None:
    """Refuse a selection of which too little was scored.

    Raises:
        SelectionError: of an operation's held-out problems, too many have no time of the kernel they get.
    """
    for operation in dict.fromkeys(x.operation for x in selection.heldout):
        scores = [x for x in selection.heldout if x.operation == operation]
        unscored = sum(x.num_unmeasured for x in scores)
        total = unscored + sum(x.num_problems for x in scores)
        if unscored > MAX_UNMEASURED * total:
            raise SelectionError(
                f"{operation.tag}: on {unscored} of {total} held-out problems ({unscored / total:.0%}) the kernel "
                "picked was not timed, so that the bucketing loss there is not known; expected at most "
                f"{MAX_UNMEASURED:.0%}; measure them with `aot tune --shapes atlas_heldout --selection ... --prune "
                "100`, import and select again, or give --max-heldout-regret none"
            )


def check_heldout(selection: Selection, max_mean: float, max_worst: float) -> None:
    """Refuse a selection whose bucketing loss on the problems that were held out is too high, or not known.

    Args:
        selection: a predicted one has nothing to hold out, and passes.
        max_mean: the most that rounding may cost in the mean of `FEWEST_OF_MEAN` and more, as a fraction.
        max_worst: the same of the worst problem. Where both are infinite, nothing is asked of a selection.

    Raises:
        SelectionError: it costs more, or more than `MAX_UNMEASURED` of an operation's problems are not scored.
    """
    if math.isinf(max_mean) and math.isinf(max_worst):
        return
    _check_scored(selection)
    for x in selection.heldout:
        has_mean = x.num_problems >= FEWEST_OF_MEAN
        if (has_mean and x.bucketing_loss_mean > max_mean) or x.bucketing_loss_worst > max_worst:
            raise SelectionError(
                f"{x.operation.tag}, tier {x.tier}: on {x.num_problems} held-out problems the bucketing loss is "
                f"{100 * x.bucketing_loss_mean:.2f}% in the mean and {100 * x.bucketing_loss_worst:.1f}% at worst "
                f"({x.worst_problem}); expected at most {100 * max_mean:.1f}% and {100 * max_worst:.1f}%; tune more "
                "problems near it and select again, or raise --max-heldout-regret"
            )


def covered(selection: Selection, shapes: ShapeSet | None, operations: Sequence[Operation] = ()) -> Coverage | None:
    """Return how a selection answers the problems that it was made for, by its own account or for a shape set.

    None where neither says what it was made for.

    Args:
        selection: kernels and table.
        shapes: what it is asked to be for, where it does not say so.
        operations: the products that are asked for; by default the shape set's.
    """
    if selection.coverage is not None or shapes is None:
        return selection.coverage
    return coverage_of(selection, shapes, operations)


UNKNOWN_COVERAGE = "the selection does not say which problems it was made for; make it again with aot select"


def coverage_text(found: Coverage | None) -> str:
    """Say in a line how a selection answers what it was made for."""
    return UNKNOWN_COVERAGE if found is None else found.text


def require_measured(found: Coverage | None) -> None:
    """Refuse what is not wholly measured, by how it answers what it was made for.

    Raises:
        CoverageError: some problem is predicted, left to the general kernel, or not answered; or that is not known.
    """
    if found is None:
        raise CoverageError(f"--require-measured: {UNKNOWN_COVERAGE}")
    if not found.is_measured:
        raise CoverageError(
            f"--require-measured: {found.text}; measure the rest (aot tune --shapes FILE, aot import, aot select), pad "
            "what is not aligned, or take it out of the shape set"
        )
