"""The store's tables, the statements that write and read them, and what a row read must be."""

# ruff: noqa: S608 - statements are put together of this file's constants only

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import Count, Error, Label, Microseconds, Positive, Seconds, TargetName, Text
from aot.core.measurement import LibraryRow, TimedRow
from aot.core.strict_json import DecodeError, parse_json
from aot.core.tile_order import TileOrder
from aot.kinds.registry import Catalogued, kind_of

if TYPE_CHECKING:
    from aot.core.work import AnyKey, AnyProblem

SCHEMA_VERSION = 8
"""Raised whenever a table changes; kept in the file's `user_version`."""

APPLICATION_ID = 0x414F5447
"""`AOTG`, kept in the file's `application_id`, so that another program's SQLite file is not written to."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
  id INTEGER PRIMARY KEY, target TEXT NOT NULL, seed INTEGER NOT NULL UNIQUE, device TEXT NOT NULL, arch TEXT NOT NULL,
  num_sms INTEGER NOT NULL, driver TEXT NOT NULL, sm_clock_mhz INTEGER, memory_clock_mhz INTEGER, power_mode TEXT,
  date TEXT NOT NULL, protocol TEXT NOT NULL, mig TEXT) STRICT;
CREATE TABLE IF NOT EXISTS clocks (
  run INTEGER NOT NULL REFERENCES runs, sm_clock_mhz INTEGER, memory_clock_mhz INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS kernels (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, operation TEXT NOT NULL, candidate TEXT NOT NULL,
  object_sha256 TEXT NOT NULL, tile_order INTEGER NOT NULL DEFAULT 0, UNIQUE (name, object_sha256)) STRICT;
CREATE TABLE IF NOT EXISTS problems (
  id INTEGER PRIMARY KEY, operation TEXT NOT NULL, sizes TEXT NOT NULL, UNIQUE (operation, sizes)) STRICT;
CREATE TABLE IF NOT EXISTS measurements (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels,
  problem INTEGER NOT NULL REFERENCES problems, median_us REAL NOT NULL, low_us REAL NOT NULL, high_us REAL NOT NULL,
  num_rounds INTEGER NOT NULL, relative_error REAL NOT NULL, status TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS by_problem ON measurements (problem, kernel);
CREATE TABLE IF NOT EXISTS verified (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels,
  relative_error REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS quarantine (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels, reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS finished (
  run INTEGER NOT NULL REFERENCES runs, problem INTEGER NOT NULL REFERENCES problems) STRICT;
CREATE TABLE IF NOT EXISTS voided (
  measurement INTEGER PRIMARY KEY REFERENCES measurements, run INTEGER NOT NULL REFERENCES runs,
  reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS reference_times (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels,
  problem INTEGER NOT NULL REFERENCES problems, us REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS searches (
  run INTEGER NOT NULL REFERENCES runs, problem INTEGER NOT NULL REFERENCES problems, strategy TEXT NOT NULL,
  num_measured INTEGER NOT NULL, num_skipped INTEGER NOT NULL, reason TEXT NOT NULL, seconds REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS separator_times (run INTEGER NOT NULL REFERENCES runs, us REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS library_times (
  run INTEGER NOT NULL REFERENCES runs, library TEXT NOT NULL, problem INTEGER NOT NULL REFERENCES problems,
  median_us REAL NOT NULL, low_us REAL NOT NULL, high_us REAL NOT NULL, num_rounds INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS in_flight (
  id INTEGER PRIMARY KEY CHECK (id = 1), run INTEGER NOT NULL, kernel INTEGER NOT NULL, what TEXT NOT NULL) STRICT;
"""

