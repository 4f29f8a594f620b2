from dataclasses import replace
from math import exp

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.target import load_target
from aot.select.times import model as module
from aot.select.times.model import MIN_SAMPLES, Prior, TimeModel
from aot.space.cost import DEFAULTS, estimate
from tests.unit.accepted import named
from tests.unit.twins import BF16, problem_of

H200 = load_target("h200")
FP16 = Operation.of(ElementType.FLOAT16)
PINGPONG = named("sm90_quack_128x128_c1x1_pingpong")
SWAPPED = named("sm90_quack_64x16_c1x1_pingpong_swap")
COOPERATIVE = named("sm90_quack_128x256_c2x1_cooperative")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4")
CANDIDATES = (PINGPONG, SWAPPED, COOPERATIVE, SPLIT)
PROBLEMS = [problem_of(m, n, k) for m in (8, 64, 256, 1024, 4096) for n in (1024, 4096, 8192) for k in (1024, 4096)]
OTHERS = [problem_of(m, n, k) for m in (16, 700, 2048) for n in (2048, 6144) for k in (2048, 8192)]


def planted(correction, problems=PROBLEMS, candidates=CANDIDATES):
    """Make times: the model's times a correction of (problem, candidate)."""
    modelled = estimate(candidates, problems, H200).total_us
    return {
        problem: {c: float(us) * correction(problem, c) for c, us in zip(candidates, row, strict=True)}
        for problem, row in zip(problems, modelled, strict=True)
    }


@pytest.fixture
def few_trees(monkeypatch):
    monkeypatch.setattr(module, "NUM_TREES", 150)


def test_the_prior_is_the_cost_model():
    found = Prior(H200).times_us(CANDIDATES, OTHERS)
    assert found.shape == (len(OTHERS), len(CANDIDATES))
    assert (found == estimate(CANDIDATES, OTHERS, H200).total_us).all()


def test_the_prior_is_the_calibrated_cost_model():
    constants = replace(DEFAULTS, ramp_us=DEFAULTS.ramp_us + 7.0)
    found = Prior(H200, constants).times_us(CANDIDATES, OTHERS)
    assert (found == estimate(CANDIDATES, OTHERS, H200, constants).total_us).all()
    assert (found > Prior(H200).times_us(CANDIDATES, OTHERS)).all()


def test_what_a_mask_does_not_ask_for_is_infinite(monkeypatch):
    monkeypatch.setattr(module, "NUM_TREES", 20)
    models = [Prior(H200), TimeModel.fit({BF16: planted(lambda p, _c: 1.4 if p.m <= 64 else 0.9)}, H200)]
    rng = np.random.default_rng(3)
    for model in models:
        whole = model.times_us(CANDIDATES, OTHERS)
        assert np.isfinite(whole).all()
        for share in (0.0, 0.3, 1.0):
            asked = rng.random(whole.shape) < share
            found = model.times_us(CANDIDATES, OTHERS, asked)
            assert (found == np.where(asked, whole, np.inf)).all()


@pytest.mark.slow
def test_a_few_times_scale_the_cost_model():
    # Fewer than two leaves of MIN_SAMPLES: no split, so that every time gets the mean correction.
    few = planted(lambda _p, c: 2.0 if c == PINGPONG else 0.5, PROBLEMS[:4], CANDIDATES[:2])
    assert 2 * len(few) < 2 * MIN_SAMPLES
    modelled = estimate(CANDIDATES, OTHERS, H200).total_us
    factors = TimeModel.fit({BF16: few}, H200).times_us(CANDIDATES, OTHERS) / modelled
    assert np.ptp(factors) == pytest.approx(0, abs=1e-12)
    assert 0.5 < factors[0, 0] < 2.0
    single = TimeModel.fit(
        {BF16: {PROBLEMS[0]: {PINGPONG: 3 * float(estimate([PINGPONG], PROBLEMS[:1], H200).total_us[0, 0])}}}, H200
    )
    assert single.times_us(CANDIDATES, OTHERS) == pytest.approx(3 * modelled, rel=1e-6)


