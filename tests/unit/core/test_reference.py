import math

import numpy as np
import pytest
import torch

from aot.core.numerics import bits_type, decode, encode
from aot.core.operands import Arrangement, element_of, operands
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.reference import needed, reference, sum_error
from aot.core.reference import values_of as reference_values
from aot.core.signature import Argument
from aot.kinds.gemm.inputs import draw_scales
from aot.kinds.gemm.packed_inputs import draw_weights
from aot.kinds.inputs import deviation, draw
from tests.compiling import some
from tests.unit.torch_twin import compute

A, B = Argument.A, Argument.B
KK = [x for x in Operation if x.layout.value == "kk"]


def test_reference_is_a_times_b_transposed():
    values = {A: np.array([[1.0, 2.0]]), B: np.array([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])}
    assert reference(Operation.BF16_KK, values).values.tolist() == [[11.0, 17.0, 23.0]]


def test_the_one_formula():
    """D = act(acc * scale_a * scale_b + bias) * scale_d, by hand."""
    values = {
        A: np.array([[1.0, 2.0], [3.0, -4.0]]),
        B: np.array([[2.0, 1.0]]),
        Argument.SCALE_A: np.array([[0.5], [2.0]]),
        Argument.SCALE_B: np.array([[4.0]]),
        Argument.BIAS: np.array([[-1.0]]),
    }
    assert reference(Operation.E4M3_BF16_KK, values).values.tolist() == [[7.0], [15.0]]
    silu = reference(Operation.E4M3_BF16_KK_SILU, values).values.ravel().tolist()
    assert silu == pytest.approx([7 / (1 + math.exp(-7)), 15 / (1 + math.exp(-15))])
    values[Argument.SCALE_D] = np.array([[3.0]])
    assert reference(Operation.E4M3_E4M3_KK, values).values.tolist() == [[21.0], [45.0]]


def test_a_residual_is_added_behind_the_bias():
    values = {A: np.array([[2.0]]), B: np.array([[3.0]]), Argument.RESIDUAL: np.array([[0.5]])}
    assert reference(Operation.BF16_KK_RESIDUAL, values).values.tolist() == [[6.5]]
    values[Argument.BIAS] = np.array([[1.0]])
    assert reference(Operation.BF16_KK_RESIDUAL, values).values.tolist() == [[7.5]]


def test_a_gate_multiplies_its_activation_by_the_linear_half():
    values = {A: np.array([[1.0]]), B: np.array([[2.0], [3.0], [5.0], [7.0]])}
    found = reference(Operation.BF16_KK_SWIGLU, values).values.ravel().tolist()
    assert found == pytest.approx([2 / (1 + math.exp(-2)) * 5, 3 / (1 + math.exp(-3)) * 7])


def test_factors_of_blocks_scale_their_128_elements_of_k():
    a, b = np.ones((1, 130)), np.ones((2, 130))
    values = {
        A: a,
        B: b,
        Argument.SCALE_A: np.array([[2.0, 3.0]]),
        Argument.SCALE_B: np.array([[1.0, 5.0], [10.0, 7.0]]),
    }
    found = reference(Operation.E4M3_BF16_BLOCK_KK, values).values.tolist()
    assert found == [[128 * 2 * 1 + 2 * 3 * 5, 128 * 2 * 10 + 2 * 3 * 7]]


X = np.linspace(-12, 12, 2001)


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        (Operation.BF16_KK_RELU, torch.nn.functional.relu),
        (Operation.BF16_KK_GELU, torch.nn.functional.gelu),
        (Operation.BF16_KK_GELU_TANH, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        (Operation.BF16_KK_SILU, torch.nn.functional.silu),
    ],
)
def test_activations_are_torchs(operation, function):
    found = reference(operation, {A: X[:, None], B: np.array([[1.0]])})
    assert np.abs(found.values[:, 0] - function(torch.from_numpy(X)).numpy()).max() < 1e-14
    # The radius holds the slope: the argument's own radius moves the result by no more.
    step = 1e-6
    moved = reference(operation, {A: X[:, None] + step, B: np.array([[1.0]])}).values
    assert (np.abs(moved - found.values) <= 1.13 * step + 1e-15).all()


