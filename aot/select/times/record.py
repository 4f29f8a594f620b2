"""Records: measurements as committed files, `aot/records/<name>.jsonl.gz`.

The first line is the header, with the kernels, each in an order of its tiles, that the other lines name by index; each
further line is one measurement as a JSON list: kernel, sizes, median_us, low_us, high_us, num_rounds, relative_error,
and the status where it is not `ok`. The sizes are those of the axes of the kernel's kind (`aot.kinds`), m, n and k of
products, rows and cols of operations on rows; those that a kind says have a usual value stand last, where they have
another. The last lines are a library's times: its name and version, operation, sizes, median_us, low_us, high_us,
num_rounds. Version 2 had none of those, and is read on. Equal records are equal bytes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from aot.core.constraints import Form, TargetName, Text, Version, one_line
from aot.core.errors import CandidateError, StoreError, TargetError
from aot.core.measurement import (
    CONDITIONS_KEY_TEXT,
    AnyLibraryTime,
    AnyMeasurement,
    AnyRecord,
    Conditions,
    LibraryRow,
    Measurement,
    Outcome,
    ProductRecord,
    Record,
    Status,
    TimedRow,
    mig_profile,
)
from aot.core.strict_json import (
    DecodeError,
    decode,
    decode_row,
    decode_version,
    parse_json,
    read_content,
    shown,
    text_of,
)
from aot.core.target import load_target
from aot.core.tile_order import HEURISTIC, TileOrder
from aot.core.whole_file import write_whole
from aot.core.work import AnyKey, AnyOperation, AnyProblem, K, P, in_order
from aot.kinds.gemm.kind import GEMM
from aot.kinds.registry import Catalogued, kind_of
from aot.measure.store import read_store
from aot.space.legality import check_recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from aot.core.target import Target

RECORD_VERSION = 3
"""Raised whenever a line's content changes its meaning."""
READ_VERSIONS = (2, RECORD_VERSION)
"""2 had no times of libraries."""

NUM_TIMES, NUM_LIBRARY_TIMES = 5, 4
"""Values of a row behind the sizes: three times, rounds and error; of a library no error."""


@dataclass(frozen=True)
class _Kernel:
    operation: Catalogued
    candidate: Annotated[Any, Form(Any, lambda value: value)]
    """Of the operation's kind."""
    tile_order: TileOrder | None = None

    def ordered(self) -> tuple[AnyKey, int]:
        """Return the kernel, and the order of its tiles (DecodeError)."""
        return kind_of(self.operation).key(self.operation, self.candidate), self.tile_order or HEURISTIC


def _ordered(entry: Any) -> tuple[AnyKey, int]:
    return decode(_Kernel, entry).ordered()


def _header_entry(kernel: AnyKey, tile_order: int) -> dict[str, Any]:
    """Write a kernel; the order of its tiles only where it is told one, as records from before there were any."""
    entry = {"operation": kernel.operation.tag, "candidate": kernel.candidate.as_json()}
    return entry if tile_order == HEURISTIC else {**entry, "tile_order": tile_order}


@dataclass(frozen=True)
class _Header:
    version: Version
    target: TargetName
    conditions: tuple[Conditions, ...]
    kernels: tuple[Annotated[tuple[AnyKey, int], Form(Any, _ordered)], ...]


@dataclass(frozen=True)
class _OfOperation:
    operation: Catalogued


@dataclass(frozen=True)
class _Row(TimedRow):
    status: Text | None = None


def _round(value: float) -> float:
    """Keep six significant digits: events resolve 0.5 us over about a millisecond, less than four."""
    return float(f"{value:.6g}")


def _plain(conditions: Conditions) -> dict[str, Any]:
    """Return conditions as plain values, without `mig` on a whole GPU, as in the records from before there was one."""
    return {key: value for key, value in asdict(conditions).items() if key != "mig" or value is not None}


