"""Rounding of weights; tests/runtime/test_torch_packed.py compares it with the wheel's, bit for bit."""

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.numerics import decode
from aot.core.weight_format import FORMATS, NVFP4, format_named
from aot.core.weight_packing import pack
from aot.core.weight_rounding import by_blocks, rounded
from aot.core.weight_values import factor_values, weight_values

BF16 = ElementType.BFLOAT16


@pytest.mark.parametrize("name", [x.name for x in FORMATS])
def test_no_element_is_further_off_than_half_a_step(name):
    form, rng = format_named(name), np.random.default_rng(1)
    wide = rng.standard_normal((32, 256)).astype(np.float32)
    wide[3] = 0
    found = rounded(form, wide, BF16)
    pack(form, found.parts)  # which refuses codes and factors that the format has not
    scale = np.float64(1) if found.scale is None else found.scale.astype(np.float64).reshape(-1, 1)
    values = weight_values(form, found.parts, BF16) * scale
    assert (values[3] == 0).all()
    each = scale if found.parts.factors is None else factor_values(form, found.parts.factors, BF16) * scale
    step = np.repeat(each, 256 // each.shape[-1], 1) if each.size > 1 else each
    # e2m1's steps are at most 2 factors, but for 4 to 6; those of e4m3 an eighth of a number
    largest = {"nvfp4": 1.0, "mxfp4": 1.0, "e4m3": 16.0}.get(form.elements, 0.5)
    error = np.abs(values - wide)
    assert (error <= largest * step * 1.04 + 1e-12).all(), (error / step).max()
    assert (error[4:] > 0).mean() > 0.5


def test_rows_of_nvfp4_are_rounded_by_the_factor_of_all():
    wide = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    whole = rounded(NVFP4, wide, BF16)
    part = rounded(NVFP4, wide[16:32], BF16, whole.scale[0])
    assert np.array_equal(part.parts.codes, whole.parts.codes[16:32])
    assert np.array_equal(part.parts.factors, whole.parts.factors[16:32])
    assert part.scale == whole.scale


def test_blocks_have_their_largest_for_448():
    wide = np.random.default_rng(3).standard_normal((130, 200)).astype(np.float32)
    wide[:128, :128] *= 100
    codes, scale = by_blocks(wide, 128)
    assert scale.shape == (2, 2)
    assert scale[0, 0] == np.abs(wide[:128, :128]).max() / np.float32(448)
    assert np.abs(decode(ElementType.E4M3, codes[128:, 128:])).max() == 448
