"""At how many waves of tiles, and how long a k, each kernel was timed: what a prediction may trust it with. Pure.

A model that learned from times says little of a kernel where nothing like the problem was timed with it. An H200 gave
m 12000, n 7168, k 28672 to a kernel of `sm90_one_tile` by such a prediction, whose longest k at as many waves was
16,192: 10.7 ms where `torch.mm` takes 6.7 (H200, driver 580, 2026-11-26).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.space.cost import Operands

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.measurement import OperationTimes
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.space.cost import Problems

Array = NDArray[np.float64]

ONE_TILE = frozenset({"sm90_cluster_split_k", "sm90_one_tile"})
"""Families for products of few tiles, whose CTAs compute one tile and end: where tiles are many, nothing loads the next
tile while one is stored. Source: their modules. `cluster_split_k` and `sm100_tgv` also have such CTAs, but are for few
rows, where the weight's bytes take the time, and each further wave takes as long as the last. It is stated here because
it decides choices alone: a changed module of a family is a changed kernel to the store of objects."""

FEW_WAVES = 2.0
"""Waves of tiles up to which such a kernel may have a longer k than it was timed at: they are what it is for. Source:
by the trees of the H200's record the next best kernel takes 3 to 6% longer there in the median, 1% longer at 4 to 8
waves and 0.1% above (1,500 steps of the committed grid, 2026-11-26): a bound costs least where a wrong choice costs
most."""

UNTRIED = 1e3
"""What is added to the logarithm of a time outside of that: more than any sum of times, so that a kernel within its
range goes first, and less than what stands for a bucket that cannot take a kernel."""


def num_waves(candidate: Candidate, problems: Problems, target: Target) -> Array:
    """Return (problem,) the CTAs of a launch over the device's SMs."""
    ctas: Array = Operands.of([candidate], problems).num_ctas()[:, 0] * candidate.split_k
    return ctas / target.num_sms


def _num_k(candidate: Candidate, problems: Problems) -> Array:
    """Return (problem,) the k that a CTA adds up for a tile, in elements."""
    return Operands.of([candidate], problems).k[:, 0]


def _is_thin(candidate: Candidate, problems: Problems) -> NDArray[np.bool_]:
    """Say of (problem,) whether all tiles lie in one row or one column."""
    x = Operands.of([candidate], problems)
    found: NDArray[np.bool_] = (x.rows <= x.cta_m) | (x.columns <= x.tile_n)
    return found[:, 0]


@dataclass(frozen=True)
class TimedExtent:
    """The problems that a kernel was timed on, as far as none has both more waves and a longer k than another."""

    waves: Array
    """Ascending."""
    k: Array
    """In elements; descending."""

    @staticmethod
    def of(waves: Array, k: Array) -> TimedExtent:
        """Keep of (problem,) what no other exceeds in both."""
        kept: list[int] = []
        for place in np.lexsort((k, waves))[::-1].tolist():
            if not kept or k[place] > k[kept[-1]]:
                kept.append(place)
        kept.reverse()
        return TimedExtent(waves[kept], k[kept])

    def has(self, waves: Array, k: Array) -> NDArray[np.bool_]:
        """Say of (problem,) whether the kernel was timed at as many waves, or more, of as long a k, or a longer one."""
        place = np.searchsorted(self.waves, waves)
        longest = np.append(self.k, 0.0)[place]
        found: NDArray[np.bool_] = k <= longest
        return found


@dataclass(frozen=True)
class KernelRanges:
    """Where each kernel was timed, in any operation of a record: sizes count here, and not what is added to sums."""

    target: Target
    extents: Mapping[Candidate, TimedExtent]

    @staticmethod
    def of(records: Iterable[OperationTimes], target: Target) -> KernelRanges:
        """Collect what kernels were timed on.

        Args:
            records: times by operation, problem and candidate, of devices with as many SMs as the target.
            target: the device.
        """
        timed: dict[Candidate, list[tuple[Array, Array]]] = {}
        for times in records:
            for rows in times.values():
                of_operation: dict[Candidate, list[Problem]] = {}
                for problem, row in rows.items():
                    for candidate in row:
                        of_operation.setdefault(candidate, []).append(problem)
                for candidate, problems in of_operation.items():
                    pair = num_waves(candidate, problems, target), _num_k(candidate, problems)
                    timed.setdefault(candidate, []).append(pair)
        return KernelRanges(
            target,
            {
                candidate: TimedExtent.of(np.concatenate([w for w, _ in pairs]), np.concatenate([k for _, k in pairs]))
                for candidate, pairs in timed.items()
            },
        )

    def is_inside(self, candidate: Candidate, problems: Problems) -> NDArray[np.bool_]:
        """Say of (problem,) whether a prediction may give it the kernel; of one that was never timed, it may not.

        A kernel of ONE_TILE gets no more waves than it was timed at, and no longer k than at as many. Where waves are
        few, or all tiles lie in one row or column, so that no tile's operand is read by another wave, k may be longer.
        Kernels of other families are trusted with more than they were timed at: each further wave is like the last.
        """
        waves = num_waves(candidate, problems, self.target)
        extent = self.extents.get(candidate)
        if extent is None or candidate.family not in ONE_TILE:
            return np.full(len(waves), extent is not None)
        is_thin = _is_thin(candidate, problems) | (waves <= FEW_WAVES)
        is_timed = extent.has(waves, _num_k(candidate, problems))
        found: NDArray[np.bool_] = is_timed | (is_thin & (waves <= extent.waves[-1]))
        return found

    def penalty(self, candidates: Sequence[Candidate], problems: Problems) -> Array:
        """Return (problem, kernel) what is added to logarithms of predicted times.

        Outside of its range a kernel of ONE_TILE comes after all others.
        """
        return np.stack(
            [
                np.where(self.is_inside(x, problems), 0.0, UNTRIED * (2.0 if x.family in ONE_TILE else 1.0))
                for x in candidates
            ],
            axis=1,
        )
