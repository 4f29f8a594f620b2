import numpy as np
import pytest

from aot.core.factor_atoms import (
    factor_positions,
    first_atom_of_group,
    num_atoms_of_groups,
    pack_factors,
    row_in_atoms,
    unpack_factors,
)
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


def drawn_ends(rng, rows, groups):
    return np.sort(rng.integers(0, rows + 1, groups)) if rng.integers(2) else np.full(groups, rows)


def test_every_row_of_groups_has_a_place_of_its_own_in_whole_atoms_of_its_group():
    """The places are walked from the atoms' side: each atom has rows of one group, in order from its first row on."""
    rng = np.random.default_rng(5)
    most = 0
    for _ in range(200):
        groups, rows = int(rng.integers(1, 9)), int(rng.integers(0, 700))
        ends = [*drawn_ends(rng, rows, groups - 1).tolist(), rows]
        held = num_atoms_of_groups(rows, groups)
        owner = np.full(128 * held, -1)
        for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            for row in range(start, end):
                place = row_in_atoms(row, start, group)
                assert owner[place] == -1
                owner[place] = row
        found = [x[x >= 0] for x in owner.reshape(held, 128)]
        of_groups = np.searchsorted(ends, np.arange(rows), "right")
        walked = np.concatenate([x for x in found if x.size] or [np.zeros(0, int)])
        assert np.array_equal(walked, np.arange(rows))
        assert all(len(set(of_groups[x].tolist())) <= 1 for x in found)
        assert all(np.array_equal(owner[128 * i : 128 * i + x.size], x) for i, x in enumerate(found))
        most += held > 0 and found[-1].size > 0
    assert most > 20, "no more atoms are held than some groups need"


def test_a_group_begins_with_an_atom_behind_all_that_lie_in_front():
    assert [first_atom_of_group(x, g) for g, x in enumerate((0, 0, 1, 128, 129, 384))] == [0, 1, 2, 4, 5, 8]
    assert [num_atoms_of_groups(x, 3) for x in (0, 1, 128, 129)] == [2, 3, 3, 4]
    assert num_atoms_of_groups(300, 1) == 3


def test_bytes_of_other_atoms_are_refused():
    with pytest.raises(ValueError, match="129 rows of 5 factors take 2048 bytes of atoms, got 1024; give whole atoms"):
        unpack_factors(np.zeros(1024, np.uint8), 129, 5)


def test_a_vector_has_one_factor_a_row_and_nothing_beside():
    assert VECTOR.num_factors(7, 100) == VECTOR.num_held(7, 100) == (7, 1)
    assert VECTOR.size_of(7, 100) == 28
