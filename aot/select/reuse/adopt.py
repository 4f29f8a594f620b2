"""A selection made of another target's: its kernels and its table, with times and scores of the target's own. Pure.

For a target whose sibling was timed on many more problems: where both have the same cores and as many of them, kernels
rank alike, and what a few times of a target say is less than what many of its sibling's do. An H100 with the table of
an H200 has 10% of the held-out problems below 0.98 of torch, with one made of 962 problems of its own 24%
(research/log/2026-11-23-h100-by-h200.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.dispatch import DispatchTable
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC
from aot.select.selector import Models, compared, scored
from aot.select.times.inputs import Timed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.dispatch import Row, Section
    from aot.core.target import Target
    from aot.select.portfolio.objective import KnownTimes, Objective
    from aot.select.selection import Selection


def check_alike(target: Target, other: Target) -> None:
    """Refuse a target whose kernels are other code.

    Raises:
        SelectionError: the two differ in architecture or in SMs.
    """
    if (target.arch, target.num_sms) != (other.arch, other.num_sms):
        raise SelectionError(
            f"{target.name} is {target.arch} with {target.num_sms} SMs, {other.name} {other.arch} with "
            f"{other.num_sms}; kernels and tables are taken from a target with as many of the same; leave --like out"
        )


def _row(row: Row, own: Mapping[Candidate, float], times: Sequence[float], kernels: Sequence[KernelKey]) -> Row:
    """Give a row the times of this target; a time of the kernel in another order of tiles than its own is predicted.

    Args:
        row: of the other target.
        own: what was measured of the bucket's upper edge, by kernel.
        times: of the row's kernel and its runner-up there, measured or predicted, in microseconds.
        kernels: by index.
    """
    first, second = (round(float(x), 3) for x in times)
    is_own = kernels[row.kernel].candidate in own and (row.tile_order or HEURISTIC) == HEURISTIC
    if is_own and kernels[row.runner_up].candidate not in own:  # beside a measured time stands no predicted one
        return replace(row, time_us=first, provenance=PROVENANCE_MEASURED, runner_up=row.kernel, runner_up_us=first)
    provenance = PROVENANCE_MEASURED if is_own else PROVENANCE_PREDICTED
    return replace(row, time_us=first, provenance=provenance, runner_up_us=second)


def _section(section: Section, timed: Timed, kernels: Sequence[KernelKey]) -> Section:
    """Give the rows of a table the times of this target; its grid holds none."""
    used = sorted({x for ladder in section.ladders for row in ladder.rows for x in (row.kernel, row.runner_up)})
    places = {kernel: place for place, kernel in enumerate(used)}
    problems = [
        Problem(section.operation, m, ladder.n, ladder.k, section.num_groups)
        for ladder in section.ladders
        for m in ladder.m_edges
    ]
    times = iter(timed.times_us([kernels[x].candidate for x in used], problems)) if problems else iter(())
    edges = iter(problems)

    def row_of(row: Row) -> Row:
        found = next(times)[[places[row.kernel], places[row.runner_up]]]
        return _row(row, timed.own.get(next(edges), {}), found.tolist(), kernels)

    return replace(section, ladders=tuple(replace(x, rows=tuple(map(row_of, x.rows))) for x in section.ladders))


def adopt(other: Selection, measured: KnownTimes, target: Target, objective: Objective, record_name: str) -> Selection:
    """Return another target's selection as this target's.

    Args:
        other: the selection; its regrets and curves, which are of other times, are left out.
        measured: this target's times, from its record.
        target: the device that these are of.
        objective: the shapes that coverage is counted of.
        record_name: the record's name.
    """
    models = Models(measured, target, objective.progress)
    sections = []
    for section in other.table.sections:
        objective.progress(f"{section.operation.tag}: times of {target.name}")
        own = measured.times.get(section.operation, {})
        model = models.of(measured.basis_of(section.operation))
        provenance = PROVENANCE_MEASURED if own else PROVENANCE_PREDICTED
        sections.append(_section(section, Timed(own, own, provenance, model, target=target), other.kernels))
    table = DispatchTable(tuple(sections))
    rows = (row for section in sections for ladder in section.ladders for row in ladder.rows)
    is_measured = any(row.provenance == PROVENANCE_MEASURED for row in rows)
    found = replace(
        other,
        target=target.name,
        provenance=PROVENANCE_MEASURED if is_measured else PROVENANCE_PREDICTED,
        record=record_name,
        conditions=measured.record.conditions if is_measured and measured.record else (),
        regrets=(),
        curves=(),
        heldout=tuple(scored(table, other.kernels, measured)),
        table=table,
        references=tuple(compared(table, other.kernels, measured)),
        prices=(),
        like=other.target,
    )
    return objective.covered(found)
