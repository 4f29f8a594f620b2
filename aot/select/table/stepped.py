"""Tables of the kinds that have one key axis, such as operations on rows: a column for each size along it, with steps.

Kernels are chosen, and steps made, by measured times, or else by the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aot.core.candidate import Candidate
from aot.core.dispatch import MAX_STEP_M
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.core.work import AnyKey, AnyOperation, AnyProblem
from aot.kinds.kind import Use
from aot.kinds.registry import kind_of
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.select.portfolio.choose import MODELLED_TIE, Budget, choose
from aot.select.portfolio.objective import NAMED_WEIGHT
from aot.select.times.nearby import NearbyTimes
from aot.select.times.record import read_record, recorded_kernels
from aot.space.enumeration import fallback, legal
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from aot.core.target import Target

Times: TypeAlias = Mapping[AnyProblem, Mapping[Candidate, float]]
"""Measured microseconds by problem and candidate."""


def times_of(operations: Sequence[AnyOperation], records: Sequence[Path]) -> dict[AnyOperation, Times]:
    """Read the measured times of operations: of each from the first record that has some.

    Args:
        operations: whose.
        records: of one target.

    Raises:
        StoreError: a record cannot be read.
    """
    found: dict[AnyOperation, dict[AnyProblem, dict[Candidate, float]]] = {}
    for path in records:
        asked = {x for x in operations if x not in found} & {key.operation for key in recorded_kernels(path)}
        for item in read_record(path).measurements if asked else ():
            if item.ok and item.problem.operation in asked:
                times = found.setdefault(item.problem.operation, {})
                times.setdefault(item.problem, {})[item.kernel.candidate] = item.median_us
    return {x: found[x] for x in operations if x in found}


MAX_KERNELS = 12
"""Most kernels of an operation beside its fallback."""
MIN_GAIN = 0.005
"""Least gain of mean regret, and of a share of the worst, that another kernel is shipped for."""


@dataclass(frozen=True)
class SteppedSelection:
    """Kernels to ship and their table, decided but not compiled."""

    target: str
    kernels: tuple[AnyKey, ...]
    """By the index that the table uses."""
    table: RowTable


@dataclass(frozen=True)
class _Axes:
    """The axes of an operation's kind: problems are told by (steps, key)."""

    operation: AnyOperation
    steps: str
    key: str

    @staticmethod
    def of(operation: AnyOperation) -> _Axes:
        """Return those of an operation.

        Raises:
            SelectionError: its kind has several key axes.
        """
        axes = kind_of(operation).axes
        ladders, keys = ([x.name for x in axes if x.use is use] for use in (Use.LADDER, Use.KEY))
        if len(ladders) != 1 or len(keys) != 1:
            raise SelectionError(
                f"{operation.tag}: its tables are by {', '.join(keys)}; expected a kind with one key axis; see "
                "`aot select`"
            )
        return _Axes(operation, ladders[0], keys[0])

    def problem(self, size: tuple[int, int]) -> AnyProblem:
        """Return the problem of a size."""
        make: Any = kind_of(self.operation).problem_type
        found: AnyProblem = make(operation=self.operation, **{self.steps: size[0], self.key: size[1]})
        return found

    def size(self, problem: AnyProblem) -> tuple[int, int]:
        """Return a problem's size, its steps up to the largest edge that a table holds."""
        sizes = kind_of(self.operation).sizes(problem)
        return min(sizes[self.steps], MAX_STEP_M), sizes[self.key]

    def edges(self, sizes: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the edges of steps and keys: the usual ones and those of sizes that were measured."""
        usual = kind_of(self.operation).edges(self.operation)
        return tuple(sorted({*usual[self.steps], *(x for x, _ in sizes)})), tuple(
            sorted({*usual[self.key], *(x for _, x in sizes)})
        )


@dataclass(frozen=True)
class _Grid:
    """The upper corners of an operation's buckets, and the time of each candidate there; infinite where it has none."""

    operation: AnyOperation
    step_edges: tuple[int, ...]
    key_edges: tuple[int, ...]
    """The last one is the largest size that there is: what takes it takes any."""
    candidates: tuple[Candidate, ...]
    times: NDArray[np.float64]
    """(keys, steps, candidates)."""
    is_measured: NDArray[np.bool_]


def _grid_of(operation: AnyOperation, target: Target, known: Times) -> _Grid:
    axes = _Axes.of(operation)
    measured = {axes.size(problem): times for problem, times in known.items()}
    step_edges, key_edges = axes.edges(list(measured))
    timed = {candidate for times in measured.values() for candidate in times}
    candidates = tuple(x for x in legal(operation, target) if not timed or x in timed)
    most = np.array([space_of(operation).most(x, operation) for x in candidates])
    nearby = NearbyTimes.of(operation, {axes.problem(size): times for size, times in measured.items()}, target)
    # What takes the last column takes any size: its times are those of twice the largest that is named.
    shown = [*key_edges[:-1], min(key_edges[-1], 2 * key_edges[-2])] if len(key_edges) > 1 else key_edges
    corners = [axes.problem((step, key)) for key in shown for step in step_edges]
    times = nearby.times_us(candidates, corners).reshape(len(key_edges), len(step_edges), len(candidates))
    is_measured = np.zeros(times.shape, np.bool_)
    for j, i in product(range(len(key_edges)), range(len(step_edges))):
        row = measured.get((step_edges[i], key_edges[j]))
        if row is not None:
            times[j, i] = [row.get(x, math.inf) for x in candidates]
            is_measured[j, i] = [x in row for x in candidates]
    times[np.broadcast_to((most < np.array(key_edges)[:, None])[:, None], times.shape)] = math.inf
    return _Grid(operation, step_edges, key_edges, candidates, times, is_measured)


def _portfolio(axes: _Axes, grid: _Grid) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Choose candidates over all corners; return their places, and of these the one that each corner gets.

    Raises:
        SelectionError: no candidate takes every size, or none some size.
    """
    corners = list(product(grid.key_edges, grid.step_edges))
    problems = [axes.problem((step, key)) for key, step in corners]
    rows = grid.times.reshape(len(corners), -1).tolist()
    times = {
        problem: {x: us for x, us in zip(grid.candidates, row, strict=True) if us < math.inf}
        for problem, row in zip(problems, rows, strict=True)
    }
    takes_all = {x for x in grid.candidates if space_of(grid.operation).most(x, grid.operation) >= grid.key_edges[-1]}
    named = grid.is_measured.any(axis=2).reshape(-1)
    weights = {problem: NAMED_WEIGHT for problem, is_named in zip(problems, named, strict=True) if is_named}
    budget = Budget(MAX_KERNELS, kernel_cost=MIN_GAIN)
    try:
        found = choose(times, budget, weights=weights, tie=MODELLED_TIE, is_general=takes_all.__contains__)
    except SelectionError as error:
        raise SelectionError(f"{grid.operation.tag}: {error}") from error
    places = {x: k for k, x in enumerate(grid.candidates)}
    picks = np.array([places[found.solutions[x]] for x in problems])
    return tuple(sorted(places[x] for x in found.candidates)), picks.reshape(grid.times.shape[:2])


def _steps(grid: _Grid, column: int, picks: Sequence[int], number: Callable[[int], int]) -> tuple[RowStep, ...]:
    """Return the steps of a column; neighbours of one kernel are one, unless measured."""
    steps = []

    def bucket(i: int) -> tuple[int, int]:
        return picks[i], i if grid.is_measured[column, i, picks[i]] else -1

    for (pick, _), places in groupby(range(len(picks)), key=bucket):
        last = list(places)[-1]
        is_named = column + 1 < len(grid.key_edges)
        provenance = PROVENANCE_MEASURED if grid.is_measured[column, last, pick] else PROVENANCE_PREDICTED
        time_us = round(float(grid.times[column, last, pick]), 3) if is_named else 0.0
        steps.append(RowStep(grid.step_edges[last], number(pick), time_us, provenance))
    return tuple(steps)


def select_stepped(
    operations: Sequence[AnyOperation], target: Target, times: Mapping[AnyOperation, Times] | None = None
) -> SteppedSelection:
    """Choose the kernels and the table of operations.

    Args:
        operations: what the selection is to have, each once.
        target: the device.
        times: what was measured; operations without are by the cost model, and say so.

    Raises:
        CandidateError: no fallback family compiles for the target.
        SelectionError: the measured candidates do not serve all sizes, or a kind has several key axes.
    """
    kernels: list[AnyKey] = []
    sections = []
    for operation in operations:
        make: Any = kind_of(operation).key_type
        grid = _grid_of(operation, target, (times or {}).get(operation, {}))
        chosen, picks = _portfolio(_Axes.of(operation), grid)
        first = len(kernels)
        kernels.append(make(operation, fallback(operation, target)))
        kernels += [make(operation, grid.candidates[k]) for k in chosen]
        places = {k: first + 1 + i for i, k in enumerate(chosen)}
        of_table: Any = operation
        columns = (
            RowColumn(key, _steps(grid, j, picks[j].tolist(), places.__getitem__))
            for j, key in enumerate(grid.key_edges)
        )
        sections.append(RowSection(of_table, tuple(columns), first))
    return SteppedSelection(target.name, tuple(kernels), RowTable(tuple(sections)))


def renumbered_steps(selection: SteppedSelection, numbers: Mapping[AnyKey, int]) -> RowTable:
    """Return a selection's table over the kernels of a whole wheel."""

    def number(index: int) -> int:
        return numbers[selection.kernels[index]]

    def column_of(column: RowColumn) -> RowColumn:
        return replace(column, steps=tuple(replace(step, kernel=number(step.kernel)) for step in column.steps))

    return RowTable(
        tuple(
            replace(section, columns=tuple(map(column_of, section.columns)), fallback=number(section.fallback))
            for section in selection.table.sections
        )
    )
