"""The census of a space: every family's every candidate judged, the legal ones compiled, each object read and counted.

What legality lets through must compile and pass the gate (`aot.compile.object_file`): a failure here is a bug, of
legality or of the family. Pure: counts results, and lays them out; the command compiles.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from aot.compile.artifact import Artifact, CompileFailure
from aot.compile.legal_keys import candidates_of
from aot.core.candidate import Accepted, Verdict
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
from aot.core.kernel import Kernel
from aot.core.operation import Operation
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.core.work import AnyKey
from aot.kinds.rows.catalogue import CataloguedRow, row_operations
from aot.kinds.rows.operation import RowOperation
from aot.space.legality import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from aot.core.target import Target

    Result = Artifact[Any] | CompileFailure | None
    Lookup = Callable[[AnyKey], Result]

Figure = Annotated[float, Range(0, 1e12)]

CENSUS_VERSION = 2
"""Version of the file; a reader refuses any other."""

OPERATIONS: tuple[Operation | RowOperation, ...] = (*Operation, *row_operations())
"""Those that a census counts by default: all that there are."""


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
class Counts:
    """What became of one family's candidates of one operation.

    Rejected are counts by reason. The figures are of what compiled and passed the gate: sizes in bytes, registers a
    thread, columns of tensor memory a block, and the compiler's CPU time in seconds a kernel. `num_spilling` have a
    stack or local memory, of at most `spill_bytes` a thread. `failures` are legal candidates that did not compile, or
    whose object the gate refused, with the reason.
    """

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
class CensusRow(Counts):
    """One family's candidates of a product."""

    operation: Operation


@dataclass(frozen=True)
class RowCensusRow(Counts):
    """One family's candidates of an operation on rows."""

    operation: CataloguedRow


@dataclass(frozen=True)
class Census:
    """A target's census: the families of products, and those of operations on rows."""

    version: Version
    target: TargetName
    arch: Arch
    toolchain: dict[Distribution, Release]
    rows: tuple[CensusRow, ...]
    on_rows: tuple[RowCensusRow, ...]

    @property
    def all_rows(self) -> tuple[CensusRow | RowCensusRow, ...]:
        """Return the rows of products, then those of operations on rows."""
        return (*self.rows, *self.on_rows)


AnyRow = TypeVar("AnyRow", CensusRow, RowCensusRow)


def read_census(path: Path) -> Census:
    """Read what the study `census` wrote.

    Raises:
        StoreError: the file cannot be read, or is of another version.
    """
    try:
        return decode_version(Census, parse_json(read_content(path)), "version", CENSUS_VERSION)
    except DecodeError as error:
        raise StoreError(
            f"cannot read the census {path}: {error}; make it again: python -m research.studies census"
        ) from error


def _judged(operation: Operation | RowOperation, target: Target) -> dict[str, list[tuple[AnyKey, Verdict]]]:
    """Judge every candidate of every family that computes an operation, by the family's name."""
    return {
        name: [(key, check(key.candidate, key.operation, target)) for key in keys]
        for name, keys in candidates_of(operation, target).items()
    }


def _counts(family: str, judged: Sequence[tuple[AnyKey, Verdict]], result: Lookup) -> dict[str, Any]:
    """Count a family's candidates; return the fields of `Counts`."""
    rejected = Counter(verdict.reason.value for _, verdict in judged if not isinstance(verdict, Accepted))
    results = [result(key) for key, verdict in judged if isinstance(verdict, Accepted)]
    kernels = [x.kernel for x in results if isinstance(x, Artifact)]
    seconds = [x.cpu_s for x in results if x]
    return {
        "family": family,
        "num_candidates": len(judged),
        "num_accepted": len(results),
        "rejected": dict(rejected),
        "num_compiled": len(kernels),
        "failures": {x.name: x.reason for x in results if isinstance(x, CompileFailure)},
        "object_bytes": Span.of([x.object_bytes for x in kernels]),
        "smem_bytes": Span.of([x.smem_bytes for x in kernels]),
        "registers": Span.of([x.registers for x in kernels]),
        "tmem_columns": max((x.tmem_columns for x in kernels if isinstance(x, Kernel)), default=0),
        "num_spilling": sum(x.spill_bytes > 0 for x in kernels),
        "spill_bytes": max((x.spill_bytes for x in kernels), default=0),
        "cpu_s": Span.of(seconds),
        "total_cpu_s": round(sum(seconds), 1),
    }


def count(
    operations: Sequence[Operation | RowOperation], target: Target, toolchain: dict[str, str], result: Lookup
) -> Census:
    """Count what became of every candidate.

    Args:
        operations: whose candidates.
        target: device and host.
        toolchain: versions of what compiled them.
        result: gives what compiling made of a kernel; None of one that was not compiled.
    """
    rows: list[CensusRow] = []
    on_rows: list[RowCensusRow] = []
    for operation in operations:
        for family, judged in _judged(operation, target).items():
            counts = _counts(family, judged, result)
            if isinstance(operation, RowOperation):
                on_rows.append(RowCensusRow(operation=operation, **counts))
            else:
                rows.append(CensusRow(operation=operation, **counts))
    return Census(CENSUS_VERSION, target.name, target.arch, toolchain, tuple(rows), tuple(on_rows))


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
    return replace(
        later,
        rows=_merged(earlier.rows, later.rows),
        on_rows=_merged(earlier.on_rows, later.on_rows),
    )