@pytest.mark.parametrize("operation", [Operation.BF16_KK_GELU_TANH, Operation.BF16_KK_SILU])
def test_tanh_of_the_hardware_lies_within_the_radius(operation):
    """tanh.approx is off by 2^-11 of itself; a kernel computes x (1 + tanh(z)) / 2 with it."""
    found = reference(operation, {A: X[:, None], B: np.array([[1.0]])})
    x = X[:, None]
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3) if operation is Operation.BF16_KK_GELU_TANH else x / 2
    for sign in (-1, 1):
        kernel = x * (1 + np.tanh(z) * (1 + sign * 2.0**-11)) / 2
        assert (np.abs(kernel - found.values) <= found.radius).all()
        twice = x * (1 + np.tanh(z) * (1 + sign * 2.0**-10)) / 2
        assert (np.abs(twice - found.values) > found.radius).any()


def special(operation, value):
    with np.errstate(invalid="ignore"):
        return reference(operation, {A: np.array([[value]]), B: np.array([[1.0]])}).values[0, 0]


def test_activations_of_what_is_not_finite_are_torchs_on_a_gpu():
    relu, gelu, silu = Operation.BF16_KK_RELU, Operation.BF16_KK_GELU, Operation.BF16_KK_SILU
    assert [special(x, np.inf) for x in (relu, gelu, silu)] == [np.inf] * 3
    assert special(relu, -np.inf) == 0
    assert np.isnan([special(gelu, -np.inf), special(silu, -np.inf)]).all()
    assert np.isnan([special(x, np.nan) for x in (relu, gelu, silu)]).all()


def test_an_infinity_times_what_a_kernel_may_take_for_zero_is_open():
    """silu(-20) is -4e-8, and 0 where tanh of the hardware is -1; silu(2) and 0 itself are not in doubt."""
    found = reference(
        Operation.BF16_KK_SWIGLU, {A: np.array([[1.0]]), B: np.array([[-20.0], [2.0], [0.0], *[[np.inf]] * 3])}
    )
    assert np.isinf(found.radius).tolist() == [[True, False, False]]
    assert found.values[0, 1] == np.inf
    assert np.isnan(found.values[0, [0, 2]]).all()


@pytest.mark.parametrize("operation", [Operation.BF16_KK_GELU, Operation.BF16_KK_GELU_TANH])
def test_the_tail_of_gelu_is_not_lost_beside_one(operation):
    """At -9 GELU is -1e-18, where 1 + erf and 1 + tanh of float64 are 0: exactly 0 would forbid an infinity."""
    found = special(operation, -9.0)
    assert found != 0
    assert abs(found) < 1e-15


def test_a_gate_of_gelus_tail_times_an_infinity_is_open():
    found = reference(Operation.BF16_KK_GEGLU, {A: np.array([[1.0]]), B: np.array([[-9.0], [np.inf]])})
    assert np.isinf(found.radius).all()


def cut(values, bits):
    """Cut values below 2^-bits of the largest power of two in each column's greatest magnitude, towards 0."""
    largest = np.abs(values).max(axis=0, keepdims=True)
    unit = np.exp2(np.floor(np.log2(np.maximum(largest, 1e-300))) - bits)
    return np.trunc(values / unit) * unit


def tensor_core_sum(products, step, bits, run):
    """Sum products (k, count) as a tensor core does: aligned to the largest addend and cut, promoted after each run."""
    total = np.zeros(products.shape[1])
    for start in range(0, len(products), run):
        inner = np.zeros(products.shape[1])
        for i in range(start, min(start + run, len(products)), step):
            inner = cut(np.vstack([inner[None], products[i : min(i + step, start + run)]]), bits).sum(axis=0)
        total = (total.astype(np.float32) + inner.astype(np.float32)).astype(np.float64)
    return total


@pytest.mark.parametrize(
    ("operation", "step", "bits"),
    [
        (Operation.E4M3_BF16_KK, 32, 13),
        (Operation.E4M3_BF16_FAST_KK, 32, 13),
        (Operation.E5M2E4M3_BF16_KK, 32, 13),
        (Operation.TF32_KK, 8, 23),
        (Operation.BF16_KK_SILU, 16, 23),
    ],
)
@pytest.mark.parametrize("k", [16, 128, 520, 4096])
def test_a_tensor_cores_sum_lies_within_the_bound_and_not_far_below(operation, step, bits, k):
    rng = np.random.default_rng(k)
    count = 500
    a = decode(operation.a.element, draw(operation.a.element, rng, (k, count)))
    b = decode(operation.b.element, draw(operation.b.element, rng, (k, count)))
    products = a * b
    run = 128 if bits == 13 and not operation.types.is_fast else k
    error = np.abs(tensor_core_sum(products, step, bits, run) - products.sum(axis=0))
    share = (error / np.sqrt((products**2).sum(axis=0))).max() / sum_error(operation, k)
    assert share < 0.8
    if k >= 128 and step > 16:  # of more products a step, less is lost than the bound allows
        assert share > 0.02


