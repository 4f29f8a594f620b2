"""Fixtures are written here word by word, as each format's text says, and read back."""

import numpy as np
import pytest

from aot.core.element import ElementType
from aot.core.errors import FormatError
from aot.core.numerics import decode
from aot.core.weight_checkpoints import from_awq, from_compressed_int4, from_gptq, from_mxfp4, from_nvfp4
from aot.core.weight_format import Code
from aot.core.weight_packing import pack, unpack
from aot.core.weight_values import code_values, weight_values

N, K = 24, 256


def drawn(group):
    rng = np.random.default_rng(group)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    zeros = rng.integers(1, 16, (N, K // group)).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (N, K // group)).astype(np.float16)
    values = (codes - np.repeat(zeros, group, 1).astype(np.float64)) * np.repeat(scales.astype(np.float64), group, 1)
    return codes, zeros, scales.view(np.uint16), values


def words(rows):
    """Put eight numbers into a word each, the first lowest, one by one."""
    found = np.zeros((len(rows), len(rows[0]) // 8), np.int64)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            found[i, j // 8] |= int(value) << 4 * (j % 8)
    return found.astype(np.uint32).view(np.int32)


def in_awq_order(rows):
    """Let place i of a word have the column that AWQ's order says."""
    return words([[row[8 * (j // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[j % 8]] for j in range(len(row))] for row in rows])


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("name", ["gptq", "awq", "compressed-tensors"])
def test_int4_is_read_as_it_was_meant(name, group):
    codes, zeros, scales, values = drawn(group)
    if name == "gptq":
        read = from_gptq(words(codes).T, words(zeros.T - 1), scales.T, np.arange(K, dtype=np.int32) // group)
    elif name == "awq":
        read = from_awq(in_awq_order(codes.T), in_awq_order(zeros.T), scales.T)
    else:
        read = from_compressed_int4(words(codes), scales, words(zeros.T).T)
    assert read.form.name == f"int4g{group}z"
    packed = unpack(read.form, pack(read.form, read.parts), N, K)
    assert np.array_equal(weight_values(read.form, packed, ElementType.FLOAT16), values)


def test_zero_points_of_8_are_none():
    codes, zeros, scales, _ = drawn(128)
    zeros[:] = 8
    for read in (
        from_gptq(words(codes).T, words(zeros.T - 1), scales.T),
        from_awq(in_awq_order(codes.T), in_awq_order(zeros.T), scales.T),
        from_compressed_int4(words(codes), scales),
    ):
        assert (read.form.name, read.parts.zeros) == ("int4g128", None)
        assert np.array_equal(read.parts.codes, codes)


def test_nvfp4_and_mxfp4_have_two_codes_in_a_byte():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (N, K)).astype(np.uint8)
    held = np.array([[row[j] | row[j + 1] << 4 for j in range(0, K, 2)] for row in codes.astype(int)], np.uint8)
    scales = rng.integers(0, 0x7F, (N, K // 16)).astype(np.uint8)
    read = from_nvfp4(held, scales, 0.25)
    expected = code_values(Code.E2M1)[codes] * np.repeat(decode(ElementType.E4M3, scales), 16, 1)
    assert np.array_equal(weight_values(read.form, read.parts, ElementType.BFLOAT16), expected)
    assert read.factor == np.float32(0.25)
    scales = rng.integers(100, 140, (N, K // 32)).astype(np.uint8)
    read = from_mxfp4(held.reshape(N, K // 32, 16), scales)
    expected = code_values(Code.E2M1)[codes] * np.repeat(2.0 ** (scales.astype(int) - 127), 32, 1)
    assert np.array_equal(weight_values(read.form, read.parts, ElementType.BFLOAT16), expected)


def test_a_group_of_a_whole_row_is_two_of_128():
    codes, zeros, scales, _ = drawn(128)
    read = from_compressed_int4(words(codes), scales[:, :1], words(zeros[:, :1].T).T)
    assert read.form.name == "int4g128z"
    assert np.array_equal(read.parts.factors, np.repeat(scales[:, :1], 2, 1))
    assert np.array_equal(read.parts.zeros, np.repeat(zeros[:, :1], 2, 1))


def test_what_cannot_be_said_is_refused():
    codes, zeros, scales, _ = drawn(64)
    with pytest.raises(FormatError, match="g_idx does not count 4 groups of the same size along k"):
        from_gptq(words(codes).T, words(zeros.T - 1), scales.T, np.arange(K, dtype=np.int32)[::-1] // 64)
    with pytest.raises(FormatError, match="expected 24 rows, and groups of 32, 64 or a multiple of 128"):
        from_compressed_int4(words(codes), scales[:, :3])
    with pytest.raises(FormatError, match=r"packed codes are uint8 of .* expected words, int32"):
        from_awq(codes, words(zeros.T), scales.T)
    with pytest.raises(FormatError, match=r"weight_scale is of .* a factor for each group of a row"):
        from_nvfp4(codes, np.zeros((N, K // 16), np.uint8), 1.0)
    with pytest.raises(FormatError, match="packed codes are int8"):
        from_mxfp4(codes.view(np.int8).reshape(N, -1, 16), scales)
