"""What the operands of a case hold: random elements, and among them those that arithmetic treats in their own way."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.factor_atoms import row_in_atoms
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.numerics import encode, poison, special_bits
from aot.core.operands import WRITTEN, AtomMatrix, element_of
from aot.core.signature import Argument
from aot.kinds.gemm.edge_shapes import Content
from aot.kinds.gemm.group_inputs import POSITIONS, draw_ends
from aot.kinds.gemm.inputs import MEAN_SQUARE, OWN_D, SCALE_D, SCALED, draw_scales, scaled_by
from aot.kinds.gemm.packed_inputs import draw_weights
from aot.kinds.inputs import as_bits, deviation, draw, draw_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operands import Matrix
    from aot.kinds.gemm.edge_shapes import EdgeShape

TYPICAL_SUM = 2.0
"""Standard deviation of a sum before an activation, which are curved between -3 and 3."""


def _factor(shape: EdgeShape, argument: Argument) -> float:
    """Return what scale factors are multiplied by, so that scaled sums have TYPICAL_SUM."""
    operation = shape.problem.operation
    is_first = argument is Argument.SCALE_A or operation.a.scale is None
    wanted = TYPICAL_SUM / math.sqrt(shape.problem.k) if is_first else 1.0
    return wanted / deviation(scaled_by(operation, argument))


def _factor_of_sums(shape: EdgeShape) -> float:
    """Return what sums of products that have other factors in each block are multiplied by, to be of TYPICAL_SUM."""
    return TYPICAL_SUM / (math.sqrt(shape.problem.k) * MEAN_SQUARE)


def _spread(shape: EdgeShape, argument: Argument) -> float:
    """Return the standard deviation of an operand's elements: of A's, less where nothing else scales the sums."""
    operation = shape.problem.operation
    is_curved = operation.activation is not None or operation.gate is not None
    if argument is Argument.A and is_curved and operation.types.factors is None:
        return TYPICAL_SUM / math.sqrt(shape.problem.k)
    return 1.0


def _random(shape: EdgeShape, argument: Argument, matrix: Matrix, rng: np.random.Generator) -> Bits:
    """Draw an operand, (group, row, column): of one group where all share it."""
    groups = matrix.num_groups if matrix.group_stride else 1
    return np.stack([_random_matrix(shape, argument, matrix, rng) for _ in range(groups)])


def _random_matrix(shape: EdgeShape, argument: Argument, matrix: Matrix, rng: np.random.Generator) -> Bits:
    operation, problem = shape.problem.operation, shape.problem
    dtype, extents = element_of(operation, argument), (matrix.num_rows, matrix.num_columns)
    if argument is Argument.B and operation.b.weight is not None:
        return draw_weights(problem, rng)
    if argument in SCALED:
        # With a stride of 0 all rows are the same element, and so must their factors be.
        rows = extents[0] if matrix.row_stride else 1
        if isinstance(matrix, AtomMatrix):
            is_first = argument is Argument.SCALE_A
            return draw_scales(rng, extents, _factor_of_sums(shape) if is_first else 1.0, dtype)
        return np.broadcast_to(draw_scales(rng, (rows, extents[1]), _factor(shape, argument)), extents)
    if argument is Argument.SCALE_D:
        value = _factor_of_sums(shape) if operation.types.scales_sum else SCALE_D
        if operation.grouping.groups_rows:  # of which each group has another
            value *= math.exp2(rng.uniform(-1.0, 1.0))
        return encode(dtype, np.full(extents, value, np.float32))
    if argument is Argument.OWN_D:
        return encode(dtype, np.full(extents, OWN_D, np.float32))
    if shape.content is Content.ALL_BITS:
        dtype = ElementType.FLOAT32
    return draw(dtype, rng, extents, _spread(shape, argument))


def _make_special(operands: Mapping[Argument, Bits], shape: EdgeShape) -> None:
    """Put special numbers into random operands (40 rows of A, 200 of k and more).

    Of A's rows one has a NaN; one an infinity, which meets no zero of B; one has two, whose sum is a NaN where their
    signs differ; one has zeros, which meet B's infinity; one the least numbers alone; one a large number and two
    nothing else, whose sums some types of D do not hold. Of B's rows one has a NaN and another an infinity;
    bias and residual have both. Of integers there are the largest and the least.
    """
    operation = shape.problem.operation
    a, b = operands[Argument.A], operands[Argument.B]
    of_a, of_b = special_bits(operation.a.element), special_bits(operation.b.element)
    a[1, 3], a[5, 7], a[9, 11], a[9, 13] = of_a.nan, of_a.infinity, of_a.infinity, of_a.infinity
    a[15, :], a[19, :], a[23, 17] = of_a.zero, of_a.least, of_a.large
    a[27, :], a[29, :] = of_a.large, of_a.lowest
    b[3, 5], b[7, 9] = of_b.nan, of_b.infinity
    if Argument.BIAS in operands:
        of_bias = special_bits(operation.bias)
        operands[Argument.BIAS][0, 11], operands[Argument.BIAS][0, 13] = of_bias.nan, of_bias.infinity
    if Argument.RESIDUAL in operands:
        of_residual = special_bits(operation.d)
        operands[Argument.RESIDUAL][31, 17], operands[Argument.RESIDUAL][33, 19] = of_residual.nan, of_residual.infinity


def _positions(shape: EdgeShape, matrices: Mapping[Argument, Matrix], rng: np.random.Generator) -> dict[Argument, Bits]:
    """Draw where groups end and which rows are gathered, where a problem has groups."""
    found = {}
    if Argument.OFFSETS in matrices:
        groups_rows = shape.problem.operation.grouping.groups_rows
        extent = matrices[Argument.D].num_rows if groups_rows else matrices[Argument.A].num_columns
        ends = draw_ends(shape.sizes, shape.problem.num_groups, extent, rng)
        found[Argument.OFFSETS] = as_bits(ends)[None, :, None]
    if Argument.INDEX in matrices:
        rows, height = matrices[Argument.INDEX].num_rows, matrices[Argument.A].num_rows
        found[Argument.INDEX] = as_bits(draw_index(rows, height, rng, has_missing=True))[None, :, None]
    return found


def _rows_of_no_group(operands: Mapping[Argument, Bits]) -> NDArray[np.bool_]:
    """Say which rows of the atoms of A's factors are no row's of a group: (rows,)."""
    ends = operands[Argument.OFFSETS].reshape(-1).view(np.int32).tolist()
    is_free = np.ones(operands[Argument.SCALE_A].shape[1], np.bool_)
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        is_free[row_in_atoms(np.arange(start, end), start, group)] = False
    return is_free


def _poison_behind(operands: dict[Argument, Bits], shape: EdgeShape) -> None:
    """Put poison behind the end of the last group: into A's rows and their factors, or into A and B along k.

    A kernel may load it, but no element of D may depend on it, not even by a product with zero. It is there in cases
    whose rows have poison behind them too; in the others a kernel that computes rows of no group gives them numbers.
    """
    operation = shape.problem.operation
    if shape.stride_multiple == 1 or operation.grouping not in (Grouping.GROUPED, Grouping.K_GROUPED):
        return  # gathered rows lie in no order
    end = int(operands[Argument.OFFSETS].view(np.int32).max())
    rows: tuple[slice, ...] = (slice(None), slice(end, None))
    behind = {Argument.A: rows}
    if operation.grouping is Grouping.K_GROUPED:
        behind = dict.fromkeys((Argument.A, Argument.B), (slice(None), slice(None), slice(end, None)))
    elif operation.types.factors is FactorLayout.ATOMS:
        operands[Argument.SCALE_A][:, _rows_of_no_group(operands)] = poison(element_of(operation, Argument.SCALE_A))
    elif shape.arrangement.has_scales_of_a or operation.types.factors is FactorLayout.BLOCK:
        behind[Argument.SCALE_A] = rows
    for argument, places in behind.items():
        if argument in operands:
            operands[argument] = operands[argument].copy()  # equal factors are one element seen several times
            operands[argument][places] = poison(element_of(operation, argument))


def edge_operands(
    shape: EdgeShape, matrices: Mapping[Argument, Matrix], rng: np.random.Generator
) -> dict[Argument, Bits]:
    """Draw the operands of a case that are read, each (group, row, column)."""
    found: dict[Argument, Bits] = {
        x: _random(shape, x, matrix, rng) for x, matrix in matrices.items() if x not in (*WRITTEN, *POSITIONS)
    }
    found |= _positions(shape, matrices, rng)
    _poison_behind(found, shape)
    if shape.content is Content.SPECIAL:
        _make_special({x: y[0] for x, y in found.items()}, shape)
    return found
