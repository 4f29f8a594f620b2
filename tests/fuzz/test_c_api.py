"""A short run of each fuzz, with sanitizers in `make walk`; `python -m tests.fuzz.c_api` has the long ones."""

from __future__ import annotations

import pytest

from tests.compiling import EVERY
from tests.fuzz import c_api

NUM_CALLS = c_api.ENOUGH_CALLS if EVERY else 50_000

STATUSES = {f"status {i}" for i in (0, 1, 2, 3, 4, 7, 8)}
ERRORS = {
    *(
        "ok plain_call",
        "ok full_call",
        "ok grouped_call",
        "ok packed_linear_call",
        "ok packed_grouped_call",
        "ok many_call",
        "ok plan_call",
        "ok row_call",
        "AotGemmError",
        "DeviceError",
        "DtypeError",
        "MemoryError",
    ),
    *("OperandError", "ShapeError", "StrideError", "UnsupportedError"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return c_api.build(tmp_path_factory.mktemp("fuzz"), c_api.SANITIZERS if EVERY else ())


def test_the_c_api_takes_anything(folder):
    run = c_api.run_c(folder.parents[1], NUM_CALLS, 7)
    assert run.outcomes.keys() >= STATUSES
    assert sum(run.outcomes.values()) == run.calls
    assert run.launches > run.calls / 50


def test_the_row_operations_take_anything(folder):
    run = c_api.run_c(folder.parents[1], NUM_CALLS, 9, "rows_api")
    assert run.outcomes.keys() >= {f"status {i}" for i in (0, 1, 2, 3, 4, 7)}
    assert sum(run.outcomes.values()) == run.calls
    assert run.launches > run.calls / 50


def test_the_python_package_takes_anything(folder):
    run = c_api.run_python(folder, 5_000, 7)
    assert run.outcomes.keys() >= ERRORS
    assert sum(run.outcomes.values()) == run.calls
    assert run.launches > run.calls / 50


def test_a_report_of_a_sanitizer_is_an_error(folder):
    with pytest.raises(c_api.FuzzError, match=r"c_api ended with -?\d+"):
        c_api._run([folder.parents[1] / "c_api"])
