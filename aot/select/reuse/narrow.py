"""A selection for a few problems, made of a larger one: the kernels that answer them, and some for all other sizes.

Nothing is learned and nothing is chosen anew, so that it takes seconds, and a model's wheel has as few kernels as the
model has problems. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from aot.core.alignment import as_launched, unaligned_loads
from aot.core.dispatch import LOADS, Column, DispatchTable, look_up
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.core.table_check import takes_aligned
from aot.core.tile_order import HEURISTIC
from aot.select.coverage import coverage
from aot.select.join import only_named
from aot.select.reuse.refill import refill_among
from aot.select.selection import FamilyKernel
from aot.select.times.inputs import is_general

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from aot.core.dispatch import Ladder, Row, Section
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.select.selection import Selection

NUM_COMMON = 4
"""Kernels of an operation that are kept for sizes that were not asked for: those that answer most steps of the grid. An
assumption: beside the kernels of a model's own problems few are needed, and each is compiled."""

NUM_COMMON_UNALIGNED = 2
"""The same of the table for operands of any alignment. Those for operands that are aligned to 4 bytes or more are left
out where nothing is asked of them: that one answers."""


def _common(section: Section, selection: Selection) -> Iterator[int]:
    """Return the kernels that answer most steps of a section's grid, of those that take every problem."""
    counts = Counter(kernel for column in section.grid.columns for kernel in column.kernels)
    keys = selection.kernels
    able = (x for x in counts if is_general(keys[x].candidate) and takes_aligned(FamilyKernel.of(keys[x])))
    count = NUM_COMMON_UNALIGNED if section.loads else NUM_COMMON
    yield from sorted(able, key=lambda x: (-counts[x], x))[:count]


def _row(row: Row, kept: Collection[int], *, is_asked: bool) -> Row:
    """Return a row that names no kernel that is left out beside its own; its own is predicted unless it is kept."""
    if row.kernel not in kept or row.general not in kept:
        return replace(row, provenance=PROVENANCE_PREDICTED)
    own = is_asked or row.provenance == PROVENANCE_MEASURED
    provenance = row.provenance if own else PROVENANCE_PREDICTED
    if row.runner_up in kept:
        return replace(row, provenance=provenance)
    return replace(row, provenance=provenance, runner_up=row.kernel, runner_up_us=row.time_us)


def _merged(column: Column) -> Column:
    """Join neighbouring steps of a column that have one kernel and one order of tiles."""
    orders = column.tile_orders or (HEURISTIC,) * len(column.kernels)
    steps = list(zip(column.m_edges, column.kernels, orders, strict=True))
    last = [list(run)[-1] for _, run in groupby(steps, key=lambda x: x[1:])]
    edges, kernels, found = zip(*last, strict=True)
    return Column(edges, kernels, tuple(found) if any(found) else None)


def _narrowed(section: Section, asked: Collection[Problem], selection: Selection, target: Target) -> Section:
    """Keep of a section what answers some problems, and the kernels that answer most others."""
    multiples = selection.multiples
    weights = {(x.n, x.k) for x in asked}
    ladders = tuple(x for x in section.ladders if (x.n, x.k) in weights)
    kept = {look_up(section, x, multiples).kernel for x in asked} | set(_common(section, selection))
    kept |= {row.general for ladder in ladders for row in ladder.rows if row.kernel in kept}

    def of_asked(ladder: Ladder) -> Ladder:
        own = {x.m for x in asked if (x.n, x.k) == (ladder.n, ladder.k)}
        pairs = zip(ladder.m_edges, ladder.rows, strict=True)
        return replace(ladder, rows=tuple(_row(row, kept, is_asked=m in own) for m, row in pairs))

    among = frozenset(selection.kernels[x].candidate for x in kept)
    smaller = replace(section, ladders=tuple(map(of_asked, ladders)))
    refill = refill_among(selection.kernels, among, target)
    filled, _ = refill.section(smaller)
    return replace(filled, grid=replace(filled.grid, columns=tuple(map(_merged, filled.grid.columns))))


def _answers(found: Section, section: Section) -> bool:
    """Say whether a section is the one that is found for a problem, or the batch-invariant one beside it."""
    is_like = section.batch_invariant or found.between_sectors == section.between_sectors
    return is_like and found.num_groups == section.num_groups


def narrowed(selection: Selection, problems: Collection[Problem], target: Target) -> Selection:
    """Keep of a selection what answers some problems, and some kernels for all other sizes.

    The problems get the kernels, and the times, that they have in the whole selection. Other sizes keep theirs as far
    as it is kept; elsewhere the cost model chooses among what is.

    Args:
        selection: kernels and tables.
        problems: packed; of operations that the selection has.
        target: the device.
    """
    there = selection.products
    launched = [x for x in (as_launched(problem, there) for problem in problems) if x is not None]
    table = selection.table
    sections = []
    for section in table.sections:
        asked = [x for x in launched if x.operation == section.operation]
        own = [replace(x, num_groups=section.num_groups) for x in asked if _answers(table.aligned_section(x), section)]
        if section.loads:
            own = [
                replace(x, num_groups=section.num_groups)
                for x in problems
                if x.operation == section.operation
                and unaligned_loads(x) == section.loads
                and table.unaligned_section(x.operation, section.loads, x.num_groups) is section
            ]
        if own or (section.loads in (0, LOADS[0]) and not section.between_sectors):
            sections.append(_narrowed(section, own, selection, target))
    kernels, smaller = only_named(selection.kernels, DispatchTable(tuple(sections)))
    rows = (row for section in smaller.sections for ladder in section.ladders for row in ladder.rows)
    is_measured = any(row.provenance == PROVENANCE_MEASURED for row in rows)
    found = replace(
        selection,
        provenance=PROVENANCE_MEASURED if is_measured else PROVENANCE_PREDICTED,
        conditions=selection.conditions if is_measured else (),
        regrets=(),
        curves=(),
        heldout=(),
        kernels=kernels,
        table=smaller,
        references=(),
        prices=None,
        runs=None,
    )
    return replace(found, coverage=coverage(found, problems))
