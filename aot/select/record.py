"""Records: measurements as committed files, `aot/records/<name>.jsonl.gz`.

The first line is the header, with the kernels, each in an order of its tiles, that the other lines name by index; each
further line is one measurement as a JSON list: kernel, m, n, k, median_us, low_us, high_us, num_rounds,
relative_error, and the status where it is not `ok`. The last lines are a library's times: its name and version,
operation, m, n, k, median_us, low_us, high_us, num_rounds. Version 2 had none of those, and is read on. Equal records
are equal bytes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, KernelKey
from aot.core.constraints import Extent, TargetName, Text, Version, one_line
from aot.core.errors import CandidateError, StoreError, TargetError
from aot.core.measurement import (
    CONDITIONS_KEY_TEXT,
    Conditions,
    LibraryRow,
    LibraryTime,
    Measurement,
    Outcome,
    Record,
    Status,
    TimedRow,
    mig_profile,
)
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.strict_json import DecodeError, decode_row, decode_version, parse_json, read_content, shown, text_of
from aot.core.target import load_target
from aot.core.tile_order import HEURISTIC, TileOrder
from aot.core.whole_file import write_whole
from aot.families import check_knobs, family_named
from aot.measure.store import read_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORD_VERSION = 3
"""Raised whenever a line's content changes its meaning."""
READ_VERSIONS = (2, RECORD_VERSION)
"""2 had no times of libraries."""


@dataclass(frozen=True)
class _Kernel:
    operation: Operation
    candidate: Candidate
    tile_order: TileOrder | None = None

    @property
    def key(self) -> KernelKey:
        return KernelKey(self.operation, self.candidate)

    @property
    def ordered(self) -> tuple[KernelKey, int]:
        return self.key, self.tile_order or HEURISTIC


def _header_entry(kernel: KernelKey, tile_order: int) -> dict[str, Any]:
    """Write a kernel; the order of its tiles only where it is told one, as records from before there were any."""
    entry = {"operation": kernel.operation, "candidate": kernel.candidate.as_json()}
    return entry if tile_order == HEURISTIC else {**entry, "tile_order": tile_order}


@dataclass(frozen=True)
class _Header:
    version: Version
    target: TargetName
    conditions: tuple[Conditions, ...]
    kernels: tuple[_Kernel, ...]


@dataclass(frozen=True)
class _Row(TimedRow):
    status: Text | None = None
    num_groups: Extent | None = None


def _round(value: float) -> float:
    """Keep six significant digits: events resolve 0.5 us over about a millisecond, less than four."""
    return float(f"{value:.6g}")


def _plain(conditions: Conditions) -> dict[str, Any]:
    """Return conditions as plain values, without `mig` on a whole GPU, as in the records from before there was one."""
    return {key: value for key, value in asdict(conditions).items() if key != "mig" or value is not None}


