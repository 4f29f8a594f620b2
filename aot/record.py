"""Records: measurements as committed files, `aot/records/<name>.jsonl.gz`.

The first line is the header, with the kernels that the other lines name by index; each further line is one measurement
as a JSON list: kernel, m, n, k, median_us, low_us, high_us, num_rounds, relative_error, and the status where it is not
`ok`. Equal records are equal bytes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from aot.candidate import Candidate, KernelKey
from aot.errors import CandidateError, StoreError
from aot.measurement import CONDITIONS_KEY_TEXT, Conditions, Measurement, Record, mig_profile
from aot.problem import Problem
from aot.store import open_store
from aot.tuning_set import operation_from_json, operation_json
from aot.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORD_VERSION = 1
"""Raised whenever a line's content changes its meaning."""

_HEADER_KEYS = {"version", "target", "conditions", "kernels"}


def _round(value: float) -> float:
    """Keep six significant digits: events resolve 0.5 us over about a millisecond, less than four."""
    return float(f"{value:.6g}")


def _plain(conditions: Conditions) -> dict[str, Any]:
    """Give conditions as plain values, without `mig` on a whole GPU, as in the records from before there was one."""
    return {key: value for key, value in asdict(conditions).items() if key != "mig" or value is not None}


def record_text(record: Record) -> str:
    """Write a record as JSON lines, sorted, so that equal records are equal text."""
    kernels = sorted({measurement.kernel for measurement in record.measurements})
    index = {kernel: i for i, kernel in enumerate(kernels)}
    header = {
        "version": RECORD_VERSION,
        "target": record.target,
        "conditions": [_plain(conditions) for conditions in record.conditions],
        "kernels": [
            {"operation": operation_json(kernel.operation), "candidate": kernel.candidate.as_json()}
            for kernel in kernels
        ],
    }
    lines = [json.dumps(header, sort_keys=True)]
    for item in sorted(record.measurements, key=lambda item: (item.problem, item.kernel)):
        problem = item.problem
        row: list[Any] = [index[item.kernel], problem.m, problem.n, problem.k]
        row += [_round(item.median_us), _round(item.low_us), _round(item.high_us)]
        row += [item.num_rounds, _round(item.relative_error)]
        row += [] if item.ok else [item.status]
        lines.append(json.dumps(row, separators=(",", ":")))
    return "\n".join(lines) + "\n"


def write_record(path: Path, record: Record) -> None:
    """Write a record file; the same bytes for the same record, on any day."""
    write_whole(path, gzip.compress(record_text(record).encode(), compresslevel=9, mtime=0))


def _conditions(values: dict[str, Any]) -> Conditions:
    wrong = sorted((set(values) | {"mig"}) ^ {field.name for field in fields(Conditions)})
    if wrong:
        raise ValueError(f"conditions have missing or unknown keys: {', '.join(wrong)}")
    return Conditions(**{"mig": mig_profile(str(values["device"])), **values})


def _measurement(row: Any, kernels: list[KernelKey]) -> Measurement:
    if not isinstance(row, list) or len(row) not in (9, 10):
        raise ValueError("expected a list of 9 or 10 values")
    number, m, n, k, median, low, high, num_rounds, error = row[:9]
    whole = (number, m, n, k, num_rounds)
    if any(type(value) is not int or value < 0 for value in whole) or number >= len(kernels):
        raise ValueError(f"kernel, m, n, k and rounds are {whole}; expected counts, and a kernel below {len(kernels)}")
    times = (median, low, high, error)
    if any(type(value) not in (int, float) or not value >= 0 for value in times):
        raise ValueError(f"times and error are {times}; expected numbers that are not negative")
    status = row[9] if len(row) == 10 else "ok"
    if not isinstance(status, str):
        raise TypeError(f"the status is {status!r}; expected text")
    if status == "ok" and not (0 < low <= median <= high):
        raise ValueError(f"the times {low}, {median}, {high} do not ascend from above 0")
    kernel = kernels[number]
    problem = Problem(kernel.operation, m, n, k)
    return Measurement(kernel, problem, float(median), float(low), float(high), num_rounds, float(error), status)


def _header(line: str) -> tuple[str, tuple[Conditions, ...], list[KernelKey]]:
    header = json.loads(line)
    version = header.get("version") if isinstance(header, dict) else None
    if version != RECORD_VERSION:
        raise ValueError(f"version {version!r}, expected {RECORD_VERSION}; use the aot that wrote the record")
    if set(header) != _HEADER_KEYS:
        raise ValueError(f"missing or unknown keys: {sorted(set(header) ^ _HEADER_KEYS)}")
    kernels = [
        KernelKey(operation_from_json(entry["operation"]), Candidate.from_json(entry["candidate"]))
        for entry in header["kernels"]
    ]
    return str(header["target"]), tuple(_conditions(values) for values in header["conditions"]), kernels


def parse_record(text: str, where: str) -> Record:
    """Read a record's JSON lines.

    Raises:
        StoreError: the version is another, or a line is not what it should be; the message has the line's number.
    """
    lines = text.splitlines() or [""]
    number = 1
    measurements = []
    try:
        target, conditions, kernels = _header(lines[0])
        for line in lines[1:]:
            number += 1
            measurements.append(_measurement(json.loads(line), kernels))
    except (ValueError, TypeError, KeyError, AttributeError, CandidateError) as error:
        raise StoreError(f"{where}, line {number}: {error}") from error
    return Record(target, conditions, tuple(measurements))


def read_record(path: Path) -> Record:
    """Read a record file; see `parse_record`."""
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise StoreError(f"cannot read the record {path}: {error}; make it again from its store") from error
    return parse_record(text, str(path))


def _latest(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    latest = {(item.kernel, item.problem): item for item in measurements}
    return tuple(latest[key] for key in sorted(latest, key=lambda key: (key[1], key[0])))


def from_store(path: Path) -> Record:
    """Make a record of a store: the latest measurement of each kernel on each finished problem.

    A problem whose final rounds are missing is left out, since its screening times are one round each. A kernel that
    was quarantined is not to be picked anywhere: all that was measured of its object gets the reason as its status.

    Raises:
        StoreError: the store cannot be read, holds nothing finished, or mixes targets.
    """
    with open_store(path, create=False) as store:
        targets, conditions, reasons = store.targets(), store.conditions(), store.quarantined()
        rows = store.measurements()
        finished = {problem for problem in {item.problem for _, item in rows} if store.is_finished(problem)}
    if len(targets) != 1 or not finished:
        raise StoreError(
            f"{path} has finished {len(finished)} problems for targets {targets}; run `aot tune` to the end"
        )
    kept = []
    for kernel, item in rows:
        if item.problem not in finished:
            continue
        if kernel in reasons and item.ok:
            status = f"quarantined: {reasons[kernel]}"
            kept.append(replace(item, median_us=0.0, low_us=0.0, high_us=0.0, num_rounds=0, status=status))
        else:
            kept.append(item)
    return Record(targets[0], conditions, _latest(kept))


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
    return Record(records[0].target, tuple(conditions), _latest(measurements))
