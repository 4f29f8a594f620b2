"""Build the sections of the dispatch table from portfolios: ladders of what was tuned, a grid for all other shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, Grid, Ladder, Scope, Section
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.core.table_check import takes_aligned
from aot.select.selection import FamilyKernel
from aot.select.table import buckets as bucket_edges
from aot.select.table.buckets import FINE_GRID_M, FINE_K, FINE_M, FINE_N, LEARNED_M, LEARNED_N, breadths, coarsen
from aot.select.table.column_losses import near, within_factor
from aot.select.table.parallel import in_parts
from aot.select.table.section_kernels import BARRED, SectionKernels
from aot.select.times.batches import GRID_K, GRID_N
from aot.select.times.inputs import Bucket, Timed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.select.portfolio.choose import Portfolio

Array = NDArray[np.float64]

COARSE = 3
"""In layouts that are not linear's and of which few problems were timed, every third fine step of m, n and k is looked
at, and the last."""

NARROW_N = (16, 32)
"""Edges of n besides where n is not aligned: few columns, as of action heads and classes, are of that kind."""

CLOSE_N = 1536
"""n up to which no step is left out where products that are not aligned were timed, and none of m and k. Source: of 150
drawn products with an odd k, by the trees of an H200's record, a table of six kernels loses 2.4% in the mean and 45% at
worst with the steps of `COARSE`, 2.1% and 45% with all of m, 0.9% and 25% with all of k besides, and 0.75% and 25% with
all of n too, which is 2.5 times the columns (research/log/2026-11-28-unaligned-grids.md)."""

BROAD_N = (32, 64, 96, 128, 160, 192, 256, 320, 384, 512)
"""Edges of n besides in such layouts. Source: with 64 and 256 alone, the kernel for 256 columns took 2.1 times as long
as the best one of its table on 80 to 128, by the trees of an H200's record (research/log/2026-11-28-choices.md)."""

BROAD_M = 128
"""m up to which no step is left out there. Source: likewise; with 1 and 24 alone, a kernel for 24 rows took 2.5 times
as long on 2 to 8."""

MERGE_COST = 0.001
"""Mean predicted cost that merging the steps of m of a ladder, or of a grid's column, may have."""

MANY_PROBLEMS = 500
"""Problems of an operation that were timed, in it or in an equivalent one, from which on its steps are those that tell
tiles of 8 apart: an assumption. Finer steps say little where few times were learned from, and a wheel may hold many
operations of that kind."""

MIN_UNALIGNED_M = 5
"""m at which a weight that is not aligned was timed from which on it has a ladder: an assumption. The sizes of
`aot/shapes/unaligned.toml` have five and more, those drawn at random up to four, and nobody has those."""

SCAN = 4
"""All kernels are predicted on every fourth step of m of a column; between two of those, up to `MOST` kernels that are
`NEAR` the best on either, and the shipped one. Source: on the H200's record the trees take 6 us a prediction, and a
grid has 35 million of them. With these three numbers and 96 kernels, over 4,000 fine cells, the kernels chosen are
0.09% slower by the trees in the mean than by a look at all, and 13% at worst."""

TOGETHER = 4
"""Weights, or edges of n, whose times are predicted at once: what they have in common is looked for once for all."""


def _is_timed(known: SectionKernels, operation: Operation) -> bool:
    """Say whether a section is of single products, many of which were timed."""
    is_timed = known.timed.provenance != PROVENANCE_PREDICTED and len(known.timed.filled) >= MANY_PROBLEMS
    return is_timed and operation.grouping is Grouping.DENSE and not known.is_special


def _is_fine(known: SectionKernels, operation: Operation) -> bool:
    """Say whether the steps of a section are those for many times."""
    return operation.layout is Layout.KK and _is_timed(known, operation)


