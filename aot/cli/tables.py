"""Plain-text tables of what the steps decide. Pure: values in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, Verdict
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.select.coverage import only_fallback
from aot.select.selection import BY_IMPUTED_TIMES

if TYPE_CHECKING:
    from aot.compile.artifact import Artifact, CompileFailure
    from aot.core.measurement import Record
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.select.diff import Difference
    from aot.select.level import Level
    from aot.select.selection import Curve, Regret, Selection
    from aot.space.enumeration import FamilyCensus
    from aot.studies.smem import Usage


BAR = 40
"""Widest bar of a plot, in characters."""


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


RATED = ("fp8", "int8", "tf32", "fp32")
"""Element types whose rates are shown beside that of bf16 and fp16."""


def targets_table(targets: Sequence[Target]) -> str:
    """Show targets with the limits that decide what fits."""
    header = (
        "target",
        "arch",
        "SMs",
        "SMEM/block",
        "TMEM cols",
        "L2 MiB",
        "GB/s",
        "TFLOP/s",
        *RATED,
        "host",
        "wheel tag",
    )
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
            *(f"{getattr(target, f'{name}_flops_per_s') / 1e12:.4g}" for name in RATED),
            target.host_triple,
            target.platform_tag,
        )
        for target in targets
    ]
    return table(header, rows)


def shapes_table(shape_set: ShapeSet) -> str:
    """Show the models, a weight a line; of a miss log also how often each m was launched."""
    is_counted = any(model.counts for model in shape_set.models)
    header, rows = ("model", "weight", "n", "k", "m"), []
    for model in shape_set.models:
        ladder = [str(m) for m in model.m]
        if model.counts:
            ladder = [f"{m}x{count}" for m, count in zip(ladder, model.counts, strict=True)]
        total = (sum(model.counts) or "-",) if is_counted else ()
        rows += [(model.name, weight.name, weight.n, weight.k, *total, " ".join(ladder)) for weight in model.weights]
    head = (*header[:4], "launches", "m x launches") if is_counted else header
    return f"{table(head, rows)}\n{problem_counts(shape_set)}"


def problem_counts(shape_set: ShapeSet) -> str:
    """Say in one line how many problems of which operations a shape set has."""
    counts = {operation.tag: len(shape_set.problems(operation)) for operation in shape_set.operations}
    if len(set(counts.values())) == 1:
        text = f"{next(iter(counts.values()))} problems for each of {', '.join(counts)}"
    else:
        text = ", ".join(f"{count} problems of {tag}" for tag, count in counts.items())
    dropped = f"; {shape_set.num_dropped} launches of others that the log had no room for"
    return text + (dropped if shape_set.num_dropped else "")


def problems_table(shape_set: ShapeSet) -> str:
    """Show every problem with its work and its fewest bytes; of a miss log also its launches."""
    problems = [problem for operation in shape_set.operations for problem in shape_set.problems(operation)]
    launches = shape_set.launches
    rows = []
    for x in problems:
        count = (launches.get(x, "-"),) if launches else ()
        rows.append((x.operation.tag, x.m, x.n, x.k, f"{x.flops / 1e9:.2f}", f"{x.num_bytes / 1e6:.2f}", *count))
    return table(("operation", "m", "n", "k", "GFLOP", "MB", *(("launches",) if launches else ())), rows)


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


def smem_report(usage: Usage, verdict: str) -> str:
    """Show the shared memory of one CTA part by part, then the verdict."""
    kernel = usage.kernel
    parts = (
        ("A", usage.a_bytes, usage.num_stages),
        ("B", usage.b_bytes, usage.num_stages),
        ("scale factors of A", usage.sfa_bytes, usage.num_stages),
        ("scale factors of B", usage.sfb_bytes, usage.num_stages),
        (f"epilogue, D in {kernel.output}", usage.output_stage_bytes, usage.num_output_stages),
        (f"epilogue, C in {kernel.source}", usage.source_stage_bytes, usage.num_source_stages),
        ("barriers", usage.barrier_bytes, 1),
        ("alignment", usage.padding_bytes, 1),
    )
    rows = [(name, f"{size:,}", number, f"{size * number:,}") for name, size, number in parts if size]
    return f"{table(('part', 'bytes', 'stages', 'in all'), rows)}\n{verdict}"


def smem_table(
    arch: str, limit_bytes: int, header: Sequence[str], rows: Iterable[tuple[str, Sequence[int | None]]]
) -> str:
    """Show how many stages fit, a tile a line and a type a column; `-` for fewer than two, `n/a` for no such tile."""
    cells = [(tile, *("n/a" if fit is None else fit if fit >= 2 else "-" for fit in numbers)) for tile, numbers in rows]
    return f"{arch}: {limit_bytes:,} bytes a block; stages that fit\n{table(('tile', *header), cells)}"


def artifacts_table(artifacts: Sequence[Artifact], failures: Sequence[CompileFailure]) -> str:
    """Show compiled kernels with their resources, then the failures with their reasons."""
    rows = [tuple(each.values()) for each in map(_resources, artifacts)]
    text = table(("kernel", "object B", "SMEM B", "TMEM", "regs", "spill B"), rows)
    return "\n".join([text, *(f"failed: {failure.name}: {failure.reason}" for failure in failures)])


def _resources(artifact: Artifact) -> dict[str, object]:
    names = ("name", "object_bytes", "smem_bytes", "tmem_columns", "registers", "spill_bytes")
    return {name: getattr(artifact.kernel, name) for name in names}


def artifact_facts(artifacts: Sequence[Artifact], failures: Sequence[CompileFailure]) -> dict[str, object]:
    """Return compiled kernels with their resources, and why others were not compiled."""
    return {"kernels": list(map(_resources, artifacts)), "failures": {x.name: x.reason for x in failures}}


def level_line(level: Level) -> str:
    """Say what a run's times were multiplied with, and how that is known."""
    if not level.num_pairs:
        return f"{level.name}: the level that the others are put to"
    own = f"; {level.num_problems} problems by a factor of their own" if level.num_problems else ""
    of = f"the median of {level.num_pairs} common pairs, half of their ratios from {level.low:.4f} to {level.high:.4f}"
    return f"{level.name}: times multiplied by {level.factor:.4f}, {of}{own}"


