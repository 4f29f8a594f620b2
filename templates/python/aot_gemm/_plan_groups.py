"""Groups as `plan` takes them: how many there are, of what, and what the table is asked of one."""

from __future__ import annotations

from typing import Any

from . import errors

GROUPINGS = ("grouped", "gathered", "kgrouped")
"""Groups of rows, the same by an index, and runs of k; the words of operations' tags."""

Shape = tuple[int, int, int]
"""(m, n, k)."""


def grouping_of(groups: int | None, grouping: Any, batch: int) -> str:
    """Return what an operation's tag says of its groups: one of `GROUPINGS`, or `dense` of none.

    Raises:
        ShapeError: there are no groups, or a batch of them.
        UnsupportedError: there is no such grouping, or no groups beside it.
    """
    if groups is None:
        if grouping is None:
            return "dense"
        raise errors.UnsupportedError(f"grouping is {errors.show(grouping)}, and groups None; give their number")
    if groups < 1 or batch != 1:
        raise errors.ShapeError(f"groups is {groups} beside batch {batch}; expected 1 or more, without a batch")
    found = "grouped" if grouping is None else grouping
    if not isinstance(found, str) or found not in GROUPINGS:
        raise errors.UnsupportedError(
            f"grouping is {errors.show(grouping)}; expected one of {', '.join(map(repr, GROUPINGS))}"
        )
    return found


def of_a_group(kind: str, shape: Shape, groups: int) -> Shape:
    """Return the sizes that are expected of one group, by which the table is asked; those of what has none."""
    m, n, k = shape
    if kind == "kgrouped":
        return m, n, -(-k // groups)
    return (-(-m // groups), n, k) if kind in GROUPINGS else shape


def skew_of(groups: int) -> float:
    """Return how many times the mean the largest group has where the r-th largest has 1 / r of it.

    That is the second load that a kernel of groups is timed on: see the toolchain's group_inputs.py.
    """
    return groups / sum(1 / rank for rank in range(1, groups + 1))
