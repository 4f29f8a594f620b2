"""Where the operands of a problem lie in memory: sizes, strides and alignment, and which of them there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.signature import Argument, signature_of
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray

    from aot.core.formats import Operand, ScaleFormat

    Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Matrix:
    """One operand, logically (num_rows, num_columns), or a stack of them; strides in elements, one of them 1.

    A vector of factors is one of a single column, whose row stride is 0 where there is one factor for all rows.
    """

    num_rows: int
    num_columns: int
    row_stride: int
    column_stride: int
    num_groups: int = 1
    """Matrices of the stack: products of a batch, or groups that have one each."""
    group_stride: int = 0
    """From matrix to matrix; 0 where all products share one."""

    @property
    def num_elements(self) -> int:
        """Count the elements from the first to the last, padding between them included."""
        before = (self.num_groups - 1) * self.group_stride
        return before + (self.num_rows - 1) * self.row_stride + (self.num_columns - 1) * self.column_stride + 1

    def positions(self, rows: Indices, columns: Indices, group: int = 0) -> Indices:
        """Return where elements of one matrix lie, (rows, columns), counted from the first of the stack."""
        return group * self.group_stride + rows[:, None] * self.row_stride + columns * self.column_stride

    @property
    def filled(self) -> Indices:
        """Return the positions that are no elements, and must be zero: none of a strided matrix."""
        import numpy as np  # here, since a bundle reads its problems before there is numpy

        return np.zeros(0, np.int64)

    def stacked(self, num_groups: int) -> Matrix:
        """Return a stack of such matrices, each behind the padding of the one before it."""
        stride = max(self.num_rows * self.row_stride, self.num_columns * self.column_stride)
        return replace(self, num_groups=num_groups, group_stride=stride)


@dataclass(frozen=True)
class AtomMatrix(Matrix):
    """Scale factors in atoms, (rows, blocks along k), or a stack of them, one behind the other.

    Strides of rows and columns are not looked at. Those of A's rows in groups have the rows of all atoms, as
    `aot.core.factor_atoms` counts them.
    """

    @property
    def _matrix_bytes(self) -> int:
        from aot.core.factor_atoms import ATOM_BYTES, num_atoms  # which needs numpy; see `Matrix.filled`

        down, along = num_atoms(self.num_rows, self.num_columns)
        return down * along * ATOM_BYTES

    @property
    def num_elements(self) -> int:
        """Count the bytes of whole atoms."""
        return self.num_groups * self._matrix_bytes

    def positions(self, rows: Indices, columns: Indices, group: int = 0) -> Indices:
        """Return at which bytes factors of one matrix lie, (rows, columns), counted from the first of the stack."""
        from aot.core.factor_atoms import factor_positions

        return group * self._matrix_bytes + factor_positions(rows, columns, self.num_columns)

    @property
    def all_positions(self) -> Indices:
        """Return at which bytes all factors lie, (group, row, column)."""
        import numpy as np

        rows, columns = (np.arange(x, dtype=np.int64) for x in (self.num_rows, self.num_columns))
        return np.stack([self.positions(rows, columns, group) for group in range(self.num_groups)])

    @property
    def filled(self) -> Indices:
        """Return the bytes behind the last block along k of each row, which a product multiplies zeros by."""
        import numpy as np

        columns = np.arange(self.num_columns, self.num_columns + -self.num_columns % ATOM_COLUMNS, dtype=np.int64)
        rows = np.arange(self.num_rows, dtype=np.int64)
        return np.concatenate([self.positions(rows, columns, group) for group in range(self.num_groups)])

    def stacked(self, num_groups: int) -> AtomMatrix:
        """Return a stack of as many, each of whole atoms."""
        return replace(self, num_groups=num_groups, group_stride=self._matrix_bytes)


@dataclass(frozen=True)
class Arrangement:
    """What a caller may choose of the operands that an operation has beside A and B."""

    has_bias: bool = True
    """Whether a bias is there; an operation that must have one has it in any case."""
    has_scales_of_a: bool = True
    """Whether each row of A has a factor of its own, and not all the same one."""
    has_scales_of_b: bool = True
    has_row_major_blocks: bool = True
    """Whether factors of blocks lie row by row, and not column by column."""
    is_interleaved: bool = False
    """Whether a gate's rows of B, its bias and its factors alternate with the linear ones, and do not stand before."""
    shares_a: bool = False
    """Whether all products of a batch have one A."""
    shares_b: bool = False
    is_linear_first: bool = False
    """Whether a gate's linear rows of B stand before the gate's. In a bias and in factors they do not."""
    num_parts: int = 1
    """Weights that share the rows of B, of an operation of several."""


