import math

import pytest

from aot.search.model import FEW, LEAST, Model, Ranked
from aot.search.strategy import ALL_MEASURED, Task
from tests.unit.searches import CANDIDATES, ended, run, task
from tests.unit.twins import problem_of


def test_where_the_model_is_right_the_first_is_the_best_and_the_rest_is_left():
    order, reason = run(Model(), task(), task().predicted_us)
    assert order[0] == 0
    assert LEAST <= len(order) < len(CANDIDATES) / 2
    assert reason.startswith("no other can win: at best ")
    assert reason.endswith(" us, the best has 10.00 us")


def test_measurements_correct_the_order():
    # Swapped candidates take half of what the model says, which it cannot know.
    times = [us * (0.5 if x.gemm.swap_ab else 1) for x, us in zip(CANDIDATES, task().predicted_us, strict=True)]
    order, _ = run(Model(), task(), times)
    best = min(range(len(times)), key=times.__getitem__)
    assert best in order[:4]
    assert order[1:7] == [1, 3, 5, 7, 9, 11]


def test_what_was_learned_of_one_problem_helps_on_the_next():
    best = 77
    times = list(task().predicted_us)
    times[best] *= 0.15
    strategy = Model()
    strategy.learn(task(), dict(enumerate(times)))
    order, _ = run(strategy, task(300), times)
    assert best in order[:2]
    assert best not in run(Model(), task(300), times)[0][:2]


def test_a_search_is_a_function_of_what_it_was_told():
    times = [us * (1 + 0.1 * math.sin(i)) for i, us in enumerate(task().predicted_us)]
    order, _ = run(Model(), task(), times)
    resumed = Model().search(task())
    for i in order[:7]:
        resumed.tell(i, times[i])
    assert resumed.ask() == order[7]


def test_a_failed_candidate_is_not_asked_for_again_and_gives_no_time():
    search = Model().search(task())
    first = search.ask()
    search.tell(first, None)
    assert search.ask() not in (first, None)


def test_ranked_takes_the_models_order_and_stops_by_the_errors_seen():
    strategy = Ranked()
    order, reason = run(strategy, task(), task().predicted_us)
    assert order == list(range(FEW))
    assert reason == "no other can win: at best 20.00 us, the best has 10.00 us"
    # It has seen enough errors now, all of them 0: the second cannot win.
    assert run(strategy, task(), task().predicted_us)[0] == [0]


def test_ranked_goes_on_where_the_model_was_wrong_before():
    strategy = Ranked()
    strategy.learn(task(), {i: 0.4 * us for i, us in enumerate(task().predicted_us)})
    order, reason = run(strategy, task(), task().predicted_us)
    assert order == list(range(30))
    assert reason == "no other can win: at best 10.00 us, the best has 10.00 us"


@pytest.mark.parametrize("strategy", [Model(doubt=9.0), Ranked()])
def test_few_candidates_are_all_measured(strategy):
    few = Task(problem_of(1, 64, 64), CANDIDATES[:5], (1.0, 2.0, 3.0, 4.0, 5.0))
    order, reason = ended(strategy.search(few))
    assert (sorted(order), reason) == ([0, 1, 2, 3, 4], ALL_MEASURED)
