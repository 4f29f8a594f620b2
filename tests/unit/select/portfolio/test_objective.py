"""How much the problems of a shape set count: alike, or by how often they are launched."""

from __future__ import annotations

import pytest

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.shape_set import parse_shape_set
from aot.select.portfolio.choose import Budget, choose
from aot.select.portfolio.objective import Objective, SelectionLimits
from tests.unit.accepted import named

BF16, FP16 = Operation.BF16_KK, Operation.FP16_KK
A = named("sm90_quack_128x128_c1x1_pingpong")
B = named("sm90_quack_128x64_c1x1_pingpong")


def model(n, m, counts=None, operation=BF16):
    counted = "" if counts is None else f"counts = {counts}\n"
    weights = f'weights = [{{ name = "w", n = {n}, k = 64 }}]'
    return f'[[model]]\nname = "a"\noperations = ["{operation.tag}"]\n{weights}\nm = {m}\n{counted}'


def objective(*models, weight=8.0):
    shapes = parse_shape_set("version = 1\n" + "".join(models), "test")
    return Objective(SelectionLimits(), shapes=shapes, named_weight=weight)


def weights(found, operation=BF16):
    return {(x.m, x.n): weight for x, weight in found.weights(operation).items()}


def test_problems_without_counts_count_alike():
    assert weights(objective(model(64, [16, 32]))) == {(16, 64): 8.0, (32, 64): 8.0}
    assert Objective().weights(BF16) == {}


def test_counts_weigh_in_proportion_and_eight_in_the_mean():
    found = weights(objective(model(64, [16, 32], [10, 30]), model(128, [16], [20])))
    assert found == pytest.approx({(16, 64): 4.0, (32, 64): 12.0, (16, 128): 8.0})


def test_the_scale_of_counts_does_not_matter():
    thousandfold = objective(model(64, [16, 32], [10000, 30000]), weight=2.0)
    assert weights(thousandfold) == pytest.approx({(16, 64): 1.0, (32, 64): 3.0})


def test_a_rare_problem_counts_no_less_than_one_that_was_not_asked_for():
    found = weights(objective(model(64, [16, 32], [1, 999])))
    assert found == pytest.approx({(16, 64): 1.0, (32, 64): 8 * 2 * 999 / 1000})


def test_operations_are_weighed_each_by_itself():
    found = objective(model(64, [16, 32], [1, 3]), model(64, [16, 32], [900, 100], FP16))
    assert weights(found) == pytest.approx({(16, 64): 4.0, (32, 64): 12.0})
    assert weights(found, FP16) == pytest.approx({(16, 64): 14.4, (32, 64): 1.6})


def test_models_of_one_problem_add_up_and_those_without_counts_keep_theirs():
    found = weights(objective(model(64, [16], [10]), model(64, [16, 32], [20, 10]), model(128, [16])))
    assert found == pytest.approx({(16, 64): 12.0, (32, 64): 4.0, (16, 128): 8.0})


def test_what_the_fallback_answers_takes_no_weight_from_the_others():
    found = weights(objective(model(64, [16], [10]), model(7, [16], [1000])))
    assert found == pytest.approx({(16, 64): 8.0})


@pytest.mark.parametrize(("counts", "best"), [([9, 1], A), ([1, 9], B)])
def test_the_kernel_of_what_is_launched_most_is_chosen(counts, best):
    times = {Problem(BF16, 16, 64, 64): {A: 10.0, B: 12.0}, Problem(BF16, 32, 64, 64): {A: 12.0, B: 10.0}}
    found = objective(model(64, [16, 32], counts)).weights(BF16)
    assert choose(times, Budget(1), weights=found, is_general=lambda _: True).candidates == (best,)