def _sizes(problem: AnyProblem) -> tuple[list[int], list[int]]:
    """Return the sizes that stand in front of a row's times, and those that stand last, where they are not usual."""
    kind = kind_of(problem.operation)
    sizes = kind.sizes(problem)
    more = {axis.name: sizes[axis.name] for axis in kind.axes if axis.usual is not None}
    is_usual = all(axis.usual == more[axis.name] for axis in kind.axes if axis.usual is not None)
    return [sizes[name] for name in kind.stated_axes], [] if is_usual else list(more.values())


def record_text(record: AnyRecord) -> str:
    """Write a record as JSON lines, sorted, so that equal records are equal text."""
    kernels = sorted({x.timed[1:] for x in record.measurements}, key=lambda x: (x[0].operation.kind, x))
    index = {kernel: i for i, kernel in enumerate(kernels)}
    header = {
        "version": RECORD_VERSION,
        "target": record.target,
        "conditions": [_plain(conditions) for conditions in record.conditions],
        "kernels": [_header_entry(*kernel) for kernel in kernels],
    }
    lines = [json.dumps(header, sort_keys=True)]
    for item in sorted(record.measurements, key=lambda item: item.place):
        sizes, more = _sizes(item.problem)
        row: list[Any] = [index[item.timed[1:]], *sizes]
        row += [_round(item.median_us), _round(item.low_us), _round(item.high_us)]
        row += [item.num_rounds, _round(item.relative_error)]
        row += [str(item.status)] if more or not item.ok else []
        lines.append(json.dumps([*row, *more], separators=(",", ":")))
    for time in sorted(record.library_times, key=lambda time: in_order(time.problem)):
        sizes, more = _sizes(time.problem)
        row = [time.library, time.problem.operation.tag, *sizes]
        row += [_round(time.median_us), _round(time.low_us), _round(time.high_us), time.num_rounds]
        lines.append(json.dumps([*row, *more], separators=(",", ":")))
    return "\n".join(lines) + "\n"


def write_record(path: Path, record: AnyRecord) -> None:
    """Write a record file; the same bytes for the same record, on any day.

    Raises:
        StoreError: it is none that could be read again.
    """
    text = record_text(record)
    parse_record(text, f"the record for {path}")
    write_whole(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))


class _Rows:
    """Decodes a record's rows; of a problem that many kernels were timed on the sizes are decoded once.

    Args:
        kernels: those of the header.
        wanted: operations whose rows are decoded; None for all.
    """

    def __init__(self, kernels: Sequence[tuple[AnyKey, int]], wanted: Collection[AnyOperation] | None) -> None:
        self._kernels = kernels
        self._wanted = wanted
        self._problems: dict[tuple[Any, ...], AnyProblem] = {}
        self.measurements: list[AnyMeasurement] = []
        self.library_times: dict[AnyProblem, AnyLibraryTime] = {}

    def _problem(self, operation: AnyOperation, sizes: list[Any], more: list[Any]) -> AnyProblem:
        """Make a problem of the sizes in front and those at the end (DecodeError)."""
        known = (operation.tag, *sizes, *more) if all(type(x) is int for x in (*sizes, *more)) else ()
        if known not in self._problems:
            kind = kind_of(operation)
            given = dict(zip(kind.stated_axes, sizes, strict=True)) | dict(zip(kind.optional_axes, more, strict=False))
            self._problems[known] = kind.problem(operation, given)
        return self._problems[known]

    def add(self, row: Any) -> None:
        """Decode a row (DecodeError)."""
        if not isinstance(row, list) or not row:
            raise DecodeError(f"expected a list of values, got {shown(row)}")
        if isinstance(row[0], str):
            self._add_library_time(row)
        else:
            self._add_measurement(row)

    def _add_measurement(self, row: list[Any]) -> None:
        number = row[0]
        if type(number) is not int or not 0 <= number < len(self._kernels):
            expected = f"expected the number of one of {len(self._kernels)} kernels, got {shown(number)}"
            raise DecodeError(expected, ("kernel",))
        kernel, tile_order = self._kernels[number]
        if self._wanted is not None and kernel.operation not in self._wanted:
            return
        kind = kind_of(kernel.operation)
        end = 1 + len(kind.stated_axes)
        most = end + NUM_TIMES + 1 + len(kind.optional_axes)
        if not end < len(row) <= most:
            raise DecodeError(f"expected a list of {end + NUM_TIMES} to {most} values, got {len(row)}")
        found = decode_row(_Row, [number, *row[end : end + NUM_TIMES + 1]])
        problem = self._problem(kernel.operation, row[1:end], row[end + NUM_TIMES + 1 :])
        status = "ok" if found.status is None else found.status
        self.measurements.append(found.measurement(kernel, problem, status, tile_order))

    def _add_library_time(self, row: list[Any]) -> None:
        """Add what a row says, of a problem that has no such time yet (DecodeError)."""
        operation = decode(_OfOperation, {"operation": row[1] if len(row) > 1 else None}).operation
        if self._wanted is not None and operation not in self._wanted:
            return
        kind = kind_of(operation)
        end = 2 + len(kind.stated_axes)
        if not end < len(row) <= end + NUM_LIBRARY_TIMES + len(kind.optional_axes):
            raise DecodeError(f"expected a list of {end + NUM_LIBRARY_TIMES} values or more, got {len(row)}")
        found = decode_row(LibraryRow, [row[0], *row[end : end + NUM_LIBRARY_TIMES]])
        time = found.time(self._problem(operation, row[2:end], row[end + NUM_LIBRARY_TIMES :]))
        if time.problem in self.library_times:
            raise DecodeError(f"a second time of a library on {time.problem.name}")
        self.library_times[time.problem] = time


