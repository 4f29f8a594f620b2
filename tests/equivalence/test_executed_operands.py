"""A kernel of each family for each kind of operands, and of operations on rows, is executed in the interpreter.

`make test` executes a Thor's for batches and groups on their smallest cases, since test_executed.py has those of single
products; `make walk` all, an H200's too, and on larger cases.
"""

import pytest

from aot.cli.emulate import DEFAULT_MODES
from aot.core.grouping import Grouping
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.schedule import Mode, Schedule
from tests.compiling import EVERY
from tests.emulated import emulated_set
from tests.equivalence import operand_kernels

pytestmark = pytest.mark.slow
MODES = DEFAULT_MODES if EVERY else (Mode.RANDOM,)
INSTRUCTIONS = 60_000 if EVERY else 4_000
"""Warp instructions of the largest case."""


@pytest.fixture(scope="module", params=operand_kernels.TARGETS)
def executor(request, tmp_path_factory):
    keys = operand_kernels.keys(request.param)
    if EVERY:
        keys += operand_kernels.row_keys(request.param)
    else:
        keys = [x for x in keys if x.candidate.family != "simt" and x.operation.grouping is not Grouping.DENSE]
    options = ExecutionOptions(tuple(Schedule(mode, 1) for mode in MODES), max_instructions=INSTRUCTIONS)
    kernels = emulated_set(keys, request.param, tmp_path_factory.mktemp("operands"))
    return kernels.names, Executor(kernels, options)


def test_every_kernel_is_right(executor):
    names, each = executor
    results = [each.execute(name) for name in names]
    wrong = {x.name: x.error or [(y.case, y.fault, y.findings) for y in x.cases if not y.is_right] for x in results}
    assert {name: why for name, why in wrong.items() if why} == {}
    assert {x.name for x in results if not x.cases} == set()
