import pytest

from aot.core.candidate import gemm_candidate
from aot.search.strategies import strategy_of
from aot.search.strategy import ALL_MEASURED, NAMES, Exhaustive, Limited, Task
from tests.unit.searches import ended
from tests.unit.twins import problem_of

TASK = Task(
    problem_of(16, 64, 64), tuple(gemm_candidate("twin", 16 * (i + 1), 64) for i in range(4)), (4.0, 3.0, 2.0, 1.0)
)


def test_exhaustive_measures_all_in_the_given_order():
    assert ended(Exhaustive().search(TASK)) == ([0, 1, 2, 3], ALL_MEASURED)


def test_what_is_told_is_not_asked_for():
    search = Exhaustive().search(TASK)
    search.tell(0, 1.0)
    search.tell(2, None)
    assert ended(search)[0] == [1, 3]


def test_a_limit_counts_what_was_told_before():
    search = Limited(Exhaustive().search(TASK), 3)
    search.tell(3, 1.0)
    assert ended(search) == ([0, 1], "the budget of 3 measurements is spent")


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_ends(name):
    order, reason = ended(strategy_of(name).search(TASK))
    assert sorted(order) == [0, 1, 2, 3]
    assert reason == ALL_MEASURED


@pytest.mark.parametrize("name", NAMES)
def test_candidates_without_a_time_are_no_obstacle(name):
    order, _ = ended(strategy_of(name).search(TASK), None)
    assert sorted(order) == [0, 1, 2, 3]
