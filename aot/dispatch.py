"""The dispatch table, its one rounding rule, and the reference look-up that the generated C++ must equal.

Tier 1: an (n, k) that was tuned has its own ladder of m. Tier 2: any other shape rounds m, n and k onto a coarse grid
whose every cell names a kernel. Adding a tuned (n, k) never changes what another shape gets. A row decides speed, never
correctness: every kernel takes every aligned problem, or names another that does (`general`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from aot.problem import Operation, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

ALIGNMENT_BYTES = 16
"""Alignment of each operand's address and leading stride that the TMA kernels need. Source: CUDA driver API,
cuTensorMapEncodeTiled: globalAddress and globalStrides are multiples of 16 bytes."""


CELL_FRACTIONS = (0.5, 1.0)
"""Where between a cell's edges its kernel is judged, in m; n and k at their upper edges, where weights lie."""


class Tier(Enum):
    """Which part of the table answered."""

    TUNED = 1
    GRID = 2
    FALLBACK = 3


def round_up(value: int, edges: tuple[int, ...]) -> int:
    """Give the index of the first edge that is not below `value`; past the last edge, the last index.

    This is the only rounding rule. `edges` ascends and is not empty.
    """
    return min(bisect_left(edges, value), len(edges) - 1)


def between(edges: Sequence[int], index: int) -> list[int]:
    """Give the extents inside a cell's range at which its kernel is judged, ending with the upper edge."""
    low = edges[index - 1] if index else 0
    return sorted({low + max(1, round(fraction * (edges[index] - low))) for fraction in CELL_FRACTIONS})


@dataclass(frozen=True)
class Row:
    """What one bucket or cell gets.

    `kernel` indexes the manifest's kernels; `general` is the kernel for problems that `kernel` cannot take because it
    needs whole tiles (`m_multiple`, `n_multiple` of the manifest's kernel), and equals `kernel` where it takes all.
    In a ladder `time_us` is of the bucket's upper edge; in a grid, the geometric mean over shapes of the cell.
    """

    kernel: int
    general: int
    time_us: float
    provenance: str
    runner_up: int
    runner_up_us: float


@dataclass(frozen=True)
class Ladder:
    """Tier 1 for one tuned (n, k): ascending upper edges of m and a row for each."""

    n: int
    k: int
    m_edges: tuple[int, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Grid:
    """Tier 2: a row for each cell, cells ordered by m, then n, then k (k runs fastest)."""

    m_edges: tuple[int, ...]
    n_edges: tuple[int, ...]
    k_edges: tuple[int, ...]
    cells: tuple[Row, ...]

    def cell(self, m: int, n: int, k: int) -> int:
        """Give the index of the cell that a shape rounds to."""
        i = round_up(m, self.m_edges)
        j = round_up(n, self.n_edges)
        return (i * len(self.n_edges) + j) * len(self.k_edges) + round_up(k, self.k_edges)

    def place(self, cell: int) -> tuple[int, int, int]:
        """Give the indices of a cell's upper edges in m, n and k: what `cell` joins."""
        rest, k = divmod(cell, len(self.k_edges))
        return *divmod(rest, len(self.n_edges)), k

    def judged(self, cell: int) -> list[tuple[int, int, int]]:
        """List the (m, n, k) whose mean a cell's time is."""
        i, j, k = self.place(cell)
        return [(m, self.n_edges[j], self.k_edges[k]) for m in between(self.m_edges, i)]


@dataclass(frozen=True)
class Section:
    """The table of one operation. Ladders ascend by (n, k). `fallback` takes what is not aligned."""

    operation: Operation
    ladders: tuple[Ladder, ...]
    grid: Grid
    fallback: int


@dataclass(frozen=True)
class DispatchTable:
    """One section for each operation that is shipped."""

    sections: tuple[Section, ...]

    def section(self, operation: Operation) -> Section:
        """Give the section of an operation.

        Raises:
            KeyError: the table has none.
        """
        for section in self.sections:
            if section.operation == operation:
                return section
        raise KeyError(operation.tag)


def _section_fault(section: Section, num_kernels: int) -> str:
    grid = section.grid
    cells = len(grid.m_edges) * len(grid.n_edges) * len(grid.k_edges)
    if cells != len(grid.cells):
        return f"the grid has {len(grid.cells)} cells, its edges give {cells}"
    if [(x.n, x.k) for x in section.ladders] != sorted({(x.n, x.k) for x in section.ladders}):
        return "ladders do not ascend by (n, k)"
    axes = [grid.m_edges, grid.n_edges, grid.k_edges, *(x.m_edges for x in section.ladders)]
    if any(not axis or list(axis) != sorted(set(axis)) for axis in axes):
        return "edges must ascend and not be empty"
    if any(len(x.rows) != len(x.m_edges) for x in section.ladders):
        return "a ladder's rows and edges differ in number"
    rows = [*grid.cells, *(row for x in section.ladders for row in x.rows)]
    used = {section.fallback, *(i for row in rows for i in (row.kernel, row.general, row.runner_up))}
    wrong = sorted(used - set(range(num_kernels)))
    return f"the table names kernel {wrong[-1]} of {num_kernels}" if wrong else ""


def table_fault(table: DispatchTable, num_kernels: int) -> str:
    """Say what keeps a table from being looked up, with the section; empty if nothing does."""
    tags = [section.operation.tag for section in table.sections]
    if len(set(tags)) != len(tags):
        return f"{max(tags, key=tags.count)}: the table has more than one section for it"
    faults = ((section, _section_fault(section, num_kernels)) for section in table.sections)
    return next((f"{section.operation.tag}: {fault}" for section, fault in faults if fault), "")


@dataclass(frozen=True)
class Choice:
    """The answer of a look-up. `index` counts the section's ladder rows in order (tier 1) or its cells (tier 2)."""

    kernel: int
    tier: Tier
    index: int


def takes(problem: Problem, m_multiple: int, n_multiple: int) -> bool:
    """Say whether a kernel that needs whole tiles takes the problem."""
    return problem.m % m_multiple == 0 and problem.n % n_multiple == 0


def look_up(section: Section, problem: Problem, multiples: tuple[tuple[int, int], ...], aligned: bool = True) -> Choice:
    """Choose the kernel for a problem: the reference for `choose` in templates/src/dispatch.cc.

    Args:
        section: the table of the problem's operation.
        problem: m, n and k of at least 1.
        multiples: (m_multiple, n_multiple) of every kernel of the manifest.
        aligned: whether all addresses and leading strides are multiples of ALIGNMENT_BYTES.
    """
    if not aligned:
        return Choice(section.fallback, Tier.FALLBACK, 0)
    first = 0
    row, tier, index = None, Tier.GRID, 0
    for ladder in section.ladders:
        if (ladder.n, ladder.k) == (problem.n, problem.k):
            index = round_up(problem.m, ladder.m_edges)
            row, tier, index = ladder.rows[index], Tier.TUNED, first + index
            break
        first += len(ladder.rows)
    if row is None:
        index = section.grid.cell(problem.m, problem.n, problem.k)
        row = section.grid.cells[index]
    kernel = row.kernel if takes(problem, *multiples[row.kernel]) else row.general
    return Choice(kernel, tier, index)
