"""Build the sections of the dispatch table from portfolios: ladders of what was tuned, a grid for all other shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import KernelKey, SplitK
from aot.core.dispatch import Column, Grid, Ladder, Row, Scope, Section, takes_aligned
from aot.core.errors import SelectionError
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.families import family_of
from aot.select.buckets import FINE_GRID_M, FINE_K, FINE_M, FINE_N, LEARNED_M, LEARNED_N, breadths, coarsen
from aot.select.selection import FamilyKernel
from aot.select.timed import Bucket, Timed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.select.portfolio import Portfolio

Array = NDArray[np.float64]

COARSE = 3
"""In the layouts that are not linear's, every third fine step of m, n and k is looked at, and the last."""

MERGE_COST = 0.001
"""Mean predicted cost that merging the steps of m of a ladder, or of a grid's column, may have."""

MANY_PROBLEMS = 500
"""Problems of an operation that were timed, in it or in an equivalent one, from which on its steps are those that tell
tiles of 8 apart: an assumption. Finer steps say little where few times were learned from, and a wheel may hold many
operations of that kind."""

SCAN = 4
"""All kernels are predicted on every fourth step of m of a column; between two of those, up to `MOST` kernels that are
`NEAR` the best on either, and the shipped one. Source: on the H200's record the trees take 6 us a prediction, and a
grid has 35 million of them. With these three numbers and 96 kernels, over 4,000 fine cells, the kernels chosen are
0.09% slower by the trees in the mean than by a look at all, and 13% at worst."""

MOST = 16
"""Most kernels, the nearest, that are looked at between two scanned steps for each of the two."""

NEAR = 1.6
"""Predicted time over the best up to which a kernel is looked at between two scanned steps; one that is farther off has
its longer time of those two. Source: by trees of the first H200 record, over 7,500 fine cells and without `MOST`, 1.25
chose kernels 0.56% slower in the mean and 64% at worst than a look at all."""

PREDICTED_TIE = 0.06
"""Predicted times this close are a tie, which goes to the kernel that is shipped for the bucket already. Source:
between two tunings of H200s a tie of 0.05 let 0.37% of the entries change, 0.06 lets 0.16%
(docs/log/2026-11-21-selections.md)."""

BARRED = 1e6
"""What stands for the logarithm of a time where a bucket cannot take a kernel: more than any sum of times."""