def _check(record: AnyRecord) -> None:
    """Refuse a target that there is not, and results or kernels of another architecture (DecodeError)."""
    try:
        target = load_target(record.target)
    except TargetError as error:
        raise DecodeError(str(error)) from error
    archs = {item.arch for item in record.conditions} - {target.arch}
    if archs:
        raise DecodeError(f"measured on {max(archs)}, and the target {target.name} is {target.arch}")
    candidates = {x.kernel.candidate for x in record.measurements}
    for candidate in sorted(candidates, key=lambda x: x.name):
        try:
            check_recorded(candidate, target)
        except CandidateError as error:
            raise DecodeError(str(error)) from error


def _header(line: str) -> _Header:
    content = parse_json(line)
    found = content.get("version") if isinstance(content, dict) else None
    version = found if type(found) is int and found in READ_VERSIONS else RECORD_VERSION
    header = decode_version(_Header, content, "version", version)
    if len(set(header.kernels)) != len(header.kernels):
        raise DecodeError("a kernel is there twice", ("kernels",))
    # Records from before there was the field have the profile in the device's name only.
    conditions = tuple(replace(item, mig=item.mig or mig_profile(item.device)) for item in header.conditions)
    return replace(header, conditions=conditions)


def recorded_kernels(path: Path) -> tuple[AnyKey, ...]:
    """Read the kernels that a record has measurements of, from its first line alone.

    Raises:
        StoreError: the file cannot be read, or is no record.
    """
    try:
        line = text_of(read_content(path)).partition("\n")[0]
        return tuple(dict.fromkeys(kernel for kernel, _ in _header(line).kernels))
    except DecodeError as error:
        raise StoreError(f"cannot read the record {path}: {error}; make it again from its store") from error


def parse_record(text: str, where: str, wanted: Collection[AnyOperation] | None = None) -> AnyRecord:
    """Read a record's JSON lines.

    Args:
        text: the lines.
        where: what they are of, for messages.
        wanted: operations whose rows are decoded and checked, and whose times the result has; None for all.

    Raises:
        StoreError: the version is another, a line is not what it should be, or the results cannot be the target's; the
            message has the line's number.
    """
    lines = text.removesuffix("\n").split("\n")
    number = 1
    try:
        header = _header(lines[0])
        rows = _Rows(header.kernels, wanted)
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 - an error's line
            rows.add(parse_json(line))
        number = 1
        measurements, times = tuple(rows.measurements), tuple(rows.library_times.values())
        record: AnyRecord = Record(header.target, header.conditions, measurements, times)
        _check(record)
    except DecodeError as error:
        raise StoreError(f"{where}, line {number}: {error}; make it again from its stores") from error
    return record


