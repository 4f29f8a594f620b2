from pathlib import Path

import pytest

import aot
from aot.select.record import read_record
from aot.select.times import measured_times
from tests.readings import readings

__all__ = ["readings"]


@pytest.fixture(scope="session")
def h200_record():
    """Give the record of the first H200 tuning, of many kernels on each problem."""
    return read_record(Path(aot.__file__).parent / "records" / "h200_quack.jsonl.gz")


@pytest.fixture(scope="session")
def h200_times(h200_record):
    """Give that record's times: {operation: {problem: {candidate: microseconds}}}."""
    return measured_times(h200_record)


def pytest_collection_modifyitems(items):
    """Mark what uses a whole record, which takes seconds to read."""
    for item in items:
        if "h200_record" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
