"""Every kernel of the default Thor wheel is executed in the interpreter, and the committed record says what was found.

`make test` executes the kernels that are compiled for the tests beside this file, on their smaller cases; `make walk`
executes all of the wheel's, on all cases of the record. So `aot build` calls a kernel executed because it was.
"""

import pytest

from aot.cli.emulate import DEFAULT_MODES
from aot.cli.emulate_record import recorded_execution
from aot.core.execution import executions_path, read_executions
from aot.emulate.execute import MAX_INSTRUCTIONS, ExecutionOptions, Executor
from aot.emulate.schedule import Schedule
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.equivalence import kernels

pytestmark = pytest.mark.slow
FEW = 12_000
"""Warp instructions of the cases that `make test` executes."""
RECORD = {x.kernel: x for x in read_executions(executions_path("thor"), "thor")}
AGAIN = "python -m aot emulate --target thor --record"


def keys():
    return kernels.wheel().kernels if EVERY else kernels.selection().kernels


@pytest.fixture(scope="module")
def executor(tmp_path_factory):
    schedules = tuple(Schedule(mode, 0) for mode in DEFAULT_MODES)
    options = ExecutionOptions(schedules, max_instructions=MAX_INSTRUCTIONS if EVERY else FEW)
    return Executor(emulated_set(keys(), "thor", tmp_path_factory.mktemp("executed")), options)


def test_the_record_has_every_kernel_of_the_wheel():
    assert sorted(RECORD) == sorted(key.name for key in kernels.wheel().kernels), AGAIN


@pytest.mark.parametrize("name", [key.name for key in keys()])
def test_a_kernel_does_what_the_record_says(executor, name):
    result = executor.execute(name)
    assert result.is_right, [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right]
    found, recorded = recorded_execution(result), RECORD[name]
    assert found.ptx_sha256 == recorded.ptx_sha256, f"{name} is another kernel than the record's: {AGAIN}"
    assert recorded.num_findings == 0
    if EVERY:
        same = ("num_cases", "num_schedules", "num_runs", "worst_error")
        assert [getattr(found, x) for x in same] == [getattr(recorded, x) for x in same], AGAIN
    else:
        assert found.worst_error <= recorded.worst_error
        assert 1 <= found.num_cases <= recorded.num_cases
