"""What each operation is compared with of torch's own: the calls, and how far their result is the operation's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from aot.core.element import ElementType
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.reference import is_16_bit_product
from aot.kinds.gemm.timed import timed_arrangement
from aot.kinds.trial import Agreement

if TYPE_CHECKING:
    from aot.core.operands import Arrangement
    from aot.core.operation import Operation


class Product(Enum):
    """torch's call for the product itself."""

    MM = "mm"
    """torch.mm, or torch.addmm with a bias; of float32, with or without `allow_tf32`. Of a packed weight, that with a
    weight of 16 bits of the same size."""
    BMM = "bmm"
    """torch.bmm of a batch."""
    SCALED_MM = "_scaled_mm"
    """torch._scaled_mm with one factor for all of A and one for all of B, its fastest form."""
    INT_MM = "_int_mm"
    """torch._int_mm, int32 sums alone."""


@dataclass(frozen=True)
class Baseline:
    """torch's calls for an operation: the product, and one for each step that the product does not do."""

    product: Product
    arrangement: Arrangement
    agreement: Agreement
    detail: str = ""
    """What the name of the library is followed by in a record; empty for torch.mm and torch.addmm of 16-bit types."""

    def name(self, library: str) -> str:
        """Return the name that times of it are recorded under."""
        return f"{library} {self.detail}" if self.detail else library


def _steps(operation: Operation) -> list[str]:
    """List the steps behind the product, by their names."""
    steps = [operation.activation or operation.gate]
    return [*(step.value for step in steps if step is not None), *(["residual"] if operation.has_residual else [])]


OWN_LAYOUTS = (FactorLayout.BLOCK, FactorLayout.ATOMS)
"""How factors lie that kernels are timed with beside no product of torch's."""


def _of_narrow(operation: Operation, arrangement: Arrangement) -> Baseline:
    """Return the baseline of narrow operands, or of a packed weight."""
    if operation.b.weight is not None:  # of random numbers: what they are, no time depends on
        detail = " + ".join([f"mm of {operation.types.a.tag}", *_steps(operation)])
        return Baseline(Product.MM, arrangement, Agreement.NONE, detail)
    if operation.accumulator is ElementType.INT32:
        agreement = Agreement.EXACT if operation.d is ElementType.INT32 else Agreement.NONE
        return Baseline(Product.INT_MM, arrangement, agreement, Product.INT_MM.value)
    arrangement = replace(arrangement, has_scales_of_a=False, has_scales_of_b=False)
    detail = " + ".join([Product.SCALED_MM.value, *_steps(operation)])
    return Baseline(Product.SCALED_MM, arrangement, Agreement.NEAR, detail)


def baseline_of(operation: Operation) -> Baseline | None:
    """Return the baseline of an operation; None where torch has none.

    An activation, a gate or a residual is a call of its own behind the product, as in eager mode.
    """
    if operation.types.factors in OWN_LAYOUTS or operation.grouping.has_offsets:
        return None
    arrangement = timed_arrangement(operation)
    if is_16_bit_product(operation):
        is_batch = operation.grouping is Grouping.BATCHED
        batch = Baseline(Product.BMM, arrangement, Agreement.EXACT, Product.BMM.value)
        return batch if is_batch else Baseline(Product.MM, arrangement, Agreement.EXACT)
    types = operation.types
    if operation.b.weight is not None or operation.accumulator is ElementType.INT32 or types.is_scaled:
        return _of_narrow(operation, arrangement)
    if types.d is ElementType.FLOAT32:
        detail = "mm allow_tf32" if types.a is ElementType.TFLOAT32 else "mm"
        return Baseline(Product.MM, arrangement, Agreement.NEAR, detail)
    product = "addmm" if arrangement.has_bias else "mm"
    return Baseline(Product.MM, arrangement, Agreement.NEAR, " + ".join([product, *_steps(operation)]))
