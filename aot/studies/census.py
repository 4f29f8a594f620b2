"""The census of a space: every family's every candidate judged, the legal ones compiled, each object read and counted.

What legality lets through must compile and pass the gate (`aot.compile.object_file`): a failure here is a bug, of
legality or of the family. Pure: counts results, and lays them out; `aot census` compiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated

from aot.compile.artifact import Artifact, CompileFailure
from aot.core.candidate import Accepted, KernelKey
from aot.core.constraints import (
    Arch,
    Count,
    Distribution,
    FamilyName,
    KernelName,
    Label,
    Range,
    Release,
    TargetName,
    Text,
    Version,
)
from aot.core.errors import StoreError
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.types import BF16, FP16
from aot.families import families_of
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from aot.core.target import Target
    from aot.families import Family

    Lookup = Callable[[KernelKey], Artifact | CompileFailure | None]

Figure = Annotated[float, Range(0, 1e12)]

CENSUS_VERSION = 1
"""Version of the file; a reader refuses any other."""

OPERATIONS = tuple(
    sorted(
        (x for x in Operation if x.types in (BF16, FP16) and not x.steps and x.grouping is Grouping.DENSE),
        key=lambda x: x.layout.code,
    )
)
"""Those that a census counts by default: those with an epilogue are built of the same kernels.

Batches and groups have kernels of their own, which a census is asked for by their tags.
"""


def _order(operation: Operation) -> tuple[bool, int, int]:
    """Return the place of an operation's rows: those that are counted by default first."""
    return operation not in OPERATIONS, operation.layout.code, operation.position


@dataclass(frozen=True)
class Span:
    """Smallest, median and largest of a figure."""

    least: Figure
    middle: Figure
    most: Figure

    @staticmethod
    def of(values: Sequence[float]) -> Span | None:
        """Return the span of some values; None of none."""
        return Span(min(values), median(values), max(values)) if values else None


@dataclass(frozen=True)
class CensusRow:
    """One family's candidates of one operation.

    Rejected are counts by reason. The figures are of what compiled and passed the gate: sizes in bytes, registers a
    thread, columns of tensor memory a block, and the compiler's CPU time in seconds a kernel. `num_spilling` have a
    stack or local memory, of at most `spill_bytes` a thread. `failures` are legal candidates that did not compile, or
    whose object the gate refused, with the reason.
    """

    operation: Operation
    family: FamilyName
    num_candidates: Count
    num_accepted: Count
    rejected: dict[Label, Count]
    num_compiled: Count
    failures: dict[KernelName, Text]
    object_bytes: Span | None
    smem_bytes: Span | None
    registers: Span | None
    tmem_columns: Count
    num_spilling: Count
    spill_bytes: Count
    cpu_s: Span | None
    total_cpu_s: Figure

    @property
    def num_untried(self) -> int:
        """Return how many legal candidates were not compiled yet."""
        return self.num_accepted - self.num_compiled - len(self.failures)


@dataclass(frozen=True)
class Census:
    """A target's census."""

    version: Version
    target: TargetName
    arch: Arch
    toolchain: dict[Distribution, Release]
    rows: tuple[CensusRow, ...]


def read_census(path: Path) -> Census:
    """Read what `aot census --output` wrote.

    Raises:
        StoreError: the file cannot be read, or is of another version.
    """
    try:
        return decode_version(Census, parse_json(read_content(path)), "version", CENSUS_VERSION)
    except DecodeError as error:
        raise StoreError(f"cannot read the census {path}: {error}; make it again: aot census -o {path}") from error


def legal_keys(operation: Operation, target: Target) -> list[KernelKey]:
    """List what the census of an operation compiles: every legal candidate of every family, the fallback's too."""
    return [
        KernelKey(operation, candidate)
        for family in families_of(operation, target)
        for candidate in family.candidates(operation, target)
        if isinstance(check(candidate, operation, target), Accepted)
    ]


def _count(
    family: Family,
    operation: Operation,
    target: Target,
    result: Callable[[KernelKey], Artifact | CompileFailure | None],
) -> CensusRow:
    rejected: dict[str, int] = {}
    results, num_candidates, num_accepted = [], 0, 0
    for candidate in family.candidates(operation, target):
        num_candidates += 1
        verdict = check(candidate, operation, target)
        if isinstance(verdict, Accepted):
            num_accepted += 1
            results.append(result(KernelKey(operation, candidate)))
        else:
            rejected[verdict.reason.value] = rejected.get(verdict.reason.value, 0) + 1
    kernels = [x.kernel for x in results if isinstance(x, Artifact)]
    seconds = [x.cpu_s for x in results if x]
    return CensusRow(
        operation=operation,
        family=family.name,
        num_candidates=num_candidates,
        num_accepted=num_accepted,
        rejected=rejected,
        num_compiled=len(kernels),
        failures={x.name: x.reason for x in results if isinstance(x, CompileFailure)},
        object_bytes=Span.of([x.object_bytes for x in kernels]),
        smem_bytes=Span.of([x.smem_bytes for x in kernels]),
        registers=Span.of([x.registers for x in kernels]),
        tmem_columns=max((x.tmem_columns for x in kernels), default=0),
        num_spilling=sum(x.spill_bytes > 0 for x in kernels),
        spill_bytes=max((x.spill_bytes for x in kernels), default=0),
        cpu_s=Span.of(seconds),
        total_cpu_s=round(sum(seconds), 1),
    )