def apart_line(level: Level) -> str:
    """Say that a run was imported as it is whose times differ from the others' by a common factor."""
    lie = f"{100 * abs(1 / level.factor - 1):.1f}% {'above' if level.factor < 1 else 'below'} the others'"
    return f"{level.name}: its times lie {lie}, by {level.num_pairs} common pairs; to level them, give --level"


_RECORDED = ("problems", "kernels", "times", "failures")
"""What is counted of each operation of a record."""


def _recorded(record: Record) -> dict[str, tuple[int, ...]]:
    """Count the problems, kernels, times and failures of each operation."""
    good = Counter(item.problem.operation.tag for item in record.measurements if item.ok)
    bad = Counter(item.problem.operation.tag for item in record.measurements if not item.ok)
    found: dict[str, tuple[int, ...]] = {}
    for tag in sorted({*good, *bad}):
        items = [item for item in record.measurements if item.problem.operation.tag == tag]
        kernels, problems = {item.kernel for item in items}, {item.problem for item in items}
        found[tag] = (len(problems), len(kernels), good[tag], bad[tag])
    return found


def record_facts(record: Record) -> dict[str, object]:
    """Return what a record holds, by operation, and on what it was measured."""
    operations = {tag: dict(zip(_RECORDED, numbers, strict=True)) for tag, numbers in _recorded(record).items()}
    return {"target": record.target, "conditions": record.conditions, "operations": operations}


def record_summary(record: Record) -> str:
    """Show what a record holds, by operation, and on what it was measured."""
    rows = [(tag, *numbers) for tag, numbers in _recorded(record).items()]
    devices = sorted({f"{x.device}, {x.num_sms} SMs, driver {x.driver}, {x.protocol}" for x in record.conditions})
    libraries = Counter(time.library for time in record.library_times)
    lines = [f"{name}, timed beside the kernels: {count} problems" for name, count in sorted(libraries.items())]
    return "\n".join([*devices, table(("operation", *_RECORDED), rows), *lines])


def selection_summary(selection: Selection) -> str:
    """Show each operation's kernels and regret, the curve, the bucketing loss, and where the times come from."""
    if selection.provenance == PROVENANCE_PREDICTED:
        return _predicted_summary(selection)
    header = ("operation", "problems", "kernels", "mean regret", "at least", "worst regret", "chosen by")
    rows = [(x.operation.tag, x.num_problems, x.num_kernels, *_regrets(x), x.method) for x in selection.regrets]
    rows += _fallback_rows(selection, len(header))
    parts = [
        _selection_head(selection),
        table(header, rows),
        *(curve_table(curve, selection) for curve in selection.curves),
    ]
    references = [references_table(selection)] if selection.references else []
    return "\n\n".join([*parts, heldout_table(selection), *references, *price_table(selection)])


def _regrets(regret: Regret) -> list[str]:
    """Show an operation's mean regret, its bound and the worst one; of what the cost model chose none is known."""
    figures = (regret.mean, regret.mean_bound, regret.worst)
    return [_percent(x) if regret.is_known else "not known" for x in figures]


def _fallback_rows(selection: Selection, num_columns: int) -> list[tuple[object, ...]]:
    """Make a row of each operation that the fallback alone computes."""
    tags = [section.operation.tag for section in selection.table.sections if only_fallback(section)]
    note = "no other: the fallback alone computes it on this target, slowly"
    return [(tag, "-", 1, *["-"] * (num_columns - 4), note) for tag in tags]


def _selection_head(selection: Selection) -> str:
    like = f", as chosen for {selection.like}" if selection.like else ""
    return f"{selection.target}: {len(selection.kernels)} kernels{like}, {selection.provenance} ({selection.record})"


