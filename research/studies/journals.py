"""What tunings of operations on rows wrote until 2026-11-27: journals of JSON lines, and records of their own.

A journal has a line for each run, kernel that began, was verified or taken out, and time; a record a head and times.
Both kept of a time the median of its 7 rounds alone, so that the quartiles that are made of it are the median too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from aot.core.constraints import Extent, Grammar, Index, Rate, TargetName, Text, Version
from aot.core.errors import StoreError
from aot.core.measurement import AnyRecord, Conditions, Measurement, Record
from aot.core.strict_json import DecodeError, decode, decode_version, parse_json, read_content
from aot.kinds.rows.candidate import RowCandidate, RowKernelKey
from aot.kinds.rows.catalogue import CataloguedRow
from aot.kinds.rows.problem import RowProblem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

VERSION = 1
"""The only version that there was of either."""
NUM_ROUNDS = 7
"""Rounds of a time. Source: `TimingPlan.final_rounds` of that day."""

Identity = Annotated[str, Grammar(r"[a-z][a-z0-9_]* [0-9a-f]{64}", "a kernel's name and its object's SHA-256", 300)]


@dataclass(frozen=True)
class _Run:
    row_results_version: Version
    target: TargetName
    conditions: Conditions


@dataclass(frozen=True)
class _Start:
    kernel: Identity
    what: Text
    run: Index


@dataclass(frozen=True)
class _Idle:
    pass


@dataclass(frozen=True)
class _Verified:
    kernel: Identity


@dataclass(frozen=True)
class _Quarantined:
    kernel: Identity
    reason: Text


@dataclass(frozen=True)
class _Time:
    operation: CataloguedRow
    candidate: RowCandidate
    rows: Extent
    cols: Extent
    median_us: Rate
    kernel: Identity | None = None
    """None in a record."""

    def measurement(self) -> Measurement[RowProblem, RowKernelKey]:
        key, problem = RowKernelKey(self.operation, self.candidate), RowProblem(self.operation, self.rows, self.cols)
        return Measurement(key, problem, self.median_us, self.median_us, self.median_us, NUM_ROUNDS, 0.0)


_LINES: dict[str, Any] = {
    "run": _Run,
    "start": _Start,
    "idle": _Idle,
    "verified": _Verified,
    "quarantined": _Quarantined,
    "time": _Time,
}


def _line(value: Any) -> Any:
    """Decode a line of a journal (DecodeError)."""
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _LINES:
        raise DecodeError(f"is no line of results; expected one of {', '.join(_LINES)}")
    ((name, values),) = value.items()
    if name == "run":
        return decode_version(_Run, values, "row_results_version", VERSION)
    return decode(_LINES[name], values)


@dataclass(frozen=True)
class _Head:
    row_record_version: Version
    target: TargetName
    conditions: Conditions


def _record(target: str, conditions: Iterable[Conditions], times: Iterable[_Time]) -> AnyRecord:
    """Make a record of times; of several of a kernel and size the last one counts."""
    latest = {(x.operation, x.cols, x.rows, x.candidate): x.measurement() for x in times}
    measurements = tuple(sorted(latest.values(), key=lambda x: x.place))
    return Record(target, tuple(dict.fromkeys(conditions)), measurements)


def is_journal(path: Path) -> bool:
    """Say whether a file is such a journal, rather than a store."""
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(b'{"run": ')
    except OSError:
        return False


def read_journal(path: Path) -> AnyRecord:
    """Read a journal; a last line without an end, as a power cut left it, counts for nothing.

    Raises:
        StoreError: it cannot be read, is damaged, of another version or of several devices, or holds no time.
    """
    found: list[Any] = []
    try:
        content = read_content(path)
        for text in content[: content.rfind(b"\n") + 1].splitlines():
            found.append(_line(parse_json(text)))  # noqa: PERF401 - its length is the line of an error
    except DecodeError as error:
        raise StoreError(f"{path}: line {len(found) + 1}: {error}; measure again") from error
    runs = [x for x in found if isinstance(x, _Run)]
    bad = {x.kernel for x in found if isinstance(x, _Quarantined)}
    times = [x for x in found if isinstance(x, _Time) and x.kernel not in bad]
    if len({(x.target, *x.conditions.key) for x in runs}) != 1 or not times:
        raise StoreError(
            f"{path} has {len(runs)} runs and {len(times)} times, expected some of one device; measure anew"
        )
    return _record(runs[0].target, (x.conditions for x in runs), times)


def is_row_record(path: Path) -> bool:
    """Say whether a file is such a record."""
    try:
        return b'"row_record_version"' in read_content(path).partition(b"\n")[0]
    except DecodeError:
        return False


def parse_row_record(text: str) -> AnyRecord:
    """Read such a record; of several times of a kernel and size the least counts, as it did.

    Raises:
        DecodeError: it is none.
    """
    head, *lines = text.splitlines()
    found = decode_version(_Head, parse_json(head), "row_record_version", VERSION)
    times = [decode(_Time, parse_json(line)) for line in lines]
    return _record(found.target, [found.conditions], sorted(times, key=lambda x: -x.median_us))
