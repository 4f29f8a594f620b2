"""Orders of tiles in a selection: what the model counts and learns, and which rows and steps get which order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aot.core.candidate import KernelKey
from aot.core.dispatch import Column, Grid, Ladder, Row, Scope, Section
from aot.core.measurement import Measurement, Outcome, Record, Status
from aot.core.operation import Operation
from aot.core.tile_order import HEURISTIC, NUM_ORDERS, count_clusters
from aot.select.times import order_model
from aot.select.times.order_model import MIN_KERNELS, OrderModel, features, first_alike
from aot.select.times.orders import OrderedTimes, Orders, is_like
from tests.unit.accepted import named
from tests.unit.twins import BF16, CONDITIONS, problem_of

SIMT = named("simt_64x64_c1x1_direct")
ALONE = named("sm90_partial_tile_128x128_c1x1_pingpong")
PAIR = named("sm90_partial_tile_128x128_c2x1_pingpong")
SPLIT = named("sm90_quack_64x64_c1x1_pingpong_serial4")
KERNELS = tuple(KernelKey(BF16, x) for x in (SIMT, ALONE, PAIR, SPLIT))
SMS = 132
WEIGHTS = (0.08, 0.05, 0.01, 0.0, 0.02, 0.03, -0.03, 0.004)
PROBLEMS = [problem_of(m, n, 1024) for m in range(300, 2100, 150) for n in range(512, 2600, 300)]
PROBLEM = problem_of(1024, 1024, 1024)
"""8 x 8 tiles of ALONE: in groups of 8 along either side each row of tiles is one run of 8."""


def timed(candidate, problem, us=10.0):
    """Give the times by order that follow the WEIGHTS; of each way of taking the tiles that of the first order."""
    clusters = count_clusters(candidate, problem)
    logs = features(candidate, clusters, SMS) @ np.array(WEIGHTS)
    return {x: us * math.exp(logs[x]) for x in set(first_alike(*clusters))}


def test_features_are_what_groups_of_clusters_read_beside_the_own_order():
    found = features(ALONE, (8, 8), SMS).reshape(NUM_ORDERS, 4, 2)
    wave, eighth, eight, half = np.moveaxis(found, 1, 0)
    assert not found[HEURISTIC].any()
    assert not wave.any()  # 64 tiles are all in one wave: in any order 8 rows and 8 columns
    # Rows and columns, summed over the eighths and over the runs of 8. In groups of 8 along n (the own order) an eighth
    # is a column. Along m in groups of 4 it has a row in each group, and every second column: the others in the second
    # group, which runs backwards.
    counts = order_model._distinct(8, 8, SMS)[:, 1:3]
    assert counts[0].tolist() == [[64, 8], [8, 64]]
    assert counts[4].tolist() == [[8, 64], [64, 8]]
    assert counts[3].tolist() == [[16, 64], [32, 16]]
    mean = 128 * counts.sum(axis=2).mean(axis=0)
    assert eighth[3] == pytest.approx([128 * (16 - 64) / mean[0], 128 * (64 - 8) / mean[0]])
    assert eight[4] == pytest.approx([128 * (64 - 8) / mean[1], 128 * (8 - 64) / mean[1]])
    assert half.shape == (NUM_ORDERS, 2)


def test_what_the_ctas_of_a_cluster_share_comes_first():
    swapped = features(PAIR, (4, 8), SMS).reshape(NUM_ORDERS, 4, 2)
    read = order_model._distinct(4, 8, SMS // 2) * np.array([256, 128])
    relative = read / read.sum(axis=2).mean(axis=0)[None, :, None]
    assert swapped == pytest.approx((relative - relative[0])[:, :, ::-1])


@pytest.mark.slow
def test_weights_are_learned_back_and_the_best_order_is_found():
    times = {x: {y: timed(y, x) for y in (ALONE, PAIR)} for x in PROBLEMS}
    model = OrderModel.fit(times, SMS)
    assert model.m_range == (300, 1950)
    clusters = count_clusters(ALONE, PROBLEM)
    predicted = features(ALONE, clusters, SMS) @ np.array(model.weights)
    assert predicted == pytest.approx(features(ALONE, clusters, SMS) @ np.array(WEIGHTS), abs=1e-9)
    best = model.best(ALONE, [PROBLEM])
    assert best == int(predicted.argmin()) != HEURISTIC
    row = timed(ALONE, PROBLEM)
    assert row[best] == min(row.values())


def test_too_few_kernels_teach_nothing_and_a_kernel_without_an_order_is_none():
    times = {x: {ALONE: timed(ALONE, x)} for x in PROBLEMS}
    assert len(times) < MIN_KERNELS
    assert OrderModel.fit(times, SMS) is None
    both = {x: {y: timed(y, x) for y in (ALONE, PAIR)} for x in PROBLEMS}
    some = dict(list(both.items())[:50])
    assert OrderModel.fit(some, SMS) is not None
    first = next(iter(some))
    del some[first][ALONE][max(some[first][ALONE])]
    assert OrderModel.fit(some, SMS) is None


def model_of(weights=WEIGHTS, m_range=(257, 4096)):
    return OrderModel(tuple(weights), SMS, m_range)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (model_of(m_range=(1025, 4096)), PROBLEM),
        (model_of(m_range=(257, 1023)), PROBLEM),
        (model_of([0.0] * 8), PROBLEM),
        (model_of([x / 1000 for x in WEIGHTS]), PROBLEM),
        (model_of(), problem_of(4096, 4096, 1024)),
    ],
    ids=["m below", "m above", "no effect", "too little", "8 waves"],
)
def test_a_kernel_keeps_its_own_order(model, problem):
    assert model.best(ALONE, [problem]) == HEURISTIC
    assert model_of().best(ALONE, [PROBLEM]) != HEURISTIC


def test_an_order_is_judged_on_all_problems_of_a_bucket():
    first, second = PROBLEM, problem_of(700, 1400, 1024)
    model = model_of()
    means = sum(features(ALONE, count_clusters(ALONE, x), SMS) @ np.array(WEIGHTS) for x in (first, second)) / 2
    assert model.best(ALONE, [first, second]) == int(means.argmin())


def row(kernel, us=10.0, provenance="measured"):
    return Row(kernel, kernel, us, provenance, 0, 20.0)


def orders_of(times=None, model=None):
    return Orders(OrderedTimes(times or {PROBLEM: {}}), model, KERNELS)


def section_of(*rows, m_edges=(1024,), grid=None, operation=BF16, **options):
    ladder = Ladder(PROBLEM.n, PROBLEM.k, m_edges, rows)
    return Section(operation, (ladder,), grid or Grid((1,), (1,), (Column((1,), (1,)),)), 0, **options)


def test_a_measured_row_gets_the_fastest_order_that_gains_enough():
    (got,) = orders_of({PROBLEM: {ALONE: {3: 9.7, 5: 9.6}}}).in_section(section_of(row(1))).ladders[0].rows
    assert got == replace(row(1), time_us=9.6, tile_order=5)
    (kept,) = orders_of({PROBLEM: {ALONE: {3: 9.81}}}).in_section(section_of(row(1))).ladders[0].rows
    assert kept == row(1)


def test_another_kernel_takes_the_row_where_its_order_is_the_fastest():
    times = {PROBLEM: {ALONE: {3: 9.7}, PAIR: {4: 9.5}}}
    (got,) = orders_of(times).in_section(section_of(row(1))).ladders[0].rows
    assert got == Row(2, 2, 9.5, "measured", 1, 10.0, 4)
    invariant = section_of(row(1), scope=Scope(1, batch_invariant=True))
    (own,) = orders_of(times).in_section(invariant).ladders[0].rows
    assert own == replace(row(1), time_us=9.7, tile_order=3)


def test_a_kernel_that_needs_a_workspace_or_does_not_ship_takes_no_others_row():
    unshipped = named("sm90_partial_tile_64x64_c1x1_pingpong")
    times = {PROBLEM: {SPLIT: {4: 5.0}, unshipped: {4: 6.0}, ALONE: {2: 9.0}}}
    (got,) = orders_of(times).in_section(section_of(row(1))).ladders[0].rows
    assert (got.kernel, got.tile_order, got.time_us) == (1, 2, 9.0)


def test_predicted_rows_and_steps_get_the_models_order_and_measured_ones_do_not():
    model = model_of()
    best = model.best(ALONE, [PROBLEM, replace(PROBLEM, m=641)])
    grid = Grid((512, 1024), (1024,), (Column((64, 1024), (0, 0)), Column((64, 256, 1024), (1, 0, 1))))
    rows = (row(0, provenance="predicted"), row(1, provenance="predicted"))
    section = section_of(*rows, m_edges=(257, 1024), grid=grid)
    got = orders_of(model=model).in_section(section)
    assert [x.tile_order for x in got.ladders[0].rows] == [None, best]
    first, second = got.grid.columns
    assert first == grid.columns[0]
    middle = problem_of(640, 768, 1024)
    assert second == replace(grid.columns[1], tile_orders=(0, 0, model.best(ALONE, [PROBLEM, middle])))
    assert second.tile_orders[2] != HEURISTIC
    (measured,) = orders_of(model=model).in_section(section_of(row(1))).ladders[0].rows
    assert measured == row(1)


@pytest.mark.slow
def test_operations_that_read_the_same_bytes_are_alike_and_others_keep_their_own_order():
    measured = frozenset({BF16})
    alike = {x.tag for x in Operation if is_like(x, measured)}
    assert {"bf16_kk", "fp16_kk", "bf16_kk_bias", "fp16_kk_bias"} <= alike
    assert not {"bf16_kn", "e4m3_bf16_kk", "fp32_kk"} & alike
    kn = Operation.BF16_KN
    section = section_of(row(1, provenance="predicted"), operation=kn)
    assert orders_of(model=model_of()).in_section(section) is section
    batched = section_of(row(1, provenance="predicted"), scope=Scope(8, batch_invariant=False))
    assert orders_of(model=model_of()).in_section(batched) is batched


def test_a_records_orders_are_those_that_are_sound_and_not_the_kernels_own():
    def item(order, us, status=None):
        found = Measurement(KERNELS[1], PROBLEM, us, us, us, 7, 0.0, tile_order=order)
        return found if status is None else replace(found, status=status)

    failed = item(7, 0.0, Status(Outcome.FAILED, "wrong result"))
    found = OrderedTimes.of(Record("h200", (CONDITIONS,), (item(0, 5.0), item(3, 4.0), item(5, 4.5), failed)))
    assert found.times == {PROBLEM: {ALONE: {3: 4.0, 5: 4.5}}}
    assert found.time_us(PROBLEM, ALONE, 5) == 4.5
    assert found.time_us(PROBLEM, ALONE, 7) is None
    assert found.fastest(PROBLEM) == [(4.0, ALONE, 3)]
