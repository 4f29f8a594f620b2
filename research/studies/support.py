"""What supports each operation on each target: times of its own, kernels that only compile, or the fallback alone.

It follows from the catalogue, legality, the committed records and the committed selections. `python -m
research.studies.support` writes its tables into docs/operations.md, between their marks; none is stated by hand.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted
from aot.core.errors import CandidateError, OutputError
from aot.core.execution import executions_path, read_executions
from aot.core.operation import Operation
from aot.core.target import load_target, target_names
from aot.core.whole_file import write_whole
from aot.families import all_families_for, families, families_for
from aot.kinds.named_operations import PRESETS, all_named_operations
from aot.kinds.registry import KINDS, all_operations
from aot.kinds.rows.catalogue import row_operations
from aot.kinds.rows.operation import RowOperation, RowScale
from aot.select.pipeline import committed_selection, records_of, timed_operations
from aot.select.selection import read_selection
from aot.select.times.record import recorded_kernels
from aot.space.enumeration import fallback, legal
from aot.space.legality import check, unbuilt
from research.bench.compact import read_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot.core.target import Target
    from aot.core.work import AnyOperation
    from aot.families import Family

PAGE = Path("docs/operations.md")
BEGIN = "<!-- written by python -m research.studies.support: not to be edited -->"
END = "<!-- end of what is written -->"

RECORDS = Path(__file__).parents[2] / "aot" / "records"

MEASURED = "measured"
SHIPPED = "by the times of"
PROVEN = "right, not timed"
EXECUTED = "executed, not run"
COMPILED = "compiles, not run"
FALLBACK = "fallback only"
REFUSED = "none"


@cache
def measured_operations(target: str) -> frozenset[Operation]:
    """Return the operations of which the committed records of a target have kernels that were measured."""
    return timed_operations(load_target(target), RECORDS)


RESULTS = Path("research/bench/results")
"""What `research/bench/operands.py` wrote on a target's device: TARGET_DATE_operands*.json."""


@cache
def proven_operations(target: str) -> frozenset[Operation]:
    """Return the operations whose results on random problems were all right on a target's device."""
    found: set[Operation] = set()
    by_tag = {x.tag: x for x in Operation}
    for path in sorted(RESULTS.glob(f"{target}_*_operands*.json")):
        checks = read_result(path)["checks"]
        found |= {by_tag[x["operation"]] for x in checks if x["num_problems"] and x["num_right"] == x["num_problems"]}
    return frozenset(found)


@cache
def measured_rows(target: str) -> frozenset[RowOperation]:
    """Return the operations on rows of which the committed record of a target has times, if it has one."""
    kernels = (key for path in records_of(load_target(target), RECORDS) for key in recorded_kernels(path))
    return frozenset(key.operation for key in kernels if isinstance(key.operation, RowOperation))


@cache
def proven_rows(target: str) -> frozenset[RowOperation]:
    """Return the operations on rows whose kernels were all right on a target's device.

    TARGET_DATE_row_kernels.json has the faults of each kernel; TARGET_DATE_verified.json what `aot verify --device`
    found right of a wheel, all of whose kernels it runs.
    """
    faults: dict[str, int] = {}
    for path in sorted(RESULTS.glob(f"{target}_*_row_kernels.json")):
        faults |= {name: wrong for name, (_, wrong) in read_result(path)["checks"].items()}
    for path in sorted(RESULTS.glob(f"{target}_*_verified.json")):
        faults |= {line.split(":")[0]: 0 for line in read_result(path)["right"]}
    found = {x: [wrong for name, wrong in faults.items() if name.startswith(f"{x}_row_")] for x in row_operations()}
    return frozenset(x for x, of_kernels in found.items() if of_kernels and not any(of_kernels))


