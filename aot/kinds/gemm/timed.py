"""With which operands kernels of products are timed, and which of D's elements are looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Check, Comparison
from aot.core.epilogue import Epilogue
from aot.core.factor_atoms import row_in_atoms
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.numerics import is_bad, unit_roundoff
from aot.core.operands import WRITTEN, Arrangement, operands, plain_arrangement
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.kinds.gemm.group_inputs import POSITIONS, TIMED_SIZES, draw_ends
from aot.kinds.inputs import as_bits, draw_index, pick
from aot.kinds.trial import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operands import Indices
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.kinds.inputs import Tiling
    from aot.kinds.trial import SampleLimits

NEAR, LEAST_ROUNDOFF = 8, 2.0**-8
"""Roundings of D's type that the errors of a library's product may amount to, and the least that a rounding is taken
for: a library may round the sum and what each step of an epilogue gives, and need not promote FP8's sums. What this
finds is a baseline of other operands or another formula, whose errors are as large as D."""


def timed_arrangement(operation: Operation) -> Arrangement:
    """Return what of an operation's optional operands is there when its kernels are timed, as where it is used most.

    A bias is there before an activation, and not before a gate or beside a residual; rows have factors of their own.
    Several weights are three, as query, key and value.
    """
    has_bias = operation.epilogue is Epilogue.BIAS or operation.activation is not None
    num_parts = 3 if operation.has_parts else 1
    return replace(plain_arrangement(operation), has_bias=has_bias, num_parts=num_parts)


def timed_positions(problem: Problem, number: int, rng: np.random.Generator) -> dict[Argument, Bits]:
    """Draw where the groups of a set end, and an index of random rows, where a problem has them."""
    found: dict[Argument, Bits] = {}
    grouping, groups = problem.operation.grouping, problem.num_groups
    if grouping.has_offsets:
        extent = (problem.m if grouping.groups_rows else problem.k) * groups
        found[Argument.OFFSETS] = as_bits(draw_ends(TIMED_SIZES[number % len(TIMED_SIZES)], groups, extent, rng))
    if grouping is Grouping.GATHERED:
        placed = operands(problem)
        rows, height = placed[Argument.INDEX].num_rows, placed[Argument.A].num_rows
        found[Argument.INDEX] = as_bits(draw_index(rows, height, rng, has_missing=False))
    return found


def sampled_values(
    problem: Problem,
    tilings: Mapping[Argument, Tiling],
    arrangement: Arrangement,
    sampled: tuple[Indices, Indices],
    group: int,
) -> dict[Argument, NDArray[np.float64]]:
    """Return what the operands hold, of the first set, that some rows and columns of a product of it are made of.

    Args:
        problem: what is computed.
        tilings: what the operands hold.
        arrangement: which optional ones there are.
        sampled: rows and columns of D, of those of one product or group.
        group: which product of a batch, or which group: in the first set all are of even sizes.
    """
    (rows, columns), operation, places = sampled, problem.operation, operands(problem, 0, arrangement)
    first_m = group * problem.m if operation.grouping.groups_rows else 0
    of_a = rows + first_m
    if operation.grouping is Grouping.GATHERED:
        of_a = tilings[Argument.INDEX].values(of_a).astype(np.int64)
    indices = needed(problem, of_a, columns, arrangement)
    if operation.grouping.groups_rows and operation.types.factors is FactorLayout.ATOMS:
        indices[Argument.SCALE_A] = (row_in_atoms(of_a, first_m, group), indices[Argument.SCALE_A][1])
    if operation.grouping is Grouping.K_GROUPED:
        first_k = group * problem.k
        indices |= {x: (indices[x][0], indices[x][1] + first_k) for x in (Argument.A, Argument.B)}
    return {
        x: values_of(problem, x, tilings[x].gather(where.positions(*indices[x], matrix)), columns)
        for x, where in places.items()
        if x not in (*WRITTEN, *POSITIONS)
        for matrix in (group if where.num_groups > 1 else 0,)
    }


class ProductSample:
    """Some rows of D, and some of their columns with a float64 reference; satisfies `aot.kinds.kind.Sample`.

    Of a batch they are of one product.
    """

    def __init__(
        self,
        problem: Problem,
        tilings: Mapping[Argument, Tiling],
        arrangement: Arrangement,
        limits: SampleLimits,
        rng: np.random.Generator,
    ) -> None:
        """Take a sample of the first set, whose operands are tiled so."""
        self._problem = problem
        self.rows = pick(rng, problem.m, limits.rows)
        self.columns = pick(rng, problem.n, max(2, min(limits.columns, limits.elements // problem.k)))
        places = operands(problem, 0, arrangement)
        operation = problem.operation
        self._group = int(rng.integers(problem.num_groups))
        first = self._group * places[Argument.D].group_stride
        if operation.grouping.groups_rows:  # in the first set all are of even sizes, m
            first = self._group * problem.m * problem.n
        values = sampled_values(problem, tilings, arrangement, (self.rows, self.columns), self._group)
        self._check = Check(operation, reference(operation, values))
        self.spans = [Span(Argument.D, first + row * problem.n, problem.n) for row in self.rows.tolist()]

    @property
    def near(self) -> float:
        """Return the relative error that what rounds between its steps too keeps: NEAR roundings of D's type."""
        return NEAR * max(unit_roundoff(self._problem.operation.d), LEAST_ROUNDOFF)

    def compare(self, bits: Sequence[Bits]) -> Comparison:
        """Hold rows of D against the reference; all of their elements must be written and finite."""
        rows = np.stack(bits)
        num_bad = int(is_bad(self._problem.operation.d, rows).sum())
        if num_bad:
            return Comparison(
                np.inf, f"{num_bad} of {rows.size} sampled elements are not written or not finite", np.inf
            )
        sampled: Bits = rows[:, self.columns]
        return self._check.compare(sampled)
