"""Edges of buckets from data: fine steps, merged where one kernel serves both sides at no cost that matters. Pure.

The fine steps are the multiples in which tiles and waves change. What a merge costs is the predicted (and where it is
known, measured) time of the one kernel that then serves all over that of the best kernel in each part.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]


def _steps(*ranges: tuple[int, int, int]) -> tuple[int, ...]:
    """Join ranges of (first, last, step), the last included."""
    return tuple(sorted({value for first, last, step in ranges for value in range(first, last + 1, step)}))


FINE_M = _steps((1, 1, 1), (8, 128, 8), (144, 512, 16), (544, 1024, 32), (1088, 4096, 64), (4352, 16384, 256))
FINE_GRID_M = _steps((1, 1, 1), (8, 64, 8), (80, 512, 16), (544, 1024, 32), (1088, 4096, 64), (4608, 16384, 512))
FEW_GRID_M = tuple(sorted({2, 4, *FINE_GRID_M}))
"""Edges of m in grids of what is not aligned, where that was timed: some of its kernels are for up to four rows."""
FINE_N = _steps(
    (64, 1024, 64),
    (1152, 8192, 128),
    (8448, 16384, 256),
    (17408, 32768, 1024),
    (36864, 65536, 4096),
    (131072, 131072, 1),
)
FINE_K = _steps(
    (64, 128, 64),
    (256, 512, 128),
    (768, 1536, 256),
    (2048, 3072, 512),
    (4096, 6144, 1024),
    (8192, 16384, 2048),
    (20480, 32768, 4096),
)
"""Upper edges before merging: of a ladder's m, and of the grid's m, n and k. m steps by the smallest tile where tiles
are few, then by what adds a tile: one row past a multiple of a tile costs a wave, so that wide steps hide cliffs (with
steps of 512 past m 2048, m 2049 at n 4096, k 4096 took 24 percent longer than it need on an H200). n by the multiples
that weights have; k by steps of at most a third, since how a product is split depends on it."""


LEARNED_M = _steps((1, 2, 1), (4, 64, 4), (72, 256, 8), (272, 2048, 16), (2080, 4096, 32), (4160, 16384, 64))
LEARNED_N = _steps(
    (8, 24, 8),
    (32, 512, 32),
    (576, 4096, 64),
    (4224, 8192, 128),
    (8448, 16384, 256),
    (16896, 32768, 512),
    (34816, 65536, 2048),
    (131072, 131072, 1),
)
"""The same of m (a ladder's and a grid's) and of n, where many problems were timed. Tiles come in steps of 8, and which
of them fills its waves changes with a few rows of m: on the H200's record, choosing at the steps above instead of at
the problem itself took the share of held-out problems below 0.98 of torch from 10.5% to 15.8%, most of it by m, and k
added nothing. On 1,200 random shapes rounding loses 1.1% by the trees with the steps above and 0.45% with these
(research/log/2026-11-22-choice.md). The first three of n are for outputs as narrow as a router's: with the kernel of n
32, m 1536, n 8, k 6144 took 12.7 us for 7.2 (research/log/2026-11-24-eight-ctas.md)."""


def breadths(edges: Sequence[int]) -> Array:
    """Return what each step of m weighs when steps are merged, 1 in the mean: the root of its octaves.

    By octaves alone many steps of large m would count for little, and by their number those of small m.
    """
    roots: Array = np.sqrt(np.log2(np.array(edges) / np.array([0.5, *edges[:-1]])))
    mean: float = roots.mean()
    return roots / mean


def coarsen(
    losses: Array,
    edges: Sequence[int],
    *,
    num_shapes: int,
    max_cost: float,
    kept: Collection[int] = (),
    settled: int = 0,
) -> tuple[int, ...]:
    """Merge neighbouring steps of m, the cheapest first, while the mean cost stays within bounds.

    Args:
        losses: (step, kernel): the logarithms of time, summed over the shapes that stand for a step.
        edges: upper edges of the steps.
        num_shapes: shapes in all.
        max_cost: mean of log(time with merged steps / time with fine ones) up to which to merge.
        kept: edges that stay.
        settled: m up to which no other edges do: what lies between is merged at any cost, which counts nowhere.

    Returns:
        The edges left; the last always is.
    """
    left, rows = list(edges), list(losses)
    for i in reversed(range(len(left) - 1)):
        if left[i] <= settled and left[i] not in kept:
            rows[i : i + 2] = [rows[i] + rows[i + 1]]
            del left[i]
    steps = np.stack(rows)
    least: list[float] = steps.min(axis=1).tolist()
    # Costs stand at the first step of each pair, and are infinite where there is none: a step that is gone, the last.
    num_steps = len(left)
    joined = np.append((steps[:-1] + steps[1:]).min(axis=1), inf)
    costs = joined - np.array(least) - np.append(least[1:], 0.0)
    stays = np.array([edge in kept for edge in left])
    costs[stays] = inf
    after, before = list(range(1, num_steps + 1)), list(range(-1, num_steps - 1))
    spent = 0.0
    while True:
        i = int(costs.argmin())
        if costs[i] == inf or (spent + costs[i]) / num_shapes > max_cost:
            break
        spent += float(costs[i])
        gone = after[i]
        steps[i] += steps[gone]
        least[i], left[i], stays[i] = float(joined[i]), left[gone], stays[gone]
        costs[gone], left[gone], after[i] = inf, 0, after[gone]
        if after[i] < num_steps:
            before[after[i]] = i
        for j in (before[i], i):
            if j < 0:
                continue
            if stays[j] or after[j] == num_steps:
                costs[j] = inf
                continue
            joined[j] = (steps[j] + steps[after[j]]).min()
            costs[j] = joined[j] - least[j] - least[after[j]]
    return tuple(edge for edge in left if edge)
