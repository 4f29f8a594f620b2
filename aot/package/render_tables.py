"""What table.cc.j2 writes of a library's dispatch tables: their sections, of products and on rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from aot.core.dispatch import MAX_STEP_KERNELS, Column, Grid, Section
from aot.families import family_of
from aot.package.shared_grids import share_grids
from aot.select.score.invariance import has_one_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.dispatch import Ladder
    from aot.core.kernel import Kernel
    from aot.core.operation import Operation
    from aot.core.tile_order import TileOrder
    from aot.kinds.rows.dispatch import RowSection
    from aot.package.manifest import Library
    from aot.package.render_operations import Operations

NUM_LAYOUTS = 4
"""Numbers of `Layout.code`."""


@dataclass(frozen=True)
class SectionRow:
    """A section as table.cc.j2 writes it."""

    index: int
    """Among the sections of all tables."""
    table: int
    number: int
    """Among the sections of its table: those of products, or those on rows."""
    tag: str
    operation: int
    """Its number: operations on rows come behind those of products."""
    grid: Grid
    """Its kernels are numbers."""
    grid_owner: int
    """Index of the first section with the same grid, whose arrays this one has too."""
    grid_kernels: tuple[int, ...]
    """The kernels by these numbers."""
    fallback: int
    substitute: int
    layout: int = 0
    ladders: tuple[Ladder, ...] = ()
    first_rows: tuple[int, ...] = ()
    """The number of ladder rows before each ladder."""
    num_groups: int = 1
    batch_invariant: bool = False
    loads: int = 0
    between_sectors: bool = False
    has_one_order: bool = False
    """Whether it is of groups that offsets tell, and all kernels of the operation's sections add up k in one order."""

    @property
    def column_starts(self) -> tuple[int, ...]:
        """Return the number of steps before each column of the grid, and that of all steps."""
        return tuple(accumulate((len(column.m_edges) for column in self.grid.columns), initial=0))

    @cached_property
    def choices(self) -> tuple[tuple[int, TileOrder], ...]:
        """Return what the steps of the grid choose between, what most steps have first: so most numbers are small."""
        return tuple(x for x, _ in Counter(x for column in self.grid.columns for x in column.choices).most_common())

    @property
    def choice_kernels(self) -> tuple[int, ...]:
        """Return the kernel of each choice."""
        return tuple(self.grid_kernels[number] for number, _ in self.choices)

    @property
    def choice_orders(self) -> tuple[TileOrder, ...]:
        """Return the order of tiles of each choice."""
        return tuple(order for _, order in self.choices)

    @property
    def column_steps(self) -> Iterator[tuple[int, ...]]:
        """Pack the steps of each column: the edge of m above the number of the choice. See templates/src/dispatch.h."""
        numbers = {choice: number for number, choice in enumerate(self.choices)}
        for column in self.grid.columns:
            steps = zip(column.m_edges, column.choices, strict=True)
            yield tuple(m * MAX_STEP_KERNELS + numbers[choice] for m, choice in steps)


def _substitutes(kernel: Kernel) -> bool:
    takes_all = (kernel.m_multiple, kernel.n_multiple) == (1, 1) and not family_of(kernel.key.candidate).max_m
    return takes_all and not kernel.workspace.is_needed


def substitute(section: Section, kernels: Sequence[Kernel]) -> int:
    """Return the kernel that answers where the one chosen must not run: on a device with too few SMs for it.

    It takes every problem of the section, waits for none of its own CTAs and needs no workspace, so that one which was
    sized for another kernel is enough: the one that most of the section's rows name, else the fallback.
    """
    named = [row.general for ladder in section.ladders for row in ladder.rows]
    named += [x for column in section.grid.columns for x in column.kernels]
    fit = Counter(x for x in named if _substitutes(kernels[x]))
    return min(fit, key=lambda index: (-fit[index], index), default=section.fallback)


def _operations_of_one_order(sections: Sequence[Section], kernels: Sequence[Kernel]) -> set[Operation]:
    """Return the operations of groups of a table of which a batch-invariant call may take any kernel."""
    keys = [kernel.key for kernel in kernels]
    grouped = {x.operation for x in sections if x.operation.grouping.has_offsets}
    return {x for x in grouped if has_one_order([y for y in sections if y.operation == x], keys)}


