import sys

import pytest

from aot.core.candidate import Candidate
from aot.core.errors import DependencyError
from aot.core.knobs import PlainKnobs
from aot.search.optuna_search import NUM_FIRST, PATIENCE, Bayesian, Evolutionary
from aot.search.strategies import strategy_of
from aot.search.strategy import EVOLUTIONARY, Task
from tests.unit.searches import ended, run, task


@pytest.mark.parametrize("kind", [Evolutionary, Bayesian])
def test_the_models_first_few_come_first_and_it_ends_without_gain(kind):
    order, reason = run(kind(1), task(), task().predicted_us)
    assert order[:NUM_FIRST] == list(range(NUM_FIRST))
    assert len(order) == len(set(order)) == 1 + PATIENCE
    assert reason == f"{PATIENCE} measurements brought no gain"


@pytest.mark.parametrize("kind", [Evolutionary, Bayesian])
def test_a_seed_gives_one_order(kind):
    times = [us * (0.5 if i % 3 else 1.0) for i, us in enumerate(task().predicted_us)]
    orders = [run(kind(seed), task(), times)[0] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_evolution_prefers_what_did_well():
    # Candidates that are swapped take half: after the first generations most of what is tried is swapped.
    times = [us * (0.5 if x.gemm.swap_ab else 1) for x, us in zip(task().candidates, task().predicted_us, strict=True)]
    order, _ = run(Evolutionary(1), task(), times)
    later = order[3 * NUM_FIRST :]
    assert sum(task().candidates[i].gemm.swap_ab for i in later) > 0.55 * len(later)


def test_knobs_of_a_familys_own_are_chosen_beside_the_others():
    own = tuple(Candidate("own", PlainKnobs((("columns", x), ("order", y)))) for x in range(1, 9) for y in ("a", "b"))
    mixed = (*task().candidates[:16], *own)
    order, _ = ended(Evolutionary(1).search(Task(task().problem, mixed, (10.0,) * len(mixed))), None)
    assert sorted(order) == list(range(len(mixed)))


def test_candidates_that_fail_are_no_obstacle():
    order, reason = ended(Evolutionary(1).search(task()), None)
    assert len(order) == PATIENCE
    assert reason == f"{PATIENCE} measurements brought no gain"


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        DependencyError, match=r"need Optuna, which is not installed .*; pip install 'aot-kernels\[search\]'"
    ):
        strategy_of(EVOLUTIONARY)
