"""A legal kernel of each family for each operation is executed in the interpreter, drawn at random but always the same.

So is one that is compiled for four SMs, whose CTAs take many tiles each and turn their rings of stages often.
"""

from __future__ import annotations

import pytest

from aot.compile.workplace import Workplace
from aot.core.operation import Operation
from aot.core.row_operation import RowOperation
from aot.core.target import load_target
from aot.emulate.build import emulated_target
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.kernels import compile_emulated
from aot.emulate.schedule import Mode, Schedule
from aot.studies.census import legal_keys

SCHEDULES = tuple(Schedule(mode, 1) for mode in (Mode.RANDOM, Mode.HOLD_PRODUCTS, Mode.BEHIND_ITSELF))
INSTRUCTIONS = 8_000
"""Warp instructions of the largest case."""
FEW_SMS = 4


@pytest.mark.parametrize("num_sms", [None, FEW_SMS])
@pytest.mark.parametrize("operation", [*Operation, *RowOperation], ids=lambda x: x.tag)
@pytest.mark.parametrize("target", ["thor", "h200"])
def test_a_kernel_of_each_family_is_right(target, operation, num_sms, tmp_path):
    device = emulated_target(load_target(target), num_sms)
    keys = legal_keys((operation,), device, 1)
    if num_sms and isinstance(operation, RowOperation):
        pytest.skip("a kernel on rows is the same on any number of SMs")
    if not keys:
        pytest.skip("no family computes it there")
    kernels = compile_emulated(keys, device, tmp_path, Workplace(progress=False))
    executor = Executor(kernels, ExecutionOptions(SCHEDULES, max_instructions=INSTRUCTIONS))
    wrong = {}
    for name in kernels.names:
        result = executor.execute(name)
        if not result.is_right:
            wrong[name] = result.error or [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right]
    assert (wrong, kernels.failures) == ({}, ())
