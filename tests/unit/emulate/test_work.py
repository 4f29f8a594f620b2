"""The work of a case, by which large ones are left out."""

from aot.core.candidate import changed, gemm_candidate
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.emulate.work import ROW_COLUMNS, TILE_BLOCKS, product_work, row_work
from aot.kinds.gemm.edge_shapes import EdgeShape
from aot.kinds.rows.call import RowCase
from aot.kinds.rows.catalogue import row_operation
from tests.unit.twins import BF16

TILE = gemm_candidate("sm100_persistent", 128, 64)


def test_work_grows_with_tiles_and_blocks_of_k():
    def work(m, n, k, candidate=TILE, operation=BF16, groups=1):
        return product_work(candidate, EdgeShape(Problem(operation, m, n, k, groups), 0, 0))

    assert work(1, 1, 1) == 1 + TILE_BLOCKS
    assert work(129, 64, 64) == work(1, 65, 64) == 2 * (1 + TILE_BLOCKS)
    assert work(128, 64, 65) == 2 + TILE_BLOCKS
    assert work(65, 128, 1, changed(TILE, swap_ab=True)) == 2 * (1 + TILE_BLOCKS)
    assert work(1, 1, 1, operation=Operation.BF16_KK_GROUPED, groups=7) == 7 * (1 + TILE_BLOCKS)


def test_work_of_rows_is_that_of_their_elements():
    assert row_work(RowCase(row_operation("bf16_rms_norm"), 3, 1000, is_full=False)) == 3 * (1000 + ROW_COLUMNS)
