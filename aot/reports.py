"""Plain-text tables of what the steps decide. Pure: values in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aot.candidate import Accepted, Candidate, Verdict
from aot.dispatch import Choice, Row, Section, Tier, look_up
from aot.errors import SelectionError
from aot.families import family_of
from aot.operands import is_aligned

if TYPE_CHECKING:
    from aot.artifact import Artifact, CompileFailure
    from aot.measurement import Record
    from aot.problem import Problem
    from aot.selection import Selection
    from aot.shape_set import ShapeSet
    from aot.space import FamilyCensus
    from aot.target import Target


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out rows in columns; numbers to the right, texts to the left."""
    cells = [[str(cell) for cell in header], *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [all(row[i].replace(",", "").replace(".", "").isdigit() for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), line(["-" * width for width in widths]), *(line(row) for row in cells[1:])])


def targets_table(targets: Sequence[Target]) -> str:
    """Show targets with the limits that decide what fits."""
    header = ("target", "arch", "SMs", "SMEM/block", "TMEM cols", "L2 MiB", "GB/s", "TFLOP/s", "host", "wheel tag")
    rows = [
        (
            target.name,
            target.arch,
            target.num_sms,
            f"{target.smem_bytes_per_block:,}",
            target.tmem_columns,
            target.l2_bytes // 2**20,
            round(target.bandwidth_bytes_per_s / 1e9),
            round(target.flops_per_s / 1e12),
            target.host_triple,
            target.platform_tag,
        )
        for target in targets
    ]
    return table(header, rows)


def shapes_table(shape_set: ShapeSet) -> str:
    """Show the models, a weight a line."""
    rows = [
        (model.name, weight.name, weight.n, weight.k, " ".join(map(str, model.m)))
        for model in shape_set.models
        for weight in model.weights
    ]
    count = len(shape_set.sizes)
    kinds = ", ".join(operation.tag for operation in shape_set.operations)
    return f"{table(('model', 'weight', 'n', 'k', 'm'), rows)}\n{count} problems for each of {kinds}"


def problems_table(shape_set: ShapeSet) -> str:
    """Show every problem with its work and its fewest bytes."""
    problems = [problem for operation in shape_set.operations for problem in shape_set.problems(operation)]
    rows = [(x.operation.tag, x.m, x.n, x.k, f"{x.flops / 1e9:.2f}", f"{x.num_bytes / 1e6:.2f}") for x in problems]
    return table(("operation", "m", "n", "k", "GFLOP", "MB"), rows)


def census_table(families: Sequence[FamilyCensus], *, explain: bool) -> str:
    """Show how many candidates of each family are in and out; explained, why, with an example each."""
    rows = []
    for family in families:
        out = ", ".join(f"{count} {reason.value}" for reason, count in family.num_rejected.items())
        rows.append((family.family, family.num_accepted, sum(family.num_rejected.values()), out or "-"))
    lines = [table(("family", "in", "out", "why"), rows)]
    if explain:
        for family in families:
            for reason, example in family.examples.items():
                lines.append(f"{family.family}: {family.num_rejected[reason]} out: {reason.value}\n    {example}")
    return "\n".join(lines)


def verdicts_table(judged: Iterable[tuple[Candidate, Verdict]]) -> str:
    """Show every candidate with its resources, or why it is out."""
    rows = []
    for candidate, verdict in judged:
        if isinstance(verdict, Accepted):
            used = verdict.resources
            rows.append((candidate.name, "in", f"{used.smem_bytes:,} B, {used.num_stages} stages"))
        else:
            rows.append((candidate.name, "out", f"{verdict.reason.value}: {verdict.message}"))
    return table(("candidate", "", "resources or reason"), rows)


def artifacts_table(artifacts: Sequence[Artifact], failures: Sequence[CompileFailure]) -> str:
    """Show compiled kernels with their resources, then the failures with their reasons."""
    rows = []
    for artifact in artifacts:
        x = artifact.kernel
        rows.append((x.name, x.object_bytes, x.smem_bytes, x.tmem_columns, x.registers, x.spill_bytes))
    text = table(("kernel", "object B", "SMEM B", "TMEM", "regs", "spill B"), rows)
    return "\n".join([text, *(f"failed: {failure.name}: {failure.reason}" for failure in failures)])


