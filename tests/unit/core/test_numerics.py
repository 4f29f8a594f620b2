import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.numerics import ERROR_BOUND, compare, decode, encode, reference
from aot.core.operation import ELEMENTS


def bits(*values):
    return np.array(values, np.uint16)


def test_bf16_rounds_to_nearest_even():
    # 1 + 2^-8 lies halfway between 0x3F80 and 0x3F81; 1 + 3 * 2^-8 halfway between 0x3F81 and 0x3F82.
    values = np.float32([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 3 * 2**-8, 0.0, -0.0])
    assert encode(ElementType.BFLOAT16, values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF82, 0x0000, 0x8000]


def test_bf16_overflows_to_infinity_and_keeps_nan():
    values = np.float32([3.4e38, -np.inf, np.nan])
    infinity, minus, nan = encode(ElementType.BFLOAT16, values).tolist()
    assert (infinity, minus) == (0x7F80, 0xFF80)
    assert nan & 0x7F80 == 0x7F80
    assert nan & 0x7F


def test_bf16_nan_whose_low_bits_alone_are_set_stays_nan():
    value = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(decode(ElementType.BFLOAT16, encode(ElementType.BFLOAT16, value))).all()


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_every_finite_bit_pattern_survives(dtype):
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = decode(dtype, every)
    finite = np.isfinite(values)
    assert np.array_equal(encode(dtype, values[finite].astype(np.float32)), every[finite])


def test_fp16_decodes():
    assert decode(ElementType.FLOAT16, bits(0x3C00, 0xC000, 0x0001)).tolist() == [1.0, -2.0, 2.0**-24]


def test_reference_is_a_times_b_transposed():
    a, b = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    assert reference(a, b).tolist() == [[11.0, 17.0, 23.0]]


@pytest.mark.parametrize(("dtype", "typical"), [(ElementType.BFLOAT16, 1.65e-3), (ElementType.FLOAT16, 2.06e-4)])
def test_correct_rounding_passes_well_within_the_bound(dtype, typical):
    expected = np.random.default_rng(1).standard_normal((300, 400)) * 20
    outcome = compare(dtype, encode(dtype, expected.astype(np.float32)), expected)
    assert outcome.fault == ""
    assert outcome.relative_error == pytest.approx(typical, rel=0.05)
    assert outcome.relative_error < ERROR_BOUND[dtype] / 2


def test_one_wrong_element_among_many_is_found_though_the_norm_hardly_moves():
    expected = np.random.default_rng(2).standard_normal((1000, 1000))
    result = encode(ElementType.BFLOAT16, expected.astype(np.float32))
    result[17, 31] = encode(ElementType.BFLOAT16, np.float32([expected[17, 31] + 1]))[0]
    outcome = compare(ElementType.BFLOAT16, result, expected)
    assert outcome.relative_error < ERROR_BOUND[ElementType.BFLOAT16]
    assert "1 of 1000000 elements are wrong, most at (17, 31)" in outcome.fault


def test_unwritten_and_infinite_elements_are_named():
    expected = np.ones((2, 3))
    result = encode(ElementType.FLOAT16, expected.astype(np.float32))
    result[1, 2] = 0xFFFF
    assert compare(ElementType.FLOAT16, result, expected).fault == (
        "1 of 6 elements are not finite; the first, (1, 2), was not written"
    )
    result[1, 2] = 0x7C00
    assert compare(ElementType.FLOAT16, result, expected).fault.endswith("(1, 2), is inf")
