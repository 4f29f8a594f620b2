"""Where A, B and D of a problem lie in memory: sizes, strides and alignment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.dispatch import ALIGNMENT_BYTES
from aot.core.operation import Operation
from aot.core.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Collection


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
    bias: int = 0
    """Address of the n elements of the bias; 0 where the operation adds none."""


def _matrix(num_rows: int, num_columns: int, *, row_major: bool, padding: int) -> Matrix:
    if row_major:
        return Matrix(num_rows, num_columns, num_columns + padding, 1)
    return Matrix(num_rows, num_columns, 1, num_rows + padding)


def matrices(problem: Problem, padding: int = 0) -> tuple[Matrix, Matrix, Matrix]:
    """Return A (m, k), B (n, k) and D (m, n), each leading stride `padding` elements longer than its extent."""
    operation = problem.operation
    return (
        _matrix(problem.m, problem.k, row_major=operation.a.is_k_major, padding=padding),
        _matrix(problem.n, problem.k, row_major=operation.b.is_k_major, padding=padding),
        _matrix(problem.m, problem.n, row_major=True, padding=padding),
    )


def _is_taken(matrix: Matrix, element_bytes: int, *, row_major: bool) -> bool:
    """Say whether TMA takes a matrix as runs of adjacent elements, each a row or a column.

    The stride of a single run is never used, so that any will do.
    """
    num_runs, length = matrix.num_rows, matrix.num_columns
    run_stride, stride = matrix.row_stride, matrix.column_stride
    if not row_major:
        num_runs, length, run_stride, stride = length, num_runs, stride, run_stride
    is_adjacent = length == 1 or stride == 1
    return is_adjacent and (
        num_runs == 1 or (run_stride >= length and run_stride * element_bytes % ALIGNMENT_BYTES == 0)
    )


def _is_stored(matrix: Matrix, element_bytes: int) -> bool:
    """Say whether TMA stores a row-major D: it writes whole 16 bytes, past the end of shorter rows."""
    is_whole = matrix.num_columns * element_bytes % ALIGNMENT_BYTES == 0
    return is_whole and _is_taken(matrix, element_bytes, row_major=True)


def as_launched(problem: Problem, operations: Collection[Operation]) -> Problem | None:
    """Return the problem that the dispatch table is asked for a packed problem, or None where the fallback answers.

    The same memory may be read in several ways: a single row is contiguous along either mode, and a single column of
    D is a row of the problem with A and B exchanged. Stated in C++ by `canonicalise` in templates/src/problem.cc.

    Args:
        problem: a product with packed operands, k of at least 1.
        operations: those that the table has a section of.
    """
    a, b, d = matrices(problem)
    exchanged_d = Matrix(d.num_columns, d.num_rows, d.column_stride, d.row_stride)
    asked = problem.operation
    readings = [(a, b, d), (b, a, exchanged_d)] if asked.can_exchange else [(a, b, d)]
    for left, right, result in readings:
        if not _is_stored(result, asked.d.num_bytes):
            continue
        for operation in asked.layouts:
            if (
                operation in operations
                and _is_taken(left, operation.a.element.num_bytes, row_major=operation.a.is_k_major)
                and _is_taken(right, operation.b.element.num_bytes, row_major=operation.b.is_k_major)
            ):
                return Problem(operation, left.num_rows, right.num_rows, problem.k)
    return None


def is_aligned(problem: Problem) -> bool:
    """Say whether the TMA kernels of a problem's own layout take its packed operands (dispatch.ALIGNMENT_BYTES)."""
    return as_launched(problem, [problem.operation]) == problem


def misalignment(problem: Problem) -> str:
    """Say which extents keep the TMA kernels of a problem's layout from its packed operands; empty if none does."""
    operation = problem.operation
    names = ("k" if operation.a.is_k_major else "m", "k" if operation.b.is_k_major else "n", "n")
    a, b, d = matrices(problem)
    taken = (
        _is_taken(a, operation.a.element.num_bytes, row_major=operation.a.is_k_major),
        _is_taken(b, operation.b.element.num_bytes, row_major=operation.b.is_k_major),
        _is_stored(d, operation.d.num_bytes),
    )
    refused = {name for name, is_taken in zip(names, taken, strict=True) if not is_taken}
    if not refused:
        return ""
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    wrong = [f"{name} {extent}" for name, extent in extents.items() if name in refused]
    step = ALIGNMENT_BYTES // operation.a.element.num_bytes
    return f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not a multiple of {step}"
