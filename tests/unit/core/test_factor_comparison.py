"""Elements and factors are held against the rules of the toolchain's own rounding, and any other code is a fault."""

import numpy as np
import pytest

from aot.core.block_quantization import block_divisors, block_factors, quantize
from aot.core.factor_comparison import WrittenFactors, compare_factors
from aot.core.numerics import decode, encode
from aot.core.reference import Expected, exact
from aot.kinds.rows.catalogue import row_operation, row_operations

OPERATIONS = [x for x in row_operations() if x.factors is not None]
ROWS, COLS = 5, 72
OWN = np.float32(2.0**-9)


def values_of(seed=0):
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.standard_normal((ROWS, COLS)), rng.integers(-4, 5, (ROWS, COLS))).astype(np.float32)


def right(operation, values):
    own = OWN if operation.has_tensor_scale else None
    found = quantize(values, operation.form, own)
    return found.codes, found.factors, own


def fault_of(operation, values, codes, factors, own, radius=0.0):
    expected = exact(values.astype(np.float64))
    expected = Expected(expected.values, np.full(values.shape, radius))
    return compare_factors(operation.form, WrittenFactors(codes, factors, own), expected).fault


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_the_rules_give_is_right(operation):
    values = values_of()
    assert fault_of(operation, values, *right(operation, values)) == ""
    values[0, 3], values[1, 20], values[2, 40], values[3, :40] = np.nan, np.inf, -np.inf, 0.0
    assert fault_of(operation, values, *right(operation, values)) == ""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_bit_of_a_code_counts(operation):
    values = values_of()
    codes, factors, own = right(operation, values)
    for bit in range(operation.y.bits):
        for place in ((0, 0), (2, 17), (ROWS - 1, COLS - 1)):
            wrong = codes.copy()
            wrong[place] ^= 1 << bit
            assert f"y: 1 of {codes.size} codes are wrong; the first, {place}, is" in fault_of(
                operation, values, wrong, factors, own
            ), (bit, place)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_bit_of_a_factor_counts(operation):
    values = values_of()
    codes, factors, own = right(operation, values)
    for bit in range(8):
        for place in ((0, 0), (ROWS - 1, factors.shape[1] - 1)):
            wrong = factors.copy()
            wrong[place] ^= 1 << bit
            assert f"scales: 1 of {factors.size} codes are wrong; the first, {place}, is" in fault_of(
                operation, values, codes, wrong, own
            ), (bit, place)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_zero_has_its_sign_and_codes_of_nan_are_one(operation):
    values = values_of()
    values[0, 0], values[1, 2] = -0.0, np.nan
    codes, factors, own = right(operation, values)
    wrong = codes.copy()
    wrong[0, 0] = 0
    assert "y: 1 of" in fault_of(operation, values, wrong, factors, own)
    assert factors[1, 0] in (0x7F, 0xFF)
    wrong = codes.copy()
    wrong[1, 0] ^= 1  # of a NaN of 4 bits, which there is none of, and of one of 8
    assert "y: 1 of" in fault_of(operation, values, wrong, factors, own)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_radius_lets_a_neighbour_pass_and_nothing_else(operation):
    """Of a value in the middle of two codes either is right, once its radius reaches beyond the middle."""
    own = OWN if operation.has_tensor_scale else None
    values = np.full((1, operation.factors.block_k), 1.0, np.float32)
    values[0, 0] = 6.0 if operation.form != "mxfp8" else 448.0
    factors = block_factors(values.max(1, keepdims=True), operation.form, own)
    by = block_divisors(factors, operation.form, own).item()
    steps = decode(operation.y, np.arange(3, dtype=np.uint8))
    values[0, 1] = (steps[1] + steps[2]) / 2 * by * (1 + 2.0**-12)
    codes = encode(operation.y, (values / by).astype(np.float32))
    assert codes[0, 1] == 2
    lower, other = codes.copy(), codes.copy()
    lower[0, 1], other[0, 1] = 1, 3
    radius = values[0, 1] * 2.0**-10
    assert fault_of(operation, values, codes, factors, own, radius) == ""
    assert fault_of(operation, values, lower, factors, own, radius) == ""
    assert "y: 1 of" in fault_of(operation, values, lower, factors, own)
    assert "y: 1 of" in fault_of(operation, values, other, factors, own, radius)


def test_operations_without_factors_are_refused():
    nothing = np.zeros((1, 16), np.uint8)
    with pytest.raises(ValueError, match="the format is ''; expected one whose factors lie in atoms"):
        compare_factors(
            row_operation("bf16_e4m3_quantize").form, WrittenFactors(nothing, nothing), exact(np.zeros((1, 16)))
        )
