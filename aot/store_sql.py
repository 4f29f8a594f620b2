"""The store's tables, and the statements that append one store to another."""

# ruff: noqa: S608 - statements are put together of this file's constants only

from __future__ import annotations

SCHEMA_VERSION = 3
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
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, dtype TEXT NOT NULL, layout TEXT NOT NULL, candidate TEXT NOT NULL,
  object_sha256 TEXT NOT NULL, UNIQUE (name, object_sha256)) STRICT;
CREATE TABLE IF NOT EXISTS measurements (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels,
  dtype TEXT NOT NULL, layout TEXT NOT NULL, m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL,
  median_us REAL NOT NULL, low_us REAL NOT NULL, high_us REAL NOT NULL, num_rounds INTEGER NOT NULL,
  relative_error REAL NOT NULL, status TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS by_problem ON measurements (dtype, layout, m, n, k, kernel);
CREATE TABLE IF NOT EXISTS verified (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels,
  relative_error REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS quarantine (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels, reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS finished (
  run INTEGER NOT NULL REFERENCES runs, dtype TEXT NOT NULL, layout TEXT NOT NULL, m INTEGER NOT NULL,
  n INTEGER NOT NULL, k INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS voided (
  measurement INTEGER PRIMARY KEY REFERENCES measurements, run INTEGER NOT NULL REFERENCES runs,
  reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS anchors (
  run INTEGER NOT NULL REFERENCES runs, kernel INTEGER NOT NULL REFERENCES kernels, dtype TEXT NOT NULL,
  layout TEXT NOT NULL, m INTEGER NOT NULL, n INTEGER NOT NULL, k INTEGER NOT NULL, us REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS searches (
  run INTEGER NOT NULL REFERENCES runs, dtype TEXT NOT NULL, layout TEXT NOT NULL, m INTEGER NOT NULL,
  n INTEGER NOT NULL, k INTEGER NOT NULL, strategy TEXT NOT NULL, num_measured INTEGER NOT NULL,
  num_skipped INTEGER NOT NULL, reason TEXT NOT NULL, seconds REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS in_flight (
  id INTEGER PRIMARY KEY CHECK (id = 1), run INTEGER NOT NULL, kernel INTEGER NOT NULL, what TEXT NOT NULL) STRICT;
"""

_ADD_MIG = (
    "ALTER TABLE runs ADD COLUMN mig TEXT",
    "UPDATE runs SET mig = substr(device, instr(device, ' MIG ') + 5) WHERE instr(device, ' MIG ')",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
UPGRADES = {1: (*SCHEMA.split(";")[:-1], *_ADD_MIG), 2: _ADD_MIG}
"""The statements that bring a file of an older version up to date: version 1 lacks tables, 1 and 2 the MIG profile."""

RUN_COLUMNS = "device, arch, num_sms, driver, sm_clock_mhz, memory_clock_mhz, power_mode, date, protocol, mig"
MEASUREMENT_COLUMNS = "dtype, layout, m, n, k, median_us, low_us, high_us, num_rounds, relative_error, status"


def _columns(prefix: str, columns: str) -> str:
    return ", ".join(prefix + column for column in columns.split(", "))


INSERT_RUN = f"INSERT INTO runs (target, seed, {RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_MEASUREMENT = f"""
INSERT INTO measurements (run, kernel, {MEASUREMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT_MEASUREMENTS = f"""
SELECT kernel, {MEASUREMENT_COLUMNS} FROM measurements
WHERE id NOT IN (SELECT measurement FROM voided) {{condition}} ORDER BY id
"""
INSERT_VOIDED = """
INSERT INTO voided SELECT id, ?, ? FROM measurements
WHERE id NOT IN (SELECT measurement FROM voided) AND (dtype, layout, m, n, k) = (?, ?, ?, ?, ?)
"""

_RUN_TWIN = "JOIN s.runs old_run ON old_run.id = old.run JOIN main.runs run USING (seed)"
_TWINS = f"""
{_RUN_TWIN} JOIN s.kernels old_kernel ON old_kernel.id = old.kernel
JOIN main.kernels kernel USING (name, object_sha256)
"""

_IMPORT_RUNS = f"""
INSERT OR IGNORE INTO main.runs (target, seed, {RUN_COLUMNS})
SELECT target, seed, {RUN_COLUMNS} FROM s.runs ORDER BY id
"""
_IMPORT_KERNELS = """
INSERT OR IGNORE INTO main.kernels (name, dtype, layout, candidate, object_sha256)
SELECT name, dtype, layout, candidate, object_sha256 FROM s.kernels ORDER BY id
"""
_IMPORT_CLOCKS = f"""
INSERT INTO main.clocks SELECT run.id, old.sm_clock_mhz, old.memory_clock_mhz FROM s.clocks old {_RUN_TWIN}
WHERE NOT EXISTS (SELECT 1 FROM main.clocks c WHERE c.run = run.id)
"""
_IMPORT_MEASUREMENTS = f"""
INSERT INTO main.measurements (run, kernel, {MEASUREMENT_COLUMNS})
SELECT run.id, kernel.id, {_columns("old.", MEASUREMENT_COLUMNS)} FROM s.measurements old {_TWINS}
WHERE NOT EXISTS (
  SELECT 1 FROM main.measurements m WHERE (run, kernel, {_columns("m.", MEASUREMENT_COLUMNS)})
  = (run.id, kernel.id, {_columns("old.", MEASUREMENT_COLUMNS)}))
ORDER BY old.id
"""
_IMPORT_VOIDED = f"""
INSERT OR IGNORE INTO main.voided
SELECT m.id, run.id, v.reason FROM s.voided v JOIN s.measurements old ON old.id = v.measurement {_TWINS}
JOIN main.measurements m ON (m.run, m.kernel, {_columns("m.", MEASUREMENT_COLUMNS)})
  = (run.id, kernel.id, {_columns("old.", MEASUREMENT_COLUMNS)})
"""
_IMPORT_ANCHORS = f"""
INSERT INTO main.anchors SELECT run.id, kernel.id, old.dtype, old.layout, old.m, old.n, old.k, old.us
FROM s.anchors old {_TWINS}
WHERE NOT EXISTS (SELECT 1 FROM main.anchors x WHERE (x.run, x.us) = (run.id, old.us)) ORDER BY old.rowid
"""
_IMPORT_VERIFIED = f"""
INSERT INTO main.verified SELECT run.id, kernel.id, old.relative_error FROM s.verified old {_TWINS}
WHERE NOT EXISTS (SELECT 1 FROM main.verified v WHERE (v.run, v.kernel) = (run.id, kernel.id))
"""
_IMPORT_QUARANTINE = f"""
INSERT INTO main.quarantine SELECT run.id, kernel.id, old.reason FROM s.quarantine old {_TWINS}
WHERE NOT EXISTS (SELECT 1 FROM main.quarantine q WHERE (q.run, q.kernel) = (run.id, kernel.id))
"""
_IMPORT_FINISHED = f"""
INSERT INTO main.finished SELECT run.id, old.dtype, old.layout, m, n, k FROM s.finished old {_RUN_TWIN}
EXCEPT SELECT * FROM main.finished
"""
_IMPORT_SEARCHES = f"""
INSERT INTO main.searches
SELECT run.id, old.dtype, old.layout, m, n, k, strategy, num_measured, num_skipped, reason, seconds
FROM s.searches old {_RUN_TWIN} EXCEPT SELECT * FROM main.searches
"""

IMPORTS = (
    _IMPORT_RUNS,
    _IMPORT_KERNELS,
    _IMPORT_CLOCKS,
    _IMPORT_MEASUREMENTS,
    _IMPORT_VERIFIED,
    _IMPORT_QUARANTINE,
    _IMPORT_FINISHED,
    _IMPORT_SEARCHES,
    _IMPORT_VOIDED,
    _IMPORT_ANCHORS,
)
"""Append from the attached file `s`: runs are the same when their seeds are, kernels when name and object are."""
