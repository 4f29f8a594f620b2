from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.layouts.errors import UnsupportedLayoutError
from aot.emulate.layouts.instruction_descriptor import Element
from aot.emulate.layouts.matrix_descriptor import Major, MatrixUnit
from aot.emulate.units._operands import located, operand_places, values

DTYPES = {
    Element.F16: np.float16,
    Element.BF16: ml_dtypes.bfloat16,
    Element.E4M3: ml_dtypes.float8_e4m3fn,
    Element.E5M2: ml_dtypes.float8_e5m2,
    Element.UE4M3: ml_dtypes.float8_e4m3fn,
    Element.UE8M0: ml_dtypes.float8_e8m0fnu,
    Element.U8: np.uint8,
    Element.S8: np.int8,
}


@pytest.mark.parametrize("element", list(DTYPES))
def test_every_code_has_its_value(element):
    dtype = np.dtype(DTYPES[element])
    codes = np.arange(256**dtype.itemsize, dtype=np.uint8 if dtype.itemsize == 1 else np.uint16)
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtype).astype(np.float64)
    found = values(codes, element)
    assert np.array_equal(found, expected, equal_nan=True)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


def test_codes_of_4_bits_are_two_in_a_byte_the_lower_first():
    codes = np.arange(16, dtype=np.uint8)
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    assert np.array_equal(values((codes | codes[::-1] << 4)[None, :], Element.E2M1)[0, ::2], expected)
    assert np.array_equal(values((codes | codes[::-1] << 4)[None, :], Element.E2M1)[0, 1::2], expected[::-1])


def test_the_lower_bits_of_tf32_are_not_read():
    one = np.array([0x3F800000, 0x3F801FFF, 0x3F802000], np.uint32)
    assert values(one, Element.TF32).tolist() == [1, 1, 1 + 2**-10]


def test_rows_of_an_operand_are_those_of_the_whole():
    value = 1 << 62 | 64 << 32 | 1 << 16 | 0x40
    whole = operand_places(value, MatrixUnit.WGMMA, 64, 0, 64, 16, Major.K)
    part = operand_places(value, MatrixUnit.WGMMA, 64, 16, 32, 16, Major.K)
    assert np.array_equal(part.indices, whole.indices[16:32])
    assert part.bits & whole.bits == part.bits
    assert whole.last_byte == 63 * 128 + 128  # rows of 128 bytes of which a swizzled product reads 32 each
    with pytest.raises(Fault) as caught:
        operand_places(1 << 62 | 64 << 32, MatrixUnit.WGMMA, 64, 0, 64, 16, Major.K)
    assert caught.value.kind is FaultKind.ADDRESS


def test_a_refusal_says_where():
    with pytest.raises(UnsupportedLayoutError, match="line 3: base offset"), located("line 3"):
        raise UnsupportedLayoutError("base offset")
    with pytest.raises(Fault, match="line 3: too large"), located("line 3"):
        raise Fault(FaultKind.DESCRIPTOR, "too large")