@dataclass(frozen=True)
class _Table:
    """The portfolio of a section: its kernels by name and their indices in the manifest."""

    candidates: tuple[Candidate, ...]
    indices: Mapping[Candidate, int]
    timed: Timed
    num_groups: int = 1
    """Products, or groups, that the section is for."""
    is_invariant: bool = False
    """Whether the kernels of one n and k must add up k in one order."""

    def problem(self, operation: Operation, m: int, n: int, k: int) -> Problem:
        """Return a problem of the section."""
        return Problem(operation, m, n, k, self.num_groups)

    def is_fine(self, operation: Operation) -> bool:
        """Say whether the steps of the section are those for many times."""
        is_linear = operation.layout is Layout.KK and operation.grouping is Grouping.DENSE and not self.is_invariant
        is_timed = self.timed.provenance != PROVENANCE_PREDICTED and len(self.timed.filled) >= MANY_PROBLEMS
        return is_linear and is_timed

    def outside_order(self, losses: Array, rows: Sequence[int]) -> Array:
        """Return (kernel,): `BARRED` of those that add up k in another order than the best one, else 0.

        The best order is the one whose fastest kernels have the least sum of losses over some rows of `losses`, among
        those that have a kernel for every row.
        """
        found = np.zeros(len(self.candidates))
        if not self.is_invariant:
            return found
        orders = np.array([family_of(x).sum_order(x) for x in self.candidates])
        best = {x: losses[:, orders == x].min(axis=1) for x in sorted({*orders.tolist()} - {""})}
        costs = {x: float(of_rows[list(rows)].sum()) for x, of_rows in best.items() if of_rows.max() < BARRED / 2}
        if costs:
            found[orders != min(costs, key=lambda x: (costs[x], x))] = BARRED
        return found

    def row(
        self, times: Mapping[Candidate, float], bucket: Bucket, first: Candidate | None, provenance: Provenance
    ) -> Row:
        """Make the row of a bucket; its kernel is `first` where the bucket takes that, else the fastest.

        Beside a measured time stands no predicted runner-up.
        """
        order = sorted(times, key=lambda candidate: (times[candidate], self.indices[candidate]))
        order = [candidate for candidate in order if bucket.takes(candidate)]
        general = [candidate for candidate in order if family_of(candidate).multiples(candidate) == (1, 1)]
        if not general:
            raise self.nothing_takes(bucket)
        chosen = first if first in order else order[0]
        own = self.timed.own.get(bucket.corner, {})
        is_own = chosen in own and provenance != PROVENANCE_PREDICTED
        rivals = [x for x in order if x != chosen and (x in own or not is_own)]
        runner_up = rivals[0] if rivals else chosen
        takes_all = family_of(chosen).multiples(chosen) == (1, 1)
        return Row(
            kernel=self.indices[chosen],
            general=self.indices[chosen if takes_all else general[0]],
            time_us=round(times[chosen], 3),
            provenance=provenance if is_own else PROVENANCE_PREDICTED,
            runner_up=self.indices[runner_up],
            runner_up_us=round(times[runner_up], 3),
        )

    @staticmethod
    def nothing_takes(bucket: Bucket) -> SelectionError:
        """Return the error of a bucket that no kernel of the portfolio takes as a whole."""
        return SelectionError(
            f"no kernel of the portfolio takes every shape near {bucket.corner.name}; raise --max-kernels, or keep "
            "one with a TMA store and no split-K"
        )

    def pick(self, losses: Array, bucket: Bucket) -> Candidate | None:
        """Choose a bucket's kernel by its mean logarithms of time; a tie goes to the incumbent."""
        able = [j for j, candidate in enumerate(self.candidates) if bucket.takes(candidate)]
        if not able:
            return None
        best = min(able, key=lambda j: (losses[j], j))
        incumbent = self.timed.incumbent(bucket.corner)
        if incumbent in self.candidates:
            j = self.candidates.index(incumbent)
            if j in able and losses[j] <= losses[best] + PREDICTED_TIE:
                return incumbent
        return self.candidates[best]

    def kept_ladder(self, n: int, k: int) -> tuple[int, ...]:
        """Return the edges of m that an earlier selection has for an (n, k); none where it has no ladder."""
        ladders = () if self.timed.kept is None else self.timed.kept.ladders
        return next((ladder.m_edges for ladder in ladders if (ladder.n, ladder.k) == (n, k)), ())

    def barred(self, buckets: Sequence[Bucket]) -> Array:
        """Return (bucket, kernel): `BARRED` where the bucket cannot take the kernel, else 0."""
        found = np.zeros((len(buckets), len(self.candidates)))
        for j, candidate in enumerate(self.candidates):
            if family_of(candidate).workspace(candidate).mode != SplitK.NONE:
                found[:, j] = [0.0 if bucket.takes(candidate) else BARRED for bucket in buckets]
        return found


def _midpoint(edges: Sequence[int], index: int) -> int:
    """Return the middle of a step, rounded up."""
    low = edges[index - 1] if index else 0
    return -(-(low + edges[index]) // 2)


def _ladder(known: _Table, portfolio: Portfolio, tuned: Sequence[Problem]) -> Ladder:
    """Build the ladder of one (n, k): an edge at every m that was tuned, and between and past them where that pays."""
    operation, n, k = tuned[0].operation, tuned[0].n, tuned[0].k
    section = known.problem
    measured = {problem.m: problem for problem in tuned}
    incumbent = known.kept_ladder(n, k)
    kept = {*measured, *incumbent}
    is_fine = known.is_fine(operation)
    fine = tuple(sorted({*kept, *(LEARNED_M if is_fine else FINE_M)}))
    last = fine[-1]
    inside = [[m] if is_fine else [_midpoint(fine, i), m] for i, m in enumerate(fine)]
    num_inside = len(inside[0])
    times = known.timed.times_us(known.candidates, [section(operation, m, n, k) for pair in inside for m in pair])
    logs = np.log(times).reshape(len(fine), num_inside, -1)
    buckets = [Bucket(section(operation, m, n, k), is_open=m == last) for m in fine]
    losses = logs.sum(axis=1) + known.barred(buckets)
    outside = known.outside_order(losses, [i for i, m in enumerate(fine) if m in measured])
    losses += outside
    m_edges = coarsen(
        losses * breadths(fine)[:, None],
        fine,
        num_shapes=num_inside * len(fine),
        max_cost=MERGE_COST,
        kept=kept,
        settled=max(incumbent, default=0),
    )
    rows, start = [], 0
    for m in m_edges:
        end = fine.index(m) + 1
        bucket = buckets[end - 1]
        at_edge = dict(zip(known.candidates, np.exp(logs[end - 1, -1]).tolist(), strict=True))
        at_edge = {x: us for x, us, loss in zip(at_edge, at_edge.values(), outside, strict=True) if loss == 0.0}
        first = portfolio.solutions.get(measured[m]) if m in measured and not known.is_invariant else None
        first = first or known.pick(losses[start:end].sum(axis=0) / (num_inside * (end - start)), bucket)
        rows.append(known.row(at_edge, bucket, first, known.timed.provenance))
        start = end
    return Ladder(n, k, m_edges, tuple(rows))


def _thin(edges: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*edges[::COARSE], edges[-1]}))


