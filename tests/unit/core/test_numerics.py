import numpy as np
import pytest
import torch

from aot.core.element import ElementType
from aot.core.numerics import (
    bits_type,
    decode,
    encode,
    is_bad,
    max_finite,
    pack,
    poison,
    round_to,
    saturates,
    special_bits,
    unit_roundoff,
    unpack,
)
from aot.core.operation import ELEMENTS
from tests.unit.torch_twin import bits_of, tensor_of

FP8 = (ElementType.E4M3, ElementType.E5M2)
FLOATS = (*ELEMENTS, ElementType.FLOAT32, ElementType.TFLOAT32, *FP8)
ALL = (*FLOATS, ElementType.INT8, ElementType.INT32)
LARGEST = {ElementType.E4M3: 448.0, ElementType.E5M2: 57344.0}
LARGE = dict.fromkeys(FLOATS, 2.0**60) | LARGEST | {ElementType.FLOAT16: 65504.0}


def bits(*values):
    return np.array(values, np.uint16)


def floats():
    """Return float32 numbers of all magnitudes, and those around every FP8 number and every midpoint of two."""
    rng = np.random.default_rng(1)
    spread = rng.standard_normal(1 << 16) * np.exp2(rng.integers(-150, 127, 1 << 16))
    around = []
    for dtype in FP8:
        values = np.unique(decode(dtype, np.arange(256, dtype=np.uint8)))
        values = values[np.isfinite(values)]
        around += [values, (values[1:] + values[:-1]) / 2]
    points = np.concatenate(around).astype(np.float32)
    near = [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    return np.concatenate([spread.astype(np.float32), *near, np.float32([0.0, -0.0])])


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


def every_code(dtype):
    if dtype.num_bytes == 4:
        return np.random.default_rng(2).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    return np.arange(1 << dtype.bits, dtype=np.uint32).astype(bits_type(dtype))


@pytest.mark.parametrize("dtype", ALL)
def test_every_code_has_torchs_value(dtype):
    codes = every_code(dtype)
    assert np.array_equal(decode(dtype, codes), tensor_of(dtype, codes).double().numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", [*ELEMENTS, *FP8])
def test_every_finite_bit_pattern_survives(dtype):
    codes = every_code(dtype)
    values = decode(dtype, codes)
    finite = np.isfinite(values)
    assert np.array_equal(encode(dtype, values[finite].astype(np.float32)), codes[finite])


@pytest.mark.parametrize("dtype", [*ELEMENTS, *FP8])
def test_rounding_is_torchs_up_to_the_largest_number(dtype):
    values = floats()
    values = values[np.abs(values) <= LARGEST.get(dtype, np.inf)]
    with np.errstate(over="ignore"):
        found = encode(dtype, values)
    assert np.array_equal(found, bits_of(torch.from_numpy(values).to(getattr(torch, dtype.value))))


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_saturates_and_keeps_nan(dtype):
    large = np.float32([LARGEST[dtype] * 1.01, LARGEST[dtype] * 2, np.inf, -np.inf, 3e38])
    expected = [LARGEST[dtype]] * 3 + [-LARGEST[dtype], LARGEST[dtype]]
    assert decode(dtype, encode(dtype, large)).tolist() == expected
    assert np.isnan(decode(dtype, encode(dtype, np.float32([np.nan])))).all()


def test_tf32_keeps_ten_bits():
    values = np.float32([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, -1 - 2**-12, np.inf, np.nan])
    found = decode(ElementType.TFLOAT32, encode(ElementType.TFLOAT32, values)).tolist()
    assert found[:6] == [1 + 2**-10, 1.0, 1 + 2**-9, 1 + 2**-10, -1.0, np.inf]
    assert np.isnan(found[6])
    # What is in memory is read as float32, of which the tensor cores take less.
    assert decode(ElementType.TFLOAT32, values.view(np.uint32)[:2]).tolist() == [1 + 2**-10, 1 + 2**-11]


@pytest.mark.parametrize("dtype", FLOATS)
def test_encode_rounds_as_round_to_does(dtype):
    values = floats()
    expected = round_to(dtype, values.astype(np.float64))
    assert np.array_equal(decode(dtype, encode(dtype, values)), expected)


def test_integers_round_to_even_and_saturate():
    values = np.float32([0.5, 1.5, -1.5, 127.4, 300, -300])
    assert encode(ElementType.INT8, values).view(np.int8).tolist() == [0, 2, -2, 127, 127, -128]
    assert encode(ElementType.INT32, np.float32([-5.0, 3e9])).view(np.int32).tolist() == [-5, 2147483647]
    assert decode(ElementType.INT8, np.uint8([0x80, 0xFF, 0x7F])).tolist() == [-128, -1, 127]


def test_what_nobody_wrote_is_no_number():
    for dtype in FLOATS:
        unwritten = np.array([poison(dtype)], bits_type(dtype))
        assert np.isnan(decode(dtype, unwritten)).all()
        assert is_bad(dtype, unwritten).all()
    assert poison(ElementType.INT32) - (1 << 32) == -2139062144
    assert is_bad(ElementType.INT32, np.uint32([poison(ElementType.INT32), 5])).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ALL)
def test_the_largest_number_and_what_is_above_it(dtype):
    largest = max_finite(dtype)
    assert round_to(dtype, np.float64([largest, -largest])).tolist() == [largest, -largest]
    assert round_to(dtype, np.float64([2 * largest, np.inf])).tolist() == [largest if saturates(dtype) else np.inf] * 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_bad_is_what_is_not_finite(dtype):
    codes = every_code(dtype)
    assert np.array_equal(is_bad(dtype, codes), ~np.isfinite(decode(dtype, codes)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_numbers(dtype):
    found = special_bits(dtype)
    codes = [found.nan, found.infinity, found.least, found.large, found.lowest, found.zero]
    nan, infinity, least, large, lowest, zero = decode(dtype, np.array(codes, bits_type(dtype)))
    assert np.isnan(nan)
    assert infinity == (448 if dtype is ElementType.E4M3 else np.inf)
    assert (lowest, zero, large) == (-large, 0, LARGE[dtype])
    if dtype.num_bytes == 4:
        assert least == 2.0**-126
    else:
        assert round_to(dtype, np.float64([least, least / 2])).tolist() == [least, 0]


def test_fp16_decodes():
    assert decode(ElementType.FLOAT16, bits(0x3C00, 0xC000, 0x0001)).tolist() == [1.0, -2.0, 2.0**-24]


@pytest.mark.parametrize(("dtype", "bits_kept"), [(ElementType.BFLOAT16, 8), (ElementType.E4M3, 4)])
def test_unit_roundoff_is_half_of_the_last_place_of_one(dtype, bits_kept):
    assert unit_roundoff(dtype) == 2.0**-bits_kept
    # ties to even: 1 + u is 1, and just above it the next number
    assert round_to(dtype, np.float64([1 + 2.0**-bits_kept, 1.001 + 2.0**-bits_kept])).tolist() == [
        1.0,
        1 + 2.0 ** (1 - bits_kept),
    ]


# Open Compute Project, Microscaling Formats (MX), table 5: sign, two bits of exponent, one of significand.
E2M1_VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_all_codes_of_e2m1_have_the_values_of_their_table():
    found = decode(ElementType.E2M1, np.arange(16, dtype=np.uint8))
    assert found.tolist() == [*E2M1_VALUES, *(-x for x in E2M1_VALUES)]
    assert np.signbit(found[8])


def test_all_codes_of_e8m0_are_powers_of_two():
    found = decode(ElementType.E8M0, np.arange(256, dtype=np.uint8))
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).double().numpy()
    assert np.array_equal(found, expected, equal_nan=True)
    assert (found[0], found[127], found[254], np.isnan(found[255])) == (2.0**-127, 1.0, 2.0**127, True)


@pytest.mark.parametrize("dtype", [ElementType.E2M1, ElementType.E8M0])
def test_every_code_of_a_narrow_type_survives(dtype):
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    assert np.array_equal(encode(dtype, decode(dtype, codes).astype(np.float32)), codes)


def test_e2m1_rounds_ties_to_even_and_saturates():
    values = np.float32([0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 7.0, np.inf, -5.0, -np.inf, -0.2])
    expected = [0, 0.5, 1, 1, 2, 2, 4, 4, 6, 6, 6, -4, -6, 0]
    assert decode(ElementType.E2M1, encode(ElementType.E2M1, values)).tolist() == expected
    assert round_to(ElementType.E2M1, values.astype(np.float64)).tolist() == expected
    assert encode(ElementType.E2M1, np.float32([np.nan, -np.nan])).tolist() == [7, 7]


def test_e8m0_has_no_zero_and_no_sign():
    values = np.float32([0.0, 1.4, 1.6, 2.0**-130, -1.0, np.nan])
    assert encode(ElementType.E8M0, values).tolist() == [0, 127, 128, 0, 255, 255]


def test_two_codes_share_a_byte_the_first_in_its_lower_half():
    codes = np.array([[1, 2, 3, 15], [0, 8, 7, 4]], np.uint8)
    packed = pack(codes)
    assert packed.tolist() == [[0x21, 0xF3], [0x80, 0x47]]
    assert np.array_equal(unpack(packed), codes)
    with pytest.raises(ValueError, match="3 codes of 4 bits fill no whole bytes; give an even number"):
        pack(codes[:, :3])


def test_bits_that_nobody_wrote_are_a_code_of_four_bits():
    assert (bits_type(ElementType.E2M1), poison(ElementType.E2M1)) == (np.uint8, 15)
    assert not is_bad(ElementType.E2M1, np.arange(16, dtype=np.uint8)).any()
    assert is_bad(ElementType.E8M0, np.arange(256, dtype=np.uint8)).nonzero()[0].tolist() == [255]