SINCE_5 = (
    "CREATE TABLE IF NOT EXISTS separator_times (run INTEGER NOT NULL REFERENCES runs, us REAL NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS library_times (
  run INTEGER NOT NULL REFERENCES runs, library TEXT NOT NULL, operation TEXT NOT NULL, m INTEGER NOT NULL,
  n INTEGER NOT NULL, k INTEGER NOT NULL, median_us REAL NOT NULL, low_us REAL NOT NULL, high_us REAL NOT NULL,
  num_rounds INTEGER NOT NULL) STRICT""",
)
"""The tables that version 5 added, as it had them."""

_TAG = "CASE dtype WHEN 'bfloat16' THEN 'bf16_' ELSE 'fp16_' END || layout"
RENAMED_FAMILIES = {"sm90_bounded": "sm90_partial_tile", "sm90_overlap": "sm90_prefetch_b", "fallback": "simt"}
"""The names of families until 2026-11-22, and those since."""


def _with_operation(table: str) -> tuple[str, ...]:
    return (
        f"ALTER TABLE {table} ADD COLUMN operation TEXT NOT NULL DEFAULT ''",
        f"UPDATE {table} SET operation = {_TAG}",
        f"ALTER TABLE {table} DROP COLUMN dtype",
        f"ALTER TABLE {table} DROP COLUMN layout",
    )


OF_PROBLEMS = ("measurements", "finished", "reference_times", "searches", "library_times")
"""The tables whose rows are of a problem."""

_SIZES = """'{"k":' || k || ',"m":' || m || ',"n":' || n || ',"num_groups":' || num_groups || '}'"""


def _with_problem(table: str) -> tuple[str, ...]:
    """Put a row of `problems` in the place of an operation and the sizes of products."""
    of_row = f"SELECT id FROM problems x WHERE x.operation = {table}.operation AND x.sizes = {_SIZES}"
    return (
        f"INSERT OR IGNORE INTO problems (operation, sizes) SELECT DISTINCT operation, {_SIZES} FROM {table}",
        f"ALTER TABLE {table} ADD COLUMN problem INTEGER NOT NULL DEFAULT 0 REFERENCES problems",
        f"UPDATE {table} SET problem = ({of_row})",
        *(f"ALTER TABLE {table} DROP COLUMN {x}" for x in ("operation", "m", "n", "k", "num_groups")),
    )


UPGRADES = {
    3: (
        "DROP INDEX by_problem",
        "ALTER TABLE anchors RENAME TO reference_times",
        *(
            x
            for table in ("kernels", "measurements", "finished", "reference_times", "searches")
            for x in _with_operation(table)
        ),
        "CREATE INDEX by_problem ON measurements (operation, m, n, k, kernel)",
        *(
            f"UPDATE kernels SET name = replace(name, '_{old}_', '_{new}_'), "
            f"candidate = replace(candidate, '\"{old}\"', '\"{new}\"')"
            for old, new in RENAMED_FAMILIES.items()
        ),
        "PRAGMA user_version = 4",
    ),
    4: (*SINCE_5, "PRAGMA user_version = 5"),
    5: (
        *(f"ALTER TABLE {x} ADD COLUMN num_groups INTEGER NOT NULL DEFAULT 1" for x in OF_PROBLEMS),
        "PRAGMA user_version = 6",
    ),
    6: ("ALTER TABLE kernels ADD COLUMN tile_order INTEGER NOT NULL DEFAULT 0", "PRAGMA user_version = 7"),
    7: (
        """CREATE TABLE problems (
  id INTEGER PRIMARY KEY, operation TEXT NOT NULL, sizes TEXT NOT NULL, UNIQUE (operation, sizes)) STRICT""",
        "DROP INDEX by_problem",
        *(x for table in OF_PROBLEMS for x in _with_problem(table)),
        "CREATE INDEX by_problem ON measurements (problem, kernel)",
        "PRAGMA user_version = 8",
    ),
}
"""The statements that bring a file of an older version to the next: 3 had two columns for an operation, 4 no times of
separators and of libraries, 5 no number of products or groups, 6 no orders of tiles, 7 no problems but products."""

RUN_COLUMNS = "device, arch, num_sms, driver, sm_clock_mhz, memory_clock_mhz, power_mode, date, protocol, mig"


INSERT_RUN = f"INSERT INTO runs (target, seed, {RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_MEASUREMENT = """
INSERT INTO measurements (run, kernel, problem, median_us, low_us, high_us, num_rounds, relative_error, status)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT_MEASUREMENTS = """
SELECT kernel, median_us, low_us, high_us, num_rounds, relative_error, status, problem FROM measurements
WHERE id NOT IN (SELECT measurement FROM voided) {condition} ORDER BY id
"""
INSERT_LIBRARY_TIME = """
INSERT INTO library_times (library, problem, median_us, low_us, high_us, num_rounds, run) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
SELECT_LIBRARY_TIMES = """
SELECT library, median_us, low_us, high_us, num_rounds, problem FROM library_times ORDER BY rowid
"""
INSERT_SEARCH = """
INSERT INTO searches (run, problem, strategy, num_measured, num_skipped, reason, seconds) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
SELECT_SEARCHES = """
SELECT strategy, num_measured, num_skipped, reason, seconds FROM searches WHERE problem = ? ORDER BY rowid
"""
INSERT_FINISHED = "INSERT INTO finished (run, problem) VALUES (?, ?)"
SELECT_REFERENCE_TIMES = "SELECT us FROM reference_times WHERE (kernel, problem) = (?, ?) ORDER BY rowid"
INSERT_REFERENCE_TIME = "INSERT INTO reference_times (run, kernel, problem, us) VALUES (?, ?, ?, ?)"
INSERT_VOIDED = """
INSERT INTO voided SELECT id, ?, ? FROM measurements
WHERE id NOT IN (SELECT measurement FROM voided) AND problem = ?
"""