def test_what_is_near_the_best_weighs_more():
    # Two kernels on one problem, right and ten times too slow by the model: the mean of the logarithms by weight.
    problem = PROBLEMS[0]
    modelled = estimate([PINGPONG, SWAPPED], [problem], H200).total_us[0]
    times = {problem: {PINGPONG: 5.0, SWAPPED: 50.0}}
    logs = np.log(np.array([5.0, 50.0]) / modelled)
    found = TimeModel.fit({BF16: times}, H200).times_us([PINGPONG, SWAPPED], [problem])[0]
    assert found == pytest.approx(modelled * exp(np.average(logs, weights=(1.0, 0.1**module.NEAR_BEST))), rel=1e-6)


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize(
    ("correction", "off"),
    [
        (lambda _p, c: {"pingpong": 1.3, "cooperative": 0.8}[c.gemm.schedule], 0.03),  # not each split is offered it
        (lambda p, _c: 1.4 if p.m <= 64 else 0.9, 0.07),
        (lambda _p, c: 1.25 if c.gemm.swap_ab else 1.0, 0.06),
    ],
    ids=["of a schedule", "of few rows", "of exchanged operands"],
)
def test_a_planted_correction_is_learned_for_problems_that_were_not_timed(correction, off):
    problems = [
        problem_of(m, n, k) for m in (8, 16, 64, 256, 700, 1024, 4096) for n in (1024, 4096) for k in (1024, 4096)
    ]
    found = TimeModel.fit({BF16: planted(correction, problems)}, H200).times_us(CANDIDATES, OTHERS)
    wanted = np.array([list(row.values()) for row in planted(correction, OTHERS).values()])
    assert np.abs(np.log(found / wanted)).max() < off
    modelled = estimate(CANDIDATES, OTHERS, H200).total_us
    assert np.abs(np.log(modelled / wanted)).max() > 0.09


@pytest.mark.usefixtures("few_trees")
def test_operations_are_told_apart():
    times = planted(lambda *_: 1.0)
    fp16 = {replace(p, operation=FP16): {c: 1.5 * us for c, us in row.items()} for p, row in times.items()}
    both = TimeModel.fit({BF16: times, FP16: fp16}, H200)
    modelled = estimate(CANDIDATES, OTHERS, H200).total_us
    assert both.times_us(CANDIDATES, OTHERS) == pytest.approx(modelled, rel=0.01)
    assert both.times_us(CANDIDATES, [replace(p, operation=FP16) for p in OTHERS]) == pytest.approx(
        1.5 * modelled, rel=0.01
    )


@pytest.mark.walk
@pytest.mark.usefixtures("few_trees")
def test_equal_times_give_equal_answers_in_any_order(h200_times):
    kn = Operation.of(ElementType.BFLOAT16, Layout.KN)
    times = {kn: h200_times[kn], FP16: dict(list(h200_times[FP16].items())[:40])}
    backwards = {
        o: {p: dict(reversed(row.items())) for p, row in reversed(rows.items())} for o, rows in reversed(times.items())
    }
    candidates = sorted({c for row in h200_times[kn].values() for c in row})
    problems = [Problem(kn, m, n, k) for m, n, k in ((7, 1000, 520), (300, 5120, 2048), (8192, 8192, 8192))]
    first, second = (TimeModel.fit(x, H200).times_us(candidates, problems) for x in (times, backwards))
    assert (first == second).all()


