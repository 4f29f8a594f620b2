"""The dispatch table, its one rounding rule, and the reference look-up that the generated C++ must equal.

Tier 1: an (n, k) that was tuned has its own ladder of m. Tier 2: any other n and k round up onto a grid, whose every
column has steps of m, each with a kernel. Adding a tuned (n, k) never changes what another shape gets. A row decides
speed, never correctness: a ladder's kernel takes every aligned problem, or names another that does (`general`); a
grid's always does.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from enum import Enum
from itertools import repeat
from math import ceil, log10
from typing import TYPE_CHECKING, Annotated

from aot.core.alignment import begins_between_sectors
from aot.core.constraints import Extent, Index, Microseconds, Range
from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC, TileOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_STEP_M = 2**20 - 1
"""Largest edge of m in a grid; `MAX_STEP_KERNELS` is the most kernels, each in an order of tiles, that its steps tell
apart: the library packs both in 32 bits. Source: templates/src/dispatch.h, `kKernelBits`."""

MAX_STEP_KERNELS = 4096


WHEEL_DIGITS = 3
"""Digits of a time in a wheel. Two runs differ by a percent, and models are off by more. With all digits, whole
nanoseconds, the default wheel of an H200 is 0.2 MiB larger. Source: its manifest, deflated, 2026-11-28."""

NS_PER_US = 1000


def rounded_up(us: float) -> float:
    """Round a time in microseconds up to `WHEEL_DIGITS` digits, and to whole nanoseconds.

    Up, so that no time falls below what the roofline allows.
    """
    if us <= 0:
        return us
    ns = round(us * NS_PER_US)
    step = 10 ** max(0, int(log10(ns)) + 1 - WHEEL_DIGITS) if ns else 1
    return ceil(ns / step) * step / NS_PER_US


class Tier(Enum):
    """Which part of the table answered."""

    TUNED = 1
    GRID = 2
    FALLBACK = 3


def round_up(value: int, edges: tuple[int, ...]) -> int:
    """Return the index of the first edge that is not below `value`; past the last edge, the last index.

    This is the only rounding rule. `edges` ascends and is not empty.
    """
    return min(bisect_left(edges, value), len(edges) - 1)


@dataclass(frozen=True)
class Row:
    """What one bucket of a ladder gets.

    `kernel` indexes the manifest's kernels; `general` is the kernel for problems that `kernel` cannot take because it
    needs whole tiles (`m_multiple`, `n_multiple` of the manifest's kernel), and equals `kernel` where it takes all.
    `time_us` is of the bucket's upper edge.
    """

    kernel: Index
    general: Index
    time_us: Microseconds
    provenance: Provenance
    runner_up: Index
    runner_up_us: Microseconds
    tile_order: TileOrder | None = None
    """The order in which `kernel` takes its tiles, of `aot.core.tile_order`; None for HEURISTIC."""
    library_us: Microseconds | None = None
    """What torch takes at the bucket's upper edge, measured beside the kernels; None where that was not timed."""

    @property
    def predicted(self) -> Row:
        """Return the row of a twin of the operation, of which nothing was measured."""
        return replace(self, provenance=PROVENANCE_PREDICTED, library_us=None)

    @property
    def shortened(self) -> Row:
        """Return the row with its times `rounded_up`."""
        own, second, library = self.time_us, self.runner_up_us, self.library_us
        library = None if library is None else rounded_up(library)
        return replace(self, time_us=rounded_up(own), runner_up_us=rounded_up(second), library_us=library)


@dataclass(frozen=True)
class Ladder:
    """Tier 1 for one tuned (n, k): ascending upper edges of m and a row for each."""

    n: Extent
    k: Extent
    m_edges: tuple[Extent, ...]
    rows: tuple[Row, ...]

    @property
    def shortened(self) -> Ladder:
        """Return the ladder with its times `rounded_up`."""
        return replace(self, rows=tuple(x.shortened for x in self.rows))


@dataclass(frozen=True)
class Column:
    """The shapes of a grid that round to one n and one k: ascending upper edges of m, and a kernel for each."""

    m_edges: tuple[Annotated[int, Range(1, MAX_STEP_M)], ...]
    kernels: tuple[Index, ...]
    tile_orders: tuple[TileOrder, ...] | None = None
    """The order in which each kernel takes its tiles; None where all are HEURISTIC."""

    @property
    def choices(self) -> Iterator[tuple[int, TileOrder]]:
        """Return what each step gets: its kernel, and the order of its tiles."""
        return zip(self.kernels, self.tile_orders or repeat(HEURISTIC), strict=False)


@dataclass(frozen=True)
class Grid:
    """Tier 2: a column for each pair of edges of n and k, ordered by n, then k (k runs fastest).

    A grid holds no times: what a cell's kernel was chosen by are predictions for other shapes than the one asked about.
    """

    n_edges: tuple[Extent, ...]
    k_edges: tuple[Extent, ...]
    columns: tuple[Column, ...]

    def place(self, n: int, k: int) -> int:
        """Return the index of the column that an (n, k) rounds to."""
        return round_up(n, self.n_edges) * len(self.k_edges) + round_up(k, self.k_edges)

    def corner(self, column: int) -> tuple[int, int]:
        """Return the upper edges of a column, (n, k): what `place` rounds to."""
        n, k = divmod(column, len(self.k_edges))
        return self.n_edges[n], self.k_edges[k]

    @property
    def num_steps(self) -> int:
        """Count the steps of all columns."""
        return sum(len(column.m_edges) for column in self.columns)


LOADS = (2, 4, 8, 16)
"""Bytes of which addresses and leading strides of A and B may be multiples where a section is for what is not aligned:
what an instruction loads at once. Source: PTX ISA, cp.async and ld; TMA takes the last alone."""


@dataclass(frozen=True)
class Scope:
    """What a section is for that is not the only one of its operation."""

    num_groups: Extent
    batch_invariant: bool
    loads: Annotated[int, Range(1, LOADS[-1])] | None = None
    """One of `LOADS` where the section is for problems that are not aligned: bytes of which addresses and leading
    strides of A and B are multiples, and the steps from product to product of a batch, while those of D, and its rows,
    may be of any. None where all are aligned."""
    between_sectors: bool | None = None
    """True where the section is for aligned products whose rows of A or B begin between two sectors of the L2
    (`aot.core.alignment.begins_between_sectors`); None elsewhere."""


@dataclass(frozen=True)
class Section:
    """The table of one operation. Ladders ascend by (n, k). `fallback` takes what is not aligned."""

    operation: Operation
    ladders: tuple[Ladder, ...]
    grid: Grid
    fallback: Index
    scope: Scope | None = None
    """What it is for besides; None where it is for one product, and any order of sums."""

    @property
    def num_groups(self) -> int:
        """Return the most products of a batch, or groups, that it is for; the last of an operation takes more, too."""
        return 1 if self.scope is None else self.scope.num_groups

    @property
    def batch_invariant(self) -> bool:
        """Say whether all kernels of an n and k add up k in one order, so that a row's bits do not depend on m."""
        return self.scope is not None and self.scope.batch_invariant

    @property
    def loads(self) -> int:
        """Return the bytes of which A and B are multiples in a section for what is not aligned; 0 in any other."""
        return 0 if self.scope is None else self.scope.loads or 0

    @property
    def between_sectors(self) -> bool:
        """Say whether it is for aligned products whose rows of A or B begin between two sectors of the L2."""
        return self.scope is not None and bool(self.scope.between_sectors)

    @property
    def is_plain(self) -> bool:
        """Say whether it is of aligned products, or batches or groups, of which nothing more is known or asked."""
        return not (self.loads or self.batch_invariant or self.between_sectors)

    @property
    def key(self) -> tuple[Operation, int, bool, bool, int]:
        """Return what no two sections of a table share."""
        return self.operation, self.loads, self.batch_invariant, self.between_sectors, self.num_groups


@dataclass(frozen=True)
class DispatchTable:
    """One section for each operation that is shipped."""

    sections: tuple[Section, ...]

    @staticmethod
    def of(sections: Iterable[Section]) -> DispatchTable:
        """Make the table of sections, in the order of the catalogue's operations."""
        return DispatchTable(tuple(sorted(sections, key=lambda x: (x.operation.position, *x.key[1:]))))

    @property
    def shortened(self) -> DispatchTable:
        """Return the table with its times `rounded_up`, as a wheel has it; what it picks is the same."""
        shorter = (replace(x, ladders=tuple(y.shortened for y in x.ladders)) for x in self.sections)
        return replace(self, sections=tuple(shorter))

    def section(self, operation: Operation, num_groups: int = 1, *, batch_invariant: bool = False) -> Section:
        """Return the section of an operation, for a number of products or groups.

        Raises:
            KeyError: the table has none.
        """
        wanted = operation, 0, batch_invariant, False
        found = [x for x in self.sections if x.key[:4] == wanted]
        if not found:
            raise KeyError(operation.tag)
        return found[round_up(num_groups, tuple(x.num_groups for x in found))]

    def aligned_section(self, problem: Problem) -> Section:
        """Return the section that answers an aligned problem of packed operands, as `as_launched` gives it.

        Raises:
            KeyError: the table has none of its operation.
        """
        operation = problem.operation
        if begins_between_sectors(problem):
            found = next((x for x in self.sections if x.between_sectors and x.operation == operation), None)
            if found is not None:
                return found
        return self.section(operation, problem.num_groups)

    def unaligned_section(self, operation: Operation, loads: int, num_groups: int = 1) -> Section | None:
        """Return the section of an operation that answers for what is not aligned; None where the fallback does.

        Args:
            operation: the products'.
            loads: bytes of which addresses and leading strides of A and B are multiples.
            num_groups: products of a batch.
        """
        found = [x for x in self.sections if x.operation == operation and 0 < x.loads <= loads]
        widest = [x for x in found if x.loads == max(y.loads for y in found)]
        return widest[round_up(num_groups, tuple(x.num_groups for x in widest))] if widest else None


@dataclass(frozen=True)
class Choice:
    """The answer of a look-up. `index` counts the section's ladder rows in order (tier 1) or its columns (tier 2)."""

    kernel: int
    tier: Tier
    index: int
    tile_order: int = HEURISTIC


def takes(problem: Problem, m_multiple: int, n_multiple: int) -> bool:
    """Say whether a kernel that needs whole tiles takes the problem."""
    return problem.m % m_multiple == 0 and problem.n % n_multiple == 0


def look_up(section: Section, problem: Problem, multiples: tuple[tuple[int, int], ...], aligned: bool = True) -> Choice:
    """Choose the kernel for a problem: the reference for `choose` in templates/src/dispatch.cc.

    Args:
        section: the table of the problem's operation.
        problem: m, n and k of at least 1.
        multiples: (m_multiple, n_multiple) of every kernel of the manifest.
        aligned: whether operands are as the section has them: of ALIGNMENT_BYTES, or of what `Section.loads` says.
    """
    if not aligned:
        return Choice(section.fallback, Tier.FALLBACK, 0)
    first, n, k = 0, problem.n, problem.k
    for ladder in section.ladders:
        if ladder.n == n and ladder.k == k:
            step = round_up(problem.m, ladder.m_edges)
            row = ladder.rows[step]
            if takes(problem, *multiples[row.kernel]):
                return Choice(row.kernel, Tier.TUNED, first + step, row.tile_order or HEURISTIC)
            return Choice(row.general, Tier.TUNED, first + step)
        first += len(ladder.rows)
    index = section.grid.place(problem.n, problem.k)
    column = section.grid.columns[index]
    step = round_up(problem.m, column.m_edges)
    order = HEURISTIC if column.tile_orders is None else column.tile_orders[step]
    return Choice(column.kernels[step], Tier.GRID, index, order)
