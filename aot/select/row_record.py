"""Measured times of row kernels: a file of JSON lines, strict, which a table is selected from.

The first line says what was measured on; each further one is a kernel's time of a size: a median of launches, as the
protocol says.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.constraints import Extent, Rate, TargetName, Version
from aot.core.errors import StoreError
from aot.core.measurement import Conditions
from aot.core.strict_json import DecodeError, decode, decode_version, parse_json, read_content
from aot.core.whole_file import write_whole
from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import RowOperation

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.select.rows import RowTimes

ROW_RECORD_VERSION = 1
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""


@dataclass(frozen=True)
class RowRecordHead:
    """What the times of a record are of."""

    row_record_version: Version
    target: TargetName
    conditions: Conditions


@dataclass(frozen=True)
class RowTime:
    """The time of a verified kernel."""

    operation: RowOperation
    candidate: RowCandidate
    rows: Extent
    cols: Extent
    median_us: Rate


@dataclass(frozen=True)
class RowRecord:
    """A record: its head, and times in the order of the file."""

    head: RowRecordHead
    times: tuple[RowTime, ...]

    @property
    def by_operation(self) -> RowTimes:
        """Return the times by operation, (rows, cols) and candidate; of several the least."""
        found: dict[RowOperation, dict[tuple[int, int], dict[RowCandidate, float]]] = {}
        for time in self.times:
            known = found.setdefault(time.operation, {}).setdefault((time.rows, time.cols), {})
            known[time.candidate] = min(time.median_us, known.get(time.candidate, time.median_us))
        return found


def parse_row_record(content: bytes, where: str) -> RowRecord:
    """Read a record.

    Raises:
        StoreError: it is of another version, or no record; the message names the line.
    """
    lines = content.splitlines()
    try:
        head = decode_version(
            RowRecordHead, parse_json(lines[0] if lines else b""), "row_record_version", ROW_RECORD_VERSION
        )
    except DecodeError as error:
        raise StoreError(f"{where}: line 1: {error}; measure again") from error
    times = []
    for number, line in enumerate(lines[1:], 2):
        try:
            times.append(decode(RowTime, parse_json(line)))
        except DecodeError as error:
            raise StoreError(f"{where}: line {number}: {error}; measure again") from error
    return RowRecord(head, tuple(times))


def read_row_record(path: Path) -> RowRecord:
    """Read a record's file, compressed or not; see `parse_row_record`."""
    try:
        content = read_content(path)
    except DecodeError as error:
        raise StoreError(f"cannot read the record {path}: {error}; measure again") from error
    return parse_row_record(content, str(path))


def write_row_record(path: Path, record: RowRecord) -> None:
    """Write a record, compressed where the path ends with `.gz`; equal records are equal bytes.

    Raises:
        StoreError: it is none that could be read again.
    """
    lines = [json.dumps(x, sort_keys=True) for x in (asdict(record.head), *map(asdict, record.times))]
    content = ("\n".join(lines) + "\n").encode()
    parse_row_record(content, f"the record for {path}")
    write_whole(path, gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def committed_row_record(target: Target, folder: Path) -> Path | None:
    """Return a target's committed record in a folder, or None."""
    path = folder / f"{target.name}.jsonl.gz"
    return path if path.exists() else None
