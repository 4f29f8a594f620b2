from __future__ import annotations

import numpy as np
import pytest

from aot.emulate.layouts.swizzle import Swizzle, swizzle
from tests.unit.emulate.layouts.cute_layout import Layout


@pytest.mark.parametrize("mode", list(Swizzle))
def test_it_is_the_swizzle_that_cutlass_names(mode):
    bits, base, shift = mode.value
    layout = Layout((4096,), (1,), (bits, base, shift))
    expected = [layout.address(0, 8, i) for i in range(4096)]
    got = swizzle(np.arange(4096), mode)
    assert np.array_equal(got, expected)
    assert np.array_equal(np.sort(got), np.arange(4096))


def test_chunks_of_128_byte_rows_as_the_specification_draws_them():
    """PTX ISA, "Tensor swizzling modes", 128B: row r has its chunk c in place c xor r."""
    chunks = swizzle(16 * np.arange(64), Swizzle.B128).reshape(8, 8) // 16 - 8 * np.arange(8)[:, None]
    assert np.array_equal(chunks, np.arange(8)[None, :] ^ np.arange(8)[:, None])


def test_chunks_of_64_and_32_byte_rows_as_the_specification_draws_them():
    chunks = swizzle(16 * np.arange(32), Swizzle.B64).reshape(8, 4) // 16 % 4
    assert np.array_equal(chunks, np.arange(4)[None, :] ^ (np.arange(8) // 2)[:, None])
    chunks = swizzle(16 * np.arange(16), Swizzle.B32).reshape(8, 2) // 16 % 2
    assert np.array_equal(chunks, np.arange(2)[None, :] ^ (np.arange(8) // 4)[:, None])


def test_pairs_of_chunks_stay_together_with_atoms_of_32_bytes():
    places = swizzle(16 * np.arange(32), Swizzle.B128_ATOM_32B).reshape(4, 4, 2) // 16
    assert (places[..., 1] == places[..., 0] + 1).all()
    assert np.array_equal(places[..., 0] // 2 % 4, np.arange(4)[None, :] ^ np.arange(4)[:, None])
