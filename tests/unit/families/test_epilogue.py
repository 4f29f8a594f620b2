"""The functions that kernels trace on registers, on numpy's float32."""

import math

import numpy as np
import pytest
import torch

from aot.core.operation import Operation
from aot.families._epilogue import Terms, finish, finish_gate, finish_sum, has_own_epilogue

F = np.float32
TIES = [F(x) for x in (-0.0, 0.0, 1e-30, -1e-30)]


class Numpy:
    """`Functions` of numpy's arrays, each rounded once."""

    def exp2(self, x):
        return np.exp2(x)

    def reciprocal(self, x):
        return F(1) / x

    def absolute(self, x):
        return np.abs(x)

    def maximum(self, x, y):
        return np.maximum(x, F(y))

    def where_negative(self, x, then, otherwise):
        return np.where(x < 0, then, otherwise)


def dense(low, high):
    """Give float32 of both signs, by their logarithms."""
    values = np.geomspace(low, high, 40001).astype(F)
    return np.concatenate([-values[::-1], TIES, values])


REFERENCES = {
    Operation.BF16_KK_RELU: torch.nn.functional.relu,
    Operation.BF16_KK_GELU: torch.nn.functional.gelu,
    Operation.BF16_KK_GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    Operation.BF16_KK_SILU: torch.nn.functional.silu,
}


def exact(operation, x):
    """Give the activation of float64, with erfc where 1 + erf would lose all digits."""
    wide = x.astype(np.float64)
    if operation is Operation.BF16_KK_GELU:
        return np.array([v * 0.5 * math.erfc(-v * math.sqrt(0.5)) for v in wide])
    if operation is Operation.BF16_KK_GELU_TANH:
        u = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
        return wide / (1 + np.exp(-2 * u))
    return REFERENCES[operation](torch.tensor(wide)).numpy()


@pytest.mark.parametrize("operation", REFERENCES)
def test_activations_are_right_in_every_digit_that_a_product_of_16_bits_keeps(operation):
    x = dense(1e-6, 9.0)
    found = finish(operation, x, Numpy())
    assert found.dtype == F
    wanted = exact(operation, x)
    assert np.max(np.abs(found - wanted) / np.maximum(np.abs(wanted), 1e-30)) < 2**-16


@pytest.mark.parametrize("operation", REFERENCES)
def test_activations_are_torchs_everywhere(operation):
    x = dense(1e-20, 3e38)
    with np.errstate(over="ignore"):
        found = finish(operation, x, Numpy())
    wanted = REFERENCES[operation](torch.tensor(x.astype(np.float64))).numpy()
    assert np.all(np.abs(found - wanted) <= 1e-5 * np.abs(wanted) + 1e-7 * np.minimum(np.abs(x), 1))


@pytest.mark.parametrize("operation", REFERENCES)
def test_infinities_and_nan_are_torchs(operation):
    x = np.array([np.inf, -np.inf, np.nan], F)
    with np.errstate(invalid="ignore", over="ignore"):
        found = finish(operation, x, Numpy())
    # Of -infinity torch makes 0 times infinity, but for relu; its gelu of infinity is NaN on a CPU, but not on a GPU.
    np.testing.assert_array_equal(found, [np.inf, 0 if operation is Operation.BF16_KK_RELU else np.nan, np.nan])


def test_steps_follow_the_one_order():
    acc, a, b, bias, residual = (F(x) for x in (3, 0.5, -4, 10, 100))
    assert finish_sum(acc, Terms()) == 3
    assert finish_sum(acc, Terms(a, b)) == -6
    assert finish_sum(acc, Terms(a, b, bias)) == 4
    assert finish(Operation.BF16_KK_RELU, finish_sum(acc, Terms(bias=F(-9))), Numpy()) == 0
    assert finish(Operation.BF16_KK_RESIDUAL, F(-6), Numpy(), residual) == 94
    assert finish(Operation.E4M3_E4M3_KK, F(-6), Numpy(), scale_d=F(0.25)) == -1.5


def test_scales_are_multiplied_in_order():
    big = F(3e38)
    assert finish_sum(big, Terms(F(0.5), F(2))) == big
    with np.errstate(over="ignore"):
        assert finish_sum(big, Terms(F(2), F(0.5))) == np.inf


@pytest.mark.parametrize(
    ("operation", "activation"),
    [
        (Operation.BF16_KK_SWIGLU, torch.nn.functional.silu),
        (Operation.E4M3_BF16_KK_SWIGLU, torch.nn.functional.silu),
        (Operation.E4M3_BF16_KK_GEGLU, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (Operation.FP16_KK_GEGLU, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    ],
)
def test_a_gate_multiplies_the_activated_first_sum_by_the_second(operation, activation):
    gate, linear = np.array([2.0, -1.5, 0.0], F), np.array([-3.0, 0.25, 7.0], F)
    wanted = activation(torch.tensor(gate).double()) * torch.tensor(linear).double()
    np.testing.assert_allclose(finish_gate(operation.gate, gate, linear, Numpy()), wanted.numpy(), rtol=1e-6)


def test_only_a_bias_that_is_always_there_is_left_to_quack():
    own = {x for x in Operation if has_own_epilogue(x)}
    assert Operation.BF16_KK not in own
    assert Operation.FP16_KK_BIAS not in own
    assert {Operation.BF16_KK_RELU, Operation.FP16_KK_RESIDUAL, Operation.E4M3_BF16_KK} <= own
