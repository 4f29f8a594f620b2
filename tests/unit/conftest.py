from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import aot
from aot.core.candidate import KernelKey
from aot.core.measurement import Measurement, Record
from aot.select.times.known import measured_times
from aot.select.times.record import read_record, write_record
from tests.readings import readings
from tests.unit.twins import BF16, CONDITIONS

__all__ = ["readings"]

# A machine that does other work meanwhile draws and computes slowly, and nothing is wrong.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.fixture(scope="session")
def h200_record():
    """Give the record of the first H200 tuning, of many kernels on each problem."""
    return read_record(Path(aot.__file__).parent / "records" / "h200_quack.jsonl.gz")


@pytest.fixture(scope="session")
def h200_times(h200_record):
    """Give that record's times: {operation: {problem: {candidate: microseconds}}}."""
    return measured_times(h200_record)


@pytest.fixture
def few_record(h200_times, tmp_path, monkeypatch):
    """Write a record of a few of its problems, thirty kernels each, into a fresh working folder; give its path."""
    monkeypatch.chdir(tmp_path)
    problems = [x for x in sorted(h200_times[BF16]) if x.m in (1, 300) and x.n in (4096, 5120)]
    rows = [
        Measurement(KernelKey(BF16, candidate), problem, us, us, us, 7, 1e-3)
        for problem in problems
        for candidate, us in sorted(h200_times[BF16][problem].items())[:30]
    ]
    write_record(Path("few.jsonl.gz"), Record("h200", (CONDITIONS,), tuple(rows)))
    return "few.jsonl.gz"


def pytest_collection_modifyitems(items):
    """Mark what uses a whole record, which takes seconds to read."""
    for item in items:
        if "h200_record" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
