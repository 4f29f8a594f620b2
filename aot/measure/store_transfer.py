"""Carry measurements from one store to another, so that what arrives twice counts once.

A run is known by its seed, a kernel by name and object, a problem by operation and sizes. A problem comes whole or not
at all: where the store has it to its end already, by whichever device, the later arrival is left out.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.measure.store import open_store, read_store, typed_errors
from aot.measure.store_sql import RUN_COLUMNS, sizes_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from aot.core.measurement import Conditions
    from aot.core.work import AnyProblem

# ruff: noqa: S608 - statements are put together of this file's constants only

_VALID = "id NOT IN (SELECT measurement FROM {store}.voided)"
_TIMES = "median_us, low_us, high_us, num_rounds"
_MAPS = (
    f"""INSERT INTO main.runs (target, seed, {RUN_COLUMNS}) SELECT target, seed, {RUN_COLUMNS} FROM source.runs
        WHERE seed NOT IN (SELECT seed FROM main.runs) ORDER BY id""",
    """CREATE TEMP TABLE run_of AS SELECT s.id AS there, t.id AS here
        FROM source.runs s JOIN main.runs t USING (seed)""",
    """INSERT OR IGNORE INTO main.kernels (name, operation, candidate, object_sha256, tile_order)
        SELECT name, operation, candidate, object_sha256, tile_order FROM source.kernels ORDER BY id""",
    """CREATE TEMP TABLE kernel_of AS SELECT s.id AS there, t.id AS here FROM source.kernels s
        JOIN main.kernels t ON (t.name, t.object_sha256) = (s.name, s.object_sha256)""",
    """INSERT OR IGNORE INTO main.problems (operation, sizes)
        SELECT operation, sizes FROM source.problems ORDER BY id""",
    """CREATE TEMP TABLE problem_of AS SELECT s.id AS there, t.id AS here FROM source.problems s
        JOIN main.problems t ON (t.operation, t.sizes) = (s.operation, s.sizes)""",
    f"""CREATE TEMP TABLE known AS SELECT DISTINCT problem AS here FROM main.finished
        WHERE problem IN (SELECT problem FROM main.measurements WHERE {_VALID.format(store="main")})
        OR problem NOT IN (SELECT problem FROM main.measurements)""",
    """CREATE TEMP TABLE new AS SELECT DISTINCT p.there, p.here FROM source.finished f
        JOIN problem_of p ON p.there = f.problem WHERE p.here NOT IN (SELECT here FROM known)""",
)
"""What of the other store is which row of this one, and the problems that are new here."""

_NEW_RUN = "JOIN run_of r ON r.there = x.run"
_OF_RUN = "main.{table} y WHERE y.run = r.here"
_ROWS = (
    f"""INSERT INTO main.measurements (run, kernel, problem, {_TIMES}, relative_error, status)
        SELECT r.here, k.here, n.here, {_TIMES}, relative_error, status FROM source.measurements x {_NEW_RUN}
        JOIN kernel_of k ON k.there = x.kernel JOIN new n ON n.there = x.problem
        WHERE x.{_VALID.format(store="source")} ORDER BY x.id""",
    f"""INSERT INTO main.library_times (run, library, problem, {_TIMES})
        SELECT r.here, library, n.here, {_TIMES} FROM source.library_times x {_NEW_RUN}
        JOIN new n ON n.there = x.problem ORDER BY x.rowid""",
    f"""INSERT INTO main.searches (run, problem, strategy, num_measured, num_skipped, reason, seconds)
        SELECT r.here, n.here, strategy, num_measured, num_skipped, reason, seconds FROM source.searches x {_NEW_RUN}
        JOIN new n ON n.there = x.problem ORDER BY x.rowid""",
    f"""INSERT INTO main.finished (run, problem) SELECT r.here, n.here FROM source.finished x {_NEW_RUN}
        JOIN new n ON n.there = x.problem ORDER BY x.rowid""",
    f"""INSERT INTO main.verified (run, kernel, relative_error)
        SELECT r.here, k.here, relative_error FROM source.verified x {_NEW_RUN} JOIN kernel_of k ON k.there = x.kernel
        WHERE NOT EXISTS (SELECT 1 FROM {_OF_RUN.format(table="verified")} AND y.kernel = k.here) ORDER BY x.rowid""",
    f"""INSERT INTO main.quarantine (run, kernel, reason)
        SELECT r.here, k.here, reason FROM source.quarantine x {_NEW_RUN} JOIN kernel_of k ON k.there = x.kernel
        WHERE NOT EXISTS (SELECT 1 FROM {_OF_RUN.format(table="quarantine")} AND y.kernel = k.here) ORDER BY x.rowid""",
    f"""INSERT INTO main.reference_times (run, kernel, problem, us)
        SELECT r.here, k.here, p.here, us FROM source.reference_times x {_NEW_RUN}
        JOIN kernel_of k ON k.there = x.kernel JOIN problem_of p ON p.there = x.problem WHERE NOT EXISTS (
        SELECT 1 FROM {_OF_RUN.format(table="reference_times")} AND (y.kernel, y.problem, y.us)
        = (k.here, p.here, x.us)) ORDER BY x.rowid""",
    f"""INSERT INTO main.separator_times (run, us) SELECT r.here, us FROM source.separator_times x {_NEW_RUN}
        WHERE NOT EXISTS (SELECT 1 FROM {_OF_RUN.format(table="separator_times")}) ORDER BY x.rowid""",
    f"""INSERT INTO main.clocks (run, sm_clock_mhz, memory_clock_mhz)
        SELECT r.here, sm_clock_mhz, memory_clock_mhz FROM source.clocks x {_NEW_RUN} WHERE NOT EXISTS (
        SELECT 1 FROM {_OF_RUN.format(table="clocks")} AND y.sm_clock_mhz IS x.sm_clock_mhz
        AND y.memory_clock_mhz IS x.memory_clock_mhz) ORDER BY x.rowid""",
)


def carry(source: Path, target: Path, problems: Collection[AnyProblem] | None = None) -> int:
    """Take over what another store has of problems that it finished, all in one transaction.

    What either of them holds of kernels and runs, verdicts and reference times, is taken over too; measurements that
    were voided stay behind.

    Args:
        source: the other store, at rest.
        target: the store; made if it is not there.
        problems: those to take, of all that it finished; None takes all.

    Returns:
        The number of problems that are new.

    Raises:
        StoreError: one of the two is damaged, or of another version.
    """
    with read_store(source):  # which refuses what is damaged
        pass
    with open_store(target):  # which makes it, or brings it up to date
        pass
    with typed_errors(target), closing(sqlite3.connect(target)) as connection:
        connection.execute("ATTACH ? AS source", (str(source),))
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _MAPS:
                connection.execute(statement)
            if problems is not None:
                wanted = json.dumps([[x.operation.tag, sizes_text(x)] for x in problems])
                connection.execute(
                    """DELETE FROM new WHERE there NOT IN (SELECT p.id FROM source.problems p JOIN json_each(?) w
                    ON (p.operation, p.sizes) = (w.value ->> 0, w.value ->> 1))""",
                    (wanted,),
                )
            for statement in _ROWS:
                connection.execute(statement)
            (count,) = connection.execute("SELECT count(*) FROM new").fetchone()
    return int(count)


@dataclass(frozen=True)
class RunsOf:
    """The runs of a store: their seeds and conditions, and what their reference kernels took in microseconds."""

    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    conditions: tuple[Conditions, ...]
    reference_us: tuple[float, ...]


def runs_of(path: Path) -> RunsOf:
    """Read under which conditions a store was measured.

    Raises:
        StoreError: it cannot be read.
    """
    with read_store(path) as store:
        return RunsOf(tuple(store.targets()), store.seeds(), store.all_conditions(), store.all_reference_times())


def void_runs(path: Path, seeds: Collection[int], reason: str) -> int:
    """Let no measurement of some runs count any more; return the number of those that did.

    Raises:
        StoreError: the store cannot be written.
    """
    with open_store(path) as store:
        return store.void_runs(seeds, reason)
