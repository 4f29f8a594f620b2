"""What the operands of products hold beside random elements: factors, and those of D."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import encode
from aot.core.operands import element_of
from aot.core.signature import Argument
from aot.core.weight_format import Code
from aot.kinds.gemm.group_inputs import POSITIONS
from aot.kinds.gemm.packed_inputs import PackedBlocks
from aot.kinds.inputs import Elements, deviation

if TYPE_CHECKING:
    from aot.core.numerics import Bits
    from aot.core.operation import Operation
    from aot.kinds.inputs import Content

SCALE_ELEMENTS = 1 << 16
"""Random scale factors made: as many as the rows of a large operand."""

SCALE_EXPONENT = 4.0
"""Scale factors lie between 2^-4 and 2^4, so that one of another row changes an element by half of it in the mean."""

MEAN_SQUARE: float = (4.0**SCALE_EXPONENT - 4.0**-SCALE_EXPONENT) / (4.0 * SCALE_EXPONENT * math.log(2.0))
"""Mean square of such factors, whose logarithms are uniform: what the products of two are in the root mean square."""

TIMED_SCALE = 2.0**-4
"""What the factors of an operand are multiplied by where kernels are timed: sums of k = 2^16 still fit float16."""

GATED_SPREAD = 2.0**-6
"""Standard deviation of A where a gate's D is float16, which the product of two sums of k = 2^14 then fits."""

SCALE_D = 1.25
"""The factor of D: not 1, which a kernel could leave away."""

OWN_D = 0.0131
"""The own factor of a D whose blocks have factors, which a D of some units then has far from both of their ends."""

NUM_EQUAL = 8
"""Elements of the pool that these come from, which are all the same."""

FACTORS_OF_ALL = {Argument.SCALE_D: SCALE_D, Argument.OWN_D: OWN_D}

SCALED = {Argument.SCALE_A: Argument.A, Argument.SCALE_B: Argument.B}
"""The operands that have factors, by the argument of those."""


def draw_scales(
    rng: np.random.Generator,
    shape: int | tuple[int, ...],
    factor: float,
    element: ElementType = ElementType.FLOAT32,
) -> Bits:
    """Draw scale factors, each another, within SCALE_EXPONENT; all times a factor, but those of e4m3.

    Of that there are too few numbers for more.
    """
    exponents = rng.uniform(-SCALE_EXPONENT, SCALE_EXPONENT, shape)
    factor = 1.0 if element is ElementType.E4M3 else factor
    return encode(element, (factor * np.exp2(exponents)).astype(np.float32))


@dataclass(frozen=True)
class Factors:
    """Factors of operands of a type; satisfies `aot.kinds.inputs.Content`."""

    scaled: ElementType
    element: ElementType = ElementType.FLOAT32
    run: int = 1

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Draw them."""
        factor = TIMED_SCALE / deviation(self.scaled)
        return draw_scales(rng, min(SCALE_ELEMENTS, num_elements), factor, self.element)


@dataclass(frozen=True)
class FactorOfD:
    """One factor of all of D; satisfies `aot.kinds.inputs.Content`."""

    value: float
    element: ElementType = ElementType.FLOAT32
    run: int = 1

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Return it, several times."""
        del rng, num_elements
        return encode(self.element, np.full(NUM_EQUAL, self.value, np.float32))


def scaled_by(operation: Operation, argument: Argument) -> ElementType:
    """Return the type of the elements that factors are of: of a packed weight's codes one of as large numbers."""
    weight = operation.b.weight
    if argument is Argument.SCALE_B and weight is not None:
        return ElementType.INT8 if weight.code is Code.INT8 else ElementType.FLOAT32
    return element_of(operation, SCALED[argument])


def content_of(operation: Operation, argument: Argument) -> Content | None:
    """Return what an operand but D holds where kernels are timed; None of offsets and of an index."""
    if argument in POSITIONS:
        return None
    if argument is Argument.B and operation.b.weight is not None:
        return PackedBlocks(operation.b.weight, operation.a.element)
    if argument in SCALED:
        return Factors(scaled_by(operation, argument), element_of(operation, argument))
    if argument in FACTORS_OF_ALL:
        return FactorOfD(FACTORS_OF_ALL[argument])
    is_of_small_sums = argument is Argument.A and operation.gate is not None and operation.d is ElementType.FLOAT16
    return Elements(element_of(operation, argument), spread=GATED_SPREAD if is_of_small_sums else 1.0)
