"""Say how a problem of an operation on rows is dispatched: kernel, bucket and time, and the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.dispatch import Tier
from aot.core.errors import SelectionError
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.measurement import Provenance
from aot.kinds.rows.dispatch import look_up_rows

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.kinds.rows.dispatch import RowStep
    from aot.kinds.rows.problem import RowProblem
    from aot.select.selection import Selection


@dataclass(frozen=True)
class ExplainedStep:
    """How a problem of packed operands is dispatched; times in microseconds."""

    problem: str
    kernel: str
    tier: str
    """`grid` or `fallback`."""
    roofline_us: float
    """Of the problem itself, by memory."""
    text: str
    """What people read."""
    time_us: float | None = None
    """That of the bucket's upper edge; None where the table has none for this problem."""
    provenance: str | None = None
    """Whether that was measured or predicted."""


def _tells(step: RowStep, problem: RowProblem) -> bool:
    """Say whether a step's time may stand for so many rows: measured steps are narrow, predicted ones are not.

    templates/python/aot_gemm/_row_table.py says the same of a wheel's tables.
    """
    is_below = step.provenance == Provenance.MEASURED and problem.rows < step.rows
    return step.time_us > 0 and (problem.rows == step.rows or is_below)


def explained_step(selection: Selection, problem: RowProblem, target: Target) -> ExplainedStep:
    """Say how a packed problem is dispatched.

    Args:
        selection: kernels and table.
        problem: what to look up.
        target: the selection's device.

    Raises:
        SelectionError: the selection has no table for the problem's operation.
    """
    others = selection.others
    section = others.section(problem.operation)
    if section is None:
        raise SelectionError(
            f"the selection has no table for {problem.operation.tag}; select one: aot select --target "
            f"{selection.target} --operations {problem.operation.tag}"
        )
    choice = look_up_rows(section, problem, [x.limits for x in others.family_kernels], ALIGNMENT_BYTES)
    key = others.kernels[choice.kernel]
    least = problem.num_bytes / target.bandwidth_bytes_per_s * 1e6
    lines = [problem.name, f"  kernel     {key.name}"]
    roofline = (
        f"  roofline   {least:.2f} us for this problem, by memory ({target.bandwidth_bytes_per_s / 1e12:.3g} TB/s)"
    )
    if choice.tier is Tier.FALLBACK:
        lines += [
            f"  fallback   the table's kernel here takes no {problem.cols} columns; the table has no time",
            roofline,
        ]
        return ExplainedStep(problem.name, key.name, "fallback", least, "\n".join(lines))
    column, place = section.place(choice.index)
    step, low = column.steps[place], column.steps[place - 1].rows + 1 if place else 1
    last = place == len(column.steps) - 1
    rows = f"rows >= {low}" if last else f"rows {low} to {step.rows}"
    lines += [f"  from       column of cols <= {column.cols}, {rows}, {place + 1} of {len(column.steps)}"]
    is_told = column.cols == problem.cols and _tells(step, problem)
    if not is_told:
        lines += [f"  time       none of this problem: the step's is of rows {step.rows} cols {column.cols}", roofline]
        return ExplainedStep(problem.name, key.name, "grid", least, "\n".join(lines))
    lines += [f"  time       {step.time_us:.2f} us {step.provenance} for rows {step.rows}", roofline]
    edge = problem.operation.num_bytes(step.rows, column.cols) / target.bandwidth_bytes_per_s * 1e6
    lines += [f"  achieved   {edge / step.time_us:.0%} of the roofline of rows {step.rows}, {edge:.2f} us"]
    time = step.time_us, str(step.provenance)
    return ExplainedStep(problem.name, key.name, "grid", least, "\n".join(lines), *time)