@dataclass(frozen=True)
class Tensor:
    """An operand at an address on the device."""

    address: int
    matrix: Matrix


@dataclass(frozen=True)
class GemmCall:
    """One call of the C API: its operands on the device; sizes and strides are in elements."""

    problem: Problem
    tensors: Mapping[Argument, Tensor]
    """Of A, B, D and what else there is."""
    is_interleaved: bool = False
    is_linear_first: bool = False
    """Whether the first half of B's rows are the linear ones of a gate."""
    part_extents: tuple[int, ...] = ()
    """Rows of B of each weight, of an operation of several; of one alone where there are none."""

    @property
    def d(self) -> int:
        """Return the address of D."""
        return self.tensors[Argument.D].address


OPERANDS = (
    Argument.A,
    Argument.B,
    Argument.D,
    Argument.SCALE_A,
    Argument.SCALE_B,
    Argument.BIAS,
    Argument.RESIDUAL,
    Argument.SCALE_D,
    Argument.OWN_D,
    Argument.FACTORS_D,
    Argument.OFFSETS,
    Argument.INDEX,
)
"""The arguments that are a caller's tensors."""

WRITTEN = (Argument.D, Argument.FACTORS_D)
"""Those of them that a kernel writes."""


def element_of(operation: Operation, argument: Argument) -> ElementType:
    """Return the element type of an operand."""
    types = {
        Argument.A: operation.a.element,
        Argument.B: operation.b.element,
        Argument.D: operation.d,
        Argument.RESIDUAL: operation.d,
        Argument.BIAS: operation.bias,
        Argument.OFFSETS: ElementType.INT32,
        Argument.INDEX: ElementType.INT32,
    }
    for of_factors, operand in ((Argument.SCALE_A, operation.a), (Argument.SCALE_B, operation.b)):
        if operand.scale is not None:
            types[of_factors] = operand.scale.element
    if operation.factors_of_d is not None:
        types[Argument.FACTORS_D] = operation.factors_of_d.element
    return types.get(argument, ElementType.FLOAT32)


