"""Which problems' operands are aligned: what kernels with wide loads take of them, and how far the others are not."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.formats import ALIGNMENT_BYTES, Operand
from aot.core.grouping import Grouping
from aot.core.operands import Matrix, matrices
from aot.core.operation import Operation
from aot.core.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Collection


def _is_taken(matrix: Matrix, operand: Operand) -> bool:
    """Say whether TMA takes a matrix as runs of adjacent elements, each a row or a column.

    The stride of a single run is never used, so that any will do. Of a stack each matrix has to begin at an aligned
    address.
    """
    if operand.element.bytes_of(matrix.group_stride) % operand.alignment:
        return False
    num_runs, length = matrix.num_rows, matrix.num_columns
    run_stride, stride = matrix.row_stride, matrix.column_stride
    if not operand.is_k_major:
        num_runs, length, run_stride, stride = length, num_runs, stride, run_stride
    is_adjacent = length == 1 or stride == 1
    return is_adjacent and (num_runs == 1 or (run_stride >= length and run_stride % operand.run == 0))


def _is_stored(matrix: Matrix, element: ElementType) -> bool:
    """Say whether TMA stores a row-major D: it writes whole 16 bytes, past the end of shorter rows."""
    as_rows = Operand(element, is_k_major=True)
    return matrix.num_columns % as_rows.run == 0 and _is_taken(matrix, as_rows)


def column_step(operation: Operation) -> int:
    """Return what n must be a multiple of, whatever the alignment, for kernels other than the fallback.

    With a gate and factors of blocks it is a block, so that no block has rows of both halves of B.
    """
    scale = operation.b.scale
    return 1 if operation.gate is None or scale is None else scale.block_m


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
    if problem.n % column_step(asked) != 0 or problem.k % asked.k_step != 0:
        return None
    readings = [(a, b, d), (b, a, exchanged_d)] if asked.can_exchange else [(a, b, d)]
    for left, right, result in readings:
        if not _is_stored(result, asked.d):
            continue
        for operation in asked.layouts:
            if operation in operations and _is_taken(left, operation.a) and _is_taken(right, operation.b):
                m = problem.m if operation.grouping.groups_rows else left.num_rows  # of groups A has the rows of all
                return replace(problem, operation=operation, m=m, n=result.num_columns)
    return None


def is_aligned(problem: Problem) -> bool:
    """Say whether the TMA kernels of a problem's own layout take its packed operands (`Operand.alignment`)."""
    return as_launched(problem, [problem.operation]) == problem


SECTOR_BYTES = 32
"""Bytes of a sector of the L2, which is what is read of it at once. Source: CUDA C++ Best Practices Guide, coalesced
access to global memory."""


def _run_alignment(matrix: Matrix, element: ElementType, *, row_major: bool, most: int = ALIGNMENT_BYTES) -> int:
    """Return the bytes, at most `most`, of which every run of adjacent elements of a matrix begins at a multiple.

    The matrix itself, or the first of a stack, begins at a multiple of `most`, a power of two.
    """
    num_runs, stride = (matrix.num_rows, matrix.row_stride) if row_major else (matrix.num_columns, matrix.column_stride)
    steps = (stride if num_runs > 1 else 0, matrix.group_stride if matrix.num_groups > 1 else 0)
    return gcd(most, *map(element.bytes_of, steps))


def unaligned_loads(problem: Problem) -> int:
    """Return what `Section.loads` is of the section that a problem of packed operands is answered by.

    Returns:
        Bytes of which the addresses and leading strides of A and B are multiples, where the tables for aligned problems
        cannot answer; else 0.
    """
    return 0 if is_aligned(problem) else _loaded_alignment(problem, ALIGNMENT_BYTES)


def _loaded_alignment(problem: Problem, most: int) -> int:
    """Return the lesser of the bytes, at most `most`, of which runs of A and of B begin at multiples."""
    operation = problem.operation
    a, b, _ = matrices(problem)
    return min(
        _run_alignment(x, operand.element, row_major=operand.is_k_major, most=most)
        for x, operand in ((a, operation.a), (b, operation.b))
    )


def has_sections_between_sectors(operation: Operation) -> bool:
    """Say whether tables may have a section of an operation for rows between sectors: one of single plain products."""
    return operation.grouping is Grouping.DENSE and operation.b.weight is None


def begins_between_sectors(problem: Problem) -> bool:
    """Say whether rows of A or B of an aligned problem begin at odd multiples of 16 bytes, between two sectors.

    Stated in C++ by `steps_of` in templates/src/problem.cc. Leading strides alone decide, wherever A and B begin: a
    query without addresses gets the kernel of the launch.

    Args:
        problem: packed, and aligned as it is (`is_aligned`).
    """
    return has_sections_between_sectors(problem.operation) and _loaded_alignment(problem, SECTOR_BYTES) < SECTOR_BYTES


UNALIGNED_BITS = 16
"""Bits of an element of A whose operations have sections for what is not aligned."""


def has_unaligned_sections(operation: Operation) -> bool:
    """Say whether tables have sections of an operation for what is not aligned: one of a 16-bit product, or a batch."""
    is_plain = not operation.grouping.has_offsets and operation.b.weight is None
    return is_plain and operation.a.element.bits == UNALIGNED_BITS


def section_loads(problem: Problem, operations: Collection[Operation]) -> int:
    """Return the section for what is not aligned that answers a packed problem, as `Section.loads` has it.

    Args:
        problem: what is asked for.
        operations: those that the table has a section of.

    Returns:
        0 where an aligned section answers, or none but the fallback can.
    """
    operation = problem.operation
    if not has_unaligned_sections(operation) or operation not in operations or as_launched(problem, operations):
        return 0
    return unaligned_loads(problem)


def misalignment(problem: Problem) -> str:
    """Say which extents keep the TMA kernels of a problem's layout from its packed operands; empty if none does."""
    operation = problem.operation
    names = ("k" if operation.a.is_k_major else "m", "k" if operation.b.is_k_major else "n", "n")
    runs = (operation.a.run, operation.b.run, operation.d.num_in(ALIGNMENT_BYTES))
    a, b, d = matrices(problem)
    taken = (_is_taken(a, operation.a), _is_taken(b, operation.b), _is_stored(d, operation.d))
    steps: dict[str, int] = {}
    for name, run, is_taken in zip(names, runs, taken, strict=True):
        if not is_taken:
            steps[name] = max(steps.get(name, 1), run)
    if problem.n % column_step(operation) != 0:
        steps["n"] = column_step(operation)
    if problem.k % operation.k_step != 0:
        steps["k"] = max(steps.get("k", 1), operation.k_step)
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    parts = []
    for step in sorted(set(steps.values())):
        wrong = [f"{name} {extent}" for name, extent in extents.items() if steps.get(name) == step]
        parts.append(f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not a multiple of {step}")
    return ", and ".join(parts)
