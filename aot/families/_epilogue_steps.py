"""The steps of an epilogue, element by element in float32, for kernels that are our own all through. Imports CUTLASS.

Each step is as exact as the formula in float32: nothing here takes an approximate instruction for a whole function, and
a NaN stays one. Where the textbook's form loses digits, an equal form is used: 1 + erf(-y) is erfc(y), and
(1 + tanh(y)) / 2 is 1 / (1 + exp(-2 y)).

A D of 8 bits saturates: what is beyond the largest finite value, infinity too, becomes that value, and a NaN stays one.
Source: PTX ISA, cvt.rn.satfinite.e4m3x2.f32, which is what `Float32.to` becomes. So do torch._scaled_mm and torch's
casts, tried with torch 2.13 on a CPU; casts before pytorch's pull request 178817 gave NaN.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutlass import Float32, Int32, cute

from aot.core.epilogue import Epilogue, Step
from aot.core.formats import FactorLayout
from aot.core.operation import Operation

_math: Any = cute.math
"""CuTe DSL makes its functions while it is imported, where no type checker sees them."""

SQRT_HALF = 0.5**0.5

TANH_SCALE = 2.0 * (2.0 / 3.141592653589793) ** 0.5
"""Twice sqrt(2 / pi), of GELU by tanh. Source: torch.nn.functional.gelu."""

TANH_CUBE = 0.044715
"""Factor of the cube in GELU by tanh. Source: torch.nn.functional.gelu."""


def relu(x: Float32) -> Float32:
    """Compute max(x, 0)."""
    return Float32(cute.arch.fmax(x, 0.0, nan=True))


def gelu(x: Float32) -> Float32:
    """Compute x * (1 + erf(x / sqrt(2))) / 2."""
    return Float32(0.5 * x * _math.erfc(x * -SQRT_HALF))


def _times_logistic(x: Float32, y: Float32) -> Float32:
    return Float32(x / (1.0 + _math.exp(-y)))


def gelu_tanh(x: Float32) -> Float32:
    """Compute x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2."""
    return _times_logistic(x, TANH_SCALE * (x + TANH_CUBE * x * x * x))


def silu(x: Float32) -> Float32:
    """Compute x / (1 + exp(-x))."""
    return _times_logistic(x, x)


FUNCTIONS: dict[Step, Callable[[Float32], Float32]] = {
    Step.RELU: relu,
    Step.GELU: gelu,
    Step.GELU_TANH: gelu_tanh,
    Step.SILU: silu,
    Step.SWIGLU: silu,
    Step.GEGLU: gelu_tanh,
}
"""What is applied to a sum; of a gate's two, to the gate's."""


@dataclass(frozen=True)
class EpilogueOperands:
    """What an epilogue reads; each is None where the operation has none. The shapes are those of `Argument`."""

    scale_a: Any = None
    scale_b: Any = None
    bias: Any = None
    residual: Any = None
    scale_d: Any = None


def half_of(tensor: Any, half: int | None) -> Any:
    """View the gate's half of a tensor (0), the linear one (1), or the tensor as it is (None)."""
    return tensor if half is None else tensor[half, None]


@cute.jit
def _element_or_zero(vector: Any, index: Int32) -> Float32:
    """Read an element of a vector, or zero where the vector ends before it."""
    value = Float32(0.0)
    if index < vector.shape[0]:
        value = Float32(vector[index])
    return value


def _scaled(
    total: Any, half: int | None, row: Int32, column: Int32, operands: EpilogueOperands, operation: Operation
) -> Any:
    """Multiply a sum by its vectors' factors and add its bias."""
    value = total.to(Float32)
    if operation.types.factors is FactorLayout.VECTOR:
        value = value * operands.scale_a[row] * half_of(operands.scale_b, half)[column]
    if operation.types.scales_sum:
        value = value * operands.scale_d[0]
    if operation.epilogue is Epilogue.BIAS:
        return value + operands.bias[column].to(Float32)
    if operation.has_bias:
        return value + _element_or_zero(half_of(operands.bias, half), column)
    return value


def finish(sums: tuple[Any, ...], row: Int32, column: Int32, operands: EpilogueOperands, operation: Operation) -> Any:
    """Compute an element of D before it is rounded, in the order that `aot.core.epilogue.Step` states.

    Args:
        sums: the accumulator; with a gate that of the gate's rows of B, and that of the linear ones.
        row: of D, inside of it.
        column: of D, inside of it.
        operands: what the epilogue reads.
        operation: which steps there are.

    Returns:
        Float32; the accumulator itself where there are no steps.
    """
    if not operation.steps:
        return sums[0]
    if operation.gate is not None:
        gate, linear = (_scaled(x, half, row, column, operands, operation) for half, x in enumerate(sums))
        value = FUNCTIONS[operation.gate](gate) * linear
    else:
        value = _scaled(sums[0], None, row, column, operands, operation)
        if operation.activation is not None:
            value = FUNCTIONS[operation.activation](value)
        if operation.has_residual:
            value = value + operands.residual[row, column].to(Float32)
    scales_result = operation.types.scales_d and not operation.types.scales_sum
    return value * operands.scale_d[0] if scales_result else value