@cache
def executed_operations(target: str) -> frozenset[AnyOperation]:
    """Return the operations of which the interpreter executed kernels for a target, not the fallback's, all right."""
    path = executions_path(target)
    right: dict[str, bool] = {x.kernel: x.is_right for x in read_executions(path, target)} if path.exists() else {}
    known = (x for kind in KINDS for x in all_families_for(load_target(target), kind))
    names = [x.name for x in known if not x.is_fallback]
    verdicts: dict[str, list[bool]] = {}
    for kernel, is_right in right.items():
        for name in names:
            tag, found, _ = kernel.partition(f"_{name}_")
            if found:
                verdicts.setdefault(tag, []).append(is_right)
    return frozenset(x for tag, x in all_operations().items() if all(verdicts.get(tag, [False])))


@cache
def shipped_operations(target: str) -> frozenset[Operation]:
    """Return the operations that the committed selection of a target has, if there is one."""
    path = committed_selection(load_target(target))
    return frozenset(read_selection(path).products if path else ())


def family_fault(family: Family, operation: Operation, target: Target) -> str:
    """Say why a family has no kernel for an operation on a target; empty where it has one."""
    return _family_fault(family.name, operation, target)


@cache
def _family_fault(name: str, operation: Operation, target: Target) -> str:
    family = families()[name]
    missing = unbuilt(family, operation)
    if missing:
        return missing.value
    fault = "there is no candidate"
    for candidate in family.candidates(operation, target):
        verdict = check(candidate, operation, target)
        if isinstance(verdict, Accepted):
            return ""
        fault = verdict.reason.value
    return fault


@dataclass(frozen=True)
class Support:
    """What supports an operation on a target."""

    status: str
    reason: str = ""
    """Where not even the fallback computes it."""


@cache
def _has_tuned(operation: Operation, target: str) -> bool:
    device = load_target(target)
    return any(not family_fault(x, operation, device) for x in families_for(device) if not x.is_fallback)


@cache
def support(operation: Operation, target: str) -> Support:
    """Say what supports an operation on a target."""
    if operation in measured_operations(target):
        return Support(MEASURED)
    nearest = next((x for x in operation.equivalents if x in measured_operations(target)), None)
    if nearest and operation in shipped_operations(target):
        return Support(f"{SHIPPED} {nearest.tag}")
    for status, found in ((PROVEN, proven_operations), (EXECUTED, executed_operations)):
        if operation in found(target):
            return Support(status)
    if _has_tuned(operation, target):
        return Support(COMPILED)
    try:
        fallback(operation, load_target(target))
    except CandidateError as error:
        lacked = load_target(target).lacks(operation.types.needs)
        return Support(REFUSED, f"the chip lacks {', '.join(lacked)}" if lacked else str(error))
    return Support(FALLBACK)


@cache
def row_support(operation: RowOperation, target: str) -> Support:
    """Say what supports an operation on rows on a target."""
    device = load_target(target)
    try:
        fallback(operation, device)
    except CandidateError as error:
        return Support(REFUSED, str(error))
    if operation in measured_rows(target):
        return Support(MEASURED)
    for status, found in ((PROVEN, proven_rows), (EXECUTED, executed_operations)):
        if operation in found(target):
            return Support(status)
    return Support(COMPILED if legal(operation, device) else FALLBACK)


_SCALES = {
    RowScale.NONE: "none",
    RowScale.ROW: "of rows, or given",
    RowScale.BLOCK: "of 128 columns",
    RowScale.TENSOR: "one of all",
    RowScale.NVFP4: "of 16 columns, in atoms; one of all is given",
    RowScale.MX: "of 32 columns, in atoms",
}


def alike(targets: Sequence[str]) -> list[list[str]]:
    """Group the targets of which the same is said of every operation, which share a column of the tables."""
    return _grouped(
        targets,
        lambda target: (
            *(support(x, target).status for x in Operation),
            *(row_support(x, target).status for x in row_operations()),
        ),
    )


