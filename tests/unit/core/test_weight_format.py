import numpy as np
import pytest
import torch

from aot.core.element import ElementType
from aot.core.errors import FormatError
from aot.core.weight_format import (
    FORMATS,
    INT4_G32_ZEROS,
    INT4_G128,
    MXFP4,
    NVFP4,
    Code,
    WeightParts,
    factor_values,
    format_named,
    weight_values,
)


def test_e2m1_is_a_sign_two_bits_of_exponent_and_one_of_fraction():
    for code in range(16):
        sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
        magnitude = 2.0 ** (exponent - 1) * (1 + fraction / 2) if exponent else fraction / 2
        assert Code.E2M1.values[code] == (-magnitude if sign else magnitude)
    assert np.signbit(Code.E2M1.values[8])


def test_int4_has_no_sign_and_int8_has():
    assert list(Code.INT4.values) == list(range(-8, 8))
    assert list(Code.INT8.values) == [*range(128), *range(-128, 0)]


def test_e4m3_is_as_torch_has_it():
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert np.array_equal(Code.E4M3.values, bits.to(torch.float64).numpy(), equal_nan=True)


@pytest.mark.parametrize("element", [ElementType.BFLOAT16, ElementType.FLOAT16])
def test_factors_are_of_their_format_s_type(element):
    dtype = {ElementType.BFLOAT16: torch.bfloat16, ElementType.FLOAT16: torch.float16}[element]
    held = torch.tensor([[0.375, -2.0]], dtype=dtype).view(torch.uint16).numpy()
    assert factor_values(INT4_G128, held, element).tolist() == [[0.375, -2.0]]
    assert factor_values(MXFP4, np.array([[0, 127, 254]], np.uint8), element).tolist() == [[2.0**-127, 1.0, 2.0**127]]
    assert factor_values(NVFP4, np.array([[0, 1, 0x38, 0x7E]], np.uint8), element).tolist() == [[0, 2**-9, 1, 448]]


def test_a_weight_s_values_are_codes_times_their_groups_factors():
    codes = np.full((2, 64), 2, np.uint8)
    factors = np.array([[127, 128], [126, 130]], np.uint8)
    values = weight_values(MXFP4, WeightParts(codes, factors), ElementType.BFLOAT16)
    assert values[:, [0, 31, 32, 63]].tolist() == [[1, 1, 2, 2], [0.5, 0.5, 8, 8]]


def test_zero_points_are_taken_in_the_place_of_8():
    codes, factors = np.full((1, 64), 10, np.uint8), np.full((1, 2), 0x4000, np.uint16)
    parts = WeightParts(codes, factors, np.array([[0, 16]], np.uint8))
    assert weight_values(INT4_G32_ZEROS, parts, ElementType.FLOAT16)[0, [0, 31, 32, 63]].tolist() == [20, 20, -12, -12]


def test_formats_are_found_by_their_names():
    assert [format_named(x.name) for x in FORMATS] == list(FORMATS)
    with pytest.raises(FormatError, match="no weight format 'int3'; there are: int4g32, int4g64, int4g128, int4g32z, "):
        format_named("int3")


@pytest.mark.parametrize(("n", "k"), [(0, 128), (16, 0), (16, 64), (16, 200)])
def test_extents_that_a_format_has_not_are_refused(n, k):
    with pytest.raises(FormatError) as error:
        INT4_G128.check(n, k)
    assert str(error.value) == (
        f"a weight of {n} x {k} cannot be packed as int4g128: expected at least one row, and k a multiple of 128; pad "
        "the weight and x with zeros along k, or use a format of smaller groups"
    )
