"""A table whose predicted rows and steps keep only kernels that may answer there: each other gets the best that may.

What was measured stays as it is, and so do all edges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aot.core.dispatch import DispatchTable
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.core.problem import Problem
from aot.core.table_check import takes_aligned
from aot.core.tile_order import HEURISTIC
from aot.families import family_of
from aot.select.selection import FamilyKernel
from aot.select.times.inputs import is_general
from aot.select.times.model import Prior
from aot.select.times.sectors import beside
from aot.space.roofline import roofline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.dispatch import Column, Row, Section
    from aot.core.target import Target
    from aot.core.tile_order import TileOrder
    from aot.select.times.model import Model
    from aot.select.times.orders import Orders

    Array = NDArray[np.float64]


class Rule(Protocol):
    """Says which kernels may answer which problems."""

    def penalty(self, candidates: Sequence[Candidate], problems: Sequence[Problem]) -> Array:
        """Return (problem, kernel) what is added to the logarithm of a predicted time; 0 where it may answer."""


LEFT_OUT = 1e3
"""What is added to the logarithm of the time of a kernel that is left out: more than any sum of times."""


@dataclass(frozen=True)
class _Kept:
    """The rule that only some kernels may answer."""

    candidates: frozenset[Candidate]

    def penalty(self, candidates: Sequence[Candidate], problems: Sequence[Problem]) -> Array:
        """Return (problem, kernel) 0 of kernels that are kept, else `LEFT_OUT`."""
        added = np.array([0.0 if x in self.candidates else LEFT_OUT for x in candidates])
        return np.broadcast_to(added, (len(problems), len(candidates)))


@dataclass(frozen=True)
class _Place:
    """A row of a ladder, or a step of a column, by the index of ladder or column and its own."""

    in_ladder: bool
    outer: int
    inner: int


@dataclass(frozen=True)
class _Asked:
    """A predicted place: the problem at its upper edge, and its kernel."""

    place: _Place
    problem: Problem
    kernel: int


@dataclass(frozen=True)
class _Answer:
    """What a place gets: the best kernel, the second best, and their times in microseconds."""

    kernel: int
    time_us: float
    runner_up: int
    runner_up_us: float

    def row(self, row: Row) -> Row:
        """Return a ladder's row with this answer."""
        return replace(
            row,
            kernel=self.kernel,
            general=self.kernel,
            time_us=round(self.time_us, 3),
            provenance=PROVENANCE_PREDICTED,
            runner_up=self.runner_up,
            runner_up_us=round(self.runner_up_us, 3),
            tile_order=None,
        )


def _predicted(section: Section) -> list[_Asked]:
    """List the places of a section that no time was measured of."""

    def problem(m: int, n: int, k: int) -> Problem:
        found = Problem(section.operation, m, n, k, section.num_groups)
        return beside(found) if section.between_sectors else found

    found = [
        _Asked(_Place(in_ladder=True, outer=i, inner=j), problem(m, ladder.n, ladder.k), row.kernel)
        for i, ladder in enumerate(section.ladders)
        for j, (m, row) in enumerate(zip(ladder.m_edges, ladder.rows, strict=True))
        if row.provenance != PROVENANCE_MEASURED
    ]
    for i, column in enumerate(section.grid.columns):
        n, k = section.grid.corner(i)
        found += [
            _Asked(_Place(in_ladder=False, outer=i, inner=j), problem(m, n, k), kernel)
            for j, (m, kernel) in enumerate(zip(column.m_edges, column.kernels, strict=True))
        ]
    return found


def _refused(asked: Sequence[_Asked], kernels: Sequence[KernelKey], rule: Rule) -> list[_Asked]:
    """Keep the places whose kernel may not answer there."""
    by_kernel: dict[int, list[_Asked]] = {}
    for x in asked:
        by_kernel.setdefault(x.kernel, []).append(x)
    refused: list[_Asked] = []
    for kernel, places in by_kernel.items():
        penalty = rule.penalty([kernels[kernel].candidate], [x.problem for x in places])[:, 0]
        refused += [x for x, added in zip(places, penalty.tolist(), strict=True) if added]
    return refused


MANY = 4096
"""Problems whose times are predicted at once, which bounds the memory that it takes."""


