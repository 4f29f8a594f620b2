"""Selections of some operations of one, and of the operations of two. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.dispatch import DispatchTable, Row, Section
from aot.core.measurement import PROVENANCE_MEASURED
from aot.kinds.rows.dispatch import RowColumn, RowTable
from aot.select.runs import runs_of
from aot.select.selection import BY_COST_MODEL, BY_IMPUTED_TIMES, Stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from aot.core.candidate import KernelKey
    from aot.core.work import AnyOperation
    from aot.select.selection import Regret, Selection


def renumbered(table: DispatchTable, number: Callable[[int], int]) -> DispatchTable:
    """Return a table whose kernels have other numbers. What keeps its numbers is not made anew."""

    def moved(row: Row) -> Row:
        old = (row.kernel, row.general, row.runner_up)
        kernel, general, runner_up = new = tuple(map(number, old))
        return row if new == old else replace(row, kernel=kernel, general=general, runner_up=runner_up)

    def section_of(section: Section) -> Section:
        ladders = tuple(replace(x, rows=tuple(map(moved, x.rows))) for x in section.ladders)
        columns = (replace(x, kernels=tuple(map(number, x.kernels))) for x in section.grid.columns)
        grid = replace(section.grid, columns=tuple(columns))
        return replace(section, ladders=ladders, grid=grid, fallback=number(section.fallback))

    return DispatchTable(tuple(map(section_of, table.sections)))


def renumbered_steps(table: RowTable, number: Callable[[int], int]) -> RowTable:
    """Return a table of steps whose kernels have other numbers."""

    def moved(column: RowColumn) -> RowColumn:
        return replace(column, steps=tuple(replace(x, kernel=number(x.kernel)) for x in column.steps))

    return RowTable(
        tuple(
            replace(section, columns=tuple(map(moved, section.columns)), fallback=number(section.fallback))
            for section in table.sections
        )
    )


def numbers_among(kept: Sequence[int]) -> Callable[[int], int]:
    """Return what gives the new number of each kernel that is kept, by its old one."""
    return {old: new for new, old in enumerate(kept)}.__getitem__


def named_kernels(section: Section) -> set[int]:
    """Return the kernels that a section names, its fallback among them."""
    rows = (row for ladder in section.ladders for row in ladder.rows)
    named = {x for row in rows for x in (row.kernel, row.general, row.runner_up)}
    return named | {x for column in section.grid.columns for x in column.kernels} | {section.fallback}


def only_named(kernels: Sequence[KernelKey], table: DispatchTable) -> tuple[tuple[KernelKey, ...], DispatchTable]:
    """Leave out the kernels that a table does not name, and number the others anew."""
    used = sorted(set().union(*map(named_kernels, table.sections)))
    return tuple(kernels[x] for x in used), renumbered(table, numbers_among(used))


def _restricted_steps(stepped: Stepped, operations: Collection[AnyOperation]) -> Stepped | None:
    sections = tuple(x for x in stepped.table.sections if x.operation in operations)
    kept = [i for i, key in enumerate(stepped.kernels) if key.operation in operations]
    table = renumbered_steps(RowTable(sections), numbers_among(kept))
    return Stepped(tuple(stepped.kernels[i] for i in kept), table) if kept else None


def restricted(selection: Selection, operations: Collection[AnyOperation]) -> Selection:
    """Keep some of a selection's operations: their kernels, tables, regrets and scores. It says no coverage."""
    sections = tuple(x for x in selection.table.sections if x.operation in operations)
    fallbacks = {section.fallback for section in sections}
    kept = [i for i, key in enumerate(selection.kernels) if key.operation in operations or i in fallbacks]
    return replace(
        selection,
        regrets=tuple(x for x in selection.regrets if x.operation in operations),
        curves=tuple(x for x in selection.curves if x.operation in operations),
        heldout=tuple(x for x in selection.heldout if x.operation in operations),
        references=tuple(x for x in selection.references if x.operation in operations),
        kernels=tuple(selection.kernels[i] for i in kept),
        table=renumbered(DispatchTable(sections), numbers_among(kept)),
        coverage=None,
        prices=tuple(x for x in selection.prices or () if x.operation in operations) or None,
        stepped=_restricted_steps(selection.others, operations),
        runs=runs_of(selection.runs or (), operations) or None,
    )


