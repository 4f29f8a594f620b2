"""Which row kernels ship, and which shape gets which: by measured times, or else by the cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from aot.core.candidate import Candidate
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.families import rows_family_of
from aot.kinds.rows.candidate import RowKernelKey
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.kinds.rows.kind import ROWS
from aot.kinds.rows.operation import MAX_COLS, RowFunction, RowOperation, RowProblem
from aot.select.record import read_record, recorded_kernels
from aot.space.enumeration import fallback, legal
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from aot.core.target import Target

RowTimes: TypeAlias = Mapping[RowOperation, Mapping[tuple[int, int], Mapping[Candidate, float]]]
"""Measured microseconds by operation, (rows, cols) and candidate."""


def row_times(operations: Sequence[RowOperation], records: Sequence[Path]) -> RowTimes:
    """Read the measured times of operations on rows: of each from the first record that has some.

    Args:
        operations: whose.
        records: of one target.

    Raises:
        StoreError: a record cannot be read.
    """
    found: dict[RowOperation, dict[tuple[int, int], dict[Candidate, float]]] = {}
    for path in records:
        if not any(isinstance(key, RowKernelKey) for key in recorded_kernels(path)):
            continue
        asked = [x for x in operations if x not in found]
        for item in ROWS.part(read_record(path)).measurements:
            if item.ok and item.problem.operation in asked:
                known = found.setdefault(item.problem.operation, {})
                size = item.problem.rows, item.problem.cols
                known.setdefault(size, {})[item.kernel.candidate] = item.median_us
    return found


MAX_KERNELS = 8
"""Most kernels of an operation beside its fallback."""
MIN_GAIN = 0.005
"""Least gain of mean time, as a fraction, that another kernel is shipped for."""
TIE = 0.01
"""Within which of the best a kernel that its neighbour in the table has is as good."""

ROW_EDGES = tuple(2**i for i in range(17))
"""Edges of rows, beside those that were measured: 1 to 65536."""
COL_EDGES = (
    *(2**i for i in range(5, 10)),
    *(2**i * part // 8 for i in range(10, 15) for part in (8, 10, 12, 14)),
    32768,
)
"""Edges of columns likewise: powers of two to 512, then quarters of them, as the widths of models are."""
HEAD_EDGES = (32, 64, 96, 128, 192, 256)
"""Edges of the elements of a head. Source: those of public models are 32 to 256."""


@dataclass(frozen=True)
class RowSelection:
    """The row kernels to ship and their table, decided but not compiled."""

    target: str
    kernels: tuple[RowKernelKey, ...]
    """By the index that the table uses."""
    table: RowTable


@dataclass(frozen=True)
class _Grid:
    """The upper corners of an operation's buckets, and the time of each candidate there; infinite where it has none."""

    operation: RowOperation
    row_edges: tuple[int, ...]
    col_edges: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    times: NDArray[np.float64]
    """(columns, rows, candidates)."""
    is_measured: NDArray[np.bool_]


