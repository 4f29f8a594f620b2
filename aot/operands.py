"""Where A, B and D of a problem lie in memory: sizes, strides and alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.dispatch import ALIGNMENT_BYTES

if TYPE_CHECKING:
    from aot.problem import Problem


@dataclass(frozen=True)
class Matrix:
    """One operand, logically (num_rows, num_columns); strides in elements, one of them 1."""

    num_rows: int
    num_columns: int
    row_stride: int
    column_stride: int

    @property
    def num_elements(self) -> int:
        """Count the elements from the first to the last, padding between them included."""
        return (self.num_rows - 1) * self.row_stride + (self.num_columns - 1) * self.column_stride + 1

    @property
    def leading_stride(self) -> int:
        """Give the stride of the mode that is not contiguous."""
        return max(self.row_stride, self.column_stride)


@dataclass(frozen=True)
class GemmCall:
    """One call of the C API: sizes and strides in elements, addresses on the device."""

    problem: Problem
    a: int
    b: int
    d: int
    a_matrix: Matrix
    b_matrix: Matrix
    d_matrix: Matrix


def _matrix(num_rows: int, num_columns: int, *, row_major: bool, padding: int) -> Matrix:
    if row_major:
        return Matrix(num_rows, num_columns, num_columns + padding, 1)
    return Matrix(num_rows, num_columns, 1, num_rows + padding)


def matrices(problem: Problem, padding: int = 0) -> tuple[Matrix, Matrix, Matrix]:
    """Give A (m, k), B (n, k) and D (m, n), each leading stride `padding` elements longer than its extent."""
    layout = problem.operation.layout
    return (
        _matrix(problem.m, problem.k, row_major=layout.a_k_major, padding=padding),
        _matrix(problem.n, problem.k, row_major=layout.b_k_major, padding=padding),
        _matrix(problem.m, problem.n, row_major=True, padding=padding),
    )


def is_aligned(problem: Problem) -> bool:
    """Say whether the packed operands have leading strides that the TMA kernels take (dispatch.ALIGNMENT_BYTES)."""
    element_bytes = problem.operation.dtype.num_bytes
    return all(matrix.leading_stride * element_bytes % ALIGNMENT_BYTES == 0 for matrix in matrices(problem))