def test_sums_of_integers_are_exact():
    assert sum_error(Operation.INT8_BF16_KK, 1 << 16) == 0


def test_tf32_of_more_bits_has_the_radius_of_cutting_them():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((4, 256)).astype(np.float32) for _ in range(2))
    kept = decode(Operation.TF32_KK.a.element, encode(Operation.TF32_KK.a.element, a))
    cut_bits = (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    wide = reference(Operation.TF32_KK, {A: a.astype(np.float64), B: b.astype(np.float64)})
    exact = reference(Operation.TF32_KK, {A: kept, B: kept[::-1] * 2})
    assert (np.abs(cut_bits @ b.astype(np.float64).T - wide.values) < wide.radius).all()
    assert exact.radius.max() < wide.radius.min() / 10
    # The same inputs as float32 have to be multiplied as they are.
    assert reference(Operation.FP32_KK, {A: a.astype(np.float64), B: b.astype(np.float64)}).radius.max() < 1e-3


def values_of(problem, arrangement, rng):
    """Draw operands as they lie in memory, and return them with those of `needed` for all of D."""
    bits = {}
    for argument, matrix in operands(problem, 0, arrangement).items():
        if argument is not Argument.D:
            dtype, shape = element_of(problem.operation, argument), (matrix.num_rows, matrix.num_columns)
            is_packed = argument is Argument.B and problem.operation.b.weight is not None
            is_small = argument is Argument.A and problem.operation.gate is not None  # products of sums fit float16
            spread = 2.0**-6 if is_small and problem.operation.b.weight is not None else 1.0
            bits[argument] = draw_weights(problem, rng) if is_packed else draw(dtype, rng, shape, spread)
            if argument is Argument.SCALE_A or (argument is Argument.SCALE_B and dtype.bits == 8):
                bits[argument] = draw_scales(rng, shape, 1 / deviation(problem.operation.a.element) ** 2, dtype)
            assert bits[argument].dtype == bits_type(dtype)
    columns = np.arange(problem.n)
    indices = needed(problem, np.arange(problem.m), columns, arrangement)
    return bits, {x: reference_values(problem, x, y[np.ix_(*indices[x])], columns) for x, y in bits.items()}


COMPUTED = [x for x in Operation if x.layout.value == "kk" and not x.grouping.has_offsets and x.factors_of_d is None]
"""Those whose D is elements alone: of others the reference is of the value in front of rounding, which is the same."""
PAIRS_IN_TURN = [x for x in COMPUTED if x.may_interleave]


@pytest.mark.parametrize(
    ("operation", "is_interleaved"),
    [*((x, False) for x in some(COMPUTED, 16)), *((x, True) for x in some(PAIRS_IN_TURN))],
)
def test_torch_agrees_on_every_operation(operation, is_interleaved):
    problem = Problem(operation, 17, 144, 272 if operation.b.weight is None else 256)
    arrangement = Arrangement(is_interleaved=is_interleaved)
    bits, values = values_of(problem, arrangement, np.random.default_rng(7))
    found, expected = (
        decode(operation.d, compute(operation, bits, is_interleaved=is_interleaved)),
        reference(operation, values),
    )
    bound = {8: 0.07, 16: 5e-3, 32: 1e-5}[operation.d.bits]
    saturated = np.clip(expected.values, -448, 448) if operation.d.bits == 8 else expected.values
    assert np.abs(found - saturated).max() <= bound * max(1.0, np.abs(saturated).max())
    assert np.linalg.norm(found - saturated) <= bound * np.linalg.norm(saturated)


def test_linear_rows_in_front_are_those_of_the_weight_alone():
    """Of two weights the linear one may lie in front; a bias and factors are the gate's first as ever."""
    problem = Problem(Operation.E4M3_BF16_KK_SWIGLU, 3, 2, 4)
    rows, columns = np.arange(3), np.array([1])
    found = needed(problem, rows, columns, Arrangement(is_linear_first=True))
    assert found[B][0].tolist() == [3, 1]
    assert [found[x][i].tolist() for x, i in ((Argument.SCALE_B, 0), (Argument.BIAS, 1))] == [[1, 3], [1, 3]]
    in_order = needed(problem, rows, columns, Arrangement())
    assert in_order[B][0].tolist() == [1, 3]
