"""The reference of products whose D is narrow elements with a factor for each block: both are held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.factor_atoms import ATOM_BYTES, factor_positions, num_atoms
from aot.core.factor_comparison import WrittenFactors, compare_factors
from aot.core.formats import ScaleFormat, tag_of
from aot.core.operands import WRITTEN, operands
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.core.weight_format import ATOM_ROWS
from aot.kinds.gemm.group_inputs import POSITIONS
from aot.kinds.inputs import pick
from aot.kinds.trial import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.core.operands import Arrangement, Indices
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.reference import Expected
    from aot.kinds.gemm.edge_shapes import EdgeShape
    from aot.kinds.inputs import Tiling
    from aot.kinds.trial import SampleLimits

CALLED = Argument.FACTORS_D.value, Argument.D.value


def _form(operation: Operation) -> ScaleFormat:
    form = operation.factors_of_d
    if form is None:
        raise ValueError(f"D of {operation.tag} is elements alone; expected an operation that writes factors with it")
    return form


@dataclass(frozen=True)
class QuantizedReference:
    """What D is before it is quantised, of whole blocks of some rows, and the own factor that it is quantised by."""

    operation: Operation
    expected: Expected
    own: np.float32 | None

    def compare(self, codes: Bits, factors: Bits) -> Comparison:
        """Hold codes of elements (rows, columns) and of factors (rows, blocks) against it."""
        name = tag_of(self.operation.d, self.operation.factors_of_d)
        return compare_factors(name, WrittenFactors(codes, factors, self.own), self.expected, CALLED)

    def __call__(self, written: Mapping[Argument, Bits]) -> Comparison:
        """Hold all that a kernel wrote against it."""
        return self.compare(written[Argument.D][0], written[Argument.FACTORS_D][0])


def _reference(
    problem: Problem, values: dict[Argument, NDArray[np.float64]], own: NDArray[np.float64] | None
) -> QuantizedReference:
    found = None if own is None else np.float32(own.item())
    return QuantizedReference(problem.operation, reference(problem.operation, values), found)


def quantized_reference(case: EdgeShape, bits: Mapping[Argument, Bits]) -> QuantizedReference:
    """Compute D of a case before it is quantised, in float64.

    Args:
        case: the case.
        bits: the operands that are read, each (group, row, column).
    """
    problem = case.problem
    rows, columns = (np.arange(x, dtype=np.int64) for x in (problem.m, problem.n))
    indices = needed(problem, rows, columns, case.arrangement)
    values = {x: values_of(problem, x, y[0][np.ix_(*indices[x])], columns) for x, y in bits.items()}
    return _reference(problem, values, values.pop(Argument.OWN_D, None))


class QuantizedSample:
    """Whole blocks of some rows of D with a float64 reference; satisfies `aot.kinds.kind.Sample`.

    Which blocks they are is chosen once for all rows.
    """

    near = 0.0
    """Nothing of a library's computes this."""

    def __init__(self, problem: Problem, reference_of_it: QuantizedReference, rows: Indices, blocks: Indices) -> None:
        self._reference, self._rows, self._blocks = reference_of_it, rows, blocks
        self._columns = columns_of(problem, blocks)
        self._along = _form(problem.operation).num_factors(1, problem.n)[1]
        count = num_atoms(1, self._along)[1] * ATOM_BYTES
        self.spans = [Span(Argument.D, row * problem.n, problem.n) for row in rows.tolist()]
        # Of a row the atoms of all 128: its factors lie apart in each.
        self.spans += [Span(Argument.FACTORS_D, row // ATOM_ROWS * count, count) for row in rows.tolist()]

    def compare(self, bits: Sequence[Bits]) -> Comparison:
        """Hold rows of D, and the atoms of each, against the reference."""
        rows, atoms = np.stack(bits[: len(self._rows)]), bits[len(self._rows) :]
        places = factor_positions(self._rows % ATOM_ROWS, self._blocks, self._along)
        factors = np.stack([x[at] for x, at in zip(atoms, places, strict=True)])
        return self._reference.compare(rows[:, self._columns], factors)


def columns_of(problem: Problem, blocks: Indices) -> Indices:
    """Return the columns of D that blocks are of."""
    size = _form(problem.operation).block_k
    every = (blocks[:, None] * size + np.arange(size, dtype=np.int64)).reshape(-1)
    return np.asarray(every[every < problem.n])


def quantized_sample(
    problem: Problem,
    tilings: Mapping[Argument, Tiling],
    arrangement: Arrangement,
    limits: SampleLimits,
    rng: np.random.Generator,
) -> QuantizedSample:
    """Choose rows of D and blocks of them, of the first set, whose operands are tiled so."""
    form = _form(problem.operation)
    rows = pick(rng, problem.m, limits.rows)
    count = min(limits.columns, limits.elements // problem.k) // form.block_k
    blocks = pick(rng, form.num_factors(1, problem.n)[1], max(2, count))
    columns = columns_of(problem, blocks)
    indices = needed(problem, rows, columns, arrangement)
    values = {
        x: values_of(problem, x, tilings[x].gather(where.positions(*indices[x], 0)), columns)
        for x, where in operands(problem, 0, arrangement).items()
        if x not in (*WRITTEN, *POSITIONS)
    }
    return QuantizedSample(problem, _reference(problem, values, values.pop(Argument.OWN_D, None)), rows, blocks)
