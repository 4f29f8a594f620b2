"""The dispatch table of row operations, and the reference look-up that the generated C++ must equal.

A section has columns by cols, a column has steps by rows; both are rounded up by the rule of products,
`aot.core.dispatch.round_up`. A step decides speed, never correctness: where its kernel does not take a problem, the
section's fallback does, which takes all.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Protocol

from aot.core.constraints import Extent, Index, Microseconds, Range
from aot.core.dispatch import MAX_STEP_M, Tier, round_up
from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.kinds.rows.candidate import RowLimits
from aot.kinds.rows.catalogue import CataloguedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.kinds.rows.operation import RowOperation
    from aot.kinds.rows.problem import RowProblem


@dataclass(frozen=True)
class RowStep:
    """What the problems of up to so many rows get, and the time of it at the upper edges of rows and cols."""

    rows: Annotated[int, Range(1, MAX_STEP_M)]
    """The upper edge. What has more rows than the last step's edge gets the last step."""
    kernel: Index
    """Indexes the row kernels of the manifest."""
    time_us: Microseconds
    """0 where none is known."""
    provenance: Provenance


@dataclass(frozen=True)
class RowColumn:
    """The problems of up to so many columns: steps that ascend by rows."""

    cols: Extent
    """The upper edge. What has more columns than the last column's edge gets the last column."""
    steps: tuple[RowStep, ...]

    @property
    def row_edges(self) -> tuple[int, ...]:
        """Return the upper edges of the steps."""
        return tuple(step.rows for step in self.steps)


@dataclass(frozen=True)
class RowSection:
    """The table of one row operation. Columns ascend by cols."""

    operation: CataloguedRow
    columns: tuple[RowColumn, ...]
    fallback: Index
    """The kernel that takes any problem."""

    @property
    def col_edges(self) -> tuple[int, ...]:
        """Return the upper edges of the columns."""
        return tuple(column.cols for column in self.columns)

    @property
    def first_steps(self) -> tuple[int, ...]:
        """Return the number of steps before each column."""
        counts = [0]
        for column in self.columns:
            counts.append(counts[-1] + len(column.steps))
        return tuple(counts[:-1])

    def place(self, index: int) -> tuple[RowColumn, int]:
        """Return the column of a step that is counted over all columns, and the step's place in it."""
        number = bisect_right(self.first_steps, index) - 1
        return self.columns[number], index - self.first_steps[number]


@dataclass(frozen=True)
class RowTable:
    """One section for each row operation that is shipped; there may be none."""

    sections: tuple[RowSection, ...] = ()


def fallback_table(operations: Sequence[RowOperation]) -> RowTable:
    """Return a table over kernels of some operations that names no more than the first kernel of each.

    Args:
        operations: what each kernel computes, by the index that the table uses.
    """
    firsts = {x: operations.index(x) for x in dict.fromkeys(operations)}

    def columns(index: int) -> tuple[RowColumn, ...]:
        return (RowColumn(1, (RowStep(1, index, 0.0, PROVENANCE_PREDICTED),)),)

    return RowTable(tuple(RowSection(x, columns(index), index) for x, index in firsts.items()))


class RowTableKernel(Protocol):
    """What a table may be held against of a kernel."""

    @property
    def operation(self) -> RowOperation:
        """What it computes."""

    @property
    def limits(self) -> RowLimits:
        """What it asks of a problem."""


def _ascends(edges: Sequence[int]) -> bool:
    return bool(edges) and all(low < high for low, high in pairwise(edges))


def _kernel_fault(index: int, operation: RowOperation, kernels: Sequence[RowTableKernel]) -> str:
    if not 0 <= index < len(kernels):
        return f"kernel {index} of {len(kernels)}"
    if kernels[index].operation != operation:
        return f"kernel {index}, which is for {kernels[index].operation.tag}"
    return ""


def _column_fault(column: RowColumn, operation: RowOperation, kernels: Sequence[RowTableKernel]) -> str:
    if not _ascends(column.row_edges):
        return "its edges in rows must ascend, and not be empty"
    for step in column.steps:
        fault = _kernel_fault(step.kernel, operation, kernels)
        if fault:
            return f"it names {fault}"
        most = kernels[step.kernel].limits.max_cols
        if most < column.cols:
            return f"its kernel {step.kernel} takes up to {most} columns; it must take {column.cols}"
        if step.provenance == Provenance.MEASURED and step.time_us <= 0:
            return f"the step of {step.rows} rows was measured at {step.time_us} us; a time is above 0"
    return ""


def _section_fault(section: RowSection, kernels: Sequence[RowTableKernel]) -> str:
    fault = _kernel_fault(section.fallback, section.operation, kernels)
    if fault:
        return f"its fallback is {fault}"
    if kernels[section.fallback].limits != RowLimits():
        return f"its fallback, kernel {section.fallback}, does not take all problems"
    if not _ascends(section.col_edges):
        return "its edges in cols must ascend, and not be empty"
    faults = ((column.cols, _column_fault(column, section.operation, kernels)) for column in section.columns)
    return next((f"column of {cols}: {fault}" for cols, fault in faults if fault), "")


def row_table_fault(table: RowTable, kernels: Sequence[RowTableKernel]) -> str:
    """Say what is wrong with a table, with the section and the column; empty if nothing is.

    Args:
        table: what is to be looked up.
        kernels: by the index that the table uses.
    """
    tags = [section.operation.tag for section in table.sections]
    if len(set(tags)) != len(tags):
        return f"{max(tags, key=tags.count)}: the table has more than one section for it"
    faults = ((section, _section_fault(section, kernels)) for section in table.sections)
    return next((f"{section.operation.tag}: {fault}" for section, fault in faults if fault), "")


@dataclass(frozen=True)
class RowChoice:
    """The answer of a look-up. `index` counts the section's steps in order; 0 of the fallback."""

    kernel: int
    tier: Tier
    index: int


def look_up_rows(section: RowSection, problem: RowProblem, limits: Sequence[RowLimits], alignment: int) -> RowChoice:
    """Choose the kernel for a problem: the reference for `choose_rows` in templates/src/dispatch.cc.

    Args:
        section: the table of the problem's operation.
        problem: the sizes.
        limits: those of every row kernel of the manifest.
        alignment: the largest power of two up to 16 that all addresses and strides but the last are multiples of, in
            bytes of X's elements; 1 where a last stride is not 1.
    """
    column = round_up(problem.cols, section.col_edges)
    step = round_up(problem.rows, section.columns[column].row_edges)
    kernel = section.columns[column].steps[step].kernel
    needed = limits[kernel]
    if needed.alignment_bytes > alignment or not needed.takes(problem.cols):
        return RowChoice(section.fallback, Tier.FALLBACK, 0)
    return RowChoice(kernel, Tier.GRID, section.first_steps[column] + step)
