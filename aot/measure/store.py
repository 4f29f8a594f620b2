"""Measurements in SQLite: append-only, one commit each, so that a killed run loses only what was in flight.

Tables: runs (conditions), clocks (readings of a run), kernels (name and object), problems (operation and sizes by
axis), measurements, verified, quarantine, finished (problems measured to the end), searches (what a strategy measured
and left out of them), voided (measurements that are no longer valid), reference_times (of the reference kernel, see
aot.measure.throttling), separator_times (what a run took off), library_times (of torch on the same problems) and
in_flight, the one row that is overwritten: what is running on the GPU now, for whoever finds the process dead.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from aot.core.constraints import one_line
from aot.core.errors import StoreError
from aot.core.measurement import (
    CONDITIONS_KEY,
    CONDITIONS_KEY_TEXT,
    Conditions,
)
from aot.core.strict_json import DecodeError, decode_row
from aot.measure.store_schema import prepare, refuse_foreign
from aot.measure.store_sql import (
    INSERT_FINISHED,
    INSERT_LIBRARY_TIME,
    INSERT_MEASUREMENT,
    INSERT_REFERENCE_TIME,
    INSERT_RUN,
    INSERT_SEARCH,
    INSERT_VOIDED,
    RUN_COLUMNS,
    SELECT_LIBRARY_TIMES,
    SELECT_MEASUREMENTS,
    SELECT_REFERENCE_TIMES,
    SELECT_SEARCHES,
    VOID_RUNS,
    InFlight,
    KernelRow,
    LibraryTimeRow,
    MeasurementRow,
    NoteRow,
    ProblemRow,
    RunRow,
    SearchEnd,
    SeedRow,
    TimeRow,
    VerifiedRow,
    sizes_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from aot.core.measurement import AnyLibraryTime, AnyMeasurement
    from aot.core.work import AnyKey, AnyProblem
    from aot.kinds.kind import Tuned


T = TypeVar("T")

MAGIC = b"SQLite format 3\0"
"""What a file of SQLite starts with. Source: SQLite database file format, section 1.3."""


def _conditions_values(conditions: Conditions) -> tuple[str | int | None, ...]:
    return tuple(getattr(conditions, name) for name in RUN_COLUMNS.split(", "))


class Store:
    """An open store. Use `open_store` or `read_store`, which close it and turn SQLite's errors into StoreError."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._known_kernels: dict[int, tuple[AnyKey, int]] = {}
        self._known_problems: dict[int, AnyProblem] = {}

    def _insert(self, sql: str, values: tuple[str | float | None, ...]) -> int:
        with self._db:
            return int(self._db.execute(sql, values).lastrowid or 0)

    def _rows(self, kind: type[T], sql: str, values: tuple[str | float | None, ...] = ()) -> list[T]:
        """Decode every row of a query: a file may hold anything.

        All at once: a cursor that an error leaves half read keeps the file locked for as long as the error is kept.
        """
        with closing(self._db.execute(sql, values)) as cursor:
            rows = cursor.fetchall()
        try:
            return [decode_row(kind, row) for row in rows]
        except DecodeError as error:
            raise error.inside(kind.__name__.removesuffix("Row").lower()) from error

    def add_run(self, target: str, seed: int, conditions: Conditions) -> int:
        """Start a run and give its id.

        Raises:
            StoreError: the store holds measurements of another target, or under other conditions: see CONDITIONS_KEY.
        """
        query = f"SELECT target, {', '.join(CONDITIONS_KEY)} FROM runs ORDER BY id DESC LIMIT 1"  # noqa: S608
        there, here = self._db.execute(query).fetchone(), (target, *conditions.key)
        if there is not None and there != here:
            raise StoreError(
                f"the store was measured as {there}, this run is {here} (target, {CONDITIONS_KEY_TEXT}); times under "
                "different conditions are not comparable: give another --out"
            )
        return self._insert(INSERT_RUN, (target, seed, *_conditions_values(conditions)))

    def add_clocks(self, run: int, sm_clock_mhz: int | None, memory_clock_mhz: int | None) -> None:
        """Append clocks in MHz read just after load."""
        self._insert("INSERT INTO clocks VALUES (?, ?, ?)", (run, sm_clock_mhz, memory_clock_mhz))

    def kernel_id(self, kernel: Tuned) -> int:
        """Return the id of a kernel's object, new or known."""
        query = "SELECT id FROM kernels WHERE name = ? AND object_sha256 = ?"
        row = self._db.execute(query, (kernel.name, kernel.object_sha256)).fetchone()
        if row is not None:
            return int(row[0])
        candidate = json.dumps(kernel.key.candidate.as_json(), sort_keys=True)
        return self._insert(
            "INSERT INTO kernels (name, operation, candidate, object_sha256, tile_order) VALUES (?, ?, ?, ?, ?)",
            (kernel.name, kernel.key.operation.tag, candidate, kernel.object_sha256, kernel.tile_order),
        )

    def _problem_id(self, problem: AnyProblem) -> int:
        """Return the id of a problem, new or known."""
        values = (problem.operation.tag, sizes_text(problem))
        row = self._db.execute("SELECT id FROM problems WHERE (operation, sizes) = (?, ?)", values).fetchone()
        return int(row[0]) if row else self._insert("INSERT INTO problems (operation, sizes) VALUES (?, ?)", values)

    def _problems(self) -> dict[int, AnyProblem]:
        """Return the problems by id; rows are only ever added, each is decoded once."""
        newest = max(self._known_problems, default=0)
        rows = self._rows(ProblemRow, "SELECT id, operation, sizes FROM problems WHERE id > ?", (newest,))
        self._known_problems |= {row.id: row.problem() for row in rows}
        return self._known_problems

    def set_in_flight(self, run: int, kernel: int, what: str) -> None:
        """Note what is about to be launched."""
        self._insert("INSERT OR REPLACE INTO in_flight VALUES (1, ?, ?, ?)", (run, kernel, one_line(what)))

    def clear_in_flight(self) -> None:
        """Note that nothing is running."""
        with self._db:
            self._db.execute("DELETE FROM in_flight")

    def in_flight(self) -> InFlight | None:
        """Return what was running when the store was last written."""
        return next(iter(self._rows(InFlight, "SELECT run, kernel, what FROM in_flight")), None)

    def add_measurement(self, run: int, kernel: int, measurement: AnyMeasurement) -> None:
        """Append one measurement."""
        values = (
            self._problem_id(measurement.problem),
            measurement.median_us,
            measurement.low_us,
            measurement.high_us,
            measurement.num_rounds,
            measurement.relative_error,
            one_line(str(measurement.status)),
        )
        self._insert(INSERT_MEASUREMENT, (run, kernel, *values))

    def add_verified(self, run: int, kernel: int, relative_error: float) -> None:
        """Note that a kernel passed the edge shapes, with its largest relative error."""
        self._insert("INSERT INTO verified VALUES (?, ?, ?)", (run, kernel, relative_error))

    def verified(self) -> dict[int, float]:
        """Return the kernels that passed, with their relative error."""
        query = "SELECT kernel, max(relative_error) FROM verified GROUP BY kernel"
        return {row.kernel: row.relative_error for row in self._rows(VerifiedRow, query)}

    def quarantine(self, run: int, kernel: int, reason: str) -> None:
        """Take a kernel out of this tuning."""
        self._insert("INSERT INTO quarantine VALUES (?, ?, ?)", (run, kernel, one_line(reason)))

    def quarantined(self) -> dict[int, str]:
        """Return the kernels taken out, with the first reason."""
        query = "SELECT kernel, reason FROM quarantine ORDER BY rowid DESC"
        return {row.id: row.text for row in self._rows(NoteRow, query)}

    def finish(self, run: int, problem: AnyProblem) -> None:
        """Note that a problem was measured to the end, final rounds included."""
        self._insert(INSERT_FINISHED, (run, self._problem_id(problem)))

    def is_finished(self, problem: AnyProblem) -> bool:
        """Say whether a problem was measured to the end."""
        query = "SELECT 1 FROM finished WHERE problem = ?"
        return self._db.execute(query, (self._problem_id(problem),)).fetchone() is not None

    def finished(self) -> set[AnyProblem]:
        """Return the problems that were measured to the end."""
        query = """
            SELECT id, operation, sizes FROM problems WHERE id IN (SELECT problem FROM finished)"""
        return {row.problem() for row in self._rows(ProblemRow, query)}

    def add_search(
        self,
        run: int,
        problem: AnyProblem,
        strategy: str,
        num_measured: int,
        num_skipped: int,
        reason: str,
        seconds: float,
    ) -> None:
        """Note how the search on a problem ended."""
        values = (run, self._problem_id(problem), strategy, num_measured, num_skipped, reason, seconds)
        self._insert(INSERT_SEARCH, values)

    def searches(self, problem: AnyProblem) -> list[SearchEnd]:
        """Return how the searches on a problem ended, oldest first."""
        return self._rows(SearchEnd, SELECT_SEARCHES, (self._problem_id(problem),))

    def search(self, problem: AnyProblem) -> SearchEnd | None:
        """Return how the latest search on a problem ended."""
        return next(reversed(self.searches(problem)), None)

    def _kernels(self) -> dict[int, tuple[AnyKey, int]]:
        """Return the kernels, and the orders of their tiles, by id; rows are only ever added, each is decoded once."""
        newest = max(self._known_kernels, default=0)
        rows = self._rows(KernelRow, "SELECT id, operation, candidate, tile_order FROM kernels WHERE id > ?", (newest,))
        self._known_kernels |= {row.id: (row.key(), row.tile_order) for row in rows}
        return self._known_kernels

    def void(self, run: int, problem: AnyProblem, reason: str) -> None:
        """Let what was measured of a problem so far count no more; it stays in the file."""
        self._insert(INSERT_VOIDED, (run, one_line(reason), self._problem_id(problem)))

    def voided(self) -> list[tuple[int, str]]:
        """Return the measurements that count no more, by number, with the reason."""
        query = "SELECT measurement, reason FROM voided ORDER BY measurement"
        return [(row.id, row.text) for row in self._rows(NoteRow, query)]

    def add_reference_time(self, run: int, kernel: int, problem: AnyProblem, us: float) -> None:
        """Note what a kernel took on a problem as the reference kernel."""
        self._insert(INSERT_REFERENCE_TIME, (run, kernel, self._problem_id(problem), us))

    def add_separator_time(self, run: int, us: float) -> None:
        """Note what a separator costs a graph (aot.measure.separator), in microseconds."""
        self._insert("INSERT INTO separator_times (run, us) VALUES (?, ?)", (run, us))

    def add_library_time(self, run: int, time: AnyLibraryTime) -> None:
        """Append a library's time on a problem."""
        times = (time.median_us, time.low_us, time.high_us, time.num_rounds)
        self._insert(INSERT_LIBRARY_TIME, (one_line(time.library), self._problem_id(time.problem), *times, run))

    def library_times(self) -> dict[AnyProblem, AnyLibraryTime]:
        """Return the latest time of a library on each problem."""
        problems = self._problems()
        rows = self._rows(LibraryTimeRow, SELECT_LIBRARY_TIMES)
        return {problems[row.problem]: row.time(problems[row.problem]) for row in rows}

    def reference_times(self, kernel: int, problem: AnyProblem) -> list[float]:
        """Return what a kernel took on a problem as the reference kernel, oldest first, in microseconds."""
        return [row.us for row in self._rows(TimeRow, SELECT_REFERENCE_TIMES, (kernel, self._problem_id(problem)))]

    def _measurements(self, condition: str, values: tuple[str | int, ...]) -> Iterator[tuple[int, AnyMeasurement]]:
        kernels, problems = self._kernels(), self._problems()
        query = SELECT_MEASUREMENTS.format(condition=condition)
        for row in self._rows(MeasurementRow, query, values):
            kernel, tile_order = kernels.get(row.kernel, (None, 0))
            problem = problems.get(row.problem)
            if kernel is None or problem is None or kernel.operation != problem.operation:
                what = f"problem {row.problem}" if problem is None else problem.name
                raise DecodeError(f"{what} was measured with kernel {row.kernel}, none of its own")
            yield row.kernel, row.measurement(kernel, problem, row.status, tile_order)

    def latest(self, problem: AnyProblem) -> dict[int, AnyMeasurement]:
        """Return each kernel's latest measurement of a problem, by the kernel's id."""
        return dict(self._measurements("AND problem = ?", (self._problem_id(problem),)))

    def measurements(self) -> list[tuple[int, AnyMeasurement]]:
        """Return every measurement with its kernel's id, oldest first."""
        return list(self._measurements("", ()))

    def targets(self) -> list[str]:
        """Return the targets measured; one, unless stores were merged wrongly."""
        return [row.target for row in self._rows(RunRow, "SELECT DISTINCT target FROM runs ORDER BY target")]

    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of all runs, by which they are known in whichever store they are."""
        return tuple(row.seed for row in self._rows(SeedRow, "SELECT seed FROM runs ORDER BY id"))

    def all_conditions(self) -> tuple[Conditions, ...]:
        """Return the different conditions of all runs, as they were read when each began."""
        return tuple(dict.fromkeys(self._rows(Conditions, f"SELECT {RUN_COLUMNS} FROM runs ORDER BY id")))  # noqa: S608

    def all_reference_times(self) -> tuple[float, ...]:
        """Return what reference kernels took, oldest first, in microseconds."""
        return tuple(row.us for row in self._rows(TimeRow, "SELECT us FROM reference_times ORDER BY rowid"))

    def void_runs(self, seeds: Collection[int], reason: str) -> int:
        """Let no measurement of some runs count any more; return the number of those that did."""
        values = (one_line(reason), json.dumps(sorted(seeds)))
        with self._db:
            return int(self._db.execute(VOID_RUNS, values).rowcount)

    def conditions(self) -> tuple[Conditions, ...]:
        """Return the different conditions of the runs that measured something, with the clocks last read under load."""
        query = """
            SELECT device, arch, num_sms, driver, coalesce(c.sm_clock_mhz, runs.sm_clock_mhz),
                   coalesce(c.memory_clock_mhz, runs.memory_clock_mhz), power_mode, date, protocol, mig
            FROM runs LEFT JOIN clocks c ON c.rowid = (SELECT max(rowid) FROM clocks WHERE run = runs.id)
            WHERE EXISTS (SELECT 1 FROM measurements WHERE run = runs.id) ORDER BY runs.id"""
        return tuple(dict.fromkeys(self._rows(Conditions, query)))


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the decoder refuse into StoreError."""
    try:
        yield
    except DecodeError as error:
        raise StoreError(f"{path}: {error}; move the file away and measure again") from error
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        why = one_line(str(error))
        raise StoreError(f"{path}: {why}; if the file is damaged, move it away and measure again") from error


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Open a store to write to, made when it is not there, and close it.

    Raises:
        StoreError: the file is damaged, newer or another program's; and whatever SQLite refuses while it is open.
    """
    with typed_errors(path), closing(sqlite3.connect(path)) as connection:
        prepare(connection, path)
        yield Store(connection)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a file that nothing is written to, nor beside.

    Raises:
        StoreError: it is absent, or no file of SQLite.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        text = f"{path}: {error.strerror}; run `aot tune`, or `run.py` of a bundle, first, and give its results file"
        raise StoreError(text) from error
    if head != MAGIC:
        what = "is empty" if not head else "is no file of SQLite"
        raise StoreError(f"{path} {what}; expected the results of `aot tune` or of a bundle's `run.py`")
    # Without a log beside it nobody is writing, and SQLite would make one if it were not told so.
    is_at_rest = not any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal"))
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_at_rest else ''}"
    return sqlite3.connect(uri, uri=True)


def _refuse_damaged(connection: sqlite3.Connection, path: Path) -> None:
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreError(f"{path} is damaged: {one_line(str(verdict))}; move it away and measure again")
    row = connection.execute("PRAGMA foreign_key_check").fetchone()
    if row is not None:
        table, number, parent, _ = row
        raise StoreError(
            f"{path} is damaged: row {number} of {table} names a row of {parent} that is not there; move it away and "
            "measure again"
        )


@contextmanager
def read_store(path: Path) -> Iterator[Store]:
    """Open a store to read, as it is at one moment: a copy in memory, so that nothing is written to the file.

    Raises:
        StoreError: the file is absent, damaged, newer or another program's; and whatever of it cannot be read.
    """
    with typed_errors(path), closing(sqlite3.connect(":memory:")) as memory:
        with closing(_connect_to_read(path)) as source:
            refuse_foreign(source, path, is_new=False)
            source.backup(memory)
        _refuse_damaged(memory, path)
        prepare(memory, path)
        yield Store(memory)


def copy_store(path: Path, copy: Path) -> None:
    """Copy a store that may be written meanwhile, as it is at one moment.

    Raises:
        StoreError: it is absent or damaged.
    """
    with typed_errors(path), closing(_connect_to_read(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
