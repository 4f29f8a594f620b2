"""The sizes that operations on rows are tuned on."""

from __future__ import annotations

from aot.kinds.rows.operation import RowFunction, RowOperation, RowProblem

ROWS = (1, 16, 64, 512, 2048, 8192)
COLS = (1024, 2048, 4096, 8192, 16384)
"""Sizes of an operation. Source: hidden and intermediate sizes of public models; tokens of decoding and of prefill."""
HEAD_ROWS = (32, 512, 2048, 16384, 65536)
HEAD_COLS = (64, 128, 256)
"""Those of a rotary embedding: heads of all tokens, and elements of a head."""


def usual_problems(operation: RowOperation) -> list[RowProblem]:
    """List the sizes that an operation is measured on."""
    is_rotary = operation.function is RowFunction.ROTARY
    rows, cols = (HEAD_ROWS, HEAD_COLS) if is_rotary else (ROWS, COLS)
    return [RowProblem(operation, m, n) for n in cols for m in rows]
