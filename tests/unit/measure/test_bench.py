import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.measure import bench as measure
from aot.measure.bench import Operands, ProblemBench, Workspace, separator_us
from aot.measure.inputs import RandomPools
from aot.measure.protocol import TimingPlan, num_launches, num_sets, plan_for, set_bytes
from tests.unit.twins import SEPARATOR, TwinGpu, TwinKernels, kernel_of, problem_of

PLAN = TimingPlan()
THOR_L2 = 32 << 20


def bench_of(faults=None, times_us=None, problem=None, num_kernels=2):
    gpu = TwinGpu(l2_bytes=1 << 15)
    tuned = [kernel_of(64 * (i + 1)) for i in range(num_kernels)]
    kernels = TwinKernels(gpu, tuned, times_us or {}, faults or {})
    rng = np.random.default_rng(7)
    problem = problem or problem_of(40, 64, 48)
    pools = RandomPools(gpu, rng, 1 << 14)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, PLAN) * set_bytes(problem))
    operands = Operands(gpu, pools, arena, problem, PLAN, rng)
    bench = ProblemBench(gpu, kernels, operands, Workspace(0, 0), PLAN, separator_us=gpu.separator_us)
    return gpu, kernels, bench


def test_graph_time_is_per_launch_and_rotates_over_the_sets():
    gpu, kernels, bench = bench_of(times_us={kernel_of(64).name: 25.0})
    assert 0 < bench.check(0) < 3e-3
    assert bench.screen_us(0, None) == pytest.approx(25.0)
    ((graph,),) = (gpu.graphs.values(),)
    sets = num_sets(bench.problem, gpu.l2_bytes, PLAN)
    count = num_launches(sets, 25.0, PLAN)
    # Every second launch stands behind a separator, whose time is taken off.
    assert graph == [(SEPARATOR, 2.0), *[(kernel_of(64).name, 25.0)] * 2] * (count // 2)
    # The check ran on the first set, the rough timing on the second.
    assert len({d for _, d in kernels.launches}) == 2
    bench.close()
    assert gpu.graphs == {}


def test_a_separators_cost_is_the_slope_between_two_graphs_of_them(monkeypatch):
    gpu = TwinGpu()
    replay_us = gpu.replay_us
    # What a replay costs besides its kernels is no part of it.
    monkeypatch.setattr(gpu, "replay_us", lambda graph: 40.0 + replay_us(graph))
    assert separator_us(gpu, PLAN) == pytest.approx(2.0)
    assert gpu.graphs == {}
    assert gpu.replayed == []


def test_nothing_is_promised_of_b_when_a_kernel_is_timed():
    _, kernels, bench = bench_of()
    bench.round_us(0)
    assert kernels.promised
    assert not any(kernels.promised)


def test_a_rest_is_as_long_as_the_replay(monkeypatch):
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 25.0})
    bench.check(0)
    slept = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    assert bench.round_us(0) == pytest.approx(25.0)
    assert slept == []
    assert bench.round_us(0, rests=True) == pytest.approx(25.0)
    (graph,) = gpu.graphs.values()
    assert slept == [pytest.approx(25e-6 * sum(name != SEPARATOR for name, _ in graph))]
    bench.close()


def test_far_slower_long_kernel_gets_its_single_launch_time_and_no_graph():
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 900.0})
    assert bench.screen_us(0, 100.0) == 900.0
    assert gpu.graphs == {}
    assert bench.screen_us(0, 800.0) == pytest.approx(900.0)
    assert len(gpu.graphs) == 1


def test_a_single_launch_that_a_stall_made_long_is_timed_again(monkeypatch):
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 25.0})
    time_us, stalls = gpu.time_us, [2000.0]
    monkeypatch.setattr(gpu, "time_us", lambda launch: time_us(launch) + (stalls.pop() if stalls else 0.0))
    assert bench.screen_us(0, 24.0) == pytest.approx(25.0)
    assert len(gpu.graphs) == 1


def test_a_long_replay_needs_no_other_before_it():
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 25.0, kernel_of(128).name: 1100.0})
    assert [bench.screen_us(kernel, None) for kernel in (0, 1)] == [pytest.approx(25.0), pytest.approx(1100.0)]
    assert gpu.warmed_up == [True, True, False, False]  # a first screening is taken twice


def test_keep_frees_the_other_graphs():
    gpu, _, bench = bench_of()
    bench.round_us(0)
    bench.round_us(1)
    bench.keep([1])
    assert list(gpu.graphs) == [2]


@pytest.mark.parametrize(("fault", "message"), [("unwritten", "64 of 1024 sampled"), ("wrong", "wrong result on")])
def test_bad_results_are_found_before_timing(fault, message):
    _, _, bench = bench_of(faults={kernel_of(64).name: (fault, 0)})
    with pytest.raises(VerificationError, match=message):
        bench.check(0)
    assert bench.check(1) < 3e-3


def test_sample_of_a_large_problem_is_bounded_and_has_the_corners():
    plan = TimingPlan(sample_elements=48 * 10)
    gpu = TwinGpu(l2_bytes=1 << 15)
    kernels = TwinKernels(gpu, [kernel_of()])
    rng = np.random.default_rng(8)
    problem = problem_of(40, 64, 48)
    pools = RandomPools(gpu, rng, 1 << 14)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    operands = Operands(gpu, pools, arena, problem, plan, rng)
    bench = ProblemBench(gpu, kernels, operands, Workspace(0, 0), plan)
    sample = operands.sample
    assert (len(sample.rows), sample.rows[0], sample.rows[-1]) == (16, 0, 39)
    assert (len(sample.columns), sample.columns[0], sample.columns[-1]) == (10, 0, 63)
    assert bench.check(0) < 3e-3


@pytest.mark.parametrize(("us", "count"), [(1.0, 60), (50.0, 20), (400.0, 12)])
def test_each_launch_follows_a_flush(us, count):
    kernel, problem = kernel_of(64), problem_of(8, 16, 16)
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel], {kernel.name: us})
    pools = RandomPools(gpu, np.random.default_rng(1), 1 << 12)
    plan = plan_for(THOR_L2, integrated=True)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    operands = Operands(gpu, pools, arena, problem, plan, np.random.default_rng(1))
    bench = ProblemBench(gpu, kernels, operands, Workspace(0, 0), plan, flush=77)
    assert bench.screen_us(0, None) == pytest.approx(us)
    assert bench.round_us(0) == pytest.approx(us)
    assert gpu.flushed == [(count, 77, 64 << 20)] * 3  # a first screening is taken twice
    assert gpu.replayed == []
