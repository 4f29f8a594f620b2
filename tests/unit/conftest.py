from pathlib import Path

import pytest

import aot
from aot.pipeline import measured_times
from aot.record import read_record


@pytest.fixture(scope="session")
def h200_times():
    """Give the committed record's times: {operation: {problem: {candidate: microseconds}}}."""
    return measured_times(read_record(Path(aot.__file__).parent / "records" / "h200.jsonl.gz"))