class _Columns:
    """Fills the columns of a grid: those of one n at a time, since predictions in bulk are cheap."""

    def __init__(self, known: _Table, operation: Operation, edges: Sequence[Sequence[int]]) -> None:
        self.known, self.operation = known, operation
        self.m_edges, self.n_edges, self.k_edges = edges
        able = [takes_aligned(FamilyKernel.of(KernelKey(operation, x))) for x in known.candidates]
        self._places = {x: j for j, x in enumerate(known.candidates)}
        self._unable = np.where(able, 0.0, BARRED)
        self._kept = None if known.timed.kept is None else known.timed.kept.grid

    def of(self, n: int) -> list[Column]:
        """Make the columns of one edge of n, by k."""
        buckets = [[self._bucket(m, n, k) for m in self.m_edges] for k in self.k_edges]
        barred = np.stack([self.known.barred(row) for row in buckets]) + self._unable
        losses = self._losses(n, barred, np.stack([self._shipped(row) for row in buckets]))
        return [self._column(row, losses[i]) for i, row in enumerate(buckets)]

    def _bucket(self, m: int, n: int, k: int) -> Bucket:
        axes = ((m, self.m_edges), (n, self.n_edges), (k, self.k_edges))
        return Bucket(self.known.problem(self.operation, m, n, k), is_open=any(x == edges[-1] for x, edges in axes))

    def _shipped(self, buckets: Sequence[Bucket]) -> NDArray[np.bool_]:
        """Return (bucket, kernel): whether an earlier selection has the kernel there."""
        found = np.zeros((len(buckets), len(self.known.candidates)), dtype=bool)
        for i, bucket in enumerate(buckets):
            candidate = self.known.timed.incumbent(bucket.corner)
            if candidate in self._places:
                found[i, self._places[candidate]] = True
        return found

    def _losses(self, n: int, barred: Array, shipped: NDArray[np.bool_]) -> Array:
        """Return (k, m, kernel) logarithms of time at the upper edge of each step of m.

        Args:
            n: the columns'.
            barred: of the same shape: `BARRED` where a bucket cannot take a kernel, else 0.
            shipped: of the same shape: whether a kernel is what a tie goes to, which is always looked at.
        """
        num_k, num_m, model = len(self.k_edges), len(self.m_edges), self.known.timed.model
        scanned = sorted({*range(0, num_m, SCAN), num_m - 1})
        problem = partial(self.known.problem, self.operation)
        problems = [problem(self.m_edges[i], n, k) for k in self.k_edges for i in scanned]
        predicted = np.log(model.times_us(self.known.candidates, problems)).reshape(num_k, len(scanned), -1)
        coarse = predicted + barred[:, scanned]
        ranks = coarse.argsort(axis=-1, kind="stable").argsort(axis=-1, kind="stable")
        is_near = (ranks < MOST) & (coarse <= np.log(NEAR) + coarse.min(axis=-1, keepdims=True))
        upper = np.array(scanned).searchsorted(range(num_m))
        lower = np.maximum(upper - 1, 0)
        asked = is_near[:, lower] | is_near[:, upper] | shipped
        asked[:, scanned] = False
        problems = [problem(m, n, k) for k in self.k_edges for m in self.m_edges]
        times = model.times_us(self.known.candidates, problems, asked.reshape(num_k * num_m, -1))
        longest = np.maximum(predicted[:, lower], predicted[:, upper])
        losses: Array = np.where(asked, np.log(times).reshape(asked.shape), longest)
        losses[:, scanned] = predicted
        return losses + barred

    def _column(self, buckets: Sequence[Bucket], losses: Array) -> Column:
        """Merge the steps of m of one column, and choose the kernel of each."""
        corner = buckets[0].corner
        losses = losses + self.known.outside_order(losses, range(len(buckets)))
        kept = self._kept_edges(corner.n, corner.k)
        m_edges = coarsen(
            losses * breadths(self.m_edges)[:, None],
            self.m_edges,
            num_shapes=len(self.m_edges),
            max_cost=MERGE_COST,
            kept=kept,
            settled=max(kept, default=0),
        )
        kernels, start = [], 0
        for m in m_edges:
            end = self.m_edges.index(m) + 1
            bucket = buckets[end - 1]
            means = losses[start:end].mean(axis=0)
            chosen = self.known.pick(means, bucket)
            if chosen is None or means.min() >= BARRED / (end - start):
                raise self.known.nothing_takes(bucket)
            kernels.append(self.known.indices[chosen])
            start = end
        return Column(m_edges, tuple(kernels))

    def _kept_edges(self, n: int, k: int) -> tuple[int, ...]:
        """Return the steps that an earlier selection's column has, where its grid is of the same n and k."""
        grid = self._kept
        if grid is None or (grid.n_edges, grid.k_edges) != (self.n_edges, self.k_edges):
            return ()
        column = grid.columns[grid.place(n, k)].m_edges
        return column if set(column) <= set(self.m_edges) else ()