def _regrets(selection: Selection) -> tuple[Regret, ...]:
    """Return a selection's regrets, each saying what it is by, as a wholly predicted selection need not."""
    if selection.provenance == PROVENANCE_MEASURED:
        return selection.regrets
    suffixes = (BY_COST_MODEL, BY_IMPUTED_TIMES)
    return tuple(
        x if x.method.endswith(suffixes) else replace(x, method=f"{x.method}{BY_COST_MODEL}") for x in selection.regrets
    )


def joined_steps(first: Stepped, second: Stepped) -> Stepped:
    """Join what operations of other kinds than products have; ordered as the catalogue."""
    moved = renumbered_steps(second.table, lambda index: index + len(first.kernels))
    sections = sorted((*first.table.sections, *moved.sections), key=lambda x: x.operation.position)
    return Stepped((*first.kernels, *second.kernels), RowTable(tuple(sections)))


def joined(first: Selection, second: Selection) -> Selection:
    """Join two selections of one target that have no operation in common.

    It is measured where one of them is, and rests on that one's record and conditions; rows keep what they say of
    themselves. Where both are, or none, and one alone has products, it rests on that one's. It says no coverage, and
    that it is as chosen for another target only where both are.
    """
    alike = [x for x in (first, second) if x.provenance == PROVENANCE_MEASURED] or [second, first]
    base = next((x for x in alike if x.table.sections), alike[0])
    known = set(first.kernels)
    kernels = (*first.kernels, *(key for key in second.kernels if key not in known))  # the first's keep their numbers
    numbers = {key: number for number, key in enumerate(kernels)}
    moved = renumbered(second.table, [numbers[key] for key in second.kernels].__getitem__)
    sections = sorted((*first.table.sections, *moved.sections), key=lambda x: x.operation.position)
    return replace(
        base,
        regrets=(*_regrets(first), *_regrets(second)),
        curves=(*first.curves, *second.curves),
        heldout=(*first.heldout, *second.heldout),
        references=(*first.references, *second.references),
        kernels=kernels,
        table=DispatchTable(tuple(sections)),
        coverage=None,
        like=first.like if first.like == second.like else None,
        prices=(*(first.prices or ()), *(second.prices or ())) or None,
        stepped=joined_steps(first.others, second.others) if first.stepped or second.stepped else None,
        runs=(*(first.runs or ()), *(second.runs or ())) or None,
    )


def with_unaligned_of(selection: Selection, earlier: Selection) -> Selection:
    """Give a selection an earlier one's tables for what is not aligned, of the operations that both have.

    A selection that is made without such tables, beside one that has them, would leave their products to the general
    kernel. Nothing else of the earlier one is taken, and the fallback is the selection's own.
    """
    fallbacks = {x.operation: x.fallback for x in selection.table.sections}
    theirs = [x for x in earlier.table.sections if x.loads and x.operation in fallbacks]
    named = sorted(set().union(*map(named_kernels, theirs)) - {x.fallback for x in theirs})
    kernels = list(dict.fromkeys((*selection.kernels, *(earlier.kernels[i] for i in named))))
    numbers = {i: kernels.index(earlier.kernels[i]) for i in named} | {
        x.fallback: fallbacks[x.operation] for x in theirs
    }
    sections = (*selection.table.sections, *renumbered(DispatchTable(tuple(theirs)), numbers.__getitem__).sections)
    table = DispatchTable.of(sections)
    return replace(selection, kernels=tuple(kernels), table=table)