def read_record(path: Path, wanted: Collection[AnyOperation] | None = None) -> AnyRecord:
    """Read a record file; see `parse_record`."""
    try:
        text = text_of(read_content(path))
    except DecodeError as error:
        raise StoreError(f"cannot read the record {path}: {error}; make it again from its store") from error
    return parse_record(text, str(path), wanted)


def read_products(path: Path, wanted: Collection[AnyOperation] | None = None) -> ProductRecord:
    """Read what a record file has of products; see `parse_record`."""
    return GEMM.part(read_record(path, wanted))


def of_target(record: Record[P, K], path: Path, target: Target) -> Record[P, K]:
    """Refuse a record of another target (StoreError)."""
    if record.target != target.name:
        raise StoreError(f"{path} is a record of {record.target}, not of {target.name}; give --target {record.target}")
    return record


def read_products_together(paths: Sequence[Path], target: Target) -> ProductRecord:
    """Read what records of a target have of products as one; of what several have timed, the last counts.

    Args:
        paths: the records' files, one or more.
        target: what they must be of.

    Raises:
        StoreError: a record cannot be read, is another target's, or was measured under other conditions.
    """
    found = [of_target(read_products(path), path, target) for path in paths]
    return found[0] if len(found) == 1 else merge(found)


def _latest(measurements: Iterable[Measurement[P, K]]) -> tuple[Measurement[P, K], ...]:
    latest = {item.place: item for item in measurements}
    return tuple(latest[key] for key in sorted(latest))


def from_store(path: Path) -> AnyRecord:
    """Make a record of a store: the latest measurement of each kernel on each finished problem.

    A problem whose final rounds are missing is left out, since its screening times are one round each. A kernel that
    was quarantined is not to be picked anywhere: all that was measured of its object gets the reason as its status.

    Raises:
        StoreError: the store cannot be read, holds nothing finished, mixes targets, or the results cannot be the
            target's.
    """
    with read_store(path) as store:
        targets, conditions, reasons = store.targets(), store.conditions(), store.quarantined()
        rows, library_times = store.measurements(), store.library_times()
        finished = store.finished() & {item.problem for _, item in rows}
    if len(targets) != 1 or not finished:
        raise StoreError(
            f"{path} has finished {len(finished)} problems for targets {targets}; run `aot tune` to the end"
        )
    kept = []
    for kernel, item in rows:
        if item.problem not in finished:
            continue
        if kernel in reasons and item.ok:
            status = Status.of(one_line(f"{Outcome.QUARANTINED}: {reasons[kernel]}"))
            kept.append(replace(item, median_us=0.0, low_us=0.0, high_us=0.0, num_rounds=0, status=status))
        else:
            kept.append(item)
    times = tuple(library_times[x] for x in sorted(library_times, key=in_order) if x in finished)
    record: AnyRecord = Record(targets[0], conditions, _latest(kept), times)
    try:
        _check(record)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; measure it again with its own target") from error
    return record


def merge(records: Sequence[Record[P, K]]) -> Record[P, K]:
    """Join records of one target, device and protocol; of two measurements of one kernel and problem the later wins.

    Raises:
        StoreError: there is none, or they are not comparable.
    """
    kinds = {(record.target, *item.key) for record in records for item in record.conditions}
    if len(kinds) != 1:
        raise StoreError(
            f"records to merge need one target, {CONDITIONS_KEY_TEXT}; got {sorted(map(str, kinds))}; give each its "
            "own --record"
        )
    conditions = dict.fromkeys(item for record in records for item in record.conditions)
    measurements = (item for record in records for item in record.measurements)
    times = {time.problem: time for record in records for time in record.library_times}
    library_times = tuple(times[problem] for problem in sorted(times, key=in_order))
    return Record(records[0].target, tuple(conditions), _latest(measurements), library_times)