def _matrix(num_rows: int, num_columns: int, *, row_major: bool, padding: int, stride_multiple: int) -> Matrix:
    leading = (num_columns if row_major else num_rows) + padding
    leading = -(-leading // stride_multiple) * stride_multiple
    return Matrix(num_rows, num_columns, leading, 1) if row_major else Matrix(num_rows, num_columns, 1, leading)


def matrices(problem: Problem, padding: int = 0, stride_multiple: int = 1) -> tuple[Matrix, Matrix, Matrix]:
    """Return A (m, k), B (n, k) and D (m, n), each leading stride `padding` elements longer than its extent.

    Leading strides are then rounded up to whole multiples of `stride_multiple` elements.

    With a gate B is (2 n, k); a packed weight is its bytes, without padding, with a gate those of two weights (n, k).
    Of a batch all three are stacks. Where rows are grouped, B is one, and m is that of all groups; where k is grouped,
    D is one, and k is that of all groups.
    """
    operation, rows = problem.operation, problem.operation.num_rows_of_b(problem.n)
    grouping, groups = operation.grouping, problem.num_groups
    m = problem.m * (groups if grouping.groups_rows else 1)
    k = problem.k * (groups if grouping is Grouping.K_GROUPED else 1)
    of_a, of_b, of_d = (
        lcm(stride_multiple, x.num_sharing) for x in (operation.a.element, operation.b.element, operation.d)
    )
    a = _matrix(m, k, row_major=operation.a.is_k_major, padding=padding, stride_multiple=of_a)
    if operation.b.weight is None:
        b = _matrix(rows, k, row_major=operation.b.is_k_major, padding=padding, stride_multiple=of_b)
    else:  # whose rows of bytes follow each other; those of a gate's two weights too
        of_weight, row_bytes = operation.b.extents(problem.n, k)
        of_all = of_weight * operation.num_rows_of_b(1)
        b = _matrix(of_all, row_bytes, row_major=True, padding=0, stride_multiple=1)
    d = _matrix(m, problem.n, row_major=True, padding=padding, stride_multiple=of_d)
    is_stack = {
        Grouping.BATCHED: (True, True, True),
        Grouping.GROUPED: (False, True, False),
        Grouping.GATHERED: (False, True, False),
        Grouping.K_GROUPED: (False, False, True),
    }.get(grouping, (False, False, False))
    a, b, d = (x.stacked(groups) if stacked else x for x, stacked in zip((a, b, d), is_stack, strict=True))
    return a, b, d


def _factors_of_d(problem: Problem, form: ScaleFormat, rows: int) -> AtomMatrix:
    """Return the atoms of the factors of D's blocks, of so many rows.

    Of groups, whose atoms have rows that are of none, the factors that fill the last atom of a row up are columns too:
    they are written in the rows of groups alone.
    """
    blocks = form.num_factors(rows, problem.n)[1]
    return AtomMatrix(rows, blocks + (-blocks % ATOM_COLUMNS if problem.operation.grouping.groups_rows else 0), 0, 0)


PLAIN = Arrangement()


def plain_arrangement(operation: Operation) -> Arrangement:
    """Return what a caller has chosen who chose nothing that an operation leaves open."""
    return Arrangement(is_interleaved=True) if operation.is_interleaved else PLAIN


def operands(
    problem: Problem, padding: int = 0, arrangement: Arrangement = PLAIN, stride_multiple: int = 1
) -> dict[Argument, Matrix]:
    """Return the matrices of all operands, in the order of OPERANDS.

    Args:
        problem: what is computed.
        padding: elements by which each leading stride is longer than its extent; vectors have none.
        arrangement: what the caller chose.
        stride_multiple: what leading strides are rounded up to whole multiples of, in elements.
    """
    operation, rows = problem.operation, problem.operation.num_rows_of_b(problem.n)
    a, b, d = matrices(problem, padding, stride_multiple)
    groups = problem.num_groups
    if operation.grouping is Grouping.BATCHED:
        shared = zip((a, b), (arrangement.shares_a, arrangement.shares_b), strict=True)
        a, b = (replace(x, group_stride=0) if is_shared else x for x, is_shared in shared)
    is_row_major = arrangement.has_row_major_blocks

    def factors(operand: Operand, num_rows: int, *, is_vector: bool) -> Matrix:
        scale = operand.scale
        if scale is None or scale.layout is FactorLayout.VECTOR:
            return Matrix(num_rows, 1, int(is_vector), 1)
        extents = scale.num_factors(num_rows, problem.k)
        if scale.layout is FactorLayout.ATOMS:
            return AtomMatrix(*extents, 0, 0)
        return _matrix(*extents, row_major=is_row_major, padding=padding, stride_multiple=stride_multiple)

    rows_of_a = d.num_rows
    if operation.grouping.groups_rows and operation.types.factors is FactorLayout.ATOMS:
        from aot.core.factor_atoms import num_atoms_of_groups

        rows_of_a = num_atoms_of_groups(d.num_rows, groups) * ATOM_ROWS
    scale_a = factors(operation.a, rows_of_a, is_vector=arrangement.has_scales_of_a)
    scale_b = factors(operation.b, rows, is_vector=arrangement.has_scales_of_b)
    bias, one = Matrix(1, rows, 0, 1), Matrix(1, 1, 1, 1)
    scale_d = one
    if operation.grouping.groups_rows:
        scale_b, bias, scale_d = (x.stacked(groups) for x in (scale_b, bias, scale_d))
    offsets, index = Matrix(groups, 1, 1, 1), Matrix(d.num_rows, 1, 1, 1)
    of_d = operation.factors_of_d
    factors_d = one if of_d is None else _factors_of_d(problem, of_d, rows_of_a)
    all_of_them = (a, b, d, scale_a, scale_b, bias, d, scale_d, one, factors_d, offsets, index)
    found = dict(zip(OPERANDS, all_of_them, strict=True))
    taken = set(signature_of(operation, has_workspace=False, prefetches_b=False))
    if not arrangement.has_bias and operation.epilogue is not Epilogue.BIAS:
        taken.discard(Argument.BIAS)
    return {argument: matrix for argument, matrix in found.items() if argument in taken}
