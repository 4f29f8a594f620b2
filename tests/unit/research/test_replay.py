import json

import pytest

from aot.core.candidate import gemm_candidate
from aot.core.target import load_target
from aot.measure.protocol import TimingPlan
from aot.search.strategies import strategy_of
from aot.search.strategy import EVOLUTIONARY, MODEL, Exhaustive, Task
from research.studies import replay
from research.studies.replay import Outcome, curve, screening_us, shuffled, summarise, write_curves
from research.studies.search_command import recorded_tasks
from tests.unit.twins import BF16, problem_of

pytestmark = pytest.mark.slow

H200 = load_target("h200")
CANDIDATES = tuple(gemm_candidate("f", 64, 16 * (i + 1)) for i in range(10))
PROBLEMS = tuple(problem_of(16 * (i + 1), 4096, 4096) for i in range(6))
TASKS = [Task(problem, CANDIDATES, tuple(map(float, range(10, 20)))) for problem in PROBLEMS]
TIMES = {problem: dict(zip(CANDIDATES, range(19, 9, -1), strict=True)) for problem in PROBLEMS}


def outcome(num_measured, best_us, num_candidates=10):
    return Outcome(PROBLEMS[0], num_candidates, num_measured, best_us, 10.0, 1.0, "")


def test_exhaustive_finds_the_best_and_a_budget_cuts_it_short():
    whole = replay.replay(Exhaustive(), TASKS, TIMES, l2_bytes=1 << 20)
    assert [(x.num_measured, x.best_us, x.regret) for x in whole] == [(10, 10, 0.0)] * 6
    part = replay.replay(Exhaustive(), TASKS, TIMES, 0.35, l2_bytes=1 << 20)
    assert [(x.num_measured, x.best_us, x.regret) for x in part] == [(4, 16, pytest.approx(0.6))] * 6
    assert part[0].reason == "the budget of 4 measurements is spent"
    assert replay.replay(Exhaustive(), TASKS[:1], TIMES, 0.001, l2_bytes=1 << 20)[0].num_measured == 1


def test_device_time_is_the_protocols():
    plan = TimingPlan()
    # 16 x 4096 x 4096 has sets of 33.8 MB: two rotate, and a graph of 400 us holds 20 launches of 20 us.
    assert screening_us(PROBLEMS[0], 20.0, 1 << 20, plan) == replay.HOST_US + 22 * 20.0
    one = replay.replay_problem(Exhaustive(), Task(PROBLEMS[0], CANDIDATES[:1], (1.0,)), [20.0], 1.0, 1 << 20, plan)
    assert one.device_s == pytest.approx((replay.HOST_US + 8 * 22 * 20.0) / 1e6)


def test_a_strategy_learns_from_problem_to_problem():
    learned = []

    class Spy(Exhaustive):
        def learn(self, task, times_us):
            learned.append((task.problem, times_us))

    replay.replay(Spy(), TASKS[:2], TIMES, 0.2, l2_bytes=1 << 20)
    assert learned == [(PROBLEMS[0], {0: 19, 1: 18}), (PROBLEMS[1], {0: 19, 1: 18})]


def test_summary():
    point = summarise("s", 0.5, [[outcome(2, 10.0), outcome(4, 12.0, 20)], [outcome(2, 10.05), outcome(4, 11.0, 20)]])
    assert (point.fraction, point.measurements, point.device_s) == (0.2, 6.0, 2.0)
    assert (point.mean_regret, point.worst_regret) == (pytest.approx(0.07625), pytest.approx(0.2))
    assert (point.within_1_percent, point.num_problems, point.num_seeds) == (0.5, 2, 2)


def test_curve_makes_a_strategy_for_each_seed_and_budget(tmp_path):
    made, told = [], []

    def make(seed):
        made.append(seed)
        return Exhaustive()

    points = curve(make, TASKS, TIMES, budgets=[0.5, 1.0], seeds=[3, 4], l2_bytes=1 << 20, report=told.append)
    assert made == [3, 4, 3, 4]
    assert points == told
    assert [(x.strategy, x.budget, x.fraction) for x in points] == [("exhaustive", 0.5, 0.5), ("exhaustive", 1.0, 1.0)]
    write_curves(tmp_path / "d" / "c.json", "h200", "mine", points)
    content = json.loads((tmp_path / "d" / "c.json").read_text())
    assert (content["version"], content["target"], content["record"]) == (1, "h200", "mine")
    assert content["points"][0]["mean_regret"] == pytest.approx(0.5)


def test_orders_are_the_seeds():
    orders = [[TASKS.index(x) for x in shuffled(TASKS, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(6))


@pytest.fixture(scope="module")
def recorded(h200_times):
    times = h200_times[BF16]
    tasks = recorded_tasks(times, H200, every=8)
    assert len(tasks) == 49
    return tasks, times


def replayed(recorded, name, budget):
    tasks, times = recorded
    run = replay.replay(strategy_of(name, 1), shuffled(tasks, 1), times, budget, l2_bytes=H200.l2_bytes)
    return summarise(name, budget, [run])


@pytest.mark.walk
def test_the_model_is_within_one_percent_of_exhaustive_with_a_tenth_of_its_measurements(recorded):
    # 49 of the record's 386 problems, so that there is less to learn from than in a tuning.
    # research/log/2026-11-21-searches.md has all.
    point = replayed(recorded, MODEL, 0.1)
    assert point.fraction < 0.105
    assert point.mean_regret < 0.01
    assert point.within_1_percent > 0.85


@pytest.mark.walk
def test_the_model_stops_by_itself_and_is_nearly_exhaustive(recorded):
    point = replayed(recorded, MODEL, 1.0)
    assert point.fraction < 0.2
    assert point.mean_regret < 0.005


@pytest.mark.walk
def test_the_genetic_algorithm_finds_good_kernels_too(recorded):
    tasks, times = recorded
    point = replayed((tasks[::4], times), EVOLUTIONARY, 0.2)
    assert point.fraction < 0.21
    assert point.mean_regret < 0.03
