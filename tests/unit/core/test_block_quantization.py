"""Rounding to narrow elements with factors of blocks: what the factors are, and how far off values are."""

import numpy as np
import pytest

from aot.core.block_quantization import LEAST_E4M3, quantize
from aot.core.formats import BLOCK_FORMATS
from aot.core.numerics import decode, max_finite, unit_roundoff

GAUSSIAN = {"nvfp4": 0.0951, "mxfp4": 0.1153, "mxfp8": 0.0266}
"""What docs/formats.md says of Gaussian weights: the root mean square of the errors over that of the weights."""


def normal(rows, k, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_gaussian_weights_are_as_accurate_as_the_page_says(name):
    x = normal(256, 4096)
    error = quantize(x, name).values - x
    assert np.sqrt((error**2).mean() / (x**2).mean()) == pytest.approx(GAUSSIAN[name], rel=0.01)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_no_value_is_further_off_than_its_block_allows(name):
    x = normal(64, 330) * np.logspace(-30, 30, 64, dtype=np.float32)[:, None]
    element, scale = BLOCK_FORMATS[name]
    found = quantize(x, name)
    each = decode(scale.element, found.factors) * (1.0 if found.tensor_factor is None else float(found.tensor_factor))
    each = np.repeat(each, scale.block_k, 1)[:, :330]
    least_step = {"nvfp4": 0.5, "mxfp4": 0.5, "mxfp8": 2.0**-9}[name]
    allowed = np.maximum(unit_roundoff(element) * np.abs(x), each * least_step / 2)
    # A factor of e4m3 is off by up to 1/16, by which a block's largest value may be out of range.
    clamped = np.maximum(np.abs(x) - each * max_finite(element), 0)
    assert (np.abs(found.values - x) <= 1.0001 * (allowed + clamped)).all()
    limit = 1.0 if scale.has_tensor_factor is False else 1 + 1 / 16
    is_normal = each > 2 * LEAST_E4M3 * float(found.tensor_factor or 0)
    assert (np.abs(x)[is_normal] <= 1.0001 * limit * (each * max_finite(element))[is_normal]).all()


@pytest.mark.parametrize(("name", "largest"), [("mxfp4", 6.0), ("mxfp8", 448.0)])
def test_powers_are_the_least_that_nothing_saturates_with(name, largest):
    most = np.array([largest, np.nextafter(np.float32(largest), np.float32(999)), largest / 2, 1e-45, 3e38], np.float32)
    found = quantize(np.repeat(most[:, None], 32, 1), name)
    powers = decode(BLOCK_FORMATS[name][1].element, found.factors)[:, 0]
    assert powers[:3].tolist() == [1.0, 2.0, 0.5]
    assert powers[3] == 2.0**-127
    assert powers[4] * largest >= most[4] > powers[4] * largest / 2


def test_zeros_have_factors_that_are_numbers():
    for name in BLOCK_FORMATS:
        found = quantize(np.zeros((2, 48), np.float32), name)
        assert not found.codes.any()
        assert (found.values == 0).all()
    assert quantize(np.zeros((2, 48), np.float32), "nvfp4").tensor_factor == 1


def test_nvfp4_uses_the_range_of_its_factors():
    x = normal(16, 64)
    x[3, 5] = 1000
    found = quantize(x, "nvfp4")
    assert found.tensor_factor == np.float32(1000 / (6 * 448))
    assert decode(BLOCK_FORMATS["nvfp4"][1].element, found.factors).max() == 448
    assert found.values[3, 5] == pytest.approx(1000, rel=1e-6)


def test_elements_of_4_bits_are_two_to_a_byte():
    found = quantize(normal(3, 64), "mxfp4")
    assert found.packed.shape == (3, 32)
    assert (found.packed & 0xF == found.codes[:, ::2]).all()
    assert (found.packed >> 4 == found.codes[:, 1::2]).all()
    assert quantize(normal(3, 64), "mxfp8").packed.shape == (3, 64)
