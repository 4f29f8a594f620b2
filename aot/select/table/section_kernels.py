"""The kernels of a section of the table: which a bucket takes, which it gets, and the row that says so. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import KernelKey
from aot.core.dispatch import Row
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.families import family_of
from aot.families._sum_order import order_of
from aot.select.times.inputs import MAX_WORKSPACE_BYTES, Bucket, Timed, workspace_bytes
from aot.select.times.sectors import beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.candidate import Candidate

Array = NDArray[np.float64]

PREDICTED_TIE = 0.06
"""Predicted times this close are a tie, which goes to the kernel that is shipped for the bucket already. Source:
between two tunings of H200s a tie of 0.05 let 0.37% of the entries change, 0.06 lets 0.16%
(research/log/2026-11-21-selections.md)."""

BARRED = 1e6
"""What stands for the logarithm of a time where a bucket cannot take a kernel: more than any sum of times."""


@dataclass(frozen=True)
class SectionKernels:
    """The portfolio of a section: its kernels by name, their indices in the manifest, and the times of both."""

    candidates: tuple[Candidate, ...]
    indices: Mapping[Candidate, int]
    timed: Timed
    num_groups: int = 1
    """Products, or groups, that the section is for."""
    is_invariant: bool = False
    """Whether the kernels of one n and k must add up k in one order."""
    loads: int = 0
    """`Section.loads`."""
    between_sectors: bool = False
    """`Section.between_sectors`."""

    @property
    def is_special(self) -> bool:
        """Say whether the section is not the one that most problems of its operation get."""
        return self.is_invariant or self.loads > 0

    def problem(self, operation: Operation, m: int, n: int, k: int) -> Problem:
        """Return the problem that stands for what rounds up to an edge of the section."""
        found = Problem(operation, m, n, k, self.num_groups)
        return beside(found) if self.between_sectors else found

    def outside_order(self, operation: Operation, losses: Array, rows: Sequence[int]) -> Array:
        """Return (kernel,): `BARRED` of those that add up k of an operation in another order than the best one, else 0.

        The best order is the one whose fastest kernels have the least sum of losses over some rows of `losses`, among
        those that have a kernel for every row.
        """
        found = np.zeros(len(self.candidates))
        if not self.is_invariant:
            return found
        orders = np.array([order_of(KernelKey(operation, x)) for x in self.candidates])
        best = {x: losses[:, orders == x].min(axis=1) for x in sorted({*orders.tolist()} - {""})}
        costs = {x: float(of_rows[list(rows)].sum()) for x, of_rows in best.items() if of_rows.max() < BARRED / 2}
        if costs:
            found[orders != min(costs, key=lambda x: (costs[x], x))] = BARRED
        return found

    @cached_property
    def is_whole(self) -> NDArray[np.bool_]:
        """Say of each kernel whether it takes every aligned m and n."""
        return np.array([family_of(x).multiples(x) == (1, 1) for x in self.candidates])

    def row(
        self, times: Array, able: NDArray[np.bool_], bucket: Bucket, first: Candidate | None, provenance: Provenance
    ) -> Row:
        """Make the row of a bucket; its kernel is `first` where the bucket takes that, else the fastest.

        Beside a measured time stands no predicted runner-up.

        Args:
            times: of each kernel, in microseconds.
            able: whether the bucket takes the kernel.
            bucket: the row's.
            first: what is to have the row.
            provenance: of times that were measured.
        """
        indices = [self.indices[x] for x in self.candidates]
        order = [j for j in np.lexsort((np.array(indices), times)).tolist() if able[j]]
        general = next((j for j in order if self.is_whole[j]), None)
        if general is None:
            raise self.nothing_takes(bucket)
        chosen = order[0]
        if first in self.places and able[self.places[first]]:
            chosen = self.places[first]
        own = self.timed.own.get(bucket.corner, {})
        is_own = self.candidates[chosen] in own and provenance != PROVENANCE_PREDICTED
        rivals = (j for j in order if j != chosen and (not is_own or self.candidates[j] in own))
        runner_up = next(rivals, chosen)
        return Row(
            kernel=indices[chosen],
            general=indices[chosen if self.is_whole[chosen] else general],
            time_us=round(float(times[chosen]), 3),
            provenance=provenance if is_own else PROVENANCE_PREDICTED,
            runner_up=indices[runner_up],
            runner_up_us=round(float(times[runner_up]), 3),
        )

    @cached_property
    def places(self) -> dict[Candidate, int]:
        """Return the place of each kernel in `candidates`."""
        return {x: j for j, x in enumerate(self.candidates)}

    @staticmethod
    def nothing_takes(bucket: Bucket) -> SelectionError:
        """Return the error of a bucket that no kernel of the portfolio takes as a whole."""
        return SelectionError(
            f"no kernel of the portfolio takes every shape near {bucket.corner.name}; raise --max-kernels, or keep "
            "one with a TMA store and no split-K"
        )

    def pick(self, losses: Array, able: NDArray[np.bool_], incumbent: int | None) -> int | None:
        """Choose a bucket's kernel by its mean logarithms of time; a tie goes to the incumbent.

        Args:
            losses: of each kernel.
            able: whether the bucket takes the kernel.
            incumbent: the place of what an earlier selection has there, among the kernels.

        Returns:
            The kernel's place; None where the bucket takes none.
        """
        if not able.any():
            return None
        best = int(np.where(able, losses, np.inf).argmin())
        if incumbent is not None and able[incumbent] and losses[incumbent] <= losses[best] + PREDICTED_TIE:
            return incumbent
        return best

    def incumbent(self, corner: Problem) -> int | None:
        """Return the place of the kernel that an earlier selection has for a problem; None where it is none of ours."""
        candidate = self.timed.incumbent(corner)
        return None if candidate is None else self.places.get(candidate)

    def kept_ladder(self, n: int, k: int) -> tuple[int, ...]:
        """Return the edges of m that an earlier selection has for an (n, k); none where it has no ladder."""
        ladders = () if self.timed.kept is None else self.timed.kept.ladders
        return next((ladder.m_edges for ladder in ladders if (ladder.n, ladder.k) == (n, k)), ())

    def takes(self, buckets: Sequence[Bucket]) -> NDArray[np.bool_]:
        """Return (bucket, kernel): whether the bucket takes the kernel.

        That is where its workspace, which grows with m and n, stays bounded, and no shape has more rows than it is for.
        """
        found = np.ones((len(buckets), len(self.candidates)), dtype=bool)
        is_open = np.array([bucket.is_open for bucket in buckets])
        corners = [x.corner for x in buckets]
        most_m = np.array([np.inf if x.is_open_along_m else x.corner.m for x in buckets])
        for j, candidate in enumerate(self.candidates):
            family = family_of(candidate)
            if family.workspace(candidate).is_needed:
                found[:, j] = ~is_open & (workspace_bytes(candidate, corners) <= MAX_WORKSPACE_BYTES)
            if family.max_m:
                found[:, j] &= most_m <= family.max_m
        return found
