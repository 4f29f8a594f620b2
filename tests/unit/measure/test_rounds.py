import numpy as np
import pytest

from aot.measure.protocol import TimingPlan, quartiles
from aot.measure.rounds import both_ways, final_rounds, interleave, is_intense
from tests.unit.twins import problem_of

PLAN = TimingPlan()
LIGHT, INTENSE = problem_of(128, 4096, 4096), problem_of(512, 4096, 4096)  # 120 and 410 FLOP a byte


def test_problems_that_arithmetic_bounds_are_intense():
    assert [is_intense(x, PLAN) for x in (problem_of(1, 4096, 4096), LIGHT, INTENSE)] == [False, False, True]
    assert not is_intense(INTENSE, TimingPlan(flush_bytes=1 << 26))


def test_the_two_ways_meet_in_their_geometric_mean():
    times = both_ways([9.0, 10.0, 11.0], [38.0, 40.0, 42.0])
    assert quartiles(times)[1] == pytest.approx(20.0)
    # Of each way's scatter about its own median, none of the distance between the two.
    assert sorted(times) == pytest.approx([18.0, 19.0, 20.0, 20.0, 21.0, 22.0])


@pytest.mark.parametrize(("unrested", "rested"), [([], [3.0]), ([3.0], [])])
def test_a_way_without_a_round_counts_for_nothing(unrested, rested):
    assert both_ways(unrested, rested) == [3.0]


def test_a_round_takes_every_kernel_once_in_an_order_of_its_own():
    order = []
    rounds = interleave(range(20), 3, np.random.default_rng(0), lambda kernel: order.append(kernel) or 1.0)
    thirds = [order[i : i + 20] for i in (0, 20, 40)]
    assert all(sorted(third) == list(range(20)) for third in thirds)
    assert thirds[0] != thirds[1] != thirds[2]
    assert rounds == {kernel: [1.0] * 3 for kernel in range(20)}


def run(problem, failing=()):
    rests = []

    def time_once(kernel, rested):
        rests.append(rested)
        return None if kernel in failing else 5.0 if rested else 20.0

    return final_rounds(problem, [0, 1], PLAN, np.random.default_rng(0), time_once), rests


def test_a_light_problem_is_never_rested():
    rounds, rests = run(LIGHT)
    assert rests == [False] * 2 * PLAN.final_rounds
    assert rounds == {0: [20.0] * PLAN.final_rounds, 1: [20.0] * PLAN.final_rounds}


def test_an_intense_problem_is_timed_unrested_first_then_rested():
    rounds, rests = run(INTENSE, failing={1})
    assert rests == [False] * 2 * PLAN.unrested_rounds + [True] * 2 * PLAN.rested_rounds
    assert rounds == {0: pytest.approx([10.0] * (PLAN.unrested_rounds + PLAN.rested_rounds)), 1: []}


@pytest.mark.parametrize(("problem", "rests"), [(LIGHT, [False] * 3), (INTENSE, [False] * 2 + [True] * 2)])
def test_long_replays_need_half_of_the_rounds(problem, rests):
    found = []
    final_rounds(problem, [0], PLAN, np.random.default_rng(0), lambda _, rested: found.append(rested) or 1.0, 2000.0)
    assert found == rests
