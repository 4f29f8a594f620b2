"""What `aot emulate` prints: a line for each kernel, what is wrong, and of one problem what was executed. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aot.cli.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aot.compile.artifact import CompileFailure
    from aot.core.target import Target
    from aot.emulate.execute import ExecutionOptions
    from aot.emulate.results import CaseResult, KernelResult
    from aot.emulate.sight import Sight

MAX_SHOWN = 24
"""Lines of a list that has more."""


def facts(
    target: Target, asked: ExecutionOptions, results: Sequence[KernelResult], failures: Sequence[CompileFailure]
) -> Mapping[str, object]:
    """Return what `--json` says."""
    return {
        "target": target.name,
        "num_sms": target.num_sms,
        "schedules": [f"{x.mode} {x.seed}" for x in asked.schedules],
        "problem": asked.problem,
        "num_kernels": len(results),
        "num_right": sum(x.is_right for x in results),
        "kernels": [{**vars(x), "is_right": x.is_right, "worst_share_of_bound": x.worst_share} for x in results],
        "not_compiled": {x.name: x.reason for x in failures},
    }


def _row(result: KernelResult) -> tuple[object, ...]:
    wrong = len(result.cases) - result.num_right
    return (
        result.name,
        len(result.cases),
        result.num_right,
        wrong if not result.error else f"{wrong} *",
        f"{result.worst_share:.2f}",
        sum(x.is_fault for case in result.cases for x in case.findings),
        result.num_runs,
        f"{result.num_instructions:,}",
        f"{result.seconds:.1f}",
    )


HEADER = ("kernel", "cases", "right", "wrong", "worst error of bound", "findings", "runs", "warp instructions", "s")


def _case_lines(case: CaseResult) -> Iterator[str]:
    if case.fault:
        yield f"  {case.case}: {case.fault} (schedule {case.schedule})"
    for x in case.findings:
        kind = "" if x.is_fault else "note: "
        yield f"  {case.case}: {kind}{x.kind}, {x.count} times, first under {x.schedule}: {x.where}: {x.text}"


def _wrongs(results: Sequence[KernelResult]) -> Iterator[str]:
    for result in (x for x in results if not x.is_right):
        yield f"{result.name}:"
        if result.error:
            yield f"  not executed: {result.error}"
        lines = [line for case in result.cases if not case.is_right for line in _case_lines(case)]
        yield from lines[:MAX_SHOWN]
        if len(lines) > MAX_SHOWN:
            yield f"  and {len(lines) - MAX_SHOWN} more; --json has all"


def _notes(results: Sequence[KernelResult]) -> Iterator[str]:
    """List the notes, each kind once, with the kernel that has most of them."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        for x in (x for case in result.cases for x in case.findings if not x.is_fault):
            counts.setdefault(x.kind, Counter())[result.name] += x.count
    for kind, by_kernel in counts.items():
        name, count = by_kernel.most_common(1)[0]
        yield f"note: {kind}: in {len(by_kernel)} kernels; {name} has most, {count:,}"


def _left_out(results: Sequence[KernelResult], asked: ExecutionOptions) -> Iterator[str]:
    count = sum(len(x.left_out) for x in results)
    if count:
        yield (
            f"{count} cases were left out, which would execute more than {asked.max_instructions:,} warp instructions "
            "each; --max-instructions takes more, and --json names them"
        )


def _counted(case: CaseResult) -> Iterator[str]:
    """List what was executed on one problem: instruction forms, operations, bytes."""
    runs = max(case.num_runs, 1)
    yield f"{case.case}, a run:"
    rows = [(name, f"{count / runs:,.0f}") for name, count in Counter(case.counts).most_common(MAX_SHOWN)]
    yield table(("instruction or operation", "executions"), rows)
    if case.bytes_moved:
        moved = sorted(case.bytes_moved.items())
        yield table(("bytes moved, conflicts", "number"), [(name, f"{count / runs:,.0f}") for name, count in moved])


def text(results: Sequence[KernelResult], asked: ExecutionOptions, num_left: int = 0) -> str:
    """Return what is printed for people.

    Args:
        results: of the kernels that were executed.
        asked: how.
        num_left: kernels that were not, since the command was interrupted.
    """
    lines = [table(HEADER, [_row(x) for x in results]), *_wrongs(results), *_notes(results)]
    if any(x.error for x in results):
        lines.append("* not executed, or not to its end")
    lines += _left_out(results, asked)
    if asked.counts:
        lines += [line for x in results for case in x.cases for line in _counted(case)]
    num_right = sum(x.is_right for x in results)
    names = ", ".join(f"{x.mode} {x.seed}" for x in asked.schedules[:6])
    more = f" and {len(asked.schedules) - 6} more" if len(asked.schedules) > 6 else ""
    if num_left:
        lines.append(f"{num_left} kernels were not executed")
    lines.append(f"{num_right} of {len(results)} kernels are right; schedules: {names}{more}")
    return "\n".join(lines)


def sight_facts(sights: Sequence[Sight]) -> Sequence[Mapping[str, object]]:
    """Return what `--json` says of mutants."""
    return [
        {
            "kernel": x.kernel,
            "changes": {y.name: {"found": found, "made": made} for y, (found, made) in x.counts().items()},
            "mutants": [{**vars(y), "change": y.change.name} for y in x.sightings],
        }
        for x in sights
    ]


def sight_text(sights: Sequence[Sight]) -> str:
    """Return what is printed of mutants: of each kernel, what was changed, how many were found, and which were not."""
    lines: list[str] = []
    for x in sights:
        rows = [(change.value, found, made) for change, (found, made) in x.counts().items()]
        lines.append(f"{x.kernel}:")
        lines.append(table(("change", "found", "made"), rows))
        num_unreached = sum(not y.is_reached for y in x.sightings)
        if num_unreached:
            lines.append(f"{num_unreached} more stand where the problem does not lead: give a larger one")
        lines += [f"  not found, line {y.line}: {y.change.value}: {y.text:.100}" for y in x.missed]
    return "\n".join(lines)
