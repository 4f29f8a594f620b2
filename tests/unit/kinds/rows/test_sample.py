"""Which rows of a timed problem are looked at, and that a wrong one of them is found."""

import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.kinds.rows.call import timed_heads
from aot.kinds.rows.catalogue import row_operation, row_operations
from aot.kinds.rows.problem import RowProblem
from aot.kinds.rows.signature import RowArgument
from aot.measure.bench import Operands, ProblemBench, Workspace
from aot.measure.inputs import RandomPools
from aot.measure.protocol import TimingPlan, num_sets, set_bytes
from tests.compiling import some
from tests.unit.row_twins import row_kernel_of
from tests.unit.twins import TwinGpu, TwinKernels

PLAN = TimingPlan()


def bench_of(operation, fault="", rows=64, cols=256, plan=PLAN):
    gpu, rng, kernel = TwinGpu(l2_bytes=1 << 15), np.random.default_rng(7), row_kernel_of(operation)
    kernels = TwinKernels(gpu, [kernel], faults={kernel.name: (fault, 0)})
    problem = RowProblem(operation, rows, cols)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    operands = Operands(gpu, RandomPools(gpu, rng, 1 << 12), arena, problem, plan, rng)
    return operands, ProblemBench(gpu, kernels, operands, Workspace(0, 0), plan)


@pytest.mark.parametrize("operation", some(row_operations()), ids=lambda x: x.tag)
@pytest.mark.parametrize("rows", [1, 64])
def test_a_right_kernel_is_timed(operation, rows):
    _, bench = bench_of(operation, rows=rows)
    assert bench.check(0) == 0.0
    assert bench.screen_us(0, None) > 0
    bench.close()


@pytest.mark.parametrize("operation", some(row_operations()), ids=lambda x: x.tag)
@pytest.mark.parametrize("fault", ["wrong", "unwritten"])
def test_the_first_and_the_last_row_are_looked_at(operation, fault):
    with pytest.raises(VerificationError, match="wrong result on sampled rows: y: "):
        bench_of(operation, fault)[1].check(0)


def test_a_wrong_scale_is_found():
    with pytest.raises(VerificationError, match="wrong result on sampled rows: scales: 1 of"):
        bench_of(row_operation("bf16_e4m3_quantize"), "scales")[1].check(0)


def test_a_sample_is_as_many_rows_as_the_plan_lets_it_read():
    operands, _ = bench_of(row_operation("bf16_silu_mul"))
    assert [x.argument for x in operands.sample.spans] == [RowArgument.Y] * PLAN.sample_rows
    operands, _ = bench_of(row_operation("bf16_silu_mul"), plan=TimingPlan(sample_elements=5 * 512))
    assert len(operands.sample.spans) == 5
    operands, _ = bench_of(row_operation("bf16_e4m3_block_quantize"))
    scales = [x for x in operands.sample.spans if x.argument is RowArgument.SCALE]
    assert ({x.count for x in scales}, scales[-1].start) == ({2}, 63 * 2)


def test_the_sets_of_operands_exceed_the_cache_and_rows_of_a_rotary_embedding_are_heads():
    operands, _ = bench_of(row_operation("bf16_rotary"))
    assert row_operation("bf16_rotary").is_rotary
    assert len(operands.calls) * set_bytes(operands.problem) >= 3 << 15
    x, cos = (operands.calls[0].tensors[y].matrix for y in (RowArgument.X, RowArgument.COS))
    assert (x.num_groups, x.num_rows, x.num_columns) == (2, 32, 256)
    assert (cos.num_rows, cos.num_columns) == (2, 128)
    heads = [timed_heads(RowProblem(row_operation("bf16_rotary"), rows, 64)) for rows in (32, 8, 40, 7)]
    assert heads == [32, 8, 8, 1]