@pytest.mark.usefixtures("few_trees")
@pytest.mark.parametrize("together", [1, 7])
def test_it_is_learned_alike_from_few_problems_at_a_time(monkeypatch, together):
    times = planted(lambda p, c: 1 + p.m % 3 + CANDIDATES.index(c))
    times = {p: {c: t for i, (c, t) in enumerate(row.items()) if (i + p.n // 1024) % 3} for p, row in times.items()}
    monkeypatch.setattr(module, "TOGETHER", len(times))
    whole = TimeModel.fit({BF16: times}, H200).times_us(CANDIDATES, OTHERS)
    monkeypatch.setattr(module, "TOGETHER", together)
    assert (TimeModel.fit({BF16: {**times, OTHERS[0]: {}}}, H200).times_us(CANDIDATES, OTHERS) == whole).all()


@pytest.mark.usefixtures("few_trees")
def test_the_record_is_closer_than_the_cost_model(h200_times):
    # Half of the (n, k) of a layout is learned from, the other half is compared.
    kn = Operation.of(ElementType.BFLOAT16, Layout.KN)
    weights = sorted({(p.n, p.k) for p in h200_times[kn]})
    inside = {p: row for p, row in h200_times[kn].items() if (p.n, p.k) in weights[::2]}
    outside = {p: row for p, row in h200_times[kn].items() if (p.n, p.k) in weights[1::2]}
    candidates = sorted({c for row in inside.values() for c in row})

    def error(model):
        found = model.times_us(candidates, sorted(outside))
        pairs = [
            (found[i, candidates.index(c)], t) for i, p in enumerate(sorted(outside)) for c, t in outside[p].items()
        ]
        return float(np.median([abs(np.log(a / b)) for a, b in pairs]))

    assert error(TimeModel.fit({kn: inside}, H200)) < 0.6 * error(Prior(H200))


def test_a_name_that_no_time_was_of_is_predicted_too():
    model = TimeModel.fit({BF16: planted(lambda *_: 1.0, candidates=(PINGPONG,))}, H200)
    assert model.names == ("pingpong", "sm90_quack")
    found = model.times_us([COOPERATIVE], OTHERS)
    assert found == pytest.approx(estimate([COOPERATIVE], OTHERS, H200).total_us, rel=1e-3)


def test_no_times_is_an_error():
    with pytest.raises(ValueError, match="need at least one array to concatenate"):
        TimeModel.fit({}, H200)


@pytest.mark.parametrize("few_problems", [0, 400])
def test_a_family_timed_at_few_waves_is_taken_to_be_slower_at_many(few_trees, monkeypatch, few_problems):
    monkeypatch.setattr(module, "FEW_PROBLEMS", few_problems)
    one_tile = named("sm90_one_tile_128x128_c1x1_direct")
    small = [p for p in PROBLEMS if p.m <= 256]
    wide, narrow = planted(lambda *_: 1.0, candidates=[PINGPONG]), planted(lambda *_: 1.0, small, [one_tile])
    times = {problem: {**row, **narrow.get(problem, {})} for problem, row in wide.items()}
    asked = [problem_of(128, 4096, 4096), problem_of(4096, 8192, 4096)]
    found = TimeModel.fit({BF16: times}, H200).times_us([PINGPONG, one_tile], asked)
    factors = found / estimate([PINGPONG, one_tile], asked, H200).total_us
    assert factors == pytest.approx(np.array([[1.0, 1.0], [1.0, module.BEYOND_TIMED]]), rel=0.01)


@pytest.mark.parametrize("few_problems", [0, 400])
@pytest.mark.parametrize(("timed", "inside", "outside"), [((256, 8192), 512, 16), ((1, 128), 64, 2048)])
def test_a_family_timed_at_some_m_is_taken_to_be_slower_at_others(
    few_trees, monkeypatch, few_problems, timed, inside, outside
):
    monkeypatch.setattr(module, "FEW_PROBLEMS", few_problems)
    skinny = named("cluster_split_k_16x8_c1x1_warps8_st4_direct_swap")
    some = [p for p in PROBLEMS if timed[0] <= p.m <= timed[1]]
    wide, narrow = planted(lambda *_: 1.0, candidates=[PINGPONG]), planted(lambda *_: 1.0, some, [skinny])
    times = {problem: {**row, **narrow.get(problem, {})} for problem, row in wide.items()}
    asked = [problem_of(inside, 4096, 4096), problem_of(outside, 4096, 4096)]
    found = TimeModel.fit({BF16: times}, H200).times_us([PINGPONG, skinny], asked)
    factors = found / estimate([PINGPONG, skinny], asked, H200).total_us
    assert factors[:, 0] == pytest.approx(1.0, rel=0.01)
    assert factors[1, 1] / factors[0, 1] == pytest.approx(module.BEYOND_TIMED, rel=0.02)


def test_all_trees_are_asked_of_what_is_near_a_problems_best(few_trees, monkeypatch):
    times = planted(lambda p, c: 1.0 + (p.m % 7 + c.gemm.tile_m % 5) / 10)
    model = TimeModel.fit({BF16: times}, H200)
    whole = model.times_us(CANDIDATES, OTHERS)
    monkeypatch.setattr(module, "FEW_PROBLEMS", 0)
    monkeypatch.setattr(module, "ROUGH_TREES", 5)
    found = model.times_us(CANDIDATES, OTHERS)
    assert (found.argmin(axis=1) == whole.argmin(axis=1)).all()
    is_near = found == whole
    assert is_near.any(axis=1).all()
    assert not is_near.all()
    assert (found[~is_near] > found.min(axis=1).repeat(len(CANDIDATES)).reshape(found.shape)[~is_near]).all()
