"""Ladders of weights that were timed in another type of the same size: bf16 and fp16 take as long. Pure.

Of 1,773 times of one kernel and problem in both types on an H200, those of fp16 are 0.994 of those of bf16 in the
median, and between 0.964 and 1.040 of them in nine of ten. On 151 problems of fp16 that were timed, the table of bf16
takes 1.0% longer than the best in the mean, and one made by these very times 0.7%
(research/log/2026-11-28-more-layouts.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.measurement import PROVENANCE_MEASURED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.candidate import KernelKey
    from aot.core.dispatch import Ladder, Row, Section
    from aot.select.selection import Selection


def _is_measured(ladder: Ladder) -> bool:
    return any(row.provenance == PROVENANCE_MEASURED for row in ladder.rows)


def _moved(ladder: Ladder, kernels: Mapping[int, int]) -> Ladder | None:
    """Give a ladder to a twin, by the twin's kernels; None where it has not all of them."""

    def row(found: Row) -> Row:
        kernel, general, runner_up = (kernels[x] for x in (found.kernel, found.general, found.runner_up))
        return replace(found, kernel=kernel, general=general, runner_up=runner_up).predicted

    named = {x for y in ladder.rows for x in (y.kernel, y.runner_up, y.general)}
    return replace(ladder, rows=tuple(map(row, ladder.rows))) if named <= kernels.keys() else None


def _of_twin(section: Section, twin: Section, kernels: Sequence[KernelKey]) -> Section:
    """Give a section the ladders of its twin, but for those of weights of which it has times of its own."""
    places = {key.candidate: i for i, key in enumerate(kernels) if key.operation is section.operation}
    theirs = ((i, key.candidate) for i, key in enumerate(kernels) if key.operation is twin.operation)
    own = {i: places[x] for i, x in theirs if x in places} | {twin.fallback: section.fallback}
    known = {(x.n, x.k): x for x in twin.ladders}

    def taken(ladder: Ladder) -> Ladder:
        found = None if _is_measured(ladder) else known.get((ladder.n, ladder.k))
        return ladder if found is None else _moved(found, own) or ladder

    return replace(section, ladders=tuple(map(taken, section.ladders)))


def with_twins_ladders(selection: Selection) -> Selection:
    """Return a selection in which a weight that was not timed has the ladder of a twin, which stands before it.

    A twin is the operation of other types of the same sizes; the first is the one that is timed most. Rows that are
    taken so are predicted, and have no time of a library. What is picked for weights with times, and by grids, is the
    same.
    """
    before: dict[tuple[object, ...], Section] = {}
    for section in selection.table.sections:
        operation, *rest = section.key
        twin = next((before[x, *rest] for x in operation.twins if (x, *rest) in before), None)
        before[section.key] = section if twin is None else _of_twin(section, twin, selection.kernels)
    return replace(selection, table=replace(selection.table, sections=tuple(before.values())))