VOID_RUNS = """
INSERT INTO voided SELECT id, run, ? FROM measurements
WHERE id NOT IN (SELECT measurement FROM voided)
  AND run IN (SELECT id FROM runs WHERE seed IN (SELECT value FROM json_each(?)))
"""


@dataclass(frozen=True)
class SearchEnd:
    """How the search on a problem ended: what was measured, what was left out and why, and how long it took."""

    strategy: Label
    num_measured: Count
    num_skipped: Count
    reason: Text
    seconds: Seconds


@dataclass(frozen=True)
class InFlight:
    """What was on the GPU when a process ended: ids of run and kernel, and a description."""

    run: Positive
    kernel: Positive
    what: Text


@dataclass(frozen=True)
class RunRow:
    """What is asked of a run alone."""

    target: TargetName


@dataclass(frozen=True)
class SeedRow:
    """The number that a run is known by."""

    seed: Count


@dataclass(frozen=True)
class KernelRow:
    """A kernel; `candidate` is JSON."""

    id: Positive
    operation: Catalogued
    candidate: Text
    tile_order: TileOrder

    def key(self) -> AnyKey:
        """Return the kernel.

        Raises:
            DecodeError: the JSON is no candidate.
        """
        try:
            candidate = parse_json(self.candidate)
        except DecodeError as error:
            raise error.inside("candidate").inside(self.id).inside("kernel") from error
        try:
            return kind_of(self.operation).key(self.operation, candidate)
        except DecodeError as error:
            raise error.inside(self.id).inside("kernel") from error


@dataclass(frozen=True)
class ProblemRow:
    """A problem; `sizes` is a JSON object of its sizes by axis."""

    id: Positive
    operation: Catalogued
    sizes: Text

    def problem(self) -> AnyProblem:
        """Return the problem.

        Raises:
            DecodeError: the JSON are not its sizes.
        """
        try:
            return kind_of(self.operation).problem(self.operation, parse_json(self.sizes))
        except DecodeError as error:
            raise error.inside("sizes").inside(self.id).inside("problem") from error


def sizes_text(problem: AnyProblem) -> str:
    """Return a problem's sizes as `problems` holds them."""
    return json.dumps(kind_of(problem.operation).sizes(problem), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class VerifiedRow:
    """A kernel's largest relative error on the edge shapes."""

    kernel: Positive
    relative_error: Error


@dataclass(frozen=True)
class NoteRow:
    """What is noted of a kernel or a measurement, by its id."""

    id: Positive
    text: Text


@dataclass(frozen=True)
class TimeRow:
    """A time of the reference kernel."""

    us: Microseconds


@dataclass(frozen=True)
class MeasurementRow(TimedRow):
    """A measurement; SELECT_MEASUREMENTS has these columns."""

    status: Text
    problem: Positive


@dataclass(frozen=True)
class LibraryTimeRow(LibraryRow):
    """A library's time; SELECT_LIBRARY_TIMES has these columns."""

    problem: Positive
