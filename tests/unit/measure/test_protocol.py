import numpy as np
import pytest

from aot.core.errors import VerificationError
from aot.measure import protocol as measure
from aot.measure.inputs import RandomPool
from aot.measure.protocol import (
    POWER_LIMITED_TOLERANCE,
    ProblemBench,
    TimingPlan,
    Workspace,
    middle_mean,
    num_launches,
    num_sets,
    plan_for,
    quartiles,
    set_bytes,
    survivors,
)
from tests.unit.twins import TwinGpu, TwinKernels, kernel_of, problem_of

PLAN = TimingPlan()
THOR_L2 = 32 << 20
H200_L2 = 62914560


def test_sets_exceed_the_l2_three_times():
    problem = problem_of(1, 4096, 4096)
    assert set_bytes(problem) == 8192 + 4096 * 4096 * 2 + 8192
    sets = num_sets(problem, H200_L2, PLAN)
    assert sets == 6
    assert sets * set_bytes(problem) >= 3 * H200_L2 > (sets - 1) * set_bytes(problem)


def test_sets_are_at_least_two_and_bounded():
    assert num_sets(problem_of(8192, 8192, 8192), H200_L2, PLAN) == 2
    assert num_sets(problem_of(1, 64, 64), H200_L2, PLAN) == 200


@pytest.mark.parametrize(
    ("sets", "rough_us", "expected"),
    [(6, 10.0, 102), (2, 1500.0, 2), (2, 3.0, 200), (90, 3.0, 180), (200, 3.0, 200), (7, 1.0, 196)],
)
def test_launches_are_a_multiple_of_the_sets_lasting_a_millisecond(sets, rough_us, expected):
    assert num_launches(sets, rough_us, PLAN) == expected


def test_survivors_are_the_near_ones_and_at_least_eight():
    times = {i: 10.0 + i for i in range(20)}
    assert survivors(times, PLAN) == list(range(8))
    assert survivors({i: 10.0 + i / 10 for i in range(40)}, PLAN) == list(range(26))
    assert survivors({3: 9.0, 1: 100.0}, PLAN) == [3, 1]
    assert survivors({}, PLAN) == []


def test_quartiles():
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def bench_of(faults=None, times_us=None, problem=None, num_kernels=2):
    gpu = TwinGpu(l2_bytes=1 << 15)
    tuned = [kernel_of(64 * (i + 1)) for i in range(num_kernels)]
    kernels = TwinKernels(gpu, tuned, times_us or {}, faults or {})
    rng = np.random.default_rng(7)
    problem = problem or problem_of(40, 64, 48)
    pool = RandomPool(gpu, problem.operation.element, rng, num_elements=1 << 14)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, PLAN) * set_bytes(problem))
    bench = ProblemBench(
        gpu, kernels, pool=pool, arena=arena, workspace=Workspace(0, 0), problem=problem, plan=PLAN, rng=rng
    )
    return gpu, kernels, bench


def test_graph_time_is_per_launch_and_rotates_over_the_sets():
    gpu, kernels, bench = bench_of(times_us={kernel_of(64).name: 25.0})
    assert 0 < bench.check(0) < 3e-3
    assert bench.screen_us(0, None) == pytest.approx(25.0)
    ((graph,),) = (gpu.graphs.values(),)
    sets = num_sets(bench.problem, gpu.l2_bytes, PLAN)
    assert len(graph) == num_launches(sets, 25.0, PLAN)
    # The check ran on the first set, the rough timing on the second.
    assert len({d for _, d in kernels.launches}) == 2
    bench.close()
    assert gpu.graphs == {}


def test_a_rest_is_as_long_as_the_replay(monkeypatch):
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 25.0})
    bench.check(0)
    slept = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    assert bench.round_us(0) == pytest.approx(25.0)
    assert slept == []
    assert bench.round_us(0, rests=True) == pytest.approx(25.0)
    (graph,) = gpu.graphs.values()
    assert slept == [pytest.approx(25e-6 * len(graph))]
    bench.close()


def test_far_slower_long_kernel_gets_its_single_launch_time_and_no_graph():
    gpu, _, bench = bench_of(times_us={kernel_of(64).name: 900.0})
    assert bench.screen_us(0, 100.0) == 900.0
    assert gpu.graphs == {}
    assert bench.screen_us(0, 400.0) == pytest.approx(900.0)
    assert len(gpu.graphs) == 1


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
    pool = RandomPool(gpu, problem.operation.element, rng, num_elements=1 << 14)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    bench = ProblemBench(
        gpu, kernels, pool=pool, arena=arena, workspace=Workspace(0, 0), problem=problem, plan=plan, rng=rng
    )
    sample = bench._sample
    assert (len(sample.rows), sample.rows[0], sample.rows[-1]) == (16, 0, 39)
    assert (len(sample.columns), sample.columns[0], sample.columns[-1]) == (10, 0, 63)
    assert bench.check(0) < 3e-3


def test_an_integrated_gpu_gets_another_protocol():
    assert plan_for(H200_L2, integrated=False) == TimingPlan(reference_tolerance=POWER_LIMITED_TOLERANCE)
    assert TimingPlan().reference_tolerance < POWER_LIMITED_TOLERANCE == 0.5
    assert plan_for(H200_L2, integrated=False).protocol == "graph-cold-l2-pdl-v2"
    thor = plan_for(THOR_L2, integrated=True)
    assert (thor.protocol, thor.flush_bytes) == ("events-flushed-l2-v1", 64 << 20)
    assert plan_for(4 << 20, integrated=True).flush_bytes == 64 << 20
    assert plan_for(96 << 20, integrated=True).flush_bytes == 192 << 20
    assert num_sets(problem_of(1, 64, 64), THOR_L2, thor) == 2


def test_middle_mean_leaves_out_what_was_disturbed():
    assert middle_mean([5.0, 4.5, 5.0, 90.0, 4.0, 5.5, 5.0, 0.0]) == pytest.approx(4.875)
    assert middle_mean([3.0]) == 3.0


@pytest.mark.parametrize(("us", "count"), [(1.0, 60), (50.0, 20), (400.0, 12)])
def test_each_launch_follows_a_flush(us, count):
    kernel, problem = kernel_of(64), problem_of(8, 16, 16)
    gpu = TwinGpu()
    kernels = TwinKernels(gpu, [kernel], {kernel.name: us})
    pool = RandomPool(gpu, problem.operation.element, np.random.default_rng(1), 1 << 12)
    plan = plan_for(THOR_L2, integrated=True)
    arena = gpu.alloc(num_sets(problem, gpu.l2_bytes, plan) * set_bytes(problem))
    bench = ProblemBench(
        gpu, kernels, pool=pool, arena=arena, workspace=Workspace(0, 0), problem=problem, plan=plan,
        rng=np.random.default_rng(1), flush=77,
    )  # fmt: skip
    assert bench.screen_us(0, None) == pytest.approx(us)
    assert bench.round_us(0) == pytest.approx(us)
    assert gpu.flushed == [(count, 77, 64 << 20)] * 2
    assert gpu.replayed == []
