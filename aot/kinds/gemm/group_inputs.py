"""Where groups end, and which rows an index names: what lies on the device beside the operands of groups."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from aot.core.signature import Argument

if TYPE_CHECKING:
    from aot.core.operands import Indices

POSITIONS = (Argument.OFFSETS, Argument.INDEX)
"""The arguments that say where, and are not multiplied."""


class GroupSizes(Enum):
    """How what is grouped is shared out among the groups."""

    RANDOM = "of random sizes, some of them empty"
    ALL_IN_ONE = "of which one has all"
    ONES = "of one each, the last of the rest"
    SHORT = "that end before the last row"
    EVEN = "of even sizes"
    SKEWED = "of which the r-th largest has 1 / r of the largest"


TIMED_SIZES = (GroupSizes.EVEN, GroupSizes.SKEWED)
"""What the sets of operands that a kernel is timed on take in turn, so that its time is that of both loads together.

A table cannot look up one of them: where groups end lies on the device. Source: routers are trained towards even loads;
that the loads of experts fall as 1 / rank otherwise is an assumption.
"""


def draw_ends(sizes: GroupSizes, num_groups: int, extent: int, rng: np.random.Generator) -> Indices:
    """Draw where groups end.

    Args:
        sizes: how they share.
        num_groups: how many.
        extent: of what is grouped, at least `num_groups`.
        rng: draws.
    """
    if sizes is GroupSizes.EVEN:
        return np.arange(1, num_groups + 1, dtype=np.int64) * extent // num_groups
    if sizes is GroupSizes.SKEWED:
        shares = np.cumsum(rng.permutation(1.0 / np.arange(1, num_groups + 1)))
        ends: Indices = np.rint(extent * shares / shares[-1]).astype(np.int64)
        return ends
    if sizes is GroupSizes.ALL_IN_ONE:
        return np.where(np.arange(num_groups) < num_groups // 2, 0, extent).astype(np.int64)
    if sizes is GroupSizes.ONES:
        return np.append(np.arange(1, num_groups), extent).astype(np.int64)
    last = extent - extent // 4 if sizes is GroupSizes.SHORT else extent
    return np.append(np.sort(rng.integers(0, last + 1, num_groups - 1)), last).astype(np.int64)
