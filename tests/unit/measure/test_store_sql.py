import sqlite3

from aot.measure import store_sql


def test_the_schema_is_one_that_sqlite_takes_and_is_strict():
    connection = sqlite3.connect(":memory:")
    connection.executescript(store_sql.SCHEMA)
    tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    assert {"runs", "kernels", "measurements", "quarantine", "in_flight"} <= set(tables)
    assert all(sql.rstrip().endswith("STRICT") for sql in tables.values())
