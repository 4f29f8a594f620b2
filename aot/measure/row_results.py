"""What a tuning of row operations has found: a journal of JSON lines, each written whole, that a run carries on in.

A line is {kind: values}. A kernel is known by its name and its object's hash, so that what another build measured does
not count for this one. Of several times of a kernel and size the last counts.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeAlias

from aot.core.constraints import Extent, Grammar, Index, Rate, TargetName, Text, Version, one_line
from aot.core.errors import StoreError
from aot.core.measurement import Conditions
from aot.core.strict_json import DecodeError, decode, decode_version, parse_json, read_content
from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import RowOperation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW_RESULTS_VERSION = 1
"""Raised whenever a field is dropped, changes its meaning, or is added that may not be absent."""


Identity = Annotated[str, Grammar(r"[a-z][a-z0-9_]* [0-9a-f]{64}", "a kernel's name and its object's SHA-256", 300)]


@dataclass(frozen=True)
class RowRun:
    """A run of a worker: what it measures for, and on what."""

    row_results_version: Version
    target: TargetName
    conditions: Conditions


@dataclass(frozen=True)
class RowStart:
    """A kernel begins to run; until another does, or none, it may be what ends the process."""

    kernel: Identity
    what: Text
    run: Index = 0


@dataclass(frozen=True)
class RowIdle:
    """No kernel runs any more."""


@dataclass(frozen=True)
class RowVerified:
    """A kernel passed its edge cases."""

    kernel: Identity


@dataclass(frozen=True)
class RowQuarantined:
    """A kernel was taken out."""

    kernel: Identity
    reason: Text


@dataclass(frozen=True)
class RowTimed:
    """A kernel's time of a size: the median of its rounds."""

    kernel: Identity
    operation: RowOperation
    candidate: RowCandidate
    rows: Extent
    cols: Extent
    median_us: Rate


Line: TypeAlias = "RowRun | RowStart | RowIdle | RowVerified | RowQuarantined | RowTimed"
_KINDS: dict[str, type[Line]] = {
    "run": RowRun,
    "start": RowStart,
    "idle": RowIdle,
    "verified": RowVerified,
    "quarantined": RowQuarantined,
    "time": RowTimed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass
class RowResults:
    """What a journal holds, and the file that it grows in; the supervisor's `Results`."""

    where: str
    descriptor: int | None = None
    runs: list[RowRun] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)
    quarantined: dict[str, str] = field(default_factory=dict)
    times: dict[tuple[str, int, int], RowTimed] = field(default_factory=dict)
    _flight: RowStart | None = None

    def take(self, line: Line) -> None:
        """Take in a line.

        Raises:
            StoreError: it is of another target or device than the others.
        """
        match line:
            case RowRun():
                self._check_run(line)
                self.runs.append(line)
            case RowStart():
                self._flight = line
            case RowIdle():
                self._flight = None
            case RowVerified():
                self.verified.add(line.kernel)
            case RowQuarantined():
                self.quarantined.setdefault(line.kernel, line.reason)
            case RowTimed():
                self.times[line.kernel, line.rows, line.cols] = line

    def _check_run(self, run: RowRun) -> None:
        first = self.runs[0] if self.runs else run
        found, wanted = ((x.target, *x.conditions.key) for x in (run, first))
        if found != wanted:
            raise StoreError(
                f"{self.where} is of {', '.join(map(str, wanted))}, this is {', '.join(map(str, found))}; "
                "give another file, since times of different devices do not mix"
            )

    def add(self, line: Line) -> None:
        """Take in a line and write it.

        Raises:
            StoreError: see `take`.
            OSError: the file cannot be written.
        """
        assert self.descriptor is not None  # noqa: S101 - it was opened to be written
        self.take(line)
        values = asdict(line)
        os.write(self.descriptor, (json.dumps({_NAMES[type(line)]: values}, sort_keys=True) + "\n").encode())

    def start(self, kernel: str, what: str) -> None:
        """Note that a kernel begins to run."""
        self.add(RowStart(kernel, one_line(what)))

    def clear_in_flight(self) -> None:
        """Note that no kernel runs."""
        if self._flight is not None:
            self.add(RowIdle())

    def in_flight(self) -> RowStart | None:
        """Return the kernel that runs, or that ran when the process died."""
        return self._flight

    def quarantine(self, run: int, kernel: str, reason: str) -> None:
        """Take a kernel out of this tuning; there is no need to know of which run."""
        del run
        self.add(RowQuarantined(kernel, one_line(reason)))


def _line(value: object) -> Line:
    """Decode a line.

    Raises:
        DecodeError: it is none.
    """
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KINDS:
        raise DecodeError(f"is no line of results; expected one of {', '.join(_KINDS)}")
    ((name, values),) = value.items()
    if name == "run":
        return decode_version(RowRun, values, "row_results_version", ROW_RESULTS_VERSION)
    return decode(_KINDS[name], values)


def _lines(content: bytes, where: str) -> Iterator[Line]:
    for number, text in enumerate(content.splitlines(), 1):
        try:
            yield _line(parse_json(text))
        except DecodeError as error:
            raise StoreError(f"{where}: line {number}: {error}; measure into another file") from error


def _parsed(content: bytes, where: str) -> RowResults:
    found = RowResults(where)
    for line in _lines(content, where):
        found.take(line)
    return found


def read_row_results(path: Path) -> RowResults:
    """Read a journal; a last line without an end, as a power cut leaves it, counts for nothing.

    Raises:
        StoreError: it cannot be read, is damaged or of another version, or of several devices.
    """
    try:
        content = read_content(path)
    except DecodeError as error:
        raise StoreError(f"cannot read the results {path}: {error}") from error
    return _parsed(content[: content.rfind(b"\n") + 1], str(path))


@contextmanager
def open_row_results(path: Path) -> Iterator[RowResults]:
    """Open a journal to carry on in; it is made where there is none.

    Raises:
        StoreError: see `read_row_results`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        found = read_row_results(path)
        content = path.read_bytes()
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)
        found.descriptor = descriptor
        yield found
    finally:
        os.close(descriptor)


def is_row_results(path: Path) -> bool:
    """Say whether a file is such a journal rather than a store of products."""
    try:
        with path.open("rb") as file:
            return file.read(8).startswith(b'{"run": ')
    except OSError:
        return False
