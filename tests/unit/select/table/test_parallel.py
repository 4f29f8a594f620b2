"""Work in processes gives what it gives without, in order; what fails there fails here."""

import pytest

from aot.select.table import parallel as parts
from aot.select.table.parallel import in_parts


def times(by, part):
    if part < 0:
        raise ValueError(f"{part} is below 0")
    return by * part


@pytest.mark.slow
@pytest.mark.parametrize("many", [0, 100])
def test_results_come_in_the_order_of_the_parts(monkeypatch, many):
    monkeypatch.setattr(parts, "MANY", many)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    told = []
    assert in_parts(times, 3, [5, 1, 4], 10, told.append) == [15, 3, 12]
    assert told[0] == 0
    assert told == sorted(told)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_fails_in_a_process_is_told(monkeypatch):
    monkeypatch.setattr(parts, "MANY", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(ValueError, match="-1 is below 0"):
        in_parts(times, 3, [2, -1], 10, lambda _: None)
