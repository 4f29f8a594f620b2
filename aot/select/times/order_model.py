"""What the order of its tiles does to a kernel's time, learned from the orders that a record has. Pure.

Clusters start in the order of their numbers, and what they read depends on which of them share an L2 cache, a GPC or
the time of their start. So the model counts the rows and columns of tiles that some groups of clusters read, each once
in a group: all clusters of a wave; every eighth one, as we take it that clusters are dealt out to the GPCs in turn;
eight that follow each other; and halves of a wave. The relative time of an order is linear in those extents, with one
weight for each grouping and operand. What it gains is in research/log/2026-11-22-tile-order.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from aot.core.tile_order import HEURISTIC, NUM_ORDERS, count_clusters, sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate
    from aot.core.problem import Problem

    Array = NDArray[np.float64]

NUM_GPCS = 8
"""Of an H200 and an H100. Source: NVIDIA H100 Tensor Core GPU Architecture, the full GH100."""

GROUPINGS = ("wave", "every eighth", "eight", "half")

MAX_WAVES = 3
"""With more the order was not measured. Source: `ordered_waves` of aot.measure.protocol."""

MIN_KERNELS = 100
"""Fewest pairs of problem and kernel, timed in every order, that the weights are learned from."""

LEAST_GAIN = 0.001
"""Fraction of the time that a kernel must gain by the model before it leaves its own order."""


def _groups(slot: NDArray[np.int64], num_slots: int) -> tuple[NDArray[np.int64], ...]:
    """Return the group of each cluster of a wave, by its place in it, for each of GROUPINGS."""
    return np.zeros_like(slot), slot % NUM_GPCS, slot // NUM_GPCS, slot * 2 // num_slots


@cache
def _distinct(clusters_m: int, clusters_n: int, num_slots: int) -> Array:
    """Count the rows and the columns of clusters that each grouping reads: (order, grouping, 2)."""
    found = np.zeros((NUM_ORDERS, len(GROUPINGS), 2))
    number = np.arange(clusters_m * clusters_n)
    wave, slot = number // num_slots, number % num_slots
    groups = [wave * num_slots + group for group in _groups(slot, num_slots)]
    for order in range(NUM_ORDERS):
        taken = np.array(sequence(order, clusters_m, clusters_n))
        for i, group in enumerate(groups):
            for side in (0, 1):
                found[order, i, side] = len(np.unique(group * len(number) + taken[:, side]))
    return found


def features(candidate: Candidate, clusters: tuple[int, int], num_sms: int) -> Array:
    """Return (order, feature): by how much more of each operand each grouping reads than in HEURISTIC.

    The operand that the CTAs of a cluster share comes first. Extents are relative to what the grouping reads in the
    mean of the orders.

    Args:
        candidate: the kernel.
        clusters: along its m and n.
        num_sms: of the device.
    """
    num_slots = max(1, num_sms // (candidate.gemm.cluster_m * candidate.gemm.cluster_n))
    height = candidate.gemm.tile_m // (2 if candidate.gemm.use_2cta else 1)
    extents = np.array([height * candidate.gemm.cluster_m, candidate.gemm.tile_n * candidate.gemm.cluster_n])
    read = _distinct(*clusters, num_slots) * extents
    if candidate.gemm.cluster_m > 1 and candidate.gemm.cluster_n == 1:
        read = read[:, :, ::-1]
    relative = read / read.sum(axis=2).mean(axis=0)[None, :, None]
    found: Array = (relative - relative[HEURISTIC]).reshape(NUM_ORDERS, -1)
    return found


def num_waves(candidate: Candidate, clusters: tuple[int, int], num_sms: int) -> float:
    """Return how often a kernel's CTAs fill the device, if each SM holds one."""
    return clusters[0] * clusters[1] * candidate.gemm.cluster_m * candidate.gemm.cluster_n / num_sms


@dataclass(frozen=True)
class OrderModel:
    """Weights of the features, and where they were learned."""

    weights: tuple[float, ...]
    num_sms: int
    m_range: tuple[int, int]
    """Least and largest m that was timed in other orders; outside of it kernels keep their own."""

    @staticmethod
    def fit(times: Mapping[Problem, Mapping[Candidate, Mapping[int, float]]], num_sms: int) -> OrderModel | None:
        """Learn the weights by least squares of relative times; None where MIN_KERNELS were not timed in every order.

        Args:
            times: microseconds by problem, kernel and order, HEURISTIC among the orders. Of orders that take the tiles
                in the same way one is enough.
            num_sms: of the device.
        """
        problems, known, logs = [], [], []
        for problem in sorted(times):
            for candidate, by_order in sorted(times[problem].items()):
                clusters = count_clusters(candidate, problem)
                every = [by_order.get(x) for x in first_alike(*clusters)]
                if any(us is None for us in every):
                    continue
                log = np.log(np.array(every, dtype=float))
                found = features(candidate, clusters, num_sms)
                known.append(found - found.mean(axis=0))
                logs.append(log - log.mean())
                problems.append(problem)
        if len(known) < MIN_KERNELS:
            return None
        weights = np.linalg.lstsq(np.concatenate(known), np.concatenate(logs), rcond=None)[0]
        extents = [problem.m for problem in problems]
        return OrderModel(tuple(weights.tolist()), num_sms, (min(extents), max(extents)))

    def best(self, candidate: Candidate, problems: Iterable[Problem]) -> int:
        """Return the order in which a kernel is predicted to take the least time on some problems, in the mean.

        It is HEURISTIC where that gains less than LEAST_GAIN, and where no problem is within `m_range` and MAX_WAVES.
        """
        found = []
        for problem in problems:
            clusters = count_clusters(candidate, problem)
            is_inside = self.m_range[0] <= problem.m <= self.m_range[1]
            if is_inside and num_waves(candidate, clusters, self.num_sms) <= MAX_WAVES:
                found.append(features(candidate, clusters, self.num_sms) @ np.array(self.weights))
        if not found:
            return HEURISTIC
        mean = np.mean(found, axis=0).round(9)
        best = int(mean.argmin())
        return best if mean[best] <= -LEAST_GAIN else HEURISTIC


@lru_cache(maxsize=4096)
def first_alike(clusters_m: int, clusters_n: int) -> Sequence[int]:
    """Return for each order the first that takes the clusters in the same way."""
    ways: dict[tuple[tuple[int, int], ...], int] = {}
    return tuple(ways.setdefault(sequence(x, clusters_m, clusters_n), x) for x in range(NUM_ORDERS))
