"""Edges of buckets from data: fine steps, merged where one kernel serves both sides at no cost that matters. Pure.

The fine steps are the multiples in which tiles and waves change. What a merge costs is the predicted (and where it is
known, measured) time of the one kernel that then serves all over that of the best kernel in each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def _steps(*ranges: tuple[int, int, int]) -> tuple[int, ...]:
    """Join ranges of (first, last, step), the last included."""
    return tuple(sorted({value for first, last, step in ranges for value in range(first, last + 1, step)}))


FINE_M = _steps((1, 1, 1), (8, 128, 8), (144, 512, 16), (544, 1024, 32), (1088, 4096, 64), (4352, 8192, 256))
FINE_GRID_M = _steps((1, 1, 1), (16, 512, 16), (544, 1024, 32), (1088, 2048, 64), (2176, 4096, 128), (4352, 8192, 256))
FINE_N = _steps(
    (128, 512, 64), (640, 2048, 128), (2304, 6144, 256), (6656, 8192, 512), (8704, 16384, 512), (17408, 32768, 1024)
)
FINE_K = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper edges before merging: of a ladder's m, and of the grid's m, n and k. m steps by the smallest tile where tiles
are few, then by what adds a tile: one row past a multiple of a tile costs a wave, so that wide steps hide cliffs (with
steps of 512 past m 2048, m 2049 at n 4096, k 4096 took 24 percent longer than it need on an H200). n by halves of a
common tile, then by the multiples that weights have; k by octaves."""


def merge_costs(losses: Array, axis: int) -> Array:
    """Return what merging each slab with the next along an axis adds, summed over the rest.

    Args:
        losses: (m, n, k, kernel): summed logarithms of time over the shapes of a cell.
        axis: 0, 1 or 2.
    """
    moved = np.moveaxis(losses, axis, 0)
    alone = moved.min(axis=-1)
    together = (moved[:-1] + moved[1:]).min(axis=-1)
    costs: Array = (together - alone[:-1] - alone[1:]).sum(axis=(1, 2))
    return costs


def _merged(losses: Array, axis: int, index: int) -> Array:
    moved = np.moveaxis(losses, axis, 0)
    joined = np.concatenate(
        [moved[:index], moved[index : index + 1] + moved[index + 1 : index + 2], moved[index + 2 :]]
    )
    return np.moveaxis(joined, 0, axis)


def coarsen(
    losses: Array,
    edges: Sequence[Sequence[int]],
    *,
    num_shapes: int,
    max_cost: float,
    max_cells: int,
    kept: Sequence[Collection[int]] = ((), (), ()),
) -> tuple[tuple[int, ...], ...]:
    """Merge neighbouring steps, the cheapest first, while the mean cost stays within bounds.

    Args:
        losses: (m, n, k, kernel): the logarithms of time, summed over the shapes that stand for a cell.
        edges: upper edges of the steps of m, n and k.
        num_shapes: shapes in all.
        max_cost: mean of log(time with merged buckets / time with fine ones) up to which to merge.
        max_cells: cells down to which to merge at any cost.
        kept: edges of each axis that stay.

    Returns:
        The edges left; the last of each axis always is.
    """
    left = [list(axis) for axis in edges]
    spent = 0.0
    while True:
        cells = int(np.prod(losses.shape[:3]))
        options = []
        for axis in range(3):
            costs = merge_costs(losses, axis)
            gain = cells // losses.shape[axis]
            options += [
                (cost / gain, cost, axis, i) for i, cost in enumerate(costs.tolist()) if left[axis][i] not in kept[axis]
            ]
        if not options:
            break
        _, cost, axis, index = min(options)
        if cells <= max_cells and (spent + cost) / num_shapes > max_cost:
            break
        spent += cost
        losses = _merged(losses, axis, index)
        del left[axis][index]
    return tuple(tuple(axis) for axis in left)
