"""How rows of operands lie to sectors of 32 bytes: what the time model is told of it, and cells are chosen by."""

import pytest

from aot.core.alignment import begins_between_sectors
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.select.times.sectors import beside, run_alignments
from aot.space.cost_operands import Sizes

FP8, BF16_KN, BF16_MK, INT4 = (
    Operation.E4M3_BF16_KK,
    Operation.BF16_KN,
    Operation.BF16_MK,
    Operation.BF16_INT4_G128_KK,
)


@pytest.mark.parametrize(
    ("operation", "sizes", "bytes_loaded", "bytes_stored"),
    [
        (FP8, (300, 5104, 12528), 16, 32),  # k 12528 = 16 * 783
        (FP8, (300, 5120, 12544), 64, 64),
        (BF16_KN, (300, 1000, 4096), 16, 16),  # rows of B are n's
        (BF16_KN, (300, 1024, 1000), 16, 64),  # rows of A are k's
        (BF16_MK, (40, 1024, 4096), 16, 64),  # runs of A are m's
        (INT4, (300, 1024, 4096), 64, 64),  # a packed weight has a layout of its own
    ],
)
def test_rows_are_told_by_the_multiples_of_bytes_at_which_they_begin(operation, sizes, bytes_loaded, bytes_stored):
    loaded, stored = run_alignments(Sizes.of([Problem(operation, *sizes)] * 2))
    assert loaded.shape == stored.shape == (2, 1)
    assert (2**loaded == bytes_loaded).all()
    assert (2**stored == bytes_stored).all()


@pytest.mark.parametrize("operation", [FP8, Operation.BF16_KK, BF16_KN, BF16_MK, Operation.BF16_MN, Operation.TF32_KK])
@pytest.mark.parametrize("sizes", [(1024, 2048, 4096), (1024, 64, 64), (1, 2048, 4096)])
def test_beside_an_edge_some_rows_begin_between_sectors(operation, sizes):
    edge = Problem(operation, *sizes)
    found = beside(edge)
    assert begins_between_sectors(found)
    assert beside(found) == found
    assert all(0 <= x - y <= 16 for x, y in zip(sizes, (found.m, found.n, found.k), strict=True))
    assert run_alignments(Sizes.of([found]))[0][0, 0] <= 4.0  # of one column of A, the bytes of an element


def test_of_batches_and_packed_weights_no_rows_are_between_sectors():
    assert begins_between_sectors(Problem(Operation.BF16_KK, 64, 64, 72))
    assert not begins_between_sectors(Problem(Operation.BF16_KK_BATCHED, 64, 64, 72, 3))
    assert not begins_between_sectors(Problem(INT4, 64, 128, 128))


def test_of_one_row_of_x_where_it_begins_says_nothing():
    assert begins_between_sectors(Problem(BF16_KN, 2, 64, 72))
    assert not begins_between_sectors(Problem(BF16_KN, 1, 64, 72))
    assert run_alignments(Sizes.of([Problem(BF16_KN, x, 64, 72) for x in (1, 2)]))[0].tolist() == [[6.0], [4.0]]
