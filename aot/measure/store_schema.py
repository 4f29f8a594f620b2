"""The version of a store's tables: new files get them, older ones are brought up to date, others are refused."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from aot.core.errors import StoreError
from aot.measure.store_sql import APPLICATION_ID, SCHEMA, SCHEMA_VERSION, UPGRADES

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 10.0
"""How long to wait for another process that holds the file."""


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the journal of a new file. SQLite does not wait here by itself, whatever its busy_timeout."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _upgrade(connection: sqlite3.Connection) -> int:
    """Bring the file of an older aot up to date, unless another process has done so meanwhile; give its version."""
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    while version in UPGRADES:
        for statement in UPGRADES[version]:
            connection.execute(statement)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.commit()
    return int(version)


def refuse_foreign(connection: sqlite3.Connection, path: Path, *, is_new: bool) -> int:
    """Return a file's schema version, before anything is written to the file.

    Raises:
        StoreError: the file is another program's, or of a version that this aot does not read.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID and not (is_new and application == version == 0):
        raise StoreError(f"{path} is a SQLite file of another program; give another path")
    if version != SCHEMA_VERSION and version not in UPGRADES and not is_new:
        raise StoreError(
            f"{path} has schema version {version}, this aot reads {SCHEMA_VERSION}; use the aot that wrote it, or "
            "measure into another file"
        )
    return int(version)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file, and bring those of an older aot up to date.

    Raises:
        StoreError: the file is newer, or another program's.
    """
    connection.execute(f"PRAGMA busy_timeout = {int(WAIT_S * 1000)}")
    connection.execute("BEGIN")  # one view of the file: another process may be making it
    (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if num_tables == 0:
        refuse_foreign(connection, path, is_new=True)
    connection.commit()
    if num_tables == 0:
        _use_write_ahead_log(connection)
        # Another process may be making the same tables: the statements wait for it, and then find them there.
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {marks} COMMIT;")
    if refuse_foreign(connection, path, is_new=False) in UPGRADES:
        _upgrade(connection)
    # A commit then costs no fsync: a killed process loses nothing, a power cut the last measurements at most.
    connection.execute("PRAGMA synchronous = NORMAL")