def record_summary(record: Record) -> str:
    """Show what a record holds, by operation, and on what it was measured."""
    good = Counter(item.problem.operation.tag for item in record.measurements if item.ok)
    bad = Counter(item.problem.operation.tag for item in record.measurements if not item.ok)
    rows = []
    for tag in sorted({*good, *bad}):
        items = [item for item in record.measurements if item.problem.operation.tag == tag]
        kernels, problems = {item.kernel for item in items}, {item.problem for item in items}
        rows.append((tag, len(problems), len(kernels), good[tag], bad[tag]))
    devices = sorted({f"{x.device}, {x.num_sms} SMs, driver {x.driver}, {x.protocol}" for x in record.conditions})
    return "\n".join([*devices, table(("operation", "problems", "kernels", "times", "failures"), rows)])


def selection_summary(selection: Selection) -> str:
    """Show each operation's kernels and regret, and where the times come from."""
    rows = [
        (x.operation.tag, x.num_problems, x.num_kernels, f"{100 * x.mean:.2f}%", f"{100 * x.worst:.2f}%")
        for x in selection.regrets
    ]
    head = f"{selection.target}: {len(selection.kernels)} kernels, {selection.provenance} ({selection.record})"
    return f"{head}\n{table(('operation', 'problems', 'kernels', 'mean regret', 'worst regret'), rows)}"


def _bucket(section: Section, problem: Problem, choice: Choice) -> str:
    if choice.tier is Tier.TUNED:
        ladder = next(x for x in section.ladders if (x.n, x.k) == (problem.n, problem.k))
        edges = ladder.m_edges
        edge = next((edge for edge in edges if problem.m <= edge), edges[-1])
        return f"tier 1: ladder of (n {ladder.n}, k {ladder.k}), bucket m <= {edge} of {', '.join(map(str, edges))}"
    grid = section.grid
    k = choice.index % len(grid.k_edges)
    n = choice.index // len(grid.k_edges) % len(grid.n_edges)
    m = choice.index // (len(grid.k_edges) * len(grid.n_edges))
    return f"tier 2: grid cell m <= {grid.m_edges[m]}, n <= {grid.n_edges[n]}, k <= {grid.k_edges[k]}"


_OF = {Tier.TUNED: "for the bucket's upper edge", Tier.GRID: "as the mean of the cell's shapes"}


def _row(section: Section, choice: Choice) -> Row:
    rows = [row for ladder in section.ladders for row in ladder.rows]
    return (rows if choice.tier is Tier.TUNED else section.grid.cells)[choice.index]


def explanation(selection: Selection, problem: Problem) -> str:
    """Say how a packed problem is dispatched.

    Raises:
        SelectionError: the selection has no table for the problem's operation.
    """
    try:
        section = selection.table.section(problem.operation)
    except KeyError:
        raise SelectionError(f"the selection has no table for {problem.operation.tag}") from None
    multiples = tuple(family_of(key.candidate).multiples(key.candidate) for key in selection.kernels)
    choice = look_up(section, problem, multiples, aligned=is_aligned(problem))
    name = selection.kernels[choice.kernel].name
    if choice.tier is Tier.FALLBACK:
        return f"{problem.name}\n  kernel     {name}\n  fallback: a leading stride is not a multiple of 16 bytes"
    row = _row(section, choice)
    margin = 100 * (row.runner_up_us / row.time_us - 1)
    lines = [
        problem.name,
        f"  kernel     {name}",
        f"  from       {_bucket(section, problem, choice)}",
        f"  time       {row.time_us:.1f} us {row.provenance} {_OF[choice.tier]}",
        f"  runner-up  {selection.kernels[row.runner_up].name}, {row.runner_up_us:.1f} us ({margin:+.1f}%)",
    ]
    if choice.kernel != row.kernel:
        lines.insert(2, f"  instead of {selection.kernels[row.kernel].name}, which needs whole tiles")
    return "\n".join(lines)