def _grid(known: _Table, operation: Operation) -> Grid:
    """Fill the grid: fixed edges of n and k, and in each column the steps of m that pay."""
    is_fine = known.is_fine(operation)
    fine: tuple[tuple[int, ...], ...] = (LEARNED_M, LEARNED_N, FINE_K) if is_fine else (FINE_GRID_M, FINE_N, FINE_K)
    if operation.layout is not Layout.KK or operation.grouping is not Grouping.DENSE or known.is_invariant:
        fine = tuple(_thin(axis) for axis in fine)
    columns = _Columns(known, operation, fine)
    return Grid(fine[1], fine[2], tuple(column for n in fine[1] for column in columns.of(n)))


def renamed(grid: Grid, kernels: Sequence[KernelKey], indices: Mapping[Candidate, int]) -> Grid:
    """Return the same grid for the same candidates of another operation.

    Args:
        grid: it names kernels by their index in `kernels`.
        kernels: the manifest's, so far.
        indices: of the other operation's kernels.
    """
    columns = (replace(x, kernels=tuple(indices[kernels[i].candidate] for i in x.kernels)) for x in grid.columns)
    return replace(grid, columns=tuple(columns))


def build_section(
    operation: Operation,
    portfolio: Portfolio,
    timed: Timed,
    indices: Mapping[Candidate, int],
    fallback: int,
    grid: Grid | None = None,
    named: Collection[tuple[int, int]] | None = None,
    *,
    num_groups: int = 1,
    is_invariant: bool = False,
) -> Section:
    """Build the table of one operation, for one number of products or groups.

    Args:
        operation: the section's key.
        portfolio: its kernels and the solutions of the problems that were timed.
        timed: the times that the solutions were chosen by, and the model for all others.
        indices: index in the manifest of each kernel of the portfolio.
        fallback: index of the kernel for what is not aligned.
        grid: tier 2, where it is known already.
        named: the (n, k) that have a ladder although they were timed at one m alone. What is not named and was timed so
            is a sample, which the model learned from. By default all are named.
        num_groups: how many there are; what was timed at another number is left out.
        is_invariant: whether the kernels of one n and k are to add up k in one order, the one that costs least.

    Raises:
        SelectionError: no kernel of the portfolio takes every shape.
    """
    known = _Table(portfolio.candidates, indices, timed, num_groups, is_invariant)
    tuned: dict[tuple[int, int], list[Problem]] = {}
    for problem in (x for x in sorted(portfolio.solutions) if x.num_groups == num_groups):
        tuned.setdefault((problem.n, problem.k), []).append(problem)
    kept = {place: x for place, x in tuned.items() if len(x) > 1 or named is None or place in named}
    ladders = tuple(_ladder(known, portfolio, problems) for _, problems in sorted(kept.items()))
    scope = Scope(num_groups, is_invariant) if num_groups > 1 or is_invariant else None
    return Section(operation, ladders, grid or _grid(known, operation), fallback, scope)
