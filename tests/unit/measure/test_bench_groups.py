"""Groups are timed on even and on skewed loads, and their samples are checked group by group."""

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument
from aot.measure.bench import Operands, ProblemBench, Workspace
from aot.measure.inputs import RandomPools
from aot.measure.protocol import TimingPlan, num_sets, set_bytes
from tests.unit.group_twins import GroupKernels, stack_of
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of

PLAN = TimingPlan()
GROUPED = (
    Operation.BF16_KK_GROUPED,
    Operation.BF16_KN_GROUPED,
    Operation.BF16_KK_GATHERED_SWIGLU,
    Operation.BF16_MN_KGROUPED,
    Operation.E4M3_BF16_KK_GROUPED,
    Operation.E4M3_BF16_BLOCK_KK_GROUPED,
)


def bench_of(operation, fault="", seed=7):
    problem = Problem(operation, 24, 64, 128, 5)
    gpu, rng = TwinGpu(l2_bytes=1 << 15), np.random.default_rng(seed)
    twin = GroupKernels if operation.grouping.has_offsets else TwinKernels
    kernels = twin(gpu, [kernel_of(operation=operation)])
    kernels.fault = fault
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, PLAN) * set_bytes(problem))
    operands = Operands(gpu, RandomPools(gpu, rng, 1 << 14), arena, problem, PLAN, rng)
    return operands, ProblemBench(gpu, kernels, operands, Workspace(0, 0), PLAN)


@pytest.mark.parametrize("operation", [*GROUPED, Operation.BF16_KK_BATCHED], ids=lambda x: x.tag)
@pytest.mark.parametrize("seed", range(3))
def test_a_right_kernel_is_timed(operation, seed):
    _, bench = bench_of(operation, seed=seed)
    assert 0 < bench.check(0) < 4e-3
    assert bench.screen_us(0, None) > 0
    bench.close()


@pytest.mark.parametrize("operation", [Operation.BF16_KK_GROUPED, Operation.E4M3_BF16_KK_GROUPED], ids=lambda x: x.tag)
def test_a_kernel_of_one_weight_for_all_groups_is_found(operation):
    with pytest.raises(VerificationError, match="wrong result on sampled rows"):
        bench_of(operation, "first weight")[1].check(0)


@pytest.mark.parametrize("operation", GROUPED, ids=lambda x: x.tag)
def test_the_sets_have_even_and_skewed_loads_in_turn(operation):
    operands, _ = bench_of(operation)
    assert len(operands.calls) >= 2
    extent = 128 if operation is Operation.BF16_MN_KGROUPED else 24
    for i, call in enumerate(operands.calls):
        ends = stack_of(operation, Argument.OFFSETS, call.tensors[Argument.OFFSETS])[0, :, 0].copy().view(np.int32)
        sizes = np.diff(ends, prepend=0)
        assert ends[-1] == 5 * extent
        if i % 2 == 0:
            assert sizes.tolist() == [extent] * 5
        else:
            shares = 1 / np.arange(1, 6)
            assert np.abs(np.sort(sizes)[::-1] - 5 * extent * shares / shares.sum()).max() <= 1
