import pytest

from aot.core.operation import Operation
from aot.core.signature import Argument
from aot.measure.protocol import (
    POWER_LIMITED_TOLERANCE,
    TimingPlan,
    middle_mean,
    num_launches,
    num_sets,
    operand_set,
    plan_for,
    quartiles,
    set_bytes,
    survivors,
)
from tests.unit.twins import problem_of

PLAN = TimingPlan()
THOR_L2 = 32 << 20
H200_L2 = 62914560


def test_sets_exceed_the_l2_three_times():
    problem = problem_of(1, 4096, 4096)
    assert set_bytes(problem) == 8192 + 4096 * 4096 * 2 + 8192
    sets = num_sets(problem, H200_L2, PLAN)
    assert sets == 6
    assert sets * set_bytes(problem) >= 3 * H200_L2 > (sets - 1) * set_bytes(problem)


def test_sets_are_even_so_that_half_of_the_launches_stand_behind_a_separator():
    problem = problem_of(1, 4096, 5120)
    assert -(-3 * H200_L2 // set_bytes(problem)) == 5
    assert num_sets(problem, H200_L2, PLAN) == 6


def test_sets_are_at_least_two_and_bounded():
    assert num_sets(problem_of(8192, 8192, 8192), H200_L2, PLAN) == 2
    assert num_sets(problem_of(1, 64, 64), H200_L2, PLAN) == 200


@pytest.mark.parametrize(
    ("sets", "rough_us", "expected"),
    [(6, 10.0, 42), (2, 1500.0, 2), (2, 3.0, 134), (90, 3.0, 180), (200, 3.0, 200), (7, 1.0, 196)],
)
def test_launches_are_a_multiple_of_the_sets_that_lasts_long_enough(sets, rough_us, expected):
    assert num_launches(sets, rough_us, PLAN) == expected


def test_survivors_are_the_near_ones_and_at_least_four():
    times = {i: 10.0 + i for i in range(20)}
    assert survivors(times, PLAN) == list(range(4))
    assert survivors({i: 10.0 + i / 10 for i in range(40)}, PLAN) == list(range(16))
    assert survivors({3: 9.0, 1: 100.0}, PLAN) == [3, 1]
    assert survivors({}, PLAN) == []


def test_quartiles():
    assert quartiles([5.0, 1.0, 4.0, 2.0, 3.0]) == (2.0, 3.0, 4.0)
    assert quartiles([7.0]) == (7.0, 7.0, 7.0)


def test_an_integrated_gpu_gets_another_protocol():
    assert plan_for(H200_L2, integrated=False) == TimingPlan(reference_tolerance=POWER_LIMITED_TOLERANCE)
    assert TimingPlan().reference_tolerance < POWER_LIMITED_TOLERANCE == 0.5
    assert plan_for(H200_L2, integrated=False).protocol == "graph-cold-l2-mixed-v3"
    thor = plan_for(THOR_L2, integrated=True)
    assert (thor.protocol, thor.flush_bytes) == ("events-flushed-l2-v1", 64 << 20)
    assert plan_for(4 << 20, integrated=True).flush_bytes == 64 << 20
    assert plan_for(96 << 20, integrated=True).flush_bytes == 192 << 20
    assert num_sets(problem_of(1, 64, 64), THOR_L2, thor) == 2


def test_middle_mean_leaves_out_what_was_disturbed():
    assert middle_mean([5.0, 4.5, 5.0, 90.0, 4.0, 5.5, 5.0, 0.0]) == pytest.approx(4.875)
    assert middle_mean([3.0]) == 3.0


def test_a_set_has_all_operands_aligned_and_apart():
    problem = problem_of(3, 48, 32, Operation.E4M3_E4M3_KK)
    found = operand_set(problem)
    # A has 96 bytes, B 1536, D 144; the factors 12 and 192; that of D 4. No bias is timed without an activation.
    sizes = {"a": 256, "b": 1536, "d": 256, "scale_a": 256, "scale_b": 256, "scale_d": 256}
    assert {x.value: start for x, start in found.starts.items()} == dict(
        zip(sizes, (0, 256, 1792, 2048, 2304, 2560), strict=True)
    )
    assert found.num_bytes == sum(sizes.values()) == set_bytes(problem)


@pytest.mark.parametrize(
    ("operation", "has_bias"),
    [
        (Operation.BF16_KK_BIAS, True),
        (Operation.BF16_KK_GELU, True),
        (Operation.E4M3_BF16_KK_SILU, True),
        (Operation.E4M3_BF16_KK, False),
        (Operation.BF16_KK_SWIGLU, False),
        (Operation.BF16_KK_RESIDUAL, False),
        (Operation.BF16_KK, False),
    ],
)
def test_a_bias_is_timed_where_it_stands_before_an_activation(operation, has_bias):
    assert (Argument.BIAS in operand_set(problem_of(8, 16, 16, operation)).placed) == has_bias
