"""Take another target's kernels and tables of operations on rows for a sibling, with the times of the sibling."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.kinds.rows.dispatch import RowTable
from aot.kinds.rows.problem import RowProblem
from aot.select.join import restricted
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aot.core.candidate import Candidate
    from aot.core.measurement import AnyRecord
    from aot.core.target import Target
    from aot.core.work import AnyOperation
    from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep
    from aot.select.selection import Selection


def _step(step: RowStep, problem: RowProblem, candidate: Candidate, own: Mapping[Any, Any], target: Target) -> RowStep:
    """Give a step the time of this target at its edges: the measured one, else the cost model's."""
    measured = own.get(problem, {}).get(candidate)
    if measured is not None:
        return replace(step, time_us=round(measured, 3), provenance=PROVENANCE_MEASURED)
    if not step.time_us:
        return replace(step, provenance=PROVENANCE_PREDICTED)
    (predicted,) = space_of(problem.operation).times_us([candidate], problem, target)
    return replace(step, time_us=round(predicted, 3), provenance=PROVENANCE_PREDICTED)


def adopt_steps(
    other: Selection,
    operations: Collection[AnyOperation],
    times: Mapping[Any, Mapping[Any, Mapping[Candidate, float]]],
    record: AnyRecord | None,
    record_name: str,
    target: Target,
) -> Selection:
    """Return what another target's selection has of some operations on rows as this target's.

    Args:
        other: the selection; its regrets and scores, which are of other times, are left out.
        operations: those that are asked for, of which it has a table each.
        times: this target's, by operation, problem and candidate.
        record: what these are from; None where there are none.
        record_name: its name, or that of the cost model.
        target: the device that they are of.
    """
    steps = restricted(other, operations).others

    def moved(section: RowSection, column: RowColumn) -> RowColumn:
        own = times.get(section.operation, {})
        found = (
            _step(x, RowProblem(section.operation, x.rows, column.cols), steps.kernels[x.kernel].candidate, own, target)
            for x in column.steps
        )
        return replace(column, steps=tuple(found))

    sections = [replace(x, columns=tuple(moved(x, column) for column in x.columns)) for x in steps.table.sections]
    named = (step for section in sections for column in section.columns for step in column.steps)
    is_measured = any(x.provenance == PROVENANCE_MEASURED for x in named)
    return replace(
        restricted(other, ()),
        target=target.name,
        provenance=PROVENANCE_MEASURED if is_measured else PROVENANCE_PREDICTED,
        record=record_name,
        conditions=record.conditions if is_measured and record else (),
        prices=None,
        like=other.target,
        stepped=replace(steps, table=RowTable(tuple(sections))),
    )