def count(operations: Sequence[Operation], target: Target, toolchain: dict[str, str], result: Lookup) -> Census:
    """Count what became of every candidate.

    Args:
        operations: whose candidates.
        target: device and host.
        toolchain: versions of what compiled them.
        result: gives what compiling made of a kernel; None of one that was not compiled.
    """
    rows = [
        _count(family, operation, target, result)
        for operation in operations
        for family in families_of(operation, target)
    ]
    return Census(CENSUS_VERSION, target.name, target.arch, toolchain, tuple(rows))


def merge(earlier: Census, later: Census) -> Census:
    """Put the rows of a later census in the place of an earlier one's rows of the same operations.

    Raises:
        StoreError: the earlier one is of another target or another toolchain.
    """
    if (earlier.target, earlier.toolchain) != (later.target, later.toolchain):
        raise StoreError(
            f"the census there is of {earlier.target} with {earlier.toolchain}, this one of {later.target} with "
            f"{later.toolchain}; write to another file, or remove that one"
        )
    again = {row.operation for row in later.rows}
    rows = [*(row for row in earlier.rows if row.operation not in again), *later.rows]
    return replace(later, rows=tuple(sorted(rows, key=lambda row: _order(row.operation))))


def _span(span: Span | None, unit: float = 1, digits: int = 0) -> str:
    return " / ".join(f"{x / unit:.{digits}f}" for x in (span.least, span.middle, span.most)) if span else "-"


def _cells(row: CensusRow) -> Iterator[str]:
    yield row.operation.tag
    yield row.family
    yield f"{row.num_candidates:,}"
    yield ", ".join(f"{count:,} {reason}" for reason, count in sorted(row.rejected.items())) or "-"
    yield f"{row.num_accepted:,}"
    yield f"{row.num_compiled:,}"
    yield f"{len(row.failures):,}"
    yield _span(row.object_bytes, 1024)
    yield f"{row.smem_bytes.most:,.0f}" if row.smem_bytes else "-"
    yield f"{row.tmem_columns}"
    yield _span(row.registers)
    yield f"{row.num_spilling} (to {row.spill_bytes} B)" if row.num_spilling else "0"
    yield _span(row.cpu_s, digits=2)


HEADER = (
    "operation",
    "family",
    "candidates",
    "rejected, by reason",
    "legal",
    "compiled",
    "failed",
    "object KiB",
    "SMEM B, most",
    "TMEM columns, most",
    "registers",
    "with a stack",
    "CPU s a kernel",
)


def totals(census: Census) -> str:
    """Say in one line how many were judged, legal, compiled and failed, and what that took."""
    rows = census.rows
    compiled = sum(row.num_compiled for row in rows)
    untried = sum(row.num_untried for row in rows)
    return (
        f"{sum(row.num_candidates for row in rows):,} candidates of {census.target} ({census.arch}): "
        f"{sum(row.num_accepted for row in rows):,} legal, {compiled:,} compiled and passed the gate, "
        f"{sum(len(row.failures) for row in rows):,} failed, {untried:,} not compiled; "
        f"{sum(row.total_cpu_s for row in rows) / 3600:.1f} CPU hours"
    )


def markdown(census: Census) -> str:
    """Lay a census out as a Markdown table, with its totals and each failure's reason."""
    made_by = ", ".join(f"{name} {version}" for name, version in sorted(census.toolchain.items()))
    lines = [
        f"# Every candidate of {census.target}, judged and compiled",
        "",
        " ".join(
            [
                f"Made by `aot census --target {census.target}` with {made_by}; not to be edited.",
                "A candidate that is legal was compiled for the target's device and host, and its object read:",
                "architecture of both, shared memory and registers against the limits, stack. Figures with two",
                "strokes: least / median / most. CPU time is the compiler's, on a build host. What is not compiled yet",
                "is counted.",
            ]
        ),
        "",
        totals(census) + ".",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *(f"| {' | '.join(_cells(row))} |" for row in census.rows),
    ]
    failures = [f"- `{name}`: {reason}" for row in census.rows for name, reason in sorted(row.failures.items())]
    return "\n".join([*lines, *(["", "Failed:", "", *failures] if failures else []), ""])
