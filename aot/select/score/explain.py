"""Say how a problem is dispatched: kernel, bucket and time, the runner-up, the roofline, and bigger tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aot.core.alignment import as_launched, misalignment, section_loads
from aot.core.candidate import KernelKey
from aot.core.dispatch import Choice, Ladder, Row, Section, Tier, look_up, round_up
from aot.core.errors import SelectionError
from aot.core.problem import Problem
from aot.core.tile_order import order_name
from aot.select.coverage import why_general
from aot.select.score.tiles import bigger_tiles, verdict_on
from aot.space.roofline import roofline

if TYPE_CHECKING:
    from aot.core.measurement import OperationTimes
    from aot.core.target import Target
    from aot.select.selection import Selection


def _place(section: Section, choice: Choice) -> tuple[Ladder, int]:
    """Find the ladder of a row of tier 1, and the row's step in it."""
    first = 0
    for ladder in section.ladders:
        if choice.index < first + len(ladder.rows):
            return ladder, choice.index - first
        first += len(ladder.rows)
    raise IndexError(choice.index)


def _bucket(section: Section, choice: Choice, m: int) -> str:
    if choice.tier is Tier.TUNED:
        ladder, step = _place(section, choice)
        low = ladder.m_edges[step - 1] + 1 if step else 1
        last = step == len(ladder.m_edges) - 1
        bucket = f"m >= {low}" if last else f"m {low} to {ladder.m_edges[step]}"
        place = f"bucket {bucket}, {step + 1} of {len(ladder.m_edges)}"
        return f"tier 1: ladder of (n {ladder.n}, k {ladder.k}), {place}"
    n, k = section.grid.corner(choice.index)
    m_edges = section.grid.columns[choice.index].m_edges
    return f"tier 2: grid cell m <= {m_edges[round_up(m, m_edges)]}, n <= {n}, k <= {k}"


def _roofline_line(problem: Problem, target: Target) -> str:
    own = roofline(problem, target)
    rate = {
        "memory": f"{target.bandwidth_bytes_per_s / 1e12:.3g} TB/s",
        "compute": f"{target.peak_flops_per_s(problem.operation) / 1e12:.0f} TFLOP/s",
    }[own.bound]
    return f"  roofline   {own.time_us:.2f} us for this problem, by {own.bound} ({rate})"


def _achieved_line(row: Row, edge: Problem, target: Target) -> str:
    """Compare the row's time with the roofline of the very shape that it is of."""
    least = roofline(edge, target).time_us
    where = "the bucket's upper edge"
    return f"  achieved   {least / row.time_us:.0%} of the roofline of {where}, {least:.2f} us; {row.provenance}"


def _why_no_time(row: Row, edge: Problem, m: int, target: Target) -> str:
    """Say why a row's time is not told: none is below the roofline of what was asked about. Empty where it is told.

    templates/python/aot_gemm/_table.py says the same of a wheel's tables.
    """
    if m > edge.m:
        return f"the table's last bucket ends at m {edge.m}: no time is known for m {m}"
    if row.time_us < roofline(edge, target).time_us:
        return "the table's time here is less than the roofline, so that it is not this problem's"
    return ""


def _row_lines(choice: Choice, row: Row, selection: Selection, no_time: str) -> list[str]:
    """Say what a ladder's row knows of the kernel that was chosen: its time and the next best kernel."""
    instead = []
    if choice.kernel != row.kernel:
        time = "" if no_time else f", {row.time_us:.1f} us {row.provenance}"
        instead = [f"  instead of {selection.kernels[row.kernel].name}{time}, which needs whole tiles"]
    if no_time:
        return [*instead, f"  time       none: {no_time}"]
    if instead:
        return [*instead, "  time       none of this kernel in the table"]
    walked = f", tiles in order {order_name(row.tile_order)}" if row.tile_order else ""
    time = f"  time       {row.time_us:.1f} us {row.provenance} for the bucket's upper edge{walked}"
    lines = [time, "  runner-up  none: no other kernel has a time here"]
    if row.runner_up != row.kernel:
        name, margin = selection.kernels[row.runner_up].name, row.runner_up_us / row.time_us - 1
        lines[1] = f"  runner-up  {name}, {row.runner_up_us:.1f} us ({margin:+.1%})"
    if row.library_us is not None:
        margin = row.library_us / row.time_us - 1
        lines.append(f"  torch      {row.library_us:.1f} us, measured there ({margin:+.1%})")
    return lines


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