def _grid_of_rows(section: RowSection, first_kernel: int) -> Grid:
    """Return the table of an operation on rows as a grid: rows as m, cols as n, and one k.

    Args:
        section: the table.
        first_kernel: index of the first kernel on rows among all of the library.
    """
    columns = (
        Column(column.row_edges, tuple(first_kernel + step.kernel for step in column.steps))
        for column in section.columns
    )
    return Grid(section.col_edges, (1,), tuple(columns))


@dataclass(frozen=True)
class _Place:
    table: int
    number: int
    """Among the sections of its table: those of products, or those on rows."""
    section: Section | RowSection
    grid: Grid


def _places(library: Library) -> list[_Place]:
    """List the sections of each table: those of products, then those on rows."""
    found: list[_Place] = []
    for place, table in enumerate(library.tables):
        found += [_Place(place, i, x, x.grid) for i, x in enumerate(table.table.sections)]
        on_rows = enumerate(table.row_table.sections)
        found += [_Place(place, i, x, _grid_of_rows(x, len(library.kernels))) for i, x in on_rows]
    return found


def sections_of(library: Library, operations: Operations) -> list[SectionRow]:
    """List the sections of all tables."""
    places = _places(library)
    shared = share_grids(place.grid for place in places)
    owners = [number for number, _ in shared.users]
    ordered = [_operations_of_one_order(table.table.sections, library.kernels) for table in library.tables]
    found: list[SectionRow] = []
    for place, (grid, grid_kernels) in zip(places, shared.users, strict=True):
        section = place.section
        common = SectionRow(
            index=len(found),
            table=place.table,
            number=place.number,
            tag=section.operation.tag,
            operation=operations.number_of(section.operation),
            grid=shared.grids[grid],
            grid_owner=owners.index(grid),
            grid_kernels=grid_kernels,
            fallback=section.fallback,
            substitute=section.fallback,
        )
        if isinstance(section, Section):
            found.append(_of_products(common, section, library.kernels, ordered[place.table]))
        else:
            fallback = len(library.kernels) + section.fallback
            found.append(replace(common, fallback=fallback, substitute=fallback))
    return found


def _of_products(
    common: SectionRow, section: Section, kernels: Sequence[Kernel], ordered: set[Operation]
) -> SectionRow:
    """Add what a section of products has alone."""
    return replace(
        common,
        layout=section.operation.layout.code,
        ladders=section.ladders,
        first_rows=tuple(accumulate((len(ladder.rows) for ladder in section.ladders), initial=0))[:-1],
        substitute=substitute(section, kernels),
        num_groups=section.num_groups,
        batch_invariant=section.batch_invariant,
        loads=section.loads,
        between_sectors=section.between_sectors,
        has_one_order=section.operation in ordered,
    )


@dataclass(frozen=True)
class TableRow:
    """A table as table.cc.j2 writes it."""

    target: str
    device_names: tuple[str, ...]
    num_sms: int
    bandwidth_gb_per_s: int
    num_sections: int
    section_of: list[int]
    """By operation and layout, the index of the section that answers; -1 where there is none.

    What a table has no section of, the first table that has one answers.
    """


def tables_of(library: Library, sections: Sequence[SectionRow], num_operations: int) -> list[TableRow]:
    """List the tables."""
    rows = []
    keys = [(number, code) for number in range(num_operations) for code in range(NUM_LAYOUTS)]
    for place, table in enumerate(library.tables):
        first: dict[tuple[int, int], int] = {}
        for x in sorted(sections, key=lambda x, place=place: (x.table != place, x.index)):  # type: ignore[misc]
            first.setdefault((x.operation, x.layout), x.index)
        gb_per_s = round(table.nominal_bandwidth_bytes_per_s / 1e9)
        own = sum(x.table == place for x in sections)
        section_of = [first.get(key, -1) for key in keys]
        rows.append(TableRow(table.target, table.device_names, table.num_sms, gb_per_s, own, section_of))
    return rows
