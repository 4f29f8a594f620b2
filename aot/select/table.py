"""Build the sections of the dispatch table from portfolios: ladders of what was tuned, a grid for all other shapes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import SplitK
from aot.core.dispatch import Grid, Ladder, Row, Section
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.families import family_of
from aot.select.buckets import FINE_GRID_M, FINE_K, FINE_M, FINE_N, coarsen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.select.portfolio import Portfolio
    from aot.select.time_model import Model

Array = NDArray[np.float64]

COARSE = 3
"""In the layouts that are not linear's, every third fine step of m and n is looked at, and the last."""

GRID_COST = 0.001
"""Mean predicted cost that merging the grid's steps into cells may have."""

LADDER_COST = 0.0005
"""The same of a ladder."""

MAX_CELLS = {True: 26000, False: 800}
"""Most cells of a grid in linear's layout, and in the others: 8 bytes each in the library."""

PREDICTED_TIE = 0.06
"""Predicted times this close are a tie, which goes to the kernel that is shipped for the bucket already. Source:
between two tunings of H200s a tie of 0.05 let 0.37% of the entries change, 0.06 lets 0.16%
(docs/log/2026-11-21-selections.md)."""

MAX_WORKSPACE_BYTES = 256 * 2**20
"""Most workspace that a row may ask of its caller, at the row's largest shape."""

BARRED = 1e6
"""What stands for the logarithm of a time where a bucket cannot take a kernel: more than any sum of times."""


def is_general(candidate: Candidate) -> bool:
    """Say whether a kernel takes every aligned shape with no workspace."""
    family = family_of(candidate)
    return family.multiples(candidate) == (1, 1) and family.workspace(candidate).mode == SplitK.NONE


@dataclass(frozen=True)
class Bucket:
    """The shapes of one row: up to a corner, and beyond it where the bucket is the last of an axis."""

    corner: Problem
    is_open: bool

    def takes(self, candidate: Candidate) -> bool:
        """Say whether a kernel's workspace stays bounded in the bucket; split-K's grows with m and n."""
        workspace = family_of(candidate).workspace(candidate)
        if workspace.mode == SplitK.NONE:
            return True
        return not self.is_open and workspace.num_bytes(self.corner.m, self.corner.n) <= MAX_WORKSPACE_BYTES


def _no_incumbent(_problem: Problem) -> Candidate | None:
    return None


@dataclass(frozen=True)
class Timed:
    """What a section is built from: times in microseconds by problem and candidate, and a model for other problems."""

    own: Mapping[Problem, Mapping[Candidate, float]]
    """Of the section's operation."""
    filled: Mapping[Problem, Mapping[Candidate, float]]
    """The same, with imputed times where a kernel has no time of its own."""
    provenance: Provenance
    """Of `own`; a row whose time is not in it is predicted."""
    model: Model
    incumbent: Callable[[Problem], Candidate | None] = field(default=_no_incumbent)
    """Gives the kernel that an earlier selection dispatches a problem to."""
    kept: Section | None = None
    """An earlier selection's table of the operation: its edges stay, so that only kernels can change."""

    def times_us(self, candidates: Sequence[Candidate], problems: Sequence[Problem]) -> Array:
        """Return times, (problem, candidate): those that are known, the model's for the rest."""
        times = self.model.times_us(candidates, problems)
        for i, problem in enumerate(problems):
            known = self.filled.get(problem, {})
            for j, candidate in enumerate(candidates):
                times[i, j] = known.get(candidate, times[i, j])
        return times


@dataclass(frozen=True)
class _Table:
    """The portfolio of a section: its kernels by name and their indices in the manifest."""

    candidates: tuple[Candidate, ...]
    indices: Mapping[Candidate, int]
    timed: Timed

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
            raise SelectionError(
                f"no kernel of the portfolio takes every shape near {bucket.corner.name}; raise --max-kernels, or keep "
                "one with a TMA store and no split-K"
            )
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


def _midpoint(edges: Sequence[int], index: int, multiple: int = 1) -> int:
    """Return the middle of a step, rounded up to a multiple, within the step."""
    low = edges[index - 1] if index else 0
    return min(-(-(low + edges[index]) // (2 * multiple)) * multiple, edges[index])


def _ladder(known: _Table, portfolio: Portfolio, tuned: Sequence[Problem]) -> Ladder:
    """Build the ladder of one (n, k): an edge at every m that was tuned, and between them where that pays."""
    operation, n, k = tuned[0].operation, tuned[0].n, tuned[0].k
    measured = {problem.m: problem for problem in tuned}
    last = max(measured)
    incumbent = known.kept_ladder(n, k)
    kept = {*measured, *(m for m in incumbent if m < last)}
    fine = tuple(sorted({*kept, *(m for m in FINE_M if m < last)}))
    inside = [[_midpoint(fine, i), m] for i, m in enumerate(fine)]
    times = known.timed.times_us(known.candidates, [Problem(operation, m, n, k) for pair in inside for m in pair])
    logs = np.log(times).reshape(len(fine), 2, -1)
    buckets = [Bucket(Problem(operation, m, n, k), is_open=m == last) for m in fine]
    losses = logs.sum(axis=1) + known.barred(buckets)
    (m_edges, _, _) = coarsen(
        losses[:, None, None, :],
        (fine, (n,), (k,)),
        num_shapes=2 * len(fine),
        max_cost=LADDER_COST,
        max_cells=len(kept) if incumbent else len(fine),
        kept=(kept, (), ()),
    )
    rows, start = [], 0
    for m in m_edges:
        end = fine.index(m) + 1
        bucket = buckets[end - 1]
        at_edge = dict(zip(known.candidates, np.exp(logs[end - 1, 1]).tolist(), strict=True))
        first = portfolio.solutions.get(measured[m]) if m in measured else None
        first = first or known.pick(losses[start:end].sum(axis=0) / (2 * (end - start)), bucket)
        rows.append(known.row(at_edge, bucket, first, known.timed.provenance))
        start = end
    return Ladder(n, k, m_edges, tuple(rows))


def _thin(edges: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*edges[::COARSE], edges[-1]}))


