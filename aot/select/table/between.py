"""Grids of aligned products chosen anew, and those for rows that begin between two sectors of the L2, apart. Pure.

Which kernel is the fastest differs there (`aot.select.times.sectors`), so that one kernel of a cell would serve neither
kind of rows well. A weight that was tuned has its ladder in the section that its packed operands are answered by.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aot.core.alignment import begins_between_sectors, has_sections_between_sectors
from aot.core.candidate import KernelKey
from aot.core.dispatch import DispatchTable, Scope, Section
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.select.join import named_kernels, only_named
from aot.select.portfolio.candidates import legal, within
from aot.select.portfolio.objective import SelectionLimits
from aot.select.table.section_kernels import SectionKernels
from aot.select.table.sections import build_grid, renamed
from aot.select.times.inputs import Timed
from aot.select.times.known import learned_where_missing, with_imputed_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.dispatch import Grid
    from aot.core.measurement import OperationTimes
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.select.selection import Selection
    from aot.select.times.model import Model

MIN_BETWEEN = 40
"""Problems with such rows that must have been timed, in the operation or an equivalent one, for a grid of their own: an
assumption. With fewer, times there are guessed from those of other rows."""

BETWEEN = Scope(1, batch_invariant=False, between_sectors=True)
"""The scope of such a section."""

WHOLE_M = 64
"""An m of which columns of A begin at sectors, by which a weight alone decides: of 64 elements of any type."""

MIN_GAIN = 0.0002
"""Least gain in the mean logarithm of time of each kernel that such a grid has beside those of its operation."""

MOST_ASKED = 1000
"""Problems by whose times such kernels are chosen, at most: an assumption, of what that takes."""


@dataclass(frozen=True)
class Making:
    """What such sections are made with."""

    kernels: list[KernelKey]
    """Those of the selection so far, by the index that tables use, to which those that are new are appended."""
    references: Mapping[Problem, float] = field(default_factory=dict)
    """What a library takes, in microseconds, where that was timed. Being slower than it counts once more."""
    at: Callable[[str], None] = quietly
    """Told how far it is."""
    most: int = SelectionLimits.max_grid_kernels
    """Kernels that a grid has beside those of its operation, at most."""

    def indices(self, operation: Operation, candidates: Sequence[Candidate]) -> dict[Candidate, int]:
        """Return the index of each of some kernels of an operation, and append those that are new."""
        keys = [KernelKey(operation, x) for x in candidates]
        known = {key: i for i, key in enumerate(self.kernels)}
        self.kernels.extend(key for key in keys if key not in known)
        known = {key: i for i, key in enumerate(self.kernels)}
        return {key.candidate: known[key] for key in keys}


def may_have_grid(timed: Timed, operation: Operation) -> bool:
    """Say whether an operation's rows between sectors are to have a grid: enough of them were timed."""
    if timed.provenance != PROVENANCE_MEASURED or not has_sections_between_sectors(operation):
        return False
    return sum(map(begins_between_sectors, timed.filled)) >= MIN_BETWEEN