def _of_rows(targets: Sequence[str]) -> list[list[str]]:
    """List what supports each operation on rows."""
    return [
        [
            f"`{x.tag}`",
            x.x.tag if x.x is x.y else f"{x.x.tag} to {x.form or x.y.tag}",
            _SCALES[x.scale],
            *(row_support(x, target).status for target in targets),
        ]
        for x in row_operations()
    ]


def _preset(name: str) -> str:
    """List what a preset stands for: products, then operations on rows."""
    found = all_named_operations(name)
    return ", ".join(f"`{x}`" for x in (*found.products, *found.others))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(header), f"|{'---|' * len(header)}", *map(_row, rows)]


def _types(operation: Operation) -> str:
    types = operation.types
    a, b = types.a.tag, types.b.tag if types.weight is None else types.weight.name
    return f"{a if a == b else f'{a} x {b}'} to {types.d.tag}"


def _steps(operation: Operation) -> str:
    return ", ".join(step.value for step in operation.steps) or "none"


def _families(operation: Operation, arch: str) -> str:
    """List the families that build an operation for an architecture, the fallback aside."""
    targets = [target for target in map(load_target, target_names()) if target.arch == arch]
    names = {
        family.name
        for target in targets
        for family in families_for(target)
        if not family.is_fallback and not family_fault(family, operation, target)
    }
    return ", ".join(sorted(names)) or "none"


def _built(archs: Sequence[str]) -> list[list[str]]:
    """List the families that build operations, those of the same families in one row."""
    found: dict[tuple[str, ...], list[str]] = {}
    for operation in Operation:
        found.setdefault(tuple(_families(operation, arch) for arch in archs), []).append(f"`{operation.tag}`")
    return [[", ".join(tags), *names] for names, tags in found.items()]


def _refused(targets: list[str]) -> Iterator[str]:
    """Say why operations are refused, all that the same targets refuse for one reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    for operation in Operation:
        by_reason: dict[str, list[str]] = {}
        for target in targets:
            reason = support(operation, target).reason
            if reason:
                by_reason.setdefault(reason, []).append(target)
        for reason, names in by_reason.items():
            found.setdefault((", ".join(names), reason), []).append(f"`{operation.tag}`")
    yield from (f"- On {names}, {reason}: {', '.join(tags)}." for (names, reason), tags in found.items())


def _grouped(names: Sequence[str], column: Callable[[str], tuple[str, ...]]) -> list[list[str]]:
    """Group names of columns that are the same in all rows."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        found.setdefault(column(name), []).append(name)
    return list(found.values())


def markdown() -> str:
    """Write the tables: operations by targets, the kernel families behind them, and the presets."""
    targets = target_names()
    columns = alike(targets)
    named, firsts = [", ".join(names) for names in columns], [names[0] for names in columns]
    every = sorted({load_target(name).arch for name in targets})
    archs = _grouped(every, lambda arch: tuple(_families(x, arch) for x in Operation))
    rows = [[f"`{x.tag}`", _types(x), _steps(x), *(support(x, target).status for target in firsts)] for x in Operation]
    presets = [[f"`{name}`", _preset(name)] for name in PRESETS]
    refused = list(_refused(targets))
    return "\n".join(
        [
            *_table(["operation", "A x B to D", "steps", *named], rows),
            "",
            *(["Refused:", "", *refused, ""] if refused else []),
            "The kernel families that build them, beside the fallback:",
            "",
            *_table(["operations", *(", ".join(x) for x in archs)], _built([x[0] for x in archs])),
            "",
            "Operations on rows:",
            "",
            *_table(["operation", "X to Y", "scales", *named], _of_rows(firsts)),
            "",
            "Presets:",
            "",
            *_table(["preset", "operations"], presets),
        ]
    )


def with_tables(page: str) -> str:
    """Return the page with its tables written anew.

    Raises:
        OutputError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise OutputError(f"the page has no place for its tables; expected the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


def main() -> None:
    """Write the tables of docs/operations.md."""
    write_whole(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
    sys.stdout.write(f"wrote {PAGE}\n")


if __name__ == "__main__":
    main()