@dataclass(frozen=True)
class Explained:
    """How a problem is dispatched; times in microseconds."""

    problem: str
    kernel: str
    tier: str
    """`tuned`, `grid` or `fallback`."""
    roofline_us: float
    """Of the problem itself."""
    bound: str
    """What the roofline is by: `memory` or `compute`."""
    text: str
    """What people read."""
    time_us: float | None = None
    """That of the bucket's upper edge; None where the table has none of this kernel."""
    provenance: str | None = None
    """Whether that was measured or predicted."""
    runner_up: str | None = None
    """The next best kernel there; None where no other has a time."""
    runner_up_us: float | None = None
    tile_order: str | None = None
    """The order in which the kernel takes its tiles, where that is not its own: `m2` is along m in groups of 2."""


def _explained(problem: Problem, key: KernelKey, tier: str, target: Target, lines: list[str]) -> Explained:
    own = roofline(problem, target)
    return Explained(problem.name, key.name, tier, own.time_us, own.bound, "\n".join(lines))


def _with_row(found: Explained, row: Row, selection: Selection) -> Explained:
    """Add what a ladder's row knows of the kernel that was chosen."""
    timed = replace(found, time_us=row.time_us, provenance=str(row.provenance))
    timed = replace(timed, tile_order=order_name(row.tile_order)) if row.tile_order else timed
    if row.runner_up == row.kernel:
        return timed
    return replace(timed, runner_up=selection.kernels[row.runner_up].name, runner_up_us=row.runner_up_us)


def explained(selection: Selection, problem: Problem, target: Target, timed: OperationTimes) -> Explained:
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
        raise SelectionError(
            f"the selection has no table for {call}; its wheel refuses such operands; to have one: aot select --target "
            f"{selection.target} --operations {problem.operation.tag}"
        )
    launched = as_launched(problem, sections)
    multiples = selection.multiples
    loads = section_loads(problem, sections)
    unaligned = selection.table.unaligned_section(problem.operation, loads, problem.num_groups)
    if launched is None and unaligned is None:
        key = selection.kernels[next(iter(sections.values())).fallback]
        why = f"  fallback   {why_general(problem)}; the table has no time"
        lines = [problem.name, f"  kernel     {key.name}", why, _roofline_line(problem, target)]
        return _explained(problem, key, "fallback", target, lines)
    launched = launched or problem
    section = unaligned or selection.table.aligned_section(launched)
    choice = look_up(section, launched, multiples)
    key = selection.kernels[choice.kernel]
    lines = [problem.name, f"  kernel     {key.name}", f"  from       {_bucket(section, choice, launched.m)}"]
    lines += [f"  read as    {launched.name}, which is the same memory"] if launched != problem else []
    if unaligned:
        lines.append(f"  operands   {misalignment(problem)}; A and B are loaded by up to {section.loads} bytes")
    if section.between_sectors:
        lines.append("  operands   rows of A or B begin at odd multiples of 16 bytes, between two sectors of the L2")
    own_row, compared, no_time = None, launched, ""
    if choice.tier is Tier.TUNED:
        ladder, step = _place(section, choice)
        row = ladder.rows[step]
        compared = Problem(section.operation, ladder.m_edges[step], ladder.n, ladder.k, section.num_groups)
        no_time = _why_no_time(row, compared, launched.m, target)
        own_row = row if choice.kernel == row.kernel and not no_time else None
        lines += _row_lines(choice, row, selection, no_time)
    else:
        lines.append("  time       none: a cell of the grid is chosen by predictions of other shapes")
    lines.append(_roofline_line(problem, target))
    lines += [_achieved_line(own_row, compared, target)] if own_row else []
    lines += [] if no_time else _tile_lines(key, compared, own_row, selection, timed, target)
    found = _explained(problem, key, choice.tier.name.lower(), target, lines)
    return _with_row(found, own_row, selection) if own_row else found