def _merged(earlier: tuple[AnyRow, ...], later: tuple[AnyRow, ...]) -> tuple[AnyRow, ...]:
    """Return the rows of both, in the catalogue's order; of an operation that both have, the later ones."""
    again = {row.operation for row in later}
    rows = [row for row in earlier if row.operation not in again]
    rows += later
    return tuple(sorted(rows, key=lambda row: row.operation.position))


def text(census: Census) -> str:
    """Return a census as JSON with a line for each family and operation, so that a change shows as its lines."""
    fields = asdict(census)
    rows = {name: [json.dumps(row, sort_keys=True) for row in fields.pop(name)] for name in ("on_rows", "rows")}
    head = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in sorted(fields.items())]
    lists = ["".join((json.dumps(name), ": [\n", ",\n".join(lines), "\n]")) for name, lines in rows.items()]
    return "".join(("{\n", ",\n".join((*head, *lists)), "\n}\n"))


MEANING = (
    "A legal candidate was compiled for the target's device and host, and its object was read: the architecture of",
    "both, and shared memory and registers against the limits. Where fewer were compiled than are legal, they were",
    "drawn at random. Nothing was run. The last four columns are of what was compiled: the largest object, the most",
    "shared memory and registers of any kernel, and how many kernels keep values on a stack.",
)
HEADER = (
    "family",
    "operations",
    "candidates",
    "legal",
    "compiled",
    "failed",
    "object KiB",
    "shared memory B",
    "registers",
    "with a stack",
)


def totals(census: Census) -> str:
    """Say in one line how many were judged, legal, compiled and failed, and what that took."""
    rows = census.all_rows
    compiled = sum(row.num_compiled for row in rows)
    untried = sum(row.num_untried for row in rows)
    return (
        f"{sum(row.num_candidates for row in rows):,} candidates of {census.target} ({census.arch}): "
        f"{sum(row.num_accepted for row in rows):,} legal, {compiled:,} compiled and passed the gate, "
        f"{sum(len(row.failures) for row in rows):,} failed, {untried:,} not compiled; "
        f"{sum(row.total_cpu_s for row in rows) / 3600:.1f} CPU hours"
    )


def _most(spans: Iterable[Span | None], unit: int = 1) -> str:
    return f"{max((x.most for x in spans if x), default=0) / unit:,.0f}"


def _cells(family: str, rows: Sequence[CensusRow | RowCensusRow]) -> tuple[str, ...]:
    counts = (
        len(rows),
        sum(row.num_candidates for row in rows),
        sum(row.num_accepted for row in rows),
        sum(row.num_compiled for row in rows),
        sum(len(row.failures) for row in rows),
    )
    return (
        f"`{family}`",
        *(f"{count:,}" for count in counts),
        _most((row.object_bytes for row in rows), 1024),
        _most(row.smem_bytes for row in rows),
        _most(row.registers for row in rows),
        f"{sum(row.num_spilling for row in rows):,}",
    )


def _reasons(census: Census) -> list[str]:
    found = Counter[str]()
    for row in census.all_rows:
        found.update(row.rejected)
    return [f"| {reason} | {number:,} |" for reason, number in sorted(found.items(), key=lambda x: (-x[1], x[0]))]


def markdown(census: Census, data: str) -> str:
    """Lay a census out as Markdown: its totals, its families, why candidates were rejected, and each failure's reason.

    Args:
        census: what to show.
        data: address of the JSON that has the figures of every operation.
    """
    families: dict[str, list[CensusRow | RowCensusRow]] = {}
    for row in census.all_rows:
        families.setdefault(row.family, []).append(row)
    lines = [
        f"# Every candidate of {census.target}, judged and compiled",
        "",
        f"{totals(census)}.",
        "",
        *MEANING,
        "",
        f"| {' | '.join(HEADER)} |",
        f"|---|{'--:|' * (len(HEADER) - 1)}",
        *(f"| {' | '.join(_cells(name, rows))} |" for name, rows in sorted(families.items())),
        "",
        "Why candidates are not legal:",
        "",
        "| reason | candidates |",
        "|---|--:|",
        *_reasons(census),
        "",
        f"[The data]({data}) has each operation and family apart, with the compiler's CPU time.",
        "The study `census` ([CONTRIBUTING](../CONTRIBUTING.md#how-to-add)) writes this page. Compiled with",
        f"{', '.join(f'{name} {version}' for name, version in sorted(census.toolchain.items()))}.",
    ]
    failures = [f"- `{name}`: {reason}" for row in census.all_rows for name, reason in sorted(row.failures.items())]
    return "\n".join([*lines, *(["", "Failed:", "", *failures] if failures else []), ""])
