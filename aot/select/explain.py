"""Say how a problem is dispatched: kernel, bucket and time, the runner-up, the roofline, and bigger tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import KernelKey
from aot.core.dispatch import Choice, Ladder, Row, Section, Tier, look_up
from aot.core.errors import SelectionError
from aot.core.operands import as_launched
from aot.core.problem import Problem
from aot.families import family_of
from aot.select.coverage import why_general
from aot.select.tiles import bigger_tiles, verdict_on
from aot.space.roofline import mean_roofline_us, roofline

if TYPE_CHECKING:
    from aot.core.measurement import OperationTimes
    from aot.core.target import Target
    from aot.select.selection import Selection

_OF = {Tier.TUNED: "for the bucket's upper edge", Tier.GRID: "as the mean of the cell's shapes"}


def _place(section: Section, choice: Choice) -> tuple[Ladder, int]:
    """Find the ladder of a row of tier 1, and the row's step in it."""
    first = 0
    for ladder in section.ladders:
        if choice.index < first + len(ladder.rows):
            return ladder, choice.index - first
        first += len(ladder.rows)
    raise IndexError(choice.index)


def _row(section: Section, choice: Choice) -> Row:
    if choice.tier is Tier.GRID:
        return section.grid.cells[choice.index]
    ladder, step = _place(section, choice)
    return ladder.rows[step]


def _bucket(section: Section, choice: Choice) -> str:
    if choice.tier is Tier.TUNED:
        ladder, step = _place(section, choice)
        low = ladder.m_edges[step - 1] + 1 if step else 1
        last = step == len(ladder.m_edges) - 1
        bucket = f"m >= {low}" if last else f"m {low} to {ladder.m_edges[step]}"
        place = f"bucket {bucket}, {step + 1} of {len(ladder.m_edges)}"
        return f"tier 1: ladder of (n {ladder.n}, k {ladder.k}), {place}"
    grid = section.grid
    i, j, k = grid.place(choice.index)
    return f"tier 2: grid cell m <= {grid.m_edges[i]}, n <= {grid.n_edges[j]}, k <= {grid.k_edges[k]}"


def _timed_shapes(section: Section, choice: Choice) -> list[Problem]:
    """List the problems that the row's time is of: one, or those whose mean it is."""
    if choice.tier is Tier.TUNED:
        ladder, step = _place(section, choice)
        return [Problem(section.operation, ladder.m_edges[step], ladder.n, ladder.k)]
    return [Problem(section.operation, *shape) for shape in section.grid.judged(choice.index)]


def _roofline_line(problem: Problem, target: Target) -> str:
    own = roofline(problem, target)
    rate = {
        "memory": f"{target.bandwidth_bytes_per_s / 1e12:.3g} TB/s",
        "compute": f"{target.flops_per_s / 1e12:.0f} TFLOP/s",
    }[own.bound]
    return f"  roofline   {own.time_us:.2f} us for this problem, by {own.bound} ({rate})"


def _achieved_line(row: Row, shapes: list[Problem], target: Target) -> str:
    """Compare the row's time with the roofline of the very shapes that it is of."""
    least = mean_roofline_us(shapes, target)
    where = "the bucket's upper edge" if len(shapes) == 1 else "the cell's shapes, as a mean"
    return f"  achieved   {least / row.time_us:.0%} of the roofline of {where}, {least:.2f} us; {row.provenance}"


def _tile_lines(
    key: KernelKey, problem: Problem, row: Row | None, selection: Selection, timed: OperationTimes, target: Target
) -> list[str]:
    shipped = {kernel.name for kernel in selection.kernels}
    lines = []
    for tile in bigger_tiles(key, target):
        verdict = verdict_on(tile, key, problem, row, timed, target)
        is_shipped = KernelKey(key.operation, tile.candidate).name in shipped
        lines.append(f"    {tile.tile:<9}{verdict}" + ("; it is shipped too" if is_shipped else ""))
    return ["  bigger tiles of the family, all else equal", *lines] if lines else []


def explanation(selection: Selection, problem: Problem, target: Target, timed: OperationTimes) -> str:
    """Say how a packed problem is dispatched.

    Args:
        selection: kernels and table.
        problem: what to look up.
        target: the selection's device.
        timed: measured times, to compare bigger tiles by; empty where there is no record.

    Raises:
        SelectionError: the selection has no table for the problem's operation in any layout.
    """
    call = problem.operation.call
    sections = {x.operation: x for x in selection.table.sections if x.operation.call == call}
    if not sections:
        raise SelectionError(f"the selection has no table for {call}; its wheel refuses such operands")
    launched = as_launched(problem, sections)
    multiples = tuple(family_of(key.candidate).multiples(key.candidate) for key in selection.kernels)
    if launched is None:
        key = selection.kernels[next(iter(sections.values())).fallback]
        why = f"  fallback   {why_general(problem)}; the table has no time"
        return "\n".join([problem.name, f"  kernel     {key.name}", why, _roofline_line(problem, target)])
    section = sections[launched.operation]
    choice = look_up(section, launched, multiples)
    key = selection.kernels[choice.kernel]
    row, shapes = _row(section, choice), _timed_shapes(section, choice)
    is_rows_own = choice.kernel == row.kernel
    lines = [problem.name, f"  kernel     {key.name}", f"  from       {_bucket(section, choice)}"]
    lines += [f"  read as    {launched.name}, which is the same memory"] if launched != problem else []
    if is_rows_own:
        margin = row.runner_up_us / row.time_us - 1
        lines.append(f"  time       {row.time_us:.1f} us {row.provenance} {_OF[choice.tier]}")
        if row.runner_up != row.kernel:
            name = selection.kernels[row.runner_up].name
            lines.append(f"  runner-up  {name}, {row.runner_up_us:.1f} us ({margin:+.1%})")
        else:
            lines.append("  runner-up  none: no other kernel has a time here")
        lines += [_roofline_line(problem, target), _achieved_line(row, shapes, target)]
    else:
        first = selection.kernels[row.kernel].name
        lines.append(f"  instead of {first}, {row.time_us:.1f} us {row.provenance}, which needs whole tiles")
        lines += ["  time       none of this kernel in the table", _roofline_line(problem, target)]
    compared = shapes[0] if choice.tier is Tier.TUNED else launched
    own_row = row if is_rows_own and choice.tier is Tier.TUNED else None
    return "\n".join([*lines, *_tile_lines(key, compared, own_row, selection, timed, target)])
