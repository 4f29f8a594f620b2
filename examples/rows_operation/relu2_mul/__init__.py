"""The operation on rows `relu2_mul`: Y = relu(gate)^2 * linear. An example of an operation of a package of its own.

X has a gate and a linear element for each one of Y: in two halves of its rows, or side by side, as a call says. No
kernel is here: the families of aot take the arithmetic of one element, `step`, into theirs.

Nothing here imports numpy or CUTLASS but what is named by `reference` and `arithmetic`: they are loaded where they are
needed. This file goes to the device too, which verifies kernels by the reference, and may have Python 3.10.
"""

from typing import Any

from aot.core.element import ElementType
from aot.kinds.rows.function import RowFunction
from aot.kinds.rows.operation import RowOperation, RowScale

RELU2_MUL = RowFunction(
    "relu2_mul",
    reference="relu2_mul:reference",
    flops=3,  # a maximum and two products
    width=2,
    arithmetic="relu2_mul:step",
)
"""A gate's square, where it is positive, times the linear element. Source: So et al., Primer, arXiv:2109.08668."""

BF16, FP16 = ElementType.BFLOAT16, ElementType.FLOAT16
OPERATIONS = (
    RowOperation("bf16_relu2_mul", BF16, RELU2_MUL),
    RowOperation("fp16_relu2_mul", FP16, RELU2_MUL),
    RowOperation("bf16_e4m3_relu2_mul", BF16, RELU2_MUL, ElementType.E4M3, RowScale.ROW),
)
"""What there are kernels of. The result of the last is an operand of a float8 product, with a scale for each row."""


def reference(operation: RowOperation, rows: Any, parameters: Any) -> Any:
    """Compute it in float64, with how far from it float32 arithmetic may lead: each product rounds once."""
    import numpy as np

    from aot.core.reference import exact
    from aot.kinds.rows.reference import RowExpected, halves_of

    del operation
    gate, linear = halves_of(rows, parameters)
    positive = exact(np.where(np.isnan(gate), gate, np.maximum(gate, 0.0)))
    return RowExpected(positive * positive * exact(linear))


def step(gate: Any, linear: Any) -> Any:
    """Compute one element of Y, in float32, while a kernel is traced: a NaN stays one."""
    import cutlass
    from cutlass import Float32

    positive = cutlass.select_(gate < Float32(0.0), Float32(0.0), gate)
    return positive * positive * linear