def _midpoint(edges: Sequence[int], index: int) -> int:
    """Return the middle of a step, rounded up."""
    low = edges[index - 1] if index else 0
    return -(-(low + edges[index]) // 2)


@dataclass(frozen=True)
class _Steps:
    """The fine steps of an (n, k) that was tuned, and where the time of each is looked at."""

    measured: Mapping[int, Problem]
    """By m."""
    incumbent: tuple[int, ...]
    """The edges that an earlier selection has."""
    fine: tuple[int, ...]
    inside: tuple[Problem, ...]
    """As many for each step, its upper edge last."""

    @staticmethod
    def of(known: SectionKernels, tuned: Sequence[Problem]) -> _Steps:
        """Look at all m that were tuned, at those of the incumbent, and at the fine steps."""
        operation, n, k = tuned[0].operation, tuned[0].n, tuned[0].k
        measured, incumbent = {problem.m: problem for problem in tuned}, known.kept_ladder(n, k)
        is_fine = _is_fine(known, operation)
        fine = tuple(sorted({*measured, *incumbent, *(LEARNED_M if is_fine else FINE_M)}))
        inside = (m if is_fine else (_midpoint(fine, i), m) for i, m in enumerate(fine))
        every = np.ravel(list(inside)).tolist()
        return _Steps(measured, incumbent, fine, tuple(known.problem(operation, m, n, k) for m in every))


def _ladder(known: SectionKernels, portfolio: Portfolio[Problem], steps: _Steps, times: Array) -> Ladder:
    """Build the ladder of one (n, k): an edge at every m that was tuned, and between and past them where that pays.

    Args:
        known: the section's kernels.
        portfolio: has the solutions of what was tuned.
        steps: the (n, k)'s.
        times: (problem of `steps.inside`, kernel), in microseconds.
    """
    fine, measured = steps.fine, steps.measured
    logs = np.log(times).reshape(len(fine), -1, len(known.candidates))
    num_inside = logs.shape[1]
    corners = steps.inside[num_inside - 1 :: num_inside]
    buckets = [Bucket(x, is_open=x.m == fine[-1], is_open_along_m=x.m == fine[-1]) for x in corners]
    takes = known.takes(buckets)
    losses = logs.sum(axis=1) + np.where(takes, 0.0, BARRED)
    outside = known.outside_order(corners[0].operation, losses, [i for i, m in enumerate(fine) if m in measured])
    losses += outside
    settled = max(steps.incumbent, default=0)
    m_edges = coarsen(
        losses * breadths(fine)[:, None],
        fine,
        num_shapes=num_inside * len(fine),
        max_cost=MERGE_COST,
        kept={*measured, *steps.incumbent},
        settled=settled,
    )

    def chosen(start: int, end: int, shipped: int | None) -> Candidate | None:
        means = losses[start:end].sum(axis=0) / (num_inside * (end - start))
        place = known.pick(means, takes[end - 1], shipped)
        return None if place is None else known.candidates[place]

    parts: list[tuple[int, Candidate | None]] = []
    start = 0
    for m in m_edges:
        end = fine.index(m) + 1
        first = portfolio.solutions.get(measured[m]) if m in measured and not known.is_invariant else None
        if first is None:
            first = chosen(start, end, known.incumbent(corners[end - 1]))
        elif end - start > 1 and m > settled:  # what is best at a measured m may be far from it at a smaller one
            smaller = chosen(start, end - 1, known.places.get(first))
            parts += [] if smaller in (None, first) else [(end - 1, smaller)]
        parts.append((end, first))
        start = end
    rows = []
    for end, first in parts:
        able = takes[end - 1] & (outside == 0.0)
        rows.append(known.row(np.exp(logs[end - 1, -1]), able, buckets[end - 1], first, known.timed.provenance))
    edges = tuple(fine[end - 1] for end, _ in parts)
    return Ladder(corners[0].n, corners[0].k, edges, tuple(rows))


def _ladders_of(of: tuple[SectionKernels, Portfolio[Problem]], tuned: Sequence[Sequence[Problem]]) -> list[Ladder]:
    """Build the ladders of a few (n, k), whose times are predicted together."""
    known, portfolio = of
    steps = [_Steps.of(known, problems) for problems in tuned]
    times = known.timed.times_us(known.candidates, [problem for x in steps for problem in x.inside])
    parts = np.split(times, np.cumsum([len(x.inside) for x in steps])[:-1])
    return [_ladder(known, portfolio, x, part) for x, part in zip(steps, parts, strict=True)]


def _ladders(
    known: SectionKernels, portfolio: Portfolio[Problem], tuned: Sequence[Sequence[Problem]], at: Callable[[str], None]
) -> tuple[Ladder, ...]:
    """Build the ladders of what was tuned, each (n, k) apart."""
    parts = [tuned[first : first + TOGETHER] for first in range(0, len(tuned), TOGETHER)]
    size = len(tuned) * len(LEARNED_M) * len(known.candidates)
    of = known, portfolio
    done = in_parts(_ladders_of, of, parts, size, lambda x: at(f"{x * TOGETHER} of {len(tuned)} weights"))
    return tuple(ladder for part in done for ladder in part)


def _thin(edges: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*edges[::COARSE], edges[-1]}))


