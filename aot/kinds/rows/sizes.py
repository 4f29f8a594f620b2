"""The sizes that operations on rows are tuned on, and those that their tables have steps at."""

from __future__ import annotations

from aot.kinds.rows.operation import MAX_COLS, RowOperation
from aot.kinds.rows.problem import RowProblem

ROWS = (1, 16, 64, 512, 2048, 8192)
COLS = (1024, 2048, 4096, 8192, 16384)
"""Sizes of an operation. Source: hidden and intermediate sizes of public models; tokens of decoding and of prefill."""
HEAD_ROWS = (32, 512, 2048, 16384, 65536)
HEAD_COLS = (64, 128, 256)
"""Those of a rotary embedding: heads of all tokens, and elements of a head."""


def usual_problems(operation: RowOperation) -> list[RowProblem]:
    """List the sizes that an operation is measured on."""
    rows, cols = (HEAD_ROWS, HEAD_COLS) if operation.is_rotary else (ROWS, COLS)
    return [RowProblem(operation, m, n) for n in cols for m in rows]


ROW_EDGES = tuple(2**i for i in range(17))
"""Edges of rows: 1 to 65536."""
COL_EDGES = (
    *(2**i for i in range(5, 10)),
    *(2**i * part // 8 for i in range(10, 15) for part in (8, 10, 12, 14)),
    32768,
)
"""Edges of columns: powers of two to 512, then quarters of them, as the widths of models are."""
HEAD_EDGES = (32, 64, 96, 128, 192, 256)
"""Edges of the elements of a head. Source: those of public models are 32 to 256."""


def col_edges(operation: RowOperation) -> tuple[int, ...]:
    """Return the edges of an operation's columns, of which the last takes any width."""
    usual = HEAD_EDGES if operation.is_rotary else COL_EDGES
    return (*usual, MAX_COLS)
