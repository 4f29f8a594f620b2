"""The tables of a report about operations on rows: kernels, regrets, the steps furthest from the roofline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.measurement import PROVENANCE_MEASURED
from aot.kinds.rows.problem import RowProblem
from aot.report.parts import Bar, Table, microseconds, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.kinds.rows.dispatch import RowSection, RowStep
    from aot.select.selection import Selection

NUM_SHOWN = 12
"""Steps of the table of the slowest."""
LARGE_US = 5.0
"""Limit from which on a launch, about 2 us, is not what keeps a problem from its roofline."""


@dataclass(frozen=True)
class Step:
    """A measured step of a table, on the problem of its edges."""

    problem: RowProblem
    step: RowStep
    roofline_us: float

    @property
    def fraction(self) -> float:
        """Return the share of the roofline that is reached."""
        return self.roofline_us / self.step.time_us


def measured_steps(selection: Selection, target: Target) -> Iterator[Step]:
    """List the steps of operations on rows whose time was measured."""
    for section in selection.others.table.sections:
        for column in section.columns:
            for step in (x for x in column.steps if x.provenance == PROVENANCE_MEASURED):
                problem = RowProblem(section.operation, step.rows, column.cols)
                yield Step(problem, step, problem.num_bytes / target.bandwidth_bytes_per_s * 1e6)


def _counts(section: RowSection) -> tuple[str, str]:
    steps = [x for column in section.columns for x in column.steps]
    return str(sum(x.provenance == PROVENANCE_MEASURED for x in steps)), str(len(steps))


def operations(selection: Selection) -> Table | None:
    """Show each operation's kernels, steps and regrets; None where there is none."""
    rows = []
    regrets = {x.operation: x for x in selection.regrets}
    held = {x.operation: x for x in selection.heldout}
    for section in selection.others.table.sections:
        operation, regret, out = section.operation, regrets.get(section.operation), held.get(section.operation)
        kernels = sum(key.operation == operation for key in selection.others.kernels)
        figures = ("", "") if regret is None else (share(regret.mean, 2), share(regret.worst))
        measured = section.operation.tag, str(kernels), *_counts(section), *figures
        rows.append((*measured, "none held out" if out is None else share(out.mean, 2)))
    header = ("operation", "kernels", "steps, measured", "steps", "mean regret", "worst", "held-out mean")
    note = "A step that is not measured is by the times of another element type, or by the cost model."
    return Table(header, tuple(rows), note) if rows else None


def slowest(selection: Selection, target: Target) -> Table | None:
    """Show the measured steps that reach least of their roofline; None where none takes long enough to tell."""
    large = [x for x in measured_steps(selection, target) if x.step.time_us >= LARGE_US]
    found = sorted(large, key=lambda x: (x.fraction, x.problem))[:NUM_SHOWN]
    kernels = selection.others.kernels
    rows = tuple(
        (
            x.problem.operation.tag,
            f"{x.problem.rows:,}",
            f"{x.problem.cols:,}",
            kernels[x.step.kernel].candidate.name,
            microseconds(x.step.time_us),
            microseconds(x.roofline_us),
            Bar(share(x.fraction), min(x.fraction, 1.0)),
        )
        for x in found
    )
    header = ("operation", "rows", "cols", "kernel", "us", "roofline, us", "reached")
    note = f"Of the steps of {LARGE_US:.0f} us and more, where the launch alone is no longer most of the time."
    return Table(header, rows, note) if rows else None
