"""How many instructions a case takes, in proportion to another case of the same kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.families import tiling_of

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.kinds.gemm.edge_shapes import EdgeShape
    from aot.kinds.rows.call import RowCase

BLOCK_K = 64
"""Elements of k that a kernel takes at once, about: 128 bytes of 16-bit elements."""
TILE_BLOCKS = 6
"""What a tile's start and epilogue take, as if they were so many blocks of k. An assumption."""
ROW_COLUMNS = 1024
"""What a row takes beside its elements, as if it had so many more. An assumption."""


def product_work(candidate: Candidate, shape: EdgeShape) -> float:
    """Return the work of a product: blocks of k of all tiles."""
    problem, tiling = shape.problem, tiling_of(candidate)
    rows, columns = (problem.n, problem.m) if tiling.swap_ab else (problem.m, problem.n)
    tiles = -(-rows // tiling.tile_m) * -(-columns // tiling.tile_n) * problem.num_groups
    return tiles * (-(-problem.k // BLOCK_K) + TILE_BLOCKS)


def row_work(case: RowCase) -> float:
    """Return the work of an operation on rows: elements."""
    return case.rows * (case.cols + ROW_COLUMNS)
