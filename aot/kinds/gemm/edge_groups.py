"""The float64 reference of groups: a part of D for each group that has one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Check, Comparison, worst
from aot.core.factor_atoms import row_in_atoms
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.numerics import decode, poison
from aot.core.operands import element_of
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.kinds.gemm.group_inputs import POSITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from aot.core.element import ElementType
    from aot.core.numerics import Bits
    from aot.core.operands import Indices
    from aot.core.problem import Problem
    from aot.core.reference import Expected
    from aot.kinds.gemm.edge_shapes import EdgeShape

    Operands = Mapping[Argument, Bits]


@dataclass(frozen=True)
class Part:
    """A part of D that one reference is for: some rows of one matrix of D's stack."""

    matrix: int
    rows: slice
    check: Check


@dataclass(frozen=True)
class GroupOfRows:
    """A group that has rows: its number, its rows of D, and what these are before they are rounded."""

    number: int
    rows: slice
    expected: Expected


def _rows_of_group(
    shape: EdgeShape, bits: Operands, group: int, start: int, rows: Indices
) -> dict[Argument, NDArray[np.float64]]:
    """Return the operands of a group of rows; those that are not A's are zeros, and so are their factors."""
    operation = shape.problem.operation
    height = bits[Argument.A].shape[1]
    is_there = (rows >= 0) & (rows < height)
    columns = np.arange(shape.problem.n, dtype=np.int64)
    indices = needed(shape.problem, np.where(is_there, rows, 0), columns, shape.arrangement)
    if operation.types.factors is FactorLayout.ATOMS:
        indices[Argument.SCALE_A] = (row_in_atoms(rows, start, group), indices[Argument.SCALE_A][1])
    values = {
        x: values_of(shape.problem, x, y[min(group, len(y) - 1)][np.ix_(*indices[x])], columns)
        for x, y in bits.items()
        if x not in POSITIONS
    }
    for argument in {Argument.A, Argument.SCALE_A} & values.keys():
        values[argument] = values[argument] * is_there[:, None]
    return values


def _depth_of_group(problem: Problem, bits: Operands, taken: slice) -> dict[Argument, NDArray[np.float64]]:
    """Return the operands of a group of k."""
    return {x: decode(element_of(problem.operation, x), bits[x][0][:, taken]) for x in (Argument.A, Argument.B)}


def positions_of(bits: Operands, argument: Argument) -> Indices:
    """Return offsets, or an index, from their bits (1, count, 1)."""
    return np.ascontiguousarray(bits[argument][0, :, 0]).view(np.int32).astype(np.int64)


def groups_of_rows(shape: EdgeShape, bits: Operands) -> list[GroupOfRows]:
    """Compute what each group of rows gives that is not empty.

    Args:
        shape: the case.
        bits: the operands that are read, each (group, row, column).
    """
    starts = np.append(0, positions_of(bits, Argument.OFFSETS)).tolist()
    index = positions_of(bits, Argument.INDEX) if Argument.INDEX in bits else None
    found = []
    for group, (start, end) in enumerate(pairwise(starts)):
        if end > start:
            rows = np.arange(start, end, dtype=np.int64) if index is None else index[start:end]
            values = _rows_of_group(shape, bits, group, start, rows)
            found.append(GroupOfRows(group, slice(start, end), reference(shape.problem.operation, values)))
    return found


def parts_of(shape: EdgeShape, bits: Operands) -> list[Part]:
    """Compute the references of all groups that D has a part of; empty groups of rows have none.

    Args:
        shape: the case.
        bits: the operands but D, each (group, row, column).
    """
    operation = shape.problem.operation
    if operation.grouping is not Grouping.K_GROUPED:
        return [Part(0, x.rows, Check(operation, x.expected)) for x in groups_of_rows(shape, bits)]
    parts = []
    for group, (start, end) in enumerate(pairwise(np.append(0, positions_of(bits, Argument.OFFSETS)).tolist())):
        values = _depth_of_group(shape.problem, bits, slice(start, end))
        parts.append(Part(group, slice(None), Check(operation, reference(operation, values))))
    return parts


def fault_of_free_rows(result: Bits, taken: Iterable[tuple[int, slice]], element: ElementType) -> str:
    """Say which rows that are no group's were written, of bits (matrix, rows, columns); empty where none was.

    Args:
        result: what a kernel wrote, or poison.
        taken: the rows that are groups', with the number of their matrix.
        element: what the bits are of.
    """
    is_free = np.ones(result.shape[:2], np.bool_)
    for matrix, rows in taken:
        is_free[matrix, rows] = False
    written = is_free & (result != poison(element)).any(-1)
    if not written.any():
        return ""
    row = int(np.argwhere(written)[0][1])
    return f"{int(written.sum())} rows of no group were written, the first is row {row}"


def compare_parts(problem: Problem, parts: list[Part], result: Bits) -> Comparison:
    """Hold D's bits (matrix, m, n) against the references; what is in no part must not have been written."""
    outcomes = [part.check.compare(result[part.matrix][part.rows]) for part in parts]
    fault = fault_of_free_rows(result, ((x.matrix, x.rows) for x in parts), problem.operation.d)
    if fault:
        outcomes.append(Comparison(1.0, fault, np.inf))
    return worst(outcomes)
