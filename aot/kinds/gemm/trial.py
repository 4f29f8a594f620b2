"""How kernels of products are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.comparison import Check as ProductCheck
from aot.core.operands import PLAIN, WRITTEN, Arrangement, GemmCall, Tensor, element_of, operands, plain_arrangement
from aot.core.reference import needed, reference, values_of
from aot.core.signature import Argument
from aot.kinds.gemm.baselines import baseline_of
from aot.kinds.gemm.edge_groups import Part, compare_parts, parts_of
from aot.kinds.gemm.edge_operands import edge_operands
from aot.kinds.gemm.edge_shapes import EdgeShape, edge_shapes
from aot.kinds.gemm.inputs import content_of
from aot.kinds.gemm.quantized import quantized_reference, quantized_sample
from aot.kinds.gemm.timed import ProductSample, timed_arrangement, timed_positions
from aot.kinds.trial import APART, Placed, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.comparison import Comparison
    from aot.core.numerics import Bits
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.kinds.gemm.baselines import Baseline
    from aot.kinds.gemm.tuned import TunedKernel
    from aot.kinds.inputs import Content, Tiling
    from aot.kinds.trial import Check, Sample, SampleLimits


def _parts(case: EdgeShape, bits: Mapping[Argument, Bits]) -> list[Part]:
    """Compute the references of a case: one, or one for each product or group."""
    operation, problem = case.problem.operation, case.problem
    if operation.grouping.has_offsets:
        return parts_of(case, bits)
    rows, columns = (np.arange(x, dtype=np.int64) for x in (problem.m, problem.n))
    indices = needed(problem, rows, columns, case.arrangement)
    parts = []
    for group in range(case.matrices()[Argument.D].num_groups):
        of_group = {x: y[min(group, len(y) - 1)][np.ix_(*indices[x])] for x, y in bits.items()}
        values = {x: values_of(problem, x, y, columns) for x, y in of_group.items()}
        parts.append(Part(group, slice(None), ProductCheck(operation, reference(operation, values))))
    return parts


def _part_extents(problem: Problem, arrangement: Arrangement) -> tuple[int, ...]:
    """Share the rows of B between weights, where an operation has several; some have none where there are few.

    The first has the most, and each whole 16 bytes of D where n has.
    """
    if not problem.operation.has_parts:
        return ()
    step = 8 if problem.n % 8 == 0 else 1
    num_others = arrangement.num_parts - 1
    other = problem.n // step // (num_others + 2) * step
    return (problem.n - other * num_others, *(other,) * num_others)


def made_up(problem: Problem) -> dict[Argument, Tensor]:
    """Return packed operands that are stated and never read: at addresses that are aligned, and APART."""
    return {x: Tensor((i + 1) * APART, y) for i, (x, y) in enumerate(operands(problem, 0, PLAIN).items())}


@dataclass(frozen=True)
class ProductReference:
    """The float64 reference of a case: D, or its parts."""

    problem: Problem
    parts: list[Part]

    def __call__(self, written: Mapping[Argument, Bits]) -> Comparison:
        """Hold D's bits (group, m, n) against it; return the first product that is wrong, or the worst."""
        return compare_parts(self.problem, self.parts, written[Argument.D])


class GemmTrial(Trial):
    """How products are verified and timed."""

    def edge_cases(self, kernel: TunedKernel) -> Sequence[EdgeShape]:
        """List extents at and past tiles' edges, and what a caller may choose besides."""
        return edge_shapes(kernel)

    def operands(self, case: EdgeShape) -> Mapping[Argument, Placed]:
        """Return A, B, D and what else there is."""
        operation = case.problem.operation
        return {
            x: Placed(element_of(operation, x), matrix, case.offset_of(x), is_written=x in WRITTEN)
            for x, matrix in case.matrices().items()
        }

    def draw(self, case: EdgeShape, rng: np.random.Generator) -> dict[Argument, Bits]:
        """Draw the operands of a case that are read."""
        return edge_operands(case, case.matrices(), rng)

    def check(self, case: EdgeShape, bits: Mapping[Argument, Bits]) -> Check:
        """Compute D in float64."""
        if case.problem.operation.factors_of_d is not None:
            return quantized_reference(case, bits)
        return ProductReference(case.problem, _parts(case, bits))

    def call(self, case: EdgeShape, tensors: Mapping[Argument, Tensor]) -> GemmCall:
        """Return the call of a case."""
        has_gate, arranged = case.problem.operation.gate is not None, case.arrangement
        return GemmCall(
            case.problem,
            tensors,
            is_interleaved=arranged.is_interleaved and has_gate,
            is_linear_first=arranged.is_linear_first and has_gate,
            part_extents=_part_extents(case.problem, arranged),
        )

    def timed(self, problem: Problem) -> Mapping[Argument, Placed]:
        """Return packed operands: with a bias where there is one before an activation, and with all factors."""
        operation = problem.operation
        placed = operands(problem, 0, timed_arrangement(operation))
        return {x: Placed(element_of(operation, x), y, is_written=x in WRITTEN) for x, y in placed.items()}

    def content(self, operation: Operation, argument: Argument) -> Content | None:
        """Return random elements or factors; None of offsets and of an index."""
        return content_of(operation, argument)

    def positions(self, problem: Problem, number: int, rng: np.random.Generator) -> Mapping[Argument, Bits]:
        """Draw where groups end, and which rows are gathered."""
        return timed_positions(problem, number, rng)

    def arrangement(self, operation: Operation) -> Arrangement:
        """Return which optional operands there are."""
        return timed_arrangement(operation)

    def timed_call(self, problem: Problem, addresses: Mapping[Argument, int], arrangement: Arrangement) -> GemmCall:
        """Return the call of a timed problem."""
        placed = operands(problem, 0, arrangement)
        tensors = {x: Tensor(addresses[x], matrix) for x, matrix in placed.items()}
        extents = _part_extents(problem, arrangement)
        return GemmCall(problem, tensors, arrangement.is_interleaved, part_extents=extents)

    def sample(
        self,
        problem: Problem,
        tilings: Mapping[Argument, Tiling],
        limits: SampleLimits,
        rng: np.random.Generator,
        arrangement: Arrangement,
    ) -> Sample:
        """Choose rows of D, and columns of them."""
        if problem.operation.factors_of_d is not None:
            return quantized_sample(problem, tilings, arrangement, limits, rng)
        return ProductSample(problem, tilings, arrangement, limits, rng)

    def cluster_call(self, kernel: TunedKernel) -> GemmCall | None:
        """Return the call of a packed problem with operands at aligned addresses, far apart."""
        *_, shared = (x for x in edge_shapes(kernel) if not x.is_own)
        problem = shared.problem
        return GemmCall(problem, made_up(problem), plain_arrangement(problem.operation).is_interleaved)

    def baseline(self, operation: Operation) -> Baseline | None:
        """Return torch's product, with a call for each step behind it."""
        return baseline_of(operation)
