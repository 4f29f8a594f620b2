"""The orders in which a kernel takes the clusters of its tiles: an argument of the launch.

Clusters are taken in groups: in each, along one direction of the kernel's own D as many as the group is wide, then a
step along the other; every second group runs backwards. Order 0 takes groups of 8 along the side that has fewer of
them. An order changes which tiles are worked on at once, and so what the L2 cache holds, but no sum: a tile's bits do
not depend on it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from aot.core.constraints import Range

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.problem import Problem

GROUPS = (1, 2, 4, 8)
"""Widths of a group, in clusters: powers of two from 1 on, as `scheduler_options` of aot.families._quack has them."""

HEURISTIC = 0
"""The order of every kernel that is not told another, and of all times that say none."""

DEFAULT_GROUP = 8
"""The width in HEURISTIC. Source: quack's own default (`gemm_config.py`)."""

NUM_ORDERS = 1 + 2 * len(GROUPS)

TileOrder = Annotated[int, Range(0, NUM_ORDERS - 1)]


def order_name(order: int) -> str:
    """Return what users read: `m2` is along the kernel's m in groups of 2; empty for HEURISTIC."""
    if order == HEURISTIC:
        return ""
    along, group = divmod(order - 1, len(GROUPS))
    return f"{'mn'[along]}{GROUPS[group]}"


def _is_along_n(order: int, clusters_m: int, clusters_n: int) -> bool:
    if order != HEURISTIC:
        return order > len(GROUPS)
    groups = [-(-count // DEFAULT_GROUP) for count in (clusters_m, clusters_n)]
    return groups[1] <= groups[0]


@lru_cache(maxsize=64)
def sequence(order: int, clusters_m: int, clusters_n: int) -> tuple[tuple[int, int], ...]:
    """List the clusters (along m, along n) in the order in which a kernel takes them.

    Source: quack tile_scheduler.py, `TileScheduler._swizzle_cta`, 0.6.5.
    """
    along_n = _is_along_n(order, clusters_m, clusters_n)
    fast, slow = (clusters_n, clusters_m) if along_n else (clusters_m, clusters_n)
    width = min(DEFAULT_GROUP if order == HEURISTIC else GROUPS[(order - 1) % len(GROUPS)], fast)
    found: list[tuple[int, int]] = []
    for group, first in enumerate(range(0, fast, width)):
        steps = range(slow) if group % 2 == 0 else reversed(range(slow))
        found += [(x, step) for step in steps for x in range(first, min(first + width, fast))]
    return tuple((y, x) for x, y in found) if along_n else tuple(found)


def count_clusters(candidate: Candidate, problem: Problem) -> tuple[int, int]:
    """Count the clusters of a kernel along its own m and n."""
    rows, columns = (problem.n, problem.m) if candidate.gemm.swap_ab else (problem.m, problem.n)
    height = candidate.gemm.tile_m // (2 if candidate.gemm.use_2cta else 1)
    return (
        -(-rows // (height * candidate.gemm.cluster_m)),
        -(-columns // (candidate.gemm.tile_n * candidate.gemm.cluster_n)),
    )


def distinct_orders(clusters_m: int, clusters_n: int) -> list[int]:
    """List the orders that take the clusters in different ways, the first of each way; HEURISTIC comes first."""
    ways: dict[tuple[tuple[int, int], ...], int] = {}
    for order in range(NUM_ORDERS):
        ways.setdefault(sequence(order, clusters_m, clusters_n), order)
    return list(ways.values())
