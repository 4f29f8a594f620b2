"""What kernels that are traced compute an epilogue with: functions of registers, a gate's view. Imports CUTLASS.

It is apart from `_epilogue_kernel.py` so that kernels without quack have nothing of quack's.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, cute
from cutlass._mlir.dialects import arith
from cutlass._mlir_helpers import math as mlir_math


class Registers:
    """`Functions` of float32 registers: approximations of the hardware within 2 units in the last place."""

    def exp2(self, x: Any) -> Any:
        """Return 2 to the power of x, by `ex2.approx`."""
        return cute.math.exp2(x, fastmath=True)

    def reciprocal(self, x: Any) -> Any:
        """Return 1 / x, by `rcp.approx.ftz`."""
        return mlir_math.rcp(x, approx=True, ftz=True)

    def absolute(self, x: Any) -> Any:
        """Return |x|."""
        return cute.math.absf(x)

    def maximum(self, x: Any, y: float) -> Any:
        """Return the larger, or NaN where x is NaN, by `max.NaN`."""
        return Float32(arith.maximumf(Float32(x).ir_value(), Float32(y).ir_value()))

    def where_negative(self, x: Any, then: Any, otherwise: Any) -> Any:
        """Return `then` where x < 0."""
        return cutlass.select_(x < 0.0, then, otherwise)


def paired(tensor: Any, stacked: int = 0) -> Any:
    """View (2, n, ...) as 2 n columns or rows in which those of the gate and the linear half alternate.

    Args:
        tensor: what has them; to be viewed while tracing.
        stacked: its modes in front of the 2, such as that of the groups.
    """
    n, rest = stacked + 1, stacked + 2
    shape = (*tensor.shape[:stacked], (2, tensor.shape[n]), *tensor.shape[rest:])
    stride = (*tensor.stride[:stacked], tensor.stride[stacked:rest], *tensor.stride[rest:])
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))