@dataclass(frozen=True)
class Refill:
    """What the places of a table are filled by."""

    kernels: tuple[KernelKey, ...]
    """By the index that the table uses."""
    rule: Rule
    model: Model
    target: Target
    orders: Orders | None = None
    """What is known of the order of tiles; where there is none, a new kernel has its own."""
    among: frozenset[Candidate] | None = None
    """The only kernels that a place may get; None for all of the table's."""

    def section(self, section: Section) -> tuple[Section, int]:
        """Fill a section anew where its kernels may not answer; return it and the number of places that were filled.

        A place gets a kernel that takes every aligned problem without a workspace, and that adds up k in the same order
        where the section is batch-invariant. Where no kernel may answer, those with the least penalty do.
        """
        refused = _refused(_predicted(section), self.kernels, self.rule)
        if not refused:
            return section, 0
        found = zip(refused, self._answers(section, refused), strict=True)
        answers = {x.place: answer for x, answer in found if answer is not None}
        if not answers:
            return section, 0
        filled = _with(section, answers)
        if self.orders is not None:
            filled = _with_orders(filled, self.orders.in_section(filled), answers)
        return filled, len(answers)

    def table(self, table: DispatchTable, may: Callable[[Section], bool]) -> tuple[DispatchTable, int]:
        """Fill the sections of a table that `may` says yes to; return it and the number of places that were filled."""
        done = [self.section(x) if may(x) else (x, 0) for x in table.sections]
        return DispatchTable(tuple(section for section, _ in done)), sum(count for _, count in done)

    def _able(self, section: Section) -> list[int]:
        keys = dict(enumerate(self.kernels))
        own = [i for i, key in keys.items() if key.operation == section.operation and i != section.fallback]
        among = [i for i in own if self.among is None or keys[i].candidate in self.among]
        return [i for i in among if is_general(keys[i].candidate) and takes_aligned(FamilyKernel.of(keys[i]))]

    def _answers(self, section: Section, refused: Sequence[_Asked]) -> list[_Answer | None]:
        """Find what places get; None where their kernel has no larger penalty than any other."""
        able = self._able(section)
        candidates = [self.kernels[i].candidate for i in able]
        orders = np.array([family_of(x).sum_order(x) for x in candidates])
        found: list[_Answer | None] = []
        for first in range(0, len(refused), MANY):
            part = refused[first : first + MANY]
            problems = [x.problem for x in part]
            # A grid holds no times, so that none of its places needs a bound.
            bounds = (roofline(x.problem, self.target).time_us if x.place.in_ladder else 0.0 for x in part)
            least = np.fromiter(bounds, dtype=np.float64)[:, None]
            times = np.maximum(self.model.times_us(candidates, problems), least)
            penalty = self.rule.penalty(candidates, problems)
            losses = np.log(times) + penalty
            if section.batch_invariant:
                old = np.array([family_of(x).sum_order(x) for x in (self.kernels[y.kernel].candidate for y in part)])
                losses = np.where(orders[None, :] == old[:, None], losses, np.inf)
            best = losses.argsort(axis=1, kind="stable")
            for x, row, added, of_row in zip(part, times, penalty, best, strict=True):
                one, two = int(of_row[0]), int(of_row[min(1, len(able) - 1)])
                is_worse = x.kernel not in able or added[able.index(x.kernel)] > added[one]
                found.append(_Answer(able[one], float(row[one]), able[two], float(row[two])) if is_worse else None)
        return found


def _with(section: Section, answers: Mapping[_Place, _Answer]) -> Section:
    """Put answers into their places; their kernels take the tiles in their own order."""
    ladders = []
    for i, ladder in enumerate(section.ladders):
        of_rows = [(row, answers.get(_Place(in_ladder=True, outer=i, inner=j))) for j, row in enumerate(ladder.rows)]
        ladders.append(replace(ladder, rows=tuple(row if x is None else x.row(row) for row, x in of_rows)))
    columns = list(section.grid.columns)
    for i, steps in _steps_of(answers).items():
        kernels = list(columns[i].kernels)
        for j in steps:
            kernels[j] = answers[_Place(in_ladder=False, outer=i, inner=j)].kernel
        columns[i] = replace(columns[i], kernels=tuple(kernels))
        columns[i] = _ordered(columns[i], dict.fromkeys(steps, HEURISTIC))
    return replace(section, ladders=tuple(ladders), grid=replace(section.grid, columns=tuple(columns)))


def _with_orders(section: Section, ordered: Section, answers: Mapping[_Place, _Answer]) -> Section:
    """Take the orders of tiles of some places from a section whose every place was given one."""
    ladders = list(section.ladders)
    for place in (x for x in answers if x.in_ladder):
        rows = list(ladders[place.outer].rows)
        order = ordered.ladders[place.outer].rows[place.inner].tile_order
        rows[place.inner] = replace(rows[place.inner], tile_order=order)
        ladders[place.outer] = replace(ladders[place.outer], rows=tuple(rows))
    columns = list(section.grid.columns)
    for i, steps in _steps_of(answers).items():
        orders = ordered.grid.columns[i].tile_orders
        columns[i] = _ordered(columns[i], {j: HEURISTIC if orders is None else orders[j] for j in steps})
    return replace(section, ladders=tuple(ladders), grid=replace(section.grid, columns=tuple(columns)))


def _steps_of(answers: Mapping[_Place, _Answer]) -> dict[int, list[int]]:
    """List the steps of the grid that have answers, by column."""
    found: dict[int, list[int]] = {}
    for place in answers:
        if not place.in_ladder:
            found.setdefault(place.outer, []).append(place.inner)
    return found


def _ordered(column: Column, orders: Mapping[int, TileOrder]) -> Column:
    """Give some steps of a column other orders of tiles."""
    every = [HEURISTIC] * len(column.kernels) if column.tile_orders is None else list(column.tile_orders)
    for step, order in orders.items():
        every[step] = order
    return replace(column, tile_orders=tuple(every) if any(every) else None)


def refill_among(kernels: tuple[KernelKey, ...], among: Collection[Candidate], target: Target) -> Refill:
    """Return what fills the places of kernels that are left out, by the cost model alone.

    Args:
        kernels: by the index that the table uses.
        among: the kernels that may answer.
        target: the device.
    """
    kept = frozenset(among)
    return Refill(kernels, _Kept(kept), Prior(target), target, among=kept)
