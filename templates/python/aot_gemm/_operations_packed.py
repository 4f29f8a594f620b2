"""Products of packed weights, over tensors of any framework that speaks DLPack: see `_operations`."""

from __future__ import annotations

import operator
from typing import Any

from . import _products, errors
from ._constant import ConstantWeight
from ._dtypes import dtype_number
from ._enumerations import WEIGHT_FORMATS
from ._extras import activation_number, mode_flags, weights_of


def _packed(product: str, weight_format: str, columns: int) -> tuple[int, int]:
    """Return the number of a format of packed weights, and the rows of a weight.

    Raises:
        UnsupportedError: there is no such format.
        ShapeError: the rows are no number of rows.
    """
    if weight_format not in WEIGHT_FORMATS[1:]:
        asked, known = errors.show(weight_format), ", ".join(WEIGHT_FORMATS[1:])
        raise errors.UnsupportedError(f"{product}: weight_format is {asked}; expected one of {known}")
    try:
        count = operator.index(columns)
    except TypeError:
        count = -1
    if not 0 <= count < 2**31:
        raise errors.ShapeError(
            f"{product}: columns is {errors.show(columns)}; expected the rows of the weight that was packed, an "
            "integer from 0 to 2147483647"
        )
    return WEIGHT_FORMATS.index(weight_format), count


def packed_linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    weight_format: str,
    columns: int,
    scale_w: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute x @ weight^T + bias with a weight whose bytes are packed for these kernels, best for few rows of x.

    `pack` of this package's `torch` makes such bytes, and its `linear` takes them; this function is for tensors of any
    framework. Sums are float32, and the result is rounded once. From some 64 rows of x on, on Hopper from some 128,
    a product of 16 bits is as fast or faster.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory. Rows at multiples of 16 bytes are fast.
        weight: uint8 (ceil(columns / 16), bytes), contiguous, at a multiple of 16 bytes, or what `constant` returned
            for it.
        bias: (columns,), of the type of the result; None for none.
        weight_format: what the bytes are, such as "int4g128"; the wheel must have been built for it.
        columns: rows of the weight, n.
        scale_w: float32 factors of the formats that have them: one element, (columns,) or (columns, 1).
        out: (..., columns), written to; allocated where it is not given.
        out_dtype: that of x.
        deterministic: as `linear` has it.
        batch_invariant: as `linear` has it.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    weight_number, count = _packed("packed_linear", weight_format, columns)
    element = -1 if out_dtype is None else dtype_number("packed_linear: out_dtype", out_dtype)
    flags = mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    return _products.packed_linear(x, weight, bias, out, scale_w, None, None, 0, element, flags, weight_number, count)


def packed_gated_linear(
    x: Any,
    gate: Any,
    up: Any,
    bias: Any = None,
    *,
    weight_format: str,
    columns: int,
    activation: str = "silu",
    scale_gate: Any = None,
    scale_up: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute activation(x @ gate^T) * (x @ up^T) with two packed weights in one launch: SwiGLU, GeGLU.

    The weights are those that `packed_linear` takes, wherever they lie: nothing is copied. All is done in float32, and
    the result is rounded once. It is best for few rows of x, as `packed_linear` is.

    Args:
        x: as `packed_linear` has it.
        gate: the bytes of the gate's weight, as `packed_linear` has them.
        up: those of the linear one, of the same format and size. Where both are what `constant` returned, they are read
            early.
        bias: (2 columns,), the gate's first; None for none.
        weight_format: as `packed_linear` has it.
        columns: rows of each weight, n.
        activation: of the gate: "silu" (SwiGLU) or "gelu_tanh" (GeGLU).
        scale_gate: float32 factors of the gate's weight, of the formats that have them, as `packed_linear` has them.
        scale_up: those of the linear one, of the same shape.
        out: (..., columns), written to; allocated where it is not given.
        out_dtype: that of x.
        deterministic: as `linear` has it.
        batch_invariant: as `linear` has it.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    weight_number, count = _packed("packed_gated_linear", weight_format, columns)
    epilogue = activation_number("packed_gated_linear", activation)
    element = -1 if out_dtype is None else dtype_number("packed_gated_linear: out_dtype", out_dtype)
    flags = mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    weights = weights_of((gate, up), "packed_gated_linear", "two")
    are_kept = all(isinstance(x, ConstantWeight) and x.is_kept for x in (gate, up))
    factors = None if scale_gate is None and scale_up is None else (scale_gate, scale_up)
    if factors is not None and (scale_gate is None or scale_up is None):
        got = "scale_gate" if scale_up is None else "scale_up"
        raise errors.OperandError(f"packed_gated_linear: got {got} alone; expected factors of both weights, or of none")
    return _products.packed_linear(
        x,
        gate if are_kept else weights[0],
        bias,
        out,
        scale_gate,
        weights,
        factors,
        epilogue,
        element,
        flags,
        weight_number,
        count,
    )


def packed_grouped_linear(
    x: Any,
    weight: Any,
    offsets: Any,
    bias: Any = None,
    *,
    weight_format: str,
    columns: int,
    index: Any = None,
    scale_w: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
) -> Any:
    """Compute x[rows of g] @ weight[g]^T + bias[g] for each group g of rows, with packed weights: a mixture's experts.

    It is `grouped_linear` with the weights that `packed_linear` takes, in one launch, best for few rows of each group.
    Groups without rows cost nothing, and where groups end is read on the device.

    Args:
        x: (rows, k), bfloat16 or float16, in GPU memory; with an index (tokens, k).
        weight: uint8 (groups, ceil(columns / 16), bytes), each group's bytes adjacent and at a multiple of 16 bytes; or
            a list or tuple of one for each group, wherever they lie: nothing is copied.
        offsets: as `grouped_linear` has it, of rows.
        bias: (groups, columns), of the type of the result; None for none.
        weight_format: as `packed_linear` has it.
        columns: rows of each group's weight, n.
        index: as `grouped_linear` has it.
        scale_w: float32 factors of the formats that have them: one element, (groups,) or (groups, columns).
        out: (rows, columns), written to; allocated where it is not given. Rows of no group are not written.
        out_dtype: that of x.
        deterministic: as `linear` has it.
        batch_invariant: as `grouped_linear` has it.

    Returns:
        `out`, or the new tensor, of the kind of tensor that x is.

    Raises:
        AotGemmError: one of its classes, as of `linear`.
    """
    weight_number, count = _packed("packed_grouped_linear", weight_format, columns)
    element = -1 if out_dtype is None else dtype_number("packed_grouped_linear: out_dtype", out_dtype)
    flags = mode_flags(deterministic=deterministic, batch_invariant=batch_invariant)
    weights = None
    if isinstance(weight, (list, tuple)):
        weights = weights_of(weight, "packed_grouped_linear", "the bytes of one for each group, one or more")
    first = weight if weights is None else weights[0]
    others = None, scale_w, *[None] * 3, offsets, index, weights, None, 0, element, flags
    return _products.grouped_linear(x, first, bias, out, *others, weight_number, count)
