import numpy as np
import pytest

from aot.core.factor_atoms import factor_positions, pack_factors, unpack_factors
from aot.core.formats import MX, NVFP4, VECTOR


def rows_and_blocks_by_byte(down, along):
    """Return the row and the block of each byte of atoms, by splitting its number."""
    byte = np.arange(down * along * 512)
    places = byte.reshape(down, along, 32, 4, 4)  # 128 rows, 4 blocks: the lane, the row's quarter, the block
    m, k, lane, quarter, block = np.indices(places.shape)
    return (128 * m + 32 * quarter + lane).reshape(-1), (4 * k + block).reshape(-1)


@pytest.mark.parametrize(("rows", "blocks"), [(128, 4), (1, 1), (129, 5), (300, 17), (256, 64), (33, 3)])
def test_positions_are_the_inverse_of_the_split_of_bytes(rows, blocks):
    down, along = -(-rows // 128), -(-blocks // 4)
    row, block = rows_and_blocks_by_byte(down, along)
    found = factor_positions(np.arange(128 * down), np.arange(4 * along), blocks)
    assert np.array_equal(found[row, block], np.arange(down * along * 512))


@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (129, 5), (300, 17)])
def test_packed_factors_come_back_and_what_fills_atoms_is_zero(rows, blocks):
    codes = np.random.default_rng(3).integers(1, 256, (rows, blocks)).astype(np.uint8)
    held = pack_factors(codes)
    assert np.array_equal(unpack_factors(held, rows, blocks), codes)
    assert np.count_nonzero(held) == rows * blocks
    assert held.size == np.prod(MX.num_held(rows, 32 * blocks)) == NVFP4.size_of(rows, 16 * blocks)


def test_bytes_of_other_atoms_are_refused():
    with pytest.raises(ValueError, match="129 rows of 5 factors take 2048 bytes of atoms, got 1024; give whole atoms"):
        unpack_factors(np.zeros(1024, np.uint8), 129, 5)


def test_a_vector_has_one_factor_a_row_and_nothing_beside():
    assert VECTOR.num_factors(7, 100) == VECTOR.num_held(7, 100) == (7, 1)
    assert VECTOR.size_of(7, 100) == 28
