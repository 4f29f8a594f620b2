"""How rows of operands lie to sectors of 32 bytes: what the time model is told of it, and cells are chosen by."""

import numpy as np
import pytest

from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.select.times.sectors import between_sectors, run_alignments
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
def test_between_sectors_some_rows_begin_at_odd_multiples_of_16_bytes(operation):
    n, k = between_sectors(operation, 2048, 4096)
    assert n in (2048, 2048 - 8)
    assert 4096 - 16 <= k <= 4096
    at_edge, beside = (run_alignments(Sizes.of([Problem(operation, 1024, *x)]))[0] for x in ((2048, 4096), (n, k)))
    assert np.array_equal((at_edge[0, 0], beside[0, 0]), (6.0, 4.0))


def test_no_rows_are_between_sectors_where_nothing_was_tried_or_there_is_no_room():
    assert between_sectors(INT4, 2048, 4096) is None
    assert between_sectors(Operation.BF16_KK_BATCHED, 2048, 4096) is None
    assert between_sectors(FP8, 2048, 16) is None
