"""The sums that are kept beside the same worked out anew, and the search beside one that works all out anew."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.select.portfolio import exchange as module
from aot.select.portfolio.exchange import LEAST_GAIN, MISSING_RATIO, WORST_WEIGHT, Instance, exchange, greedy, search


@st.composite
def instances(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    times = np.exp(rng.uniform(0, draw(st.sampled_from([0.1, 1.0, 4.0])), shape))
    general = rng.random(shape[1]) < draw(st.sampled_from([0.3, 1.0]))
    general[rng.integers(shape[1])] = True
    credit = draw(st.sampled_from([0.0, 0.02])) * rng.integers(0, 2, shape[1])
    share = rng.uniform(0.5, 2.0, shape[0])
    return Instance(times / times.min(axis=1, keepdims=True), general, credit, share / share.sum()), rng


def anew(instance, rest):
    """Work out the loss of some kernels with each kernel beside them."""
    ratios = instance.ratios
    base = ratios[:, rest].min(axis=1) if rest else np.full(len(ratios), MISSING_RATIO)
    best = np.minimum(base[:, None], ratios)
    return instance.share @ best + WORST_WEIGHT * best.max(axis=0)


@pytest.fixture(autouse=True)
def _few_worst(monkeypatch):
    monkeypatch.setattr(module, "NUM_WORST", 3)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(instances())
def test_kept_sums_are_those_worked_out_anew(drawn):
    instance, rng = drawn
    chosen = [int(rng.integers(instance.num_kernels))]
    kept = module._Kept(instance, chosen)
    for _ in range(12):
        others = [j for j in range(instance.num_kernels) if j not in chosen]
        if others and (len(chosen) == 1 or rng.random() < 0.4):
            kept.add(others[0])
            chosen.append(others[0])
        elif others:
            position = int(rng.integers(len(chosen)))
            chosen[position] = int(rng.choice(others))
            kept.put(position, chosen[position])
        assert kept.chosen == chosen
        assert kept.losses() == pytest.approx(anew(instance, chosen), abs=1e-12)
        for position in range(len(chosen)):
            rest = chosen[:position] + chosen[position + 1 :]
            assert kept.losses_without(position) == pytest.approx(anew(instance, rest), abs=1e-12)


def exchanged_anew(instance, chosen):
    """Exchange as `exchange` does, with every loss worked out anew."""
    improved = True
    while improved:
        improved = False
        for position in range(len(chosen)):
            rest = chosen[:position] + chosen[position + 1 :]
            losses = anew(instance, rest) - instance.credit
            losses[rest] = np.inf
            if not instance.general[rest].any():
                losses = np.where(instance.general, losses, np.inf)
            if losses.min() < losses[chosen[position]] - LEAST_GAIN:
                chosen[position] = int(losses.argmin())
                improved = True
    return chosen


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(instances(), st.integers(1, 6))
def test_an_exchange_ends_where_one_that_works_all_out_anew_does(drawn, limit):
    instance, _ = drawn
    start = greedy(instance, limit)
    found = exchange(instance, start)
    assert instance.judge(found) == pytest.approx(instance.judge(exchanged_anew(instance, list(start))), abs=1e-9)
    assert instance.general[found].any()
    assert len(set(found)) == len(found) <= limit


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(instances(), st.integers(1, 6))
def test_a_search_is_no_worse_than_what_it_starts_from(drawn, limit):
    instance, _ = drawn
    assert (
        instance.judge(search(instance, limit)) <= instance.judge(exchange(instance, greedy(instance, limit))) + 1e-12
    )
