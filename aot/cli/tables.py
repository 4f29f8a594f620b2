"""Plain-text tables of what the steps decide. Pure: values in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, Verdict

if TYPE_CHECKING:
    from aot.compile.artifact import AnyKernel, Artifact, CompileFailure
    from aot.core.measurement import AnyRecord
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.select.times.levels import Level
    from aot.space.enumeration import FamilyCensus
    from aot.space.smem import Usage


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


def _rate(flops_per_s: float | None) -> str:
    return "-" if flops_per_s is None else f"{flops_per_s / 1e12:.4g}"


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
        "features",
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
            *(_rate(getattr(target, f"{name}_flops_per_s")) for name in RATED),
            target.host_triple,
            target.platform_tag,
            " ".join(target.features),
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
            stages = f", {used.num_stages} stages" if used.num_stages else ""
            registers = f", {used.registers} registers" if used.registers else ""
            rows.append((candidate.name, "in", f"{used.smem_bytes:,} B{stages}{registers}"))
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


def artifacts_table(artifacts: Sequence[Artifact[AnyKernel]], failures: Sequence[CompileFailure]) -> str:
    """Show compiled kernels with their resources, then the failures with their reasons."""
    rows = [tuple(each.values()) for each in map(_resources, artifacts)]
    text = table(("kernel", "object B", "SMEM B", "TMEM", "regs", "spill B"), rows)
    return "\n".join([text, *(f"failed: {failure.name}: {failure.reason}" for failure in failures)])


def _resources(artifact: Artifact[AnyKernel]) -> dict[str, object]:
    names = ("name", "object_bytes", "smem_bytes", "tmem_columns", "registers", "spill_bytes")
    return {name: getattr(artifact.kernel, name, 0) for name in names}


def artifact_facts(artifacts: Sequence[Artifact[AnyKernel]], failures: Sequence[CompileFailure]) -> dict[str, object]:
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


def _recorded(record: AnyRecord) -> dict[str, tuple[int, ...]]:
    """Count the problems, kernels, times and failures of each operation."""
    good = Counter(item.problem.operation.tag for item in record.measurements if item.ok)
    bad = Counter(item.problem.operation.tag for item in record.measurements if not item.ok)
    found: dict[str, tuple[int, ...]] = {}
    for tag in sorted({*good, *bad}):
        items = [item for item in record.measurements if item.problem.operation.tag == tag]
        kernels, problems = {item.kernel for item in items}, {item.problem for item in items}
        found[tag] = (len(problems), len(kernels), good[tag], bad[tag])
    return found


def record_facts(record: AnyRecord) -> dict[str, object]:
    """Return what a record holds, by operation, and on what it was measured."""
    operations = {tag: dict(zip(_RECORDED, numbers, strict=True)) for tag, numbers in _recorded(record).items()}
    return {"target": record.target, "conditions": record.conditions, "operations": operations}


def record_summary(record: AnyRecord) -> str:
    """Show what a record holds, by operation, and on what it was measured."""
    rows = [(tag, *numbers) for tag, numbers in _recorded(record).items()]
    devices = sorted({f"{x.device}, {x.num_sms} SMs, driver {x.driver}, {x.protocol}" for x in record.conditions})
    libraries = Counter(time.library for time in record.library_times)
    lines = [f"{name}, timed beside the kernels: {count} problems" for name, count in sorted(libraries.items())]
    return "\n".join([*devices, table(("operation", *_RECORDED), rows), *lines])
