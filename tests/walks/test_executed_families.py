"""A legal kernel of each family for each operation is executed in the interpreter, drawn at random but always the same.

So is one that is compiled for four SMs, whose CTAs take many tiles each and turn their rings of stages often; and of
each family as few kernels as have every value of each of its knobs.
"""

from __future__ import annotations

import pytest

from aot.compile.legal_keys import legal_keys
from aot.compile.workplace import Workplace
from aot.core.operation import Operation
from aot.core.target import load_target
from aot.emulate.build import emulated_target
from aot.emulate.execute import ExecutionOptions, Executor
from aot.emulate.kernels import compile_emulated
from aot.emulate.schedule import Mode, Schedule
from aot.families import families, families_for, families_of
from aot.kinds.rows.catalogue import row_operations
from aot.kinds.rows.operation import RowOperation

SCHEDULES = tuple(Schedule(mode, 1) for mode in (Mode.RANDOM, Mode.HOLD_PRODUCTS, Mode.BEHIND_ITSELF))
INSTRUCTIONS = 8_000
"""Warp instructions of the largest case."""
FEW_SMS = 4
MOST = 400
"""Candidates of a family and an operation that are looked at, drawn at random."""


def wrong_of(keys, device, folder):
    """Execute kernels; give what is wrong with those that are, and those that did not compile."""
    kernels = compile_emulated(keys, device, folder, Workplace(progress=False))
    executor = Executor(kernels, ExecutionOptions(SCHEDULES, max_instructions=INSTRUCTIONS))
    results = [executor.execute(name) for name in kernels.names]
    wrong = {
        result.name: result.error or [(x.case, x.fault, x.findings) for x in result.cases if not x.is_right]
        for result in results
        if not result.is_right
    }
    return wrong, kernels.failures


@pytest.mark.parametrize("num_sms", [None, FEW_SMS])
@pytest.mark.parametrize("operation", [*Operation, *row_operations()], ids=lambda x: x.tag)
@pytest.mark.parametrize("target", ["thor", "h200"])
def test_a_kernel_of_each_family_is_right(target, operation, num_sms, tmp_path):
    device = emulated_target(load_target(target), num_sms)
    keys = legal_keys((operation,), device, 1)
    if num_sms and isinstance(operation, RowOperation):
        pytest.skip("a kernel on rows is the same on any number of SMs")
    if not keys:
        pytest.skip("no family computes it there")
    assert wrong_of(keys, device, tmp_path) == ({}, ())


def every_value(family, target):
    """Give as few kernels of a family, of operations that it computes, as have every value of each knob."""
    operations = [x for x in Operation if family in families_of(x, target)]
    legal = [key for key in legal_keys(operations, target, MOST) if key.candidate.family == family.name]
    values = {key: {(x, y) for x, y in vars(key.candidate.knobs).items()} for key in legal}
    left, chosen = set().union(*values.values()), []
    while left:
        chosen.append(max(legal, key=lambda key: len(values[key] & left)))
        left -= values[chosen[-1]]
    return chosen


@pytest.mark.parametrize(
    ("target", "name"), [(target, x.name) for target in ("thor", "h200") for x in families_for(load_target(target))]
)
def test_every_value_of_each_knob_is_right(target, name, tmp_path):
    device = emulated_target(load_target(target), None)
    keys = every_value(families()[name], device)
    assert wrong_of(keys, device, tmp_path) == ({}, ())
