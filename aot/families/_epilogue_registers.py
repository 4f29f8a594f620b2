"""What kernels that are traced compute an epilogue with: functions of registers, a gate's view. Imports CUTLASS.

It is apart from `_epilogue_kernel.py` so that kernels without quack have nothing of quack's.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass._mlir.dialects import arith
from cutlass._mlir_helpers import math as mlir_math

from aot.families._arguments import ALIGNMENT_BYTES


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


def in_turns(weight: Any, stacked: int = 0) -> Any:
    """View (2, n, k) whose rows alternate as the 2 n rows that they are, one behind the other; while tracing.

    Args:
        weight: what has them.
        stacked: its modes in front of the 2, such as that of the groups.
    """
    _, n, k = weight.shape[stacked:]
    of_rows, _, of_k = weight.stride[stacked:]
    layout = cute.make_layout((*weight.shape[:stacked], 2 * n, k), stride=(*weight.stride[:stacked], of_rows, of_k))
    return cute.make_tensor(weight.iterator, layout)


def in_order(weight: Any, *others: Any) -> tuple[Any, ...]:
    """View what a gate has, as `paired`, with the half in front whose rows of the weight lie in front.

    The linear half may lie in front of the gate's, and TMA takes no step below 0. To be called while tracing.

    Args:
        weight: (2, n, k), the gate's half and the linear one, at any step that is aligned for TMA.
        others: what belongs to the weight's rows, (2, n), or None.

    Returns:
        The weight, the others, and what `halves` takes: Int32 of 1 where the linear half is in front, else 0.
    """
    linear_first = Int32(Int64(weight.stride[0]) < 0)
    whole = ALIGNMENT_BYTES * 8 // weight.element_type.width
    seen = [None if x is None else paired(_turned(x, linear_first, 1)) for x in others]
    return (paired(_turned(weight, linear_first, whole)), *seen, linear_first)


def _turned(tensor: Any, turns: Any, whole: int) -> Any:
    """View (2, ...), at a step of whole multiples of `whole` elements, with its halves exchanged where `turns` is 1."""
    step = Int64(tensor.stride[0])
    start, other = (
        cute.assume(cutlass.select_(turns != 0, *x), divby=whole) for x in ((step, Int64(0)), (-step, step))
    )
    return cute.make_tensor(tensor.iterator + start, cute.make_layout(tensor.shape, stride=(other, *tensor.stride[1:])))


def halves(sums: tuple[Any, ...], linear_first: Any) -> tuple[Any, ...]:
    """Return the gate's sum and the linear one of those of two halves of B.

    Args:
        sums: of the half in front, and of the other.
        linear_first: as `in_order` returns it; None where the gate's half is in front in any case.
    """
    if linear_first is None:
        return sums
    first, second = sums
    is_turned = linear_first != 0
    return Float32(cutlass.select_(is_turned, second, first)), Float32(cutlass.select_(is_turned, first, second))
