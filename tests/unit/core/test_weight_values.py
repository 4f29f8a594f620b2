import numpy as np
import pytest
import torch

from aot.core.element import ElementType
from aot.core.weight_format import (
    FORMATS,
    INT4_G32_ZEROS,
    INT4_G128,
    MXFP4,
    MXFP4_ROWS,
    NVFP4,
    NVFP4_ROWS,
    Code,
    PackedLayout,
    WeightParts,
)
from aot.core.weight_packing import pack
from aot.core.weight_values import code_values, factor_values, packed_rows, packed_values, weight_values
from aot.kinds.gemm.packed_inputs import draw_parts


def test_e2m1_is_a_sign_two_bits_of_exponent_and_one_of_fraction():
    for code in range(16):
        sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
        magnitude = 2.0 ** (exponent - 1) * (1 + fraction / 2) if exponent else fraction / 2
        assert code_values(Code.E2M1)[code] == (-magnitude if sign else magnitude)
    assert np.signbit(code_values(Code.E2M1)[8])


def test_int4_has_no_sign_and_int8_has():
    assert list(code_values(Code.INT4)) == list(range(-8, 8))
    assert list(code_values(Code.INT8)) == [*range(128), *range(-128, 0)]


def test_e4m3_is_as_torch_has_it():
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert np.array_equal(code_values(Code.E4M3), bits.to(torch.float64).numpy(), equal_nan=True)


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


@pytest.mark.parametrize("form", FORMATS, ids=lambda x: x.name)
def test_the_zero_of_codes_is_0(form):
    assert code_values(form.code)[form.code.zero] == 0


@pytest.mark.parametrize("form", [INT4_G128, NVFP4, NVFP4_ROWS, MXFP4_ROWS], ids=lambda x: x.name)
def test_rows_of_a_packed_weight_have_its_values(form):
    rng, n, k = np.random.default_rng(1), 300, 256
    parts = draw_parts(form, ElementType.BFLOAT16, n, k, rng)
    packed, rows = pack(form, parts), np.array([3, 5, 270, 17, 4, 139, 299])
    assert packed.shape == PackedLayout(form).shape(n, k)
    found = packed_values(form, packed[packed_rows(form, rows, n)], rows, k, ElementType.BFLOAT16)
    assert np.array_equal(found, weight_values(form, parts, ElementType.BFLOAT16)[rows])
