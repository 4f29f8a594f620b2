"""The tables for aligned products whose rows of A or B begin between two sectors of the L2: a grid of their own. Pure.

Which kernel is the fastest differs there (`aot.select.times.sectors`), so that one kernel of a cell would serve neither
kind of rows well. A weight that was tuned has its ladder in the section that its packed operands are answered by.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aot.core.alignment import begins_between_sectors, has_sections_between_sectors
from aot.core.dispatch import DispatchTable, Grid, Scope, Section
from aot.core.measurement import PROVENANCE_MEASURED
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.select.join import named_kernels
from aot.select.table.section_kernels import SectionKernels
from aot.select.table.sections import build_grid, renamed
from aot.select.times.inputs import Timed
from aot.select.times.known import with_imputed_times

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.measurement import OperationTimes
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.select.selection import Selection
    from aot.select.times.model import Model

MIN_BETWEEN = 40
"""Problems with such rows that must have been timed, in the operation or an equivalent one, for a grid of their own: an
assumption. With fewer, times there are guessed from those of other rows."""

WHOLE_M = 64
"""An m of which columns of A begin at sectors, by which a weight alone decides: of 64 elements of any type."""


def may_have_grid(timed: Timed, operation: Operation) -> bool:
    """Say whether an operation's rows between sectors are to have a grid: enough of them were timed."""
    if timed.provenance != PROVENANCE_MEASURED or not has_sections_between_sectors(operation):
        return False
    return sum(map(begins_between_sectors, timed.filled)) >= MIN_BETWEEN


def parted(
    section: Section,
    indices: Mapping[Candidate, int],
    timed: Timed,
    grid: Grid | None = None,
    at: Callable[[str], None] = quietly,
) -> list[Section]:
    """Part a section in two, for rows at sectors and for rows between them, where enough of these were timed.

    Args:
        section: of aligned products, with the ladders of all weights.
        indices: index in the manifest of each of its kernels, in the order in which they are looked at.
        timed: the times of the operation.
        grid: for rows between sectors, where it is known already.
        at: told how far it is.
    """
    operation = section.operation
    if section.scope is not None or not may_have_grid(timed, operation):
        return [section]
    if grid is None:
        own = Timed(timed.own, timed.filled, timed.provenance, timed.model, target=timed.target)
        known = SectionKernels(tuple(indices), indices, own, between_sectors=True)
        grid = build_grid(known, operation, lambda x: at(f"rows between sectors, {x}"))
    between = tuple(x for x in section.ladders if begins_between_sectors(Problem(operation, WHOLE_M, x.n, x.k)))
    whole = tuple(x for x in section.ladders if x not in between)
    scope = Scope(1, batch_invariant=False, between_sectors=True)
    return [replace(section, ladders=whole), replace(section, ladders=between, grid=grid, scope=scope)]


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


def renewed(
    selection: Selection,
    operations: Collection[Operation],
    times: OperationTimes,
    model: Model,
    target: Target,
    at: Callable[[str], None] = quietly,
) -> Selection:
    """Return a selection in which some operations have grids for rows between sectors, of the kernels that they have.

    Args:
        selection: kernels and tables; all else stays.
        operations: those that are to have such grids, as far as enough was timed of them.
        times: of aligned problems, by operation.
        model: gives the times of others.
        target: the selection's.
        at: told how far it is.
    """
    kernels = selection.kernels
    filled = with_imputed_times({**{x: {} for x in operations}, **times})
    asked = [x for x in selection.table.sections if x.operation in operations]
    others = [x for x in selection.table.sections if x.operation not in operations]
    found: list[Section] = []
    made: dict[tuple[Operation, tuple[Candidate, ...]], Grid] = {}
    for section in _rejoined(asked):
        operation, indices = section.operation, _indices(section, kernels)
        timed = Timed(times.get(operation, {}), filled.get(operation, {}), PROVENANCE_MEASURED, model, target=target)
        candidates = tuple(indices)
        twin = next((made[x, candidates] for x in operation.twins if (x, candidates) in made), None)
        told = partial(_tell, at, operation.tag)
        two = parted(section, indices, timed, twin and renamed(twin, kernels, indices), told)
        if len(two) > 1:
            made[operation, candidates] = two[-1].grid
        found += two
    table = DispatchTable(tuple(sorted((*others, *found), key=lambda x: (x.operation.position, *x.key[1:]))))
    return replace(selection, table=table)


def _tell(at: Callable[[str], None], tag: str, how_far: str) -> None:
    at(f"{tag}: {how_far}")


def _indices(section: Section, kernels: Sequence[KernelKey]) -> dict[Candidate, int]:
    """Return the index of each kernel of a section but its fallback, in the order of the selection."""
    return {kernels[i].candidate: i for i in sorted(named_kernels(section) - {section.fallback})}
