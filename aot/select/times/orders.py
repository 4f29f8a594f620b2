"""Times of kernels that took their tiles in another order than their own, and the order that each row gets. Pure.

Kernels are chosen, and times are learned, by their own order; another is measured of the few best kernels of a problem
alone. So orders are given to a table that is finished: where they were measured, the fastest kernel in its fastest
order; where nothing was, the order that the model predicts for the kernel there. A measured time of a kernel's own
order is left with that order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aot.core.dispatch import Column, Grid, Ladder, Row, Section
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC
from aot.families import family_of
from aot.select.times.order_model import OrderModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.measurement import ProductRecord
    from aot.core.operation import Operation

    Times = Mapping[Problem, Mapping[Candidate, float]]

LEAST_GAIN = 0.02
"""Fraction of its time that a row must gain by another order: the best of eight times is less than the median one by
noise alone."""


@dataclass(frozen=True)
class OrderedTimes:
    """Microseconds by problem, kernel and order; HEURISTIC is not among the orders."""

    times: Mapping[Problem, Mapping[Candidate, Mapping[int, float]]] = field(default_factory=dict)

    @staticmethod
    def of(record: ProductRecord) -> OrderedTimes:
        """Take what a record has of sound ones."""
        found: dict[Problem, dict[Candidate, dict[int, float]]] = {}
        for item in record.measurements:
            if item.ok and item.tile_order != HEURISTIC:
                rows = found.setdefault(item.problem, {})
                rows.setdefault(item.kernel.candidate, {})[item.tile_order] = item.median_us
        return OrderedTimes(found)

    def time_us(self, problem: Problem, candidate: Candidate, order: int) -> float | None:
        """Return the time of a kernel in an order; None where it was not measured."""
        return self.times.get(problem, {}).get(candidate, {}).get(order)

    def fastest(self, problem: Problem) -> list[tuple[float, Candidate, int]]:
        """List the kernels that were timed in other orders, each in its fastest: time, kernel and order, by time."""
        found = []
        for candidate, by_order in self.times.get(problem, {}).items():
            order = min(by_order, key=lambda x: (by_order[x], x))
            found.append((by_order[order], candidate, order))
        return sorted(found)

    def model(self, times: Times, num_sms: int) -> OrderModel | None:
        """Learn what an order does; None where too few kernels were timed in all.

        Args:
            times: of kernels in their own order, by problem.
            num_sms: of the device.
        """
        known: dict[Problem, dict[Candidate, dict[int, float]]] = {}
        for problem in self.times.keys() & times.keys():
            own, rows = times[problem], self.times[problem]
            known[problem] = {x: {HEURISTIC: own[x], **rows[x]} for x in rows.keys() & own.keys()}
        return OrderModel.fit(known, num_sms)

    def operations(self) -> frozenset[Operation]:
        """Return the operations that were timed in other orders."""
        return frozenset(problem.operation for problem in self.times)


NONE_ORDERED = OrderedTimes()


def is_like(operation: Operation, measured: frozenset[Operation]) -> bool:
    """Say whether orders that were measured of some operations hold for another: it reads the same bytes."""
    return operation in measured or any(x in measured for x in operation.equivalents)


def _replaces(candidate: Candidate) -> bool:
    """Say whether a kernel may take another's row: it takes every problem, and needs no workspace."""
    family = family_of(candidate)
    return not family.workspace(candidate).is_needed and family.multiples(candidate) == (1, 1)


@dataclass(frozen=True)
class Orders:
    """What is known of orders when a table is finished."""

    ordered: OrderedTimes
    model: OrderModel | None
    kernels: Sequence[KernelKey]
    """By the index that the table uses."""

    def in_section(self, section: Section) -> Section:
        """Give each row and step of a section its order: the section as it was where nothing is known of orders."""
        if section.num_groups > 1 or not is_like(section.operation, self.ordered.operations()):
            return section
        ladders = tuple(self._ladder(section, ladder) for ladder in section.ladders)
        return replace(self.in_grid(section), ladders=ladders)

    def in_grid(self, section: Section) -> Section:
        """Give each step of a section's grid its order, and leave its ladders as they are."""
        if self.model is None or section.num_groups > 1 or not is_like(section.operation, self.ordered.operations()):
            return section
        return replace(section, grid=self._grid(section.operation, section.grid))

    def predicted(self, kernel: int, corner: Problem, middle: Problem) -> int:
        """Return the order that a bucket's kernel gets by the model, judged at the bucket's corner and its middle."""
        candidate = self.kernels[kernel].candidate
        if self.model is None or not family_of(candidate).orders_tiles:
            return HEURISTIC
        return self.model.best(candidate, (corner, middle))

    def _ladder(self, section: Section, ladder: Ladder) -> Ladder:
        shipped = {key.candidate: i for i, key in enumerate(self.kernels) if key.operation == section.operation}
        rows = []
        for low, high, row in zip((0, *ladder.m_edges), ladder.m_edges, ladder.rows, strict=False):
            corner = Problem(section.operation, high, ladder.n, ladder.k)
            if row.provenance == PROVENANCE_MEASURED:
                rows.append(self._measured(row, corner, {} if section.batch_invariant else shipped))
                continue
            order = self.predicted(row.kernel, corner, replace(corner, m=_middle(low, high)))
            rows.append(replace(row, tile_order=order or None))
        return replace(ladder, rows=tuple(rows))

    def _measured(self, row: Row, corner: Problem, shipped: Mapping[Candidate, int]) -> Row:
        """Return a row whose time was measured, with the fastest kernel and order that were.

        Args:
            row: with its kernel's own order.
            corner: what it was measured on.
            shipped: the kernels that may take the row, beside its own.
        """
        able = {**{x: i for x, i in shipped.items() if _replaces(x)}, self.kernels[row.kernel].candidate: row.kernel}
        for time_us, candidate, order in self.ordered.fastest(corner):
            if time_us >= (1 - LEAST_GAIN) * row.time_us:
                break
            if candidate not in able:
                continue
            found = replace(row, time_us=round(time_us, 3), tile_order=order)
            if able[candidate] == row.kernel:
                return found
            index = able[candidate]
            return replace(found, kernel=index, general=index, runner_up=row.kernel, runner_up_us=row.time_us)
        return row

    def _grid(self, operation: Operation, grid: Grid) -> Grid:
        columns = []
        for i, column in enumerate(grid.columns):
            n, k = grid.corner(i)
            before = [x for x in grid.n_edges if x < n]
            middle_n = _middle(before[-1] if before else 0, n)
            orders = []
            for low, high, kernel in zip((0, *column.m_edges), column.m_edges, column.kernels, strict=False):
                middle = Problem(operation, _middle(low, high), middle_n, k)
                orders.append(self.predicted(kernel, Problem(operation, high, n, k), middle))
            columns.append(Column(column.m_edges, column.kernels, tuple(orders) if any(orders) else None))
        return replace(grid, columns=tuple(columns))


def _middle(low: int, high: int) -> int:
    """Return the middle of what lies above `low`, up to `high`; rounded up."""
    return -(-(low + high) // 2)
