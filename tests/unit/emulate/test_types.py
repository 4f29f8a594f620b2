from __future__ import annotations

import ml_dtypes
import numpy as np

from aot.emulate.types import bf16_to_f32, f32_to_bf16, flushed, raw_dtype, view_dtype


def test_bfloat16_is_rounded_as_ml_dtypes_rounds_it():
    bits = np.random.default_rng(1).integers(0, 2**32, 20_000, np.uint32)
    near = np.arange(0x3F7F0000, 0x3F820000, 13, dtype=np.uint32)
    for values in (bits.view(np.float32), near.view(np.float32), (near | np.uint32(1 << 31)).view(np.float32)):
        numbers = values[~np.isnan(values)]
        with np.errstate(over="ignore"):
            expected = numbers.astype(ml_dtypes.bfloat16).view(np.uint16)
        assert np.array_equal(f32_to_bf16(numbers), expected)
        assert (f32_to_bf16(values[np.isnan(values)]) == 0x7FFF).all()


def test_bfloat16_is_widened_exactly():
    every = np.arange(2**16, dtype=np.uint16)
    expected = every.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(bf16_to_f32(every), expected, equal_nan=True)


def test_subnormal_numbers_are_flushed_to_zeros_of_their_sign():
    bits = np.array([1, 0x007FFFFF, 0x00800000, 0x80000001, 0x807FFFFF, 0x80800000, 0x7F800000], np.uint32)
    assert [hex(x) for x in flushed(bits.view(np.float32)).view(np.uint32)] == [
        "0x0", "0x0", "0x800000", "0x80000000", "0x80000000", "0x80800000", "0x7f800000",
    ]  # fmt: skip


def test_registers_are_kept_as_bits_and_seen_as_numbers():
    assert [raw_dtype(x) for x in ("s32", "f32", "b128", "pred", "s8")] == [
        np.uint32, np.uint32, np.uint64, np.bool_, np.uint8,
    ]  # fmt: skip
    assert [view_dtype(x) for x in ("s32", "f32", "u16", "f16", "b64", "bf16")] == [
        np.int32, np.float32, np.uint16, np.float16, np.uint64, np.uint16,
    ]  # fmt: skip