def _predicted_summary(selection: Selection) -> str:
    """Show each operation's kernels: the model's regret against its own times would say nothing."""
    header = ("operation", "problems", "kernels", "chosen by")
    rows: list[tuple[object, ...]] = [
        (x.operation.tag, x.num_problems, x.num_kernels, x.method) for x in selection.regrets
    ]
    rows += _fallback_rows(selection, len(header))
    note = "the cost model chose them; nothing was measured, so that no regret is known"
    if any(x.method.endswith(BY_IMPUTED_TIMES) for x in selection.regrets):
        note = "nothing of these operations was measured: every row of the table is predicted, and no regret is known"
    return "\n\n".join([_selection_head(selection), table(header, rows), note, *price_table(selection)])


def price_table(selection: Selection) -> list[str]:
    """Show what it costs that a row's bits do not depend on m; nothing where the selection has no such tables."""
    header = ("batch-invariant", "problems", "mean", "to m 512", "at worst", "where")
    rows = [
        (x.operation.tag, x.num_problems, f"{x.mean:.3f}x", f"{x.mean_to_512:.3f}x", f"{x.worst:.2f}x", x.worst_problem)
        for x in selection.prices or ()
    ]
    return [table(header, rows)] if rows else []


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}%"


def curve_table(curve: Curve, selection: Selection) -> str:
    """Show kernels against regret and bytes, as figures and bars, the choice marked."""
    (chosen,) = (x.num_kernels for x in selection.regrets if x.operation == curve.operation)
    highest = max(point.mean for point in curve.points) or 1.0
    rows = [
        (
            point.num_kernels,
            *map(_percent, (point.mean, point.mean_bound, point.worst)),
            f"{'~' if point.is_estimate else ''}{point.wheel_bytes / 1024:.0f}",
            "#" * max(1, round(BAR * point.mean / highest)) + (" <- chosen" if point.num_kernels == chosen else ""),
        )
        for point in curve.points
    ]
    header = ("kernels", "mean regret", "at least", "worst regret", "KiB in the wheel", "mean regret")
    note = (
        "\n~ some kernels are not compiled here: the others' mean" if any(x.is_estimate for x in curve.points) else ""
    )
    return f"{curve.operation.tag}\n{table(header, rows)}{note}"


def heldout_table(selection: Selection) -> str:
    """Show the bucketing loss on the problems that were held out."""
    if not selection.heldout:
        return "nothing was held out: the bucketing loss is not known"
    rows = [
        (
            x.operation.tag,
            "tuned (n, k), other m" if x.tier == 1 else "other (n, k)",
            x.num_problems,
            x.num_unmeasured,
            *map(_percent, (x.bucketing_loss_mean, x.bucketing_loss_worst, x.mean, x.worst)),
            x.worst_problem,
        )
        for x in selection.heldout
    ]
    header = (
        "held out",
        "",
        "problems",
        "no time",
        "bucketing: mean",
        "worst",
        "regret: mean",
        "worst",
        "worst bucketing at",
    )
    return table(header, rows)


def references_table(selection: Selection) -> str:
    """Show the speed over the reference library, on the problems that both were timed on."""
    rows = [
        (
            x.operation.tag,
            "held out" if x.is_heldout else "selected on",
            x.num_problems,
            x.num_untimed,
            f"{x.mean:.3f}x",
            f"{x.num_below_98} ({_percent(x.num_below_98 / x.num_problems)})",
            x.num_below_93,
            f"{x.worst:.3f}x",
            x.worst_problem,
        )
        for x in selection.references
    ]
    header = (
        "over the library",
        "",
        "problems",
        "no time",
        "speed: mean",
        "below 0.98",
        "below 0.93",
        "worst",
        "worst at",
    )
    return table(header, rows)


def difference_table(difference: Difference, num_shown: int) -> str:
    """Show what two selections dispatch otherwise: how much of the table, at what cost, and the costliest changes."""
    changes = sorted(difference.changes, key=lambda change: -(change.cost or 0.0))
    known = [change.cost for change in changes if change.cost is not None]
    lines = [
        f"{len(changes)} of {difference.num_entries} entries have another kernel ({_percent(difference.churn)})",
        f"kernels added: {', '.join(difference.added) or 'none'}",
        f"kernels dropped: {', '.join(difference.dropped) or 'none'}",
    ]
    if difference.operations:
        lines.append(f"only in one of the two: {', '.join(operation.tag for operation in difference.operations)}")
    if known:
        over = sum(cost > 0.01 for cost in known)
        mean = sum(known) / len(known)
        lines.append(f"the changes cost {_percent(mean)} in the mean, {_percent(max(known))} at worst; {over} over 1%")
    rows = [
        (
            change.tier.value,
            change.corner.name,
            change.old.name,
            change.new.name,
            "-"
            if change.cost is None
            else f"{100 * change.cost:+.2f}% {'measured' if change.is_measured else 'learned'}",
        )
        for change in changes[:num_shown]
    ]
    shown = [table(("tier", "up to", "old", "new", "cost"), rows)] if rows else []
    return "\n".join([*lines, *shown])
