"""The reference of products whose D is narrow elements with a factor for each block: both are held against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Comparison, worst
from aot.core.factor_atoms import ATOM_BYTES, factor_positions, num_atoms, row_in_atoms
from aot.core.factor_comparison import WrittenFactors, compare_factors
from aot.core.formats import ScaleFormat, tag_of
from aot.core.numerics import decode
from aot.core.operands import element_of
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.core.weight_format import ATOM_ROWS
from aot.kinds.gemm.edge_groups import GroupOfRows, fault_of_free_rows, groups_of_rows
from aot.kinds.gemm.timed import sampled_values
from aot.kinds.inputs import pick
from aot.kinds.trial import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

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


@dataclass(frozen=True)
class QuantizedGroups:
    """The same of groups of rows, the factors of each of which begin with an atom of their own."""

    operation: Operation
    groups: list[GroupOfRows]
    own: np.float32 | None

    def __call__(self, written: Mapping[Argument, Bits]) -> Comparison:
        """Hold all that a kernel wrote against it: zeros fill last atoms up, and rows of no group are not written."""
        codes, factors = written[Argument.D], written[Argument.FACTORS_D]
        blocks = _form(self.operation).num_factors(1, codes.shape[2])[1]
        outcomes, taken = [], []
        for group in self.groups:
            first = row_in_atoms(group.rows.start, group.rows.start, group.number)
            taken.append(slice(first, first + group.rows.stop - group.rows.start))
            of_rows = factors[0, taken[-1]]
            of_group = QuantizedReference(self.operation, group.expected, self.own)
            outcomes.append(of_group.compare(codes[0, group.rows], of_rows[:, :blocks]))
            if of_rows[:, blocks:].any():
                fault = f"{CALLED[0]}: behind the blocks of group {group.number} there are bytes that are not 0"
                outcomes.append(Comparison(1.0, fault, np.inf))
        for bits, argument, rows in (
            (codes, Argument.D, [x.rows for x in self.groups]),
            (factors, Argument.FACTORS_D, taken),
        ):
            fault = fault_of_free_rows(bits, ((0, x) for x in rows), element_of(self.operation, argument))
            if fault:
                outcomes.append(Comparison(1.0, f"{argument.value}: {fault}", np.inf))
        return worst(outcomes)


def _own(values: NDArray[np.float64] | None) -> np.float32 | None:
    return None if values is None else np.float32(values.item())


def _reference(
    problem: Problem, values: dict[Argument, NDArray[np.float64]], own: NDArray[np.float64] | None
) -> QuantizedReference:
    return QuantizedReference(problem.operation, reference(problem.operation, values), _own(own))


def quantized_reference(case: EdgeShape, bits: Mapping[Argument, Bits]) -> QuantizedReference | QuantizedGroups:
    """Compute D of a case before it is quantised, in float64.

    Args:
        case: the case.
        bits: the operands that are read, each (group, row, column).
    """
    problem = case.problem
    if problem.operation.grouping.groups_rows:
        read = dict(bits)
        own = read.pop(Argument.OWN_D, None)
        of_all = None if own is None else decode(element_of(problem.operation, Argument.OWN_D), own)
        return QuantizedGroups(problem.operation, groups_of_rows(case, read), _own(of_all))
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

    def __init__(
        self, problem: Problem, reference_of_it: QuantizedReference, rows: Indices, blocks: Indices, group: int = 0
    ) -> None:
        """Take rows of D, or of a group that has m rows like all in front of it."""
        first = group * problem.m
        rows, in_atoms = rows + first, row_in_atoms(rows + first, first, group)
        self._reference, self._rows, self._blocks = reference_of_it, in_atoms, blocks
        self._columns = columns_of(problem, blocks)
        self._along = _form(problem.operation).num_factors(1, problem.n)[1]
        count = num_atoms(1, self._along)[1] * ATOM_BYTES
        self.spans = [Span(Argument.D, row * problem.n, problem.n) for row in rows.tolist()]
        # Of a row the atoms of all 128: its factors lie apart in each.
        self.spans += [Span(Argument.FACTORS_D, row // ATOM_ROWS * count, count) for row in in_atoms.tolist()]

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
    group = int(rng.integers(problem.num_groups)) if problem.num_groups > 1 else 0
    values = sampled_values(problem, tilings, arrangement, (rows, columns), group)
    own = values.pop(Argument.OWN_D, None)
    return QuantizedSample(problem, _reference(problem, values, own), rows, blocks, group)