def _bucket(operation: Operation, edges: Sequence[Sequence[int]], at: Sequence[int]) -> Bucket:
    """Return the bucket of a step or cell by its indices; open where it is the last of an axis."""
    corner = (axis[i] for axis, i in zip(edges, at, strict=True))
    return Bucket(Problem(operation, *corner), any(i == len(axis) - 1 for axis, i in zip(edges, at, strict=True)))


def _fine_losses(known: _Table, operation: Operation, edges: Sequence[Sequence[int]]) -> tuple[Array, int]:
    """Return (m, n, k, kernel) summed logarithms of time over two shapes of each fine step, and the shapes in all.

    Barred where the step's bucket cannot take the kernel: a bucket of merged steps has the corner of its last one.
    """
    ends = list(product(*(range(len(axis)) for axis in edges)))
    total = known.barred([_bucket(operation, edges, at) for at in ends])
    patterns = ((False, False, False), (True, False, False))
    for pattern in patterns:
        shapes = [
            [
                _midpoint(axis, i, multiple) if middle else axis[i]
                for axis, i, middle, multiple in zip(edges, at, pattern, (1, 8, 8), strict=True)
            ]
            for at in ends
        ]
        total += np.log(known.timed.model.times_us(known.candidates, [Problem(operation, *x) for x in shapes]))
    return total.reshape(*(len(axis) for axis in edges), -1), len(patterns) * len(ends)


def _grid(known: _Table, operation: Operation) -> Grid:
    """Choose the grid's edges, or keep those of an earlier selection, and fill it."""
    if known.timed.kept is not None:
        grid = known.timed.kept.grid
        return _filled(known, operation, (grid.m_edges, grid.n_edges, grid.k_edges))
    is_linear = operation.layout is Layout.KK
    fine = (FINE_GRID_M, FINE_N, FINE_K) if is_linear else (_thin(FINE_GRID_M), _thin(FINE_N), _thin(FINE_K))
    losses, num_shapes = _fine_losses(known, operation, fine)
    edges = coarsen(losses, fine, num_shapes=num_shapes, max_cost=GRID_COST, max_cells=MAX_CELLS[is_linear])
    return _filled(known, operation, edges)


def _filled(known: _Table, operation: Operation, edges: tuple[tuple[int, ...], ...]) -> Grid:
    """Fill the cells between edges: each gets the kernel whose time is least, by geometric mean over its shapes."""
    m_edges, n_edges, k_edges = edges
    empty = Grid(m_edges, n_edges, k_edges, ())
    places = list(product(*(range(len(axis)) for axis in edges)))
    judged = [[Problem(operation, *shape) for shape in empty.judged(i)] for i in range(len(places))]
    times = known.timed.times_us(known.candidates, [problem for cell in judged for problem in cell])
    cells, start = [], 0
    for place, problems in zip(places, judged, strict=True):
        means = np.log(times[start : start + len(problems)]).mean(axis=0)
        start += len(problems)
        bucket = _bucket(operation, edges, place)
        by_candidate = dict(zip(known.candidates, np.exp(means).tolist(), strict=True))
        cells.append(known.row(by_candidate, bucket, known.pick(means, bucket), PROVENANCE_PREDICTED))
    return Grid(m_edges, n_edges, k_edges, tuple(cells))


def build_section(
    operation: Operation, portfolio: Portfolio, timed: Timed, indices: Mapping[Candidate, int], fallback: int
) -> Section:
    """Build the table of one operation.

    Args:
        operation: the section's key.
        portfolio: its kernels and the solutions of the problems that were timed.
        timed: the times that the solutions were chosen by, and the model for all others.
        indices: index in the manifest of each kernel of the portfolio.
        fallback: index of the kernel for what is not aligned.

    Raises:
        SelectionError: no kernel of the portfolio takes every shape.
    """
    known = _Table(portfolio.candidates, indices, timed)
    tuned: dict[tuple[int, int], list[Problem]] = {}
    for problem in sorted(portfolio.solutions):
        tuned.setdefault((problem.n, problem.k), []).append(problem)
    ladders = tuple(_ladder(known, portfolio, problems) for _, problems in sorted(tuned.items()))
    return Section(operation, ladders, _grid(known, operation), fallback)
