"""The exact answers against brute force over every portfolio of small instances."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.select.portfolio.exact import GAP, fewest_for_worst, lagrangian_bound, least_regret, mean_bound

pytestmark = pytest.mark.slow

CAP = 10.0
"""Above every ratio of the instances, so that no pair is left out."""


def over_best(times):
    return times / times.min(axis=1, keepdims=True)


def subsets(num_kernels, limit):
    return chain.from_iterable(combinations(range(num_kernels), size) for size in range(1, limit + 1))


def objective(ratios, credit, worst_weight, chosen):
    best = ratios[:, list(chosen)].min(axis=1) - 1
    return best.mean() + worst_weight * best.max() - credit[list(chosen)].sum()


def brute_force(ratios, general, credit, limit, worst_weight):
    able = (x for x in subsets(ratios.shape[1], limit) if general[list(x)].any())
    return min(objective(ratios, credit, worst_weight, chosen) for chosen in able)


@st.composite
def instances(draw):
    """Give (ratios, general, seed's generator): up to 8 problems by 7 kernels, one of which at least is general."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    ratios = over_best(np.exp(rng.uniform(0, draw(st.sampled_from([0.05, 0.5, 2.0])), shape)))
    general = rng.random(shape[1]) < draw(st.sampled_from([0.2, 1.0]))
    general[rng.integers(shape[1])] = True
    return ratios, general, rng


@settings(max_examples=60, deadline=None)
@given(instances(), st.integers(1, 4), st.sampled_from([0.0, 0.05, 1.0]), st.sampled_from([0.0, 0.003, 0.1]))
def test_the_least_regret_is_that_of_the_best_of_all_portfolios(instance, limit, worst_weight, most_credit):
    ratios, general, rng = instance
    credit = most_credit * rng.random(ratios.shape[1])
    chosen = least_regret(ratios, general, credit, limit, worst_weight, CAP)
    assert chosen is not None
    assert 1 <= len(set(chosen)) == len(chosen) <= limit
    assert chosen == sorted(chosen)
    assert general[chosen].any()
    best = brute_force(ratios, general, credit, limit, worst_weight)
    assert objective(ratios, credit, worst_weight, chosen) == pytest.approx(best, rel=2 * GAP, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(instances(), st.integers(1, 4))
def test_the_bound_is_below_the_least_mean_and_not_idle(instance, limit):
    ratios, general, _ = instance
    least = brute_force(ratios, np.ones_like(general), np.zeros(ratios.shape[1]), limit, 0.0)
    bound = mean_bound(ratios, limit, least)
    assert 0 <= bound <= least + 1e-7
    if limit >= ratios.shape[1]:
        assert bound == pytest.approx(0, abs=1e-9)


def test_a_bound_and_an_answer_by_hand():
    # Two problems want a kernel each; the third kernel is a compromise.
    ratios = np.array([[1.0, 1.25, 1.125], [1.25, 1.0, 1.125]])
    every, none = np.ones(3, bool), np.zeros(3)
    assert mean_bound(ratios, 1, 0.3) == pytest.approx(0.125)
    assert mean_bound(ratios, 2, 0.3) == pytest.approx(0, abs=1e-12)
    assert least_regret(ratios, every, none, 1, 0.5, CAP) == [2]  # 0.125 + 0.5 * 0.125, the others 0.125 + 0.5 * 0.25
    assert least_regret(ratios, every, none, 2, 0.5, CAP) == [0, 1]
    assert least_regret(ratios, np.array([False, False, True]), none, 2, 0.0, CAP) in ([0, 2], [1, 2])
    assert least_regret(ratios, every, np.array([0.0, 0.07, 0.0]), 1, 0.5, CAP) == [1]
    assert least_regret(ratios, every, np.array([0.0, 0.06, 0.0]), 1, 0.5, CAP) == [2]


@pytest.mark.parametrize(("share", "chosen"), [([0.9, 0.1], [0]), ([0.1, 0.9], [1]), ([0.5, 0.5], [2])])
def test_problems_have_shares_in_the_mean(share, chosen):
    ratios = np.array([[1.0, 1.3, 1.125], [1.3, 1.0, 1.125]])
    assert least_regret(ratios, np.ones(3, bool), np.zeros(3), 1, 0.0, CAP, np.array(share)) == chosen


def test_the_bound_may_lie_below_what_whole_kernels_reach():
    # A problem for each pair of four kernels, which both serve: halves of all four serve all, no two whole ones do.
    ratios = np.array([[1.0 if j in pair else 1.2 for j in range(4)] for pair in combinations(range(4), 2)])
    assert mean_bound(ratios, 2, 0.3) == pytest.approx(0, abs=1e-12)
    assert brute_force(ratios, np.ones(4, bool), np.zeros(4), 2, 0.0) == pytest.approx(0.2 / 6)
    assert mean_bound(ratios, 1, 0.3) == pytest.approx(0.2 / 2)


def test_ratios_above_the_cap_make_no_exact_answer():
    ratios = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert least_regret(ratios, np.ones(2, bool), np.zeros(2), 1, 0.05, 1.5) is None
    assert least_regret(ratios, np.ones(2, bool), np.zeros(2), 2, 0.05, 1.5) == [0, 1]
    assert least_regret(ratios, np.ones(2, bool), np.zeros(2), 1, 0.05, 2.5) in ([0], [1])
    assert mean_bound(ratios, 1, 0.3) == pytest.approx(0.15)  # what lies outside counts as the bound's cap, 1.3


def fewest_by_force(ratios, general, max_worst):
    num_kernels = ratios.shape[1]
    for chosen in subsets(num_kernels, num_kernels):
        if general[list(chosen)].any() and ratios[:, list(chosen)].min(axis=1).max() <= 1 + max_worst:
            return len(chosen)
    return num_kernels


@settings(max_examples=60, deadline=None)
@given(instances(), st.sampled_from([0.0, 0.01, 0.05, 0.2, 1.0]))
def test_the_fewest_for_a_worst_regret_are_those_of_brute_force(instance, max_worst):
    ratios, general, _ = instance
    assert fewest_for_worst(ratios, general, max_worst) == fewest_by_force(ratios, general, max_worst)


def test_without_a_limit_one_kernel_is_enough_and_an_unmet_one_takes_all():
    ratios = np.array([[1.0, 2.0, 3.0], [1.1, 2.0, 3.0]])
    assert fewest_for_worst(ratios, np.ones(3, bool), None) == 1
    assert fewest_for_worst(ratios, np.ones(3, bool), 0.05) == 3


def test_the_general_kernel_counts_among_the_fewest():
    ratios = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert fewest_for_worst(ratios, np.array([True, False]), 0.0) == 1
    assert fewest_for_worst(ratios, np.array([False, True]), 0.0) == 2


@settings(max_examples=60, deadline=None)
@given(instances(), st.integers(1, 4), st.sampled_from([0.0, 1.0, 3.0]))
def test_prices_give_a_bound_whatever_they_aim_at(instance, limit, share):
    ratios, general, _ = instance
    least = brute_force(ratios, np.ones_like(general), np.zeros(ratios.shape[1]), limit, 0.0)
    assert 0 <= lagrangian_bound(ratios, limit, share * least) <= least + 1e-9


def test_of_very_many_pairs_the_bound_is_found_by_prices(monkeypatch):
    rng = np.random.default_rng(5)
    ratios = over_best(np.exp(rng.uniform(0, 0.3, (60, 12))))
    best = min(objective(ratios, np.zeros(12), 0.0, chosen) for chosen in combinations(range(12), 3))
    whole = mean_bound(ratios, 3, best)
    monkeypatch.setattr("aot.select.portfolio.exact.MAX_BOUND_PAIRS", 3)
    found = mean_bound(ratios, 3, best)
    assert 0.97 * whole < found < whole + 1e-9 < best