class _Columns:
    """Fills the columns of a grid: those of a few n at a time, since predictions in bulk are cheap."""

    def __init__(self, known: SectionKernels, operation: Operation, edges: Sequence[Sequence[int]]) -> None:
        self.known, self.operation = known, operation
        self.m_edges, self.n_edges, self.k_edges = edges
        self._is_broad = not _is_fine(known, operation)
        able = [takes_aligned(FamilyKernel.of(KernelKey(operation, x))) for x in known.candidates]
        self._unable = np.where(able, 0.0, BARRED)
        self._kept = None if known.timed.kept is None else known.timed.kept.grid

    def of(self, places: Sequence[tuple[int, int]]) -> list[Column]:
        """Make the columns of some edges of n and k."""
        buckets = [[self._bucket(m, n, k) for m in self.m_edges] for n, k in places]
        shape = len(places), len(self.m_edges), len(self.known.candidates)
        takes = self.known.takes([x for row in buckets for x in row]).reshape(shape)
        shipped = [[self.known.incumbent(x.corner) for x in row] for row in buckets]
        narrow = [[(self._least_n(n), k) for n, k in places]] if self._is_broad else []
        found = self._losses([places, *narrow], np.where(takes, 0.0, BARRED) + self._unable, shipped)
        losses = within_factor(*found) if narrow else found[0]
        return [self._column(*x) for x in zip(buckets, losses, takes, shipped, strict=True)]

    def _least_n(self, n: int) -> int:
        """Return the least n of the columns whose edge is `n`."""
        place = self.n_edges.index(n)
        unit = 1 if self.known.loads else self.operation.d.num_in(ALIGNMENT_BYTES)
        return min(n, (self.n_edges[place - 1] if place else 0) + unit)

    def _bucket(self, m: int, n: int, k: int) -> Bucket:
        axes = ((m, self.m_edges), (n, self.n_edges), (k, self.k_edges))
        is_last = [x == edges[-1] for x, edges in axes]
        return Bucket(self.known.problem(self.operation, m, n, k), is_open=any(is_last), is_open_along_m=is_last[0])

    def _losses(
        self, ends: Sequence[Sequence[tuple[int, int]]], barred: Array, shipped: Sequence[Sequence[int | None]]
    ) -> list[Array]:
        """Return, for each end, (n and k, m, kernel) logarithms of time at the upper edge of each step of m.

        Args:
            ends: n and k of the columns, and others beside them that their kernels are to serve too.
            barred: of the same shape: `BARRED` where a bucket cannot take a kernel, else 0.
            shipped: (n and k, m) the kernel that a tie goes to, which is always looked at.
        """
        num_m = len(self.m_edges)
        scanned = sorted({*range(0, num_m, SCAN), num_m - 1})
        upper = np.array(scanned).searchsorted(range(num_m))
        lower = np.maximum(upper - 1, 0)
        scans = [self._predicted(places, [self.m_edges[i] for i in scanned]) for places in ends]
        is_near = np.any([near(x + barred[:, scanned]) for x in scans], axis=0)
        asked = is_near[:, lower] | is_near[:, upper]
        for i, row in enumerate(shipped):
            known = [(j, kernel) for j, kernel in enumerate(row) if kernel is not None]
            asked[i, [j for j, _ in known], [kernel for _, kernel in known]] = True
        asked[:, scanned] = False
        losses = []
        for places, predicted in zip(ends, scans, strict=True):
            longest = np.maximum(predicted[:, lower], predicted[:, upper])
            found: Array = np.where(asked, self._predicted(places, self.m_edges, asked), longest)
            found[:, scanned] = predicted
            losses.append(found + barred)
        return losses

    def _predicted(
        self, places: Sequence[tuple[int, int]], m_edges: Sequence[int], asked: NDArray[np.bool_] | None = None
    ) -> Array:
        """Return (n and k, m, kernel) logarithms of time; infinite where a mask does not ask."""
        problems = [self.known.problem(self.operation, m, n, k) for n, k in places for m in m_edges]
        mask = None if asked is None else asked.reshape(len(problems), -1)
        times = self.known.timed.model.times_us(self.known.candidates, problems, mask)
        return np.log(times).reshape(len(places), len(m_edges), -1)

    def _column(
        self, buckets: Sequence[Bucket], losses: Array, takes: NDArray[np.bool_], shipped: Sequence[int | None]
    ) -> Column:
        """Merge the steps of m of one column, and choose the kernel of each."""
        corner = buckets[0].corner
        losses = losses + self.known.outside_order(self.operation, losses, range(len(buckets)))
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
            means = losses[start:end].mean(axis=0)
            chosen = self.known.pick(means, takes[end - 1], shipped[end - 1])
            if chosen is None or means.min() >= BARRED / (end - start):
                raise self.known.nothing_takes(buckets[end - 1])
            kernels.append(self.known.indices[self.known.candidates[chosen]])
            start = end
        return Column(m_edges, tuple(kernels))

    def _kept_edges(self, n: int, k: int) -> tuple[int, ...]:
        """Return the steps that an earlier selection's column has, where its grid is of the same n and k."""
        grid = self._kept
        if grid is None or (grid.n_edges, grid.k_edges) != (self.n_edges, self.k_edges):
            return ()
        column = grid.columns[grid.place(n, k)].m_edges
        return column if set(column) <= set(self.m_edges) else ()