def _edges(
    operation: RowOperation, measured: Mapping[tuple[int, int], object]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the edges of rows and columns: the usual ones and those that were measured; the last takes any width."""
    usual = HEAD_EDGES if operation.function is RowFunction.ROTARY else COL_EDGES
    rows = sorted({*ROW_EDGES, *(rows for rows, _ in measured)})
    cols = sorted({*usual, *(cols for _, cols in measured)})
    return tuple(rows), (*(x for x in cols if x < MAX_COLS), MAX_COLS)


def _corrected(
    operation: RowOperation,
    candidate: Candidate,
    size: tuple[int, int],
    target: Target,
    measured: Mapping[tuple[int, int], Mapping[Candidate, float]],
) -> float:
    """Predict a time of (rows, cols), times measured over predicted at the nearest size where it was timed."""
    space = space_of(operation)

    def predicted(at: tuple[int, int]) -> float:
        return space.times_us([candidate], RowProblem(operation, *at), target)[0]

    def distance(at: tuple[int, int]) -> float:
        return sum(abs(math.log(x / y)) for x, y in zip(at, size, strict=True))

    there = [at for at, times in measured.items() if candidate in times]
    if not there:
        return predicted(size)
    nearest = min(there, key=lambda at: (distance(at), at))
    return predicted(size) * measured[nearest][candidate] / predicted(nearest)


def _grid_of(
    operation: RowOperation, target: Target, measured: Mapping[tuple[int, int], Mapping[Candidate, float]]
) -> _Grid:
    row_edges, col_edges = _edges(operation, measured)
    timed = {candidate for times in measured.values() for candidate in times}
    candidates = tuple(x for x in legal(operation, target) if not timed or x in timed)
    times = np.full((len(col_edges), len(row_edges), len(candidates)), np.inf)
    is_measured = np.zeros(times.shape, np.bool_)
    for j, cols in enumerate(col_edges):
        # What takes the last column takes any width: its times are those of twice the widest that is named.
        shown = min(cols, 2 * col_edges[-2]) if len(col_edges) > 1 else cols
        for k, candidate in enumerate(candidates):
            if rows_family_of(candidate).limits(candidate, operation).max_cols < cols:
                continue
            for i, rows in enumerate(row_edges):
                known = measured.get((rows, cols), {})
                found = known.get(candidate)
                if found is None and not known:
                    found = _corrected(operation, candidate, (rows, shown), target, measured)
                times[j, i, k] = np.inf if found is None else found
                is_measured[j, i, k] = candidate in known
    return _Grid(operation, row_edges, col_edges, candidates, times, is_measured)


def _portfolio(grid: _Grid) -> list[int]:
    """Choose candidates: the best one that takes every width, then each that gains most, up to MAX_KERNELS.

    Raises:
        SelectionError: no candidate takes every width, or none some measured size.
    """
    cells = grid.times.reshape(-1, len(grid.candidates))
    best = cells.min(axis=1, initial=np.inf)
    if not np.isfinite(best).all():
        raise SelectionError(
            f"{grid.operation.tag}: no kernel is left for some sizes; expected one of any width; "
            "measure more candidates"
        )
    chosen: list[int] = []
    have = np.full(len(cells), np.inf)
    while len(chosen) < MAX_KERNELS:
        # Where nothing answers yet, a time counts as ten times the best.
        regrets = np.minimum(np.minimum(have[:, None], cells), 10 * best[:, None]) / best[:, None]
        means = regrets.mean(axis=0)
        pick = int(means.argmin())
        before = np.minimum(have, 10 * best) / best
        if chosen and before.mean() - means[pick] < MIN_GAIN and np.isfinite(have).all():
            break
        chosen.append(pick)
        have = np.minimum(have, cells[:, pick])
    return sorted(chosen)


def _steps(grid: _Grid, column: int, chosen: Sequence[int], number: Callable[[int], int]) -> tuple[RowStep, ...]:
    """Return the steps of a column; neighbours that one kernel serves as well are one, unless measured."""
    picks: list[int] = []
    for i in range(len(grid.row_edges)):
        times = {k: float(grid.times[column, i, k]) for k in chosen}
        least = min(times.values())
        same = picks and times[picks[-1]] <= least * (1 + TIE)
        picks.append(picks[-1] if same else min(times, key=times.__getitem__))
    steps = []

    def bucket(i: int) -> tuple[int, int]:
        return picks[i], i if grid.is_measured[column, i, picks[i]] else -1

    for (pick, _), places in groupby(range(len(picks)), key=bucket):
        last = list(places)[-1]
        is_named = grid.col_edges[column] < MAX_COLS
        provenance = PROVENANCE_MEASURED if grid.is_measured[column, last, pick] else PROVENANCE_PREDICTED
        time_us = round(float(grid.times[column, last, pick]), 3) if is_named else 0.0
        steps.append(RowStep(grid.row_edges[last], number(pick), time_us, provenance))
    return tuple(steps)


def _columns(grid: _Grid, chosen: Sequence[int], number: Callable[[int], int]) -> tuple[RowColumn, ...]:
    return tuple(RowColumn(cols, _steps(grid, j, chosen, number)) for j, cols in enumerate(grid.col_edges))


def select_rows(operations: Sequence[RowOperation], target: Target, times: RowTimes | None = None) -> RowSelection:
    """Choose the kernels and the table of row operations.

    Args:
        operations: what the selection is to have, each once.
        target: the device.
        times: what was measured; operations without are by the cost model, and say so.

    Raises:
        CandidateError: no fallback family compiles for the target.
        SelectionError: the measured candidates do not serve all sizes.
    """
    kernels: list[RowKernelKey] = []
    sections = []
    for operation in operations:
        grid = _grid_of(operation, target, (times or {}).get(operation, {}))
        chosen = _portfolio(grid)
        first = len(kernels)
        kernels.append(RowKernelKey(operation, fallback(operation, target)))
        kernels += [RowKernelKey(operation, grid.candidates[k]) for k in chosen]
        places = {k: first + 1 + i for i, k in enumerate(chosen)}
        sections.append(RowSection(operation, _columns(grid, chosen, places.__getitem__), first))
    return RowSelection(target.name, tuple(kernels), RowTable(tuple(sections)))


def renumbered_rows(selection: RowSelection, numbers: Mapping[RowKernelKey, int]) -> RowTable:
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
