"""How kernels of operations on rows are tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.operands import Tensor
from aot.kinds.inputs import Elements
from aot.kinds.rows.call import RowCall, RowCase, check_of, draw_rows, row_cases, row_operands, timed_operands
from aot.kinds.rows.sample import TIMED, RowSample
from aot.kinds.rows.signature import RowArgument
from aot.kinds.trial import Placed, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.numerics import Bits
    from aot.kinds.inputs import Content, Tiling
    from aot.kinds.rows.operation import RowOperation
    from aot.kinds.rows.problem import RowProblem
    from aot.kinds.rows.tuned import TunedRowKernel
    from aot.kinds.trial import Baseline, Check, SampleLimits


NUM_EQUAL = 8
"""Elements of the pool that a tensor's scale comes from, which are all the same."""
TENSOR_SCALE = 5.0 / (6 * 448)
"""The scale of a tensor whose largest magnitude is 5, as of some million of normal values. Source: docs/formats.md."""


@dataclass(frozen=True)
class TensorScale:
    """The scale of a whole tensor where kernels are timed; satisfies `aot.kinds.inputs.Content`."""

    element: ElementType = ElementType.FLOAT32
    run: int = 1

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Return it, several times."""
        del rng, num_elements
        return encode(self.element, np.full(NUM_EQUAL, TENSOR_SCALE, np.float32))


class RowsTrial(Trial):
    """How operations on rows are verified and timed."""

    def edge_cases(self, kernel: TunedRowKernel) -> Sequence[RowCase]:
        """List few and many rows; narrow, odd and wide ones."""
        return list(row_cases(kernel.key.operation, kernel.limits))

    def operands(self, case: RowCase) -> Mapping[RowArgument, Placed]:
        """Return X, Y and what else there is."""
        return row_operands(case)

    def draw(self, case: RowCase, rng: np.random.Generator) -> dict[RowArgument, Bits]:
        """Draw the operands of a case that are read."""
        return dict(draw_rows(case, rng))

    def check(self, case: RowCase, bits: Mapping[RowArgument, Bits]) -> Check:
        """Compute Y, its scales and X + RESIDUAL in float64."""
        return check_of(case, bits)

    def call(self, case: RowCase, tensors: Mapping[RowArgument, Tensor]) -> RowCall:
        """Return the call of a case."""
        return RowCall(case.problem, tensors, case.parameters, case.gives_scale, case.groups, case.cache)

    def timed(self, problem: RowProblem) -> Mapping[RowArgument, Placed]:
        """Return packed operands: with weights and biases, and scales that are found."""
        return timed_operands(problem)

    def content(self, operation: RowOperation, argument: RowArgument) -> Content | None:
        """Return random elements of X's type; of a tensor's scale one that suits them."""
        return TensorScale() if argument is RowArgument.TENSOR_SCALE else Elements(operation.x)

    def positions(self, problem: RowProblem, number: int, rng: np.random.Generator) -> Mapping[RowArgument, Bits]:
        """Return nothing: all operands are random elements."""
        del problem, number, rng
        return {}

    def arrangement(self, operation: RowOperation) -> None:
        """Return nothing: there is one way."""
        del operation

    def timed_call(self, problem: RowProblem, addresses: Mapping[RowArgument, int], arrangement: None) -> RowCall:
        """Return the call of a timed problem."""
        del arrangement
        return RowCall(problem, {x: Tensor(addresses[x], y.matrix) for x, y in timed_operands(problem).items()}, TIMED)

    def sample(
        self,
        problem: RowProblem,
        tilings: Mapping[RowArgument, Tiling],
        limits: SampleLimits,
        rng: np.random.Generator,
        arrangement: None,
    ) -> RowSample:
        """Choose whole rows."""
        del arrangement
        return RowSample(problem, tilings, limits, rng)

    def cluster_call(self, kernel: TunedRowKernel) -> RowCall | None:
        """Return None: no kernel of these has clusters."""
        del kernel
        return None

    def baseline(self, operation: RowOperation) -> Baseline | None:
        """Return None: torch is not timed beside these yet."""
        del operation
        return None