def build_grid(known: SectionKernels, operation: Operation, at: Callable[[str], None]) -> Grid:
    """Fill the grid: fixed edges of n and k, and in each column the steps of m that pay."""
    is_fine = _is_fine(known, operation)
    fine: tuple[tuple[int, ...], ...] = (LEARNED_M, LEARNED_N, FINE_K) if is_fine else (FINE_GRID_M, FINE_N, FINE_K)
    is_linear = operation.layout is Layout.KK and operation.grouping is Grouping.DENSE and not known.is_special
    if not is_linear and not _is_timed(known, operation):
        m_edges, n_edges, k_edges = map(_thin, fine)
        narrow = (x for x in fine[0] if x <= BROAD_M)
        fine = tuple(sorted({*narrow, *m_edges})), tuple(sorted({*BROAD_N, *n_edges})), k_edges
    is_measured = known.timed.provenance != PROVENANCE_PREDICTED
    if operation.grouping is Grouping.BATCHED and (known.loads or is_measured):
        fine = (FINE_GRID_M, GRID_N, GRID_K)
    elif known.loads and is_measured:
        close = (x for x in FINE_N if x <= CLOSE_N)
        fine = (bucket_edges.FEW_GRID_M, tuple(sorted({*NARROW_N, *close, *fine[1]})), FINE_K)
    elif known.loads:
        fine = (fine[0], tuple(sorted({*NARROW_N, *fine[1]})), fine[2])
    columns = _Columns(known, operation, fine)
    places = [(n, k) for n in fine[1] for k in fine[2]]
    step = TOGETHER * len(fine[2])
    parts = [places[first : first + step] for first in range(0, len(places), step)]
    size = len(places) * len(fine[0]) * len(known.candidates)
    done = in_parts(_Columns.of, columns, parts, size, lambda x: at(f"{x * step} of {len(places)} columns"))
    return Grid(fine[1], fine[2], tuple(column for part in done for column in part))


def renamed(grid: Grid, kernels: Sequence[KernelKey], indices: Mapping[Candidate, int]) -> Grid:
    """Return the same grid for the same candidates of another operation.

    Args:
        grid: it names kernels by their index in `kernels`.
        kernels: the manifest's, so far.
        indices: of the other operation's kernels.
    """
    columns = (replace(x, kernels=tuple(indices[kernels[i].candidate] for i in x.kernels)) for x in grid.columns)
    return replace(grid, columns=tuple(columns))


def _is_sample(operation: Operation, loads: int, tuned: Sequence[Problem]) -> bool:
    """Say whether what was tuned of an (n, k) that nobody names is a sample, which a model learns from.

    Such sizes were drawn at random in other layouts than linear's, and where they are not aligned.
    """
    if loads:
        return len(tuned) < MIN_UNALIGNED_M
    return len(tuned) == 1 or (operation.layout is not Layout.KK and operation.grouping is Grouping.DENSE)


def build_section(
    operation: Operation,
    portfolio: Portfolio[Problem],
    timed: Timed,
    indices: Mapping[Candidate, int],
    fallback: int,
    grid: Grid | None = None,
    named: Collection[tuple[int, int]] | None = None,
    *,
    num_groups: int = 1,
    is_invariant: bool = False,
    loads: int = 0,
    at: Callable[[str], None] = quietly,
) -> Section:
    """Build the table of one operation, for one number of products or groups.

    Args:
        operation: the section's key.
        portfolio: its kernels and the solutions of the problems that were timed.
        timed: the times that the solutions were chosen by, and the model for all others.
        indices: index in the manifest of each kernel of the portfolio.
        fallback: index of the kernel for what is not aligned.
        grid: tier 2, where it is known already.
        named: the (n, k) that have a ladder although what was tuned of them might be a sample. By default all are.
        num_groups: how many there are; what was timed at another number is left out.
        is_invariant: whether the kernels of one n and k are to add up k in one order, the one that costs least.
        loads: what `Section.loads` is to be.
        at: told how far it is.

    Raises:
        SelectionError: no kernel of the portfolio takes every shape.
    """
    known = SectionKernels(portfolio.candidates, indices, timed, num_groups, is_invariant, loads)
    tuned: dict[tuple[int, int], list[Problem]] = {}
    for problem in (x for x in sorted(portfolio.solutions) if x.num_groups == num_groups):
        tuned.setdefault((problem.n, problem.k), []).append(problem)
    kept = {x: y for x, y in tuned.items() if named is None or x in named or not _is_sample(operation, loads, y)}
    ladders = _ladders(known, portfolio, [problems for _, problems in sorted(kept.items())], at)
    scope = Scope(num_groups, is_invariant, loads or None) if num_groups > 1 or is_invariant or loads else None
    return Section(operation, ladders, grid or build_grid(known, operation, at), fallback, scope)