def record_text(record: Record) -> str:
    """Write a record as JSON lines, sorted, so that equal records are equal text."""
    kernels = sorted({x.timed[1:] for x in record.measurements})
    index = {kernel: i for i, kernel in enumerate(kernels)}
    header = {
        "version": RECORD_VERSION,
        "target": record.target,
        "conditions": [_plain(conditions) for conditions in record.conditions],
        "kernels": [_header_entry(*kernel) for kernel in kernels],
    }
    lines = [json.dumps(header, sort_keys=True)]
    for item in sorted(record.measurements, key=lambda item: item.timed):
        problem = item.problem
        row: list[Any] = [index[item.timed[1:]], problem.m, problem.n, problem.k]
        row += [_round(item.median_us), _round(item.low_us), _round(item.high_us)]
        row += [item.num_rounds, _round(item.relative_error)]
        groups = [] if problem.num_groups == 1 else [problem.num_groups]
        row += [str(item.status)] if groups or not item.ok else []
        row += groups
        lines.append(json.dumps(row, separators=(",", ":")))
    for time in sorted(record.library_times, key=lambda time: time.problem):
        problem = time.problem
        row = [time.library, problem.operation, problem.m, problem.n, problem.k]
        row += [_round(time.median_us), _round(time.low_us), _round(time.high_us), time.num_rounds]
        row += [] if problem.num_groups == 1 else [problem.num_groups]
        lines.append(json.dumps(row, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def write_record(path: Path, record: Record) -> None:
    """Write a record file; the same bytes for the same record, on any day.

    Raises:
        StoreError: it is none that could be read again.
    """
    text = record_text(record)
    parse_record(text, f"the record for {path}")
    write_whole(path, gzip.compress(text.encode(), compresslevel=9, mtime=0))


def _measurement(row: Any, kernels: list[tuple[KernelKey, int]]) -> Measurement:
    if not isinstance(row, list):
        raise DecodeError(f"expected a list of 9 to 11 values, got {shown(row)}")
    found = decode_row(_Row, row)
    if found.kernel >= len(kernels):
        raise DecodeError(f"expected the number of one of {len(kernels)} kernels, got {found.kernel}", ("kernel",))
    kernel, tile_order = kernels[found.kernel]
    status = "ok" if found.status is None else found.status
    return found.measurement(kernel, status, found.num_groups or 1, tile_order)


def _add_library_time(times: dict[Problem, LibraryTime], row: list[Any]) -> None:
    """Add what a row says, of a problem that has no such time yet (DecodeError)."""
    time = decode_row(LibraryRow, row).time()
    if time.problem in times:
        raise DecodeError(f"a second time of a library on {time.problem.name}")
    times[time.problem] = time


def _check(record: Record) -> None:
    """Refuse a target that there is not, and results or kernels of another architecture (DecodeError)."""
    try:
        target = load_target(record.target)
        families = [family_named(name) for name in {x.kernel.candidate.family for x in record.measurements}]
    except (TargetError, CandidateError) as error:
        raise DecodeError(str(error)) from error
    archs = {item.arch for item in record.conditions} - {target.arch}
    if archs:
        raise DecodeError(f"measured on {max(archs)}, and the target {target.name} is {target.arch}")
    for kernel in {x.kernel.candidate for x in record.measurements}:
        try:
            check_knobs(kernel)
        except CandidateError as error:
            raise DecodeError(str(error)) from error
    for family in families:
        lacked = target.lacks(family.needs)
        if lacked:
            raise DecodeError(f"has kernels of {family.name}, which needs {lacked[0]}; {target.name} has it not")


def _header(line: str) -> _Header:
    content = parse_json(line)
    found = content.get("version") if isinstance(content, dict) else None
    version = found if type(found) is int and found in READ_VERSIONS else RECORD_VERSION
    header = decode_version(_Header, content, "version", version)
    if len({x.ordered for x in header.kernels}) != len(header.kernels):
        raise DecodeError("a kernel is there twice", ("kernels",))
    # Records from before there was the field have the profile in the device's name only.
    conditions = tuple(replace(item, mig=item.mig or mig_profile(item.device)) for item in header.conditions)
    return replace(header, conditions=conditions)


def recorded_kernels(path: Path) -> tuple[KernelKey, ...]:
    """Read the kernels that a record has measurements of, from its first line alone.

    Raises:
        StoreError: the file cannot be read, or is no record.
    """
    try:
        line = text_of(read_content(path)).partition("\n")[0]
        return tuple(dict.fromkeys(entry.key for entry in _header(line).kernels))
    except DecodeError as error:
        raise StoreError(f"cannot read the record {path}: {error}; make it again from its store") from error


def parse_record(text: str, where: str) -> Record:
    """Read a record's JSON lines.

    Raises:
        StoreError: the version is another, a line is not what it should be, or the results cannot be the target's; the
            message has the line's number.
    """
    lines = text.removesuffix("\n").split("\n")
    number, measurements, library_times = 1, [], dict[Problem, LibraryTime]()
    try:
        header = _header(lines[0])
        kernels = [entry.ordered for entry in header.kernels]
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 - an error's line
            row = parse_json(line)
            if isinstance(row, list) and row and isinstance(row[0], str):
                _add_library_time(library_times, row)
            else:
                measurements.append(_measurement(row, kernels))
        number = 1
        record = Record(header.target, header.conditions, tuple(measurements), tuple(library_times.values()))
        _check(record)
    except DecodeError as error:
        raise StoreError(f"{where}, line {number}: {error}; make it again from its stores") from error
    return record


def read_record(path: Path) -> Record:
    """Read a record file; see `parse_record`."""
    try:
        text = text_of(read_content(path))
    except DecodeError as error:
        raise StoreError(f"cannot read the record {path}: {error}; make it again from its store") from error
    return parse_record(text, str(path))


def _latest(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    latest = {item.timed: item for item in measurements}
    return tuple(latest[key] for key in sorted(latest))


def from_store(path: Path) -> Record:
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
    times = tuple(time for problem, time in sorted(library_times.items()) if problem in finished)
    record = Record(targets[0], conditions, _latest(kept), times)
    try:
        _check(record)
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; measure it again with its own target") from error
    return record


def merge(records: list[Record]) -> Record:
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
    library_times = tuple(times[problem] for problem in sorted(times))
    return Record(records[0].target, tuple(conditions), _latest(measurements), library_times)
