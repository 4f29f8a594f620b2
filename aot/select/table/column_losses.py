"""What kernels lose in the columns of a grid: at both ends of their n, and which are looked at between steps. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aot.select.table.section_kernels import BARRED

Array = NDArray[np.float64]

FACTOR = 1.25
"""Predicted time over the best of the table's kernels beyond which what a kernel loses counts twice, at both ends of a
column's n: none of them is to lose a factor anywhere. An assumption."""

MOST = 16
"""Most kernels, the nearest, that are looked at between two scanned steps for each of the two."""

NEAR = 1.6
"""Predicted time over the best up to which a kernel is looked at between two scanned steps; one that is farther off has
its longer time of those two. Source: by trees of the first H200 record, over 7,500 fine cells and without `MOST`, 1.25
chose kernels 0.56% slower in the mean and 64% at worst than a look at all."""


def within_factor(losses: Array, others: Array) -> Array:
    """Join the losses at two ends of columns, (column, m, kernel): their mean, and what either is over FACTOR.

    Args:
        losses: logarithms of time at one end, `BARRED` or more where a bucket cannot take a kernel.
        others: the same at the other end.
    """
    over = [np.maximum(x - x.min(axis=-1, keepdims=True) - np.log(FACTOR), 0.0) for x in (losses, others)]
    found: Array = (losses + others) / 2 + np.maximum(*over)
    return np.where(np.maximum(losses, others) >= BARRED / 2, np.maximum(losses, others), found)


def near(losses: Array) -> NDArray[np.bool_]:
    """Say which kernels are looked at beside a scanned step, by their losses there, (column, m, kernel)."""
    ranks = losses.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
    is_near: NDArray[np.bool_] = (ranks < MOST) & (losses <= np.log(NEAR) + losses.min(axis=-1, keepdims=True))
    return is_near
