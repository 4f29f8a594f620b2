"""How the threads of the family for operands of any alignment share what they load."""

import pytest

from aot.core.target import load_target
from aot.families._mma_sync_loads import Side
from aot.families._pieces import SEGMENT
from aot.families.mma_sync import FAMILY, tile_of
from tests.unit.families.test_mma_sync import OPERATIONS

pytestmark = pytest.mark.slow

H200 = load_target("h200")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda x: x.tag)
def test_pieces_of_a_thread_lie_in_one_column_and_rows_of_one_parity(operation):
    """At most one of a thread can then lie in front of an operand, and all in one half of a gate."""
    for candidate in FAMILY.candidates(operation, H200):
        tile = tile_of(candidate, operation)
        for extent, is_k_major in ((tile.rows, tile.a_is_k_major), (tile.columns, tile.b_is_k_major)):
            side = Side(extent, tile.block_k, is_k_major, tile.loads, tile.num_threads)
            assert side.per_row * side.piece == side.row_length
            assert side.step_rows > 0
            assert side.step_rows % 2 == 0
            assert side.step_rows * side.per_row <= tile.num_threads
            assert side.step_rows >= SEGMENT or not side.is_shifted