def added(
    section: Section, timed: Timed, shipped: Sequence[Candidate], making: Making, *, between: bool = True
) -> list[Candidate]:
    """Choose kernels beside those that ship, the one that gains most by the times of some rows first.

    They are chosen by what the grid answers, which is what no ladder does, where `MIN_BETWEEN` such problems were
    timed, and else by all.

    Args:
        section: with the ladders that answer other problems.
        timed: the times of the operation, and the model for those that are missing.
        shipped: the kernels of the operation's section.
        making: what else is known, and how many there may be.
        between: whether by rows between sectors, or by those at sectors.
    """
    operation, laddered = section.operation, {(x.n, x.k) for x in section.ladders}
    every = sorted(x for x, row in timed.filled.items() if row and begins_between_sectors(x) == between)
    own = [x for x in every if (x.n, x.k) not in laddered]
    every = own if len(own) >= MIN_BETWEEN else every
    rows = {x: timed.filled[x] for x in every[:: -(-len(every) // MOST_ASKED) or 1]}
    tried = {min(row, key=lambda x: (row[x], x)) for row in rows.values()}
    able = tried if timed.target is None else legal(tried, operation, timed.target)
    times = learned_where_missing(within(rows, {*able, *shipped}), timed.model, shipped)
    candidates = sorted({*able, *shipped})
    losses = np.log([[row[x] for x in candidates] for row in times.values()])
    least = np.log([making.references.get(x, np.inf) for x in times])[:, None]
    losses += np.maximum(losses - least, 0.0)
    now = losses[:, [candidates.index(x) for x in shipped]].min(axis=1)
    found: list[Candidate] = []
    while len(found) < making.most:
        gains = np.maximum(now[:, None] - losses, 0.0).mean(axis=0)
        best = int(gains.argmax())
        if gains[best] < MIN_GAIN:
            break
        found.append(candidates[best])
        now = np.minimum(now, losses[:, best])
    return found


def _grid_of(twin: Section, operation: Operation, timed: Timed, making: Making) -> Grid | None:
    """Return the grid of a twin for the same kernels of an operation; None where it cannot have one of them."""
    theirs = [making.kernels[i].candidate for i in sorted({x for y in twin.grid.columns for x in y.kernels})]
    if timed.target is not None and len(legal(theirs, operation, timed.target)) < len(theirs):
        return None
    return renamed(twin.grid, making.kernels, making.indices(operation, theirs))


def parted(
    section: Section, shipped: Sequence[Candidate], timed: Timed, making: Making, twin: Section | None = None
) -> list[Section]:
    """Part a section in two, for rows at sectors and for rows between them, where enough of these were timed.

    Args:
        section: of aligned products, with the ladders of all weights.
        shipped: its kernels, without the fallback.
        timed: the times of the operation.
        making: the selection's kernels, and what else is known.
        twin: the section for rows between sectors of the operation whose kernels this one has.
    """
    operation = section.operation
    if section.scope is not None or not may_have_grid(timed, operation):
        return [section]
    grid = None if twin is None else _grid_of(twin, operation, timed, making)
    if grid is None:
        making.at("kernels for rows between sectors")
        indices = making.indices(operation, (*shipped, *added(section, timed, shipped, making)))
        own = Timed(timed.own, timed.filled, timed.provenance, timed.model, target=timed.target)
        known = SectionKernels(tuple(indices), indices, own, between_sectors=True)
        grid = build_grid(known, operation, lambda x: making.at(f"rows between sectors, {x}"))
    between = tuple(x for x in section.ladders if begins_between_sectors(Problem(operation, WHOLE_M, x.n, x.k)))
    whole = tuple(x for x in section.ladders if x not in between)
    return [replace(section, ladders=whole), replace(section, ladders=between, grid=grid, scope=BETWEEN)]


def _with_new_grid(
    section: Section, shipped: Sequence[Candidate], timed: Timed, making: Making, twin: Section | None
) -> tuple[Section, list[Candidate]]:
    """Return a section whose grid is chosen anew, and its kernels, which may be a few more.

    Args:
        section: of aligned products; its ladders stay.
        shipped: its kernels, without the fallback.
        timed: the times of the operation.
        making: the selection's kernels, and what else is known.
        twin: the section of the operation whose kernels this one has, where that was chosen anew.
    """
    grid = None if twin is None else _grid_of(twin, section.operation, timed, making)
    if grid is not None:
        return replace(section, grid=grid), [*shipped]
    making.at("kernels for all rows")
    kernels = [*shipped, *added(section, timed, shipped, making, between=False)]
    indices = making.indices(section.operation, kernels)
    known = SectionKernels(tuple(indices), indices, timed)
    return replace(section, grid=build_grid(known, section.operation, making.at)), kernels


def _rejoined(sections: Sequence[Section]) -> list[Section]:
    """Give the ladders of sections for rows between sectors back to those beside them."""
    own = {x.operation: x.ladders for x in sections if x.between_sectors}
    found = []
    for section in sections:
        if section.scope is None and section.operation in own:
            ladders = sorted((*section.ladders, *own[section.operation]), key=lambda x: (x.n, x.k))
            found.append(replace(section, ladders=tuple(ladders)))
        elif not section.between_sectors:
            found.append(section)
    return found


def _times_at_sectors(timed: Timed) -> int:
    """Return how many problems were timed whose rows do not lie between sectors."""
    return sum(bool(row) and not begins_between_sectors(x) for x, row in timed.filled.items())


def renewed(
    selection: Selection,
    operations: Collection[Operation],
    times: OperationTimes,
    model: Model,
    target: Target,
    references: Mapping[Problem, float] | None = None,
    at: Callable[[str], None] = quietly,
    most: int = SelectionLimits.max_grid_kernels,
    *,
    only_between: bool = False,
) -> tuple[Selection, list[Section]]:
    """Return a selection in which the grids of some operations are chosen anew, and the sections that have them.

    Args:
        selection: kernels and tables; all else stays, ladders too.
        operations: whose grids are chosen, as far as enough was timed of them: those of aligned single products.
        times: of aligned problems, by operation.
        model: gives the times of others.
        target: the selection's.
        references: a library's times.
        at: told how far it is.
        most: kernels more of each grid.
        only_between: whether only those for rows between sectors are chosen.
    """
    filled = with_imputed_times({**{x: {} for x in operations}, **times})
    asked = [x for x in selection.table.sections if x.operation in operations]
    found = [x for x in selection.table.sections if x.operation not in operations]
    made: dict[tuple[Operation, bool], Section] = {}
    kernels = list(selection.kernels)
    timed_of = {
        x: Timed(times.get(x, {}), filled.get(x, {}), PROVENANCE_MEASURED, model, target=target) for x in operations
    }
    of_whole = {x for x, y in timed_of.items() if not only_between and _times_at_sectors(y) >= MIN_BETWEEN}
    alone = of_whole - {x.operation for x in asked if x.between_sectors}
    able = {x for x, y in timed_of.items() if x.grouping is Grouping.DENSE and (x in alone or may_have_grid(y, x))}
    found += [x for x in asked if x.operation not in able]
    for section in _rejoined([x for x in asked if x.operation in able]):
        operation, timed = section.operation, timed_of[section.operation]
        if section.scope is not None:
            found.append(section)
            continue
        making = Making(kernels, references or {}, partial(_tell, at, operation), most)
        shipped = [kernels[i].candidate for i in sorted(named_kernels(section) - {section.fallback})]
        twins = [[made[x, y] for x in operation.twins if (x, y) in made] for y in (False, True)]
        whole, is_new = section, operation in of_whole
        if is_new:
            whole, shipped = _with_new_grid(section, shipped, timed, making, next(iter(twins[0]), None))
        for own in parted(whole, shipped, timed, making, next(iter(twins[1]), None)):
            if is_new or own.between_sectors:
                made[operation, own.between_sectors] = own
            found.append(own)
    named, table = only_named(kernels, DispatchTable.of(found))
    new = [x for x in table.sections if (x.operation, x.between_sectors) in made and x.scope in (None, BETWEEN)]
    return replace(selection, kernels=named, table=table), new


def _tell(at: Callable[[str], None], operation: Operation, how_far: str) -> None:
    at(f"{operation.tag}: {how_far}")
