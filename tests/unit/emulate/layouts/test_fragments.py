"""Fragments of a warp, as CuTe DSL's atoms have them."""

from __future__ import annotations

import pytest

from aot.emulate.layouts.fragments import (
    MATRIX_B8_TRANSPOSED,
    MATRIX_B16,
    MATRIX_B16_TRANSPOSED,
    a_fragment,
    accumulator_fragment,
    b_fragment,
)
from tests.unit.emulate.layouts.cute_layout import parse, size


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("m16n8k16 bf16", 16), ("m16n8k8 bf16", 16), ("m16n8k8 tf32", 32)])
def test_fragments_of_mma_sync(sm110, name, bits):
    a, b, c = (parse(x) for x in sm110["layouts"][name])
    in_word = 32 // bits
    for layout, rows, make in ((a, 16, a_fragment), (b, 8, b_fragment)):
        count = size(layout.shape[1]) // in_word
        fragment = make(count)
        for t in range(32):
            for v in range(count * in_word):
                k, row = divmod(layout(t, v), rows)
                word = fragment.rows[v // in_word, t], fragment.columns[v // in_word, t]
                assert (row, k // in_word, k % in_word) == (*word, v % in_word), (name, t, v)
    fragment = accumulator_fragment(4)
    for t in range(32):
        for v in range(4):
            assert divmod(c(t, v), 16) == (fragment.columns[v, t], fragment.rows[v, t])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("wgmma bf16", 16), ("wgmma e4m3", 8)])
def test_fragments_of_wgmma(sm90, name, bits):
    a, d = (parse(x) for x in sm90["layouts"][name])
    in_word = 32 // bits
    accumulators, operand = accumulator_fragment(48), a_fragment(4)
    for t in range(128):
        warp, lane = divmod(t, 32)
        for v in range(48):
            column, row = divmod(d(t, v), 64)
            assert (row, column) == (accumulators.rows[v, lane] + 16 * warp, accumulators.columns[v, lane])
        for v in range(4 * in_word):
            k, row = divmod(a(t, v), 64)
            word = operand.rows[v // in_word, lane] + 16 * warp, operand.columns[v // in_word, lane]
            assert (row, k // in_word, k % in_word) == (*word, v % in_word)


@pytest.mark.parametrize(
    ("name", "registers", "matrix", "element_bytes"),
    [
        ("ldmatrix", 1, MATRIX_B16, 2),
        ("ldmatrix trans", 1, MATRIX_B16_TRANSPOSED, 2),
        ("stmatrix", 0, MATRIX_B16, 2),
        ("stmatrix trans", 0, MATRIX_B16_TRANSPOSED, 2),
        ("stmatrix b8", 0, MATRIX_B8_TRANSPOSED, 1),
    ],
)
def test_matrices_of_16_byte_rows(sm110, name, registers, matrix, element_bytes):
    texts = sm110["layouts"][name]
    layout, rows = parse(texts[registers]), parse(texts[1 - registers])
    in_word = 4 // element_bytes
    for t in range(32):
        assert [rows(t, i) for i in range(2)] == [16 // element_bytes * t, 16 // element_bytes * t + 1]
        for v in range(4 * in_word):  # four matrices, whose rows are at the addresses of 8 lanes each
            row, element = divmod(layout(t, v), 16 // element_bytes)
            byte = v % in_word * element_bytes
            expected = 8 * (v // in_word) + matrix.rows[t, byte], matrix.columns[t, byte]
            assert (row, element * element_bytes) == expected, (name, t, v)
