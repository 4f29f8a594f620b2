"""What torch's FlopCounterMode counts of the products: as many operations as of torch's own."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import (
    _torch_grouped,  # noqa: F401 - which register their operators
    _torch_many,  # noqa: F401
    _torch_packed_gates,  # noqa: F401
    _torch_packed_groups,  # noqa: F401
    _torch_packed_linear,  # noqa: F401
)
from ._torch_blocks import PACKED
from ._torch_operators import NAMESPACE
from ._torch_transforms import MATRIX_DIMS

_operators: Any = getattr(torch.ops, NAMESPACE)


@register_flop_formula(
    [_operators.linear, _operators.gated_linear, _operators.linear_in_blocks, _operators.gated_linear_in_blocks],
    get_raw=True,
)
def _linear_flops(x: Any, weight: Any, third: Any = None, *_: Any, **__: Any) -> int:
    """Count two operations for each element of x and row of the weight, as torch does of mm and addmm."""
    num_held = 2 if x.dtype in PACKED else 1
    rows = weight.shape[0]
    if third is not None and third.ndim == MATRIX_DIMS:  # the second weight of a gate, where another has a bias
        rows += third.shape[0]
    return int(2 * num_held * math.prod(x.shape) * rows)


@register_flop_formula(
    [
        _operators.grouped_linear,
        _operators.grouped_linear_weights,
        _operators.grouped_linear_in_blocks,
        _operators.grouped_linear_weights_in_blocks,
    ],
    get_raw=True,
)
def _grouped_flops(x: Any, weight: Any, offsets: Any, bias: Any = None, index: Any = None, *_: Any, **__: Any) -> int:  # noqa: ARG001
    """Count the same of groups, as if every row were in one: how many are is known on the device alone."""
    num_held = 2 if x.dtype in PACKED else 1
    rows = weight[0].shape[0] if isinstance(weight, (list, tuple)) else weight.shape[-2]
    each = x.shape[0] if index is None else index.shape[0]
    return int(2 * num_held * each * x.shape[1] * rows)


@register_flop_formula(_operators.linear_many)
def _linear_many_flops(x_shape: Any, weight_shapes: Any, *_: Any, **__: Any) -> int:
    """Count the same of each of several weights."""
    return int(2 * math.prod(x_shape) * sum(shape[0] for shape in weight_shapes))


@register_flop_formula(_operators.packed_linear)
def _packed_linear_flops(x_shape: Any, *_: Any, columns: int, **__: Any) -> int:
    """Count the same of a packed weight, whose bytes do not tell its rows."""
    return int(2 * math.prod(x_shape) * columns)


@register_flop_formula(_operators.packed_gated_linear)
def _packed_gated_linear_flops(x_shape: Any, *_: Any, columns: int, **__: Any) -> int:
    """Count the same of a gate's two."""
    return int(4 * math.prod(x_shape) * columns)


@register_flop_formula(_operators.packed_grouped_linear, get_raw=True)
def _packed_grouped_flops(x: Any, *others: Any, columns: int, **__: Any) -> int:
    """Count the same of groups with packed weights."""
    index = (*others, None, None, None, None)[3]
    return int(2 * (x if index is None else index).shape[0] * x.shape[1] * columns)


@register_flop_formula(_operators.matmul)
def _matmul_flops(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Count the same of a product of matrices or of batches of them, whose leading dimensions broadcast."""
    rows = a_shape[-2] if len(a_shape) > 1 else 1
    columns = b_shape[-1] if len(b_shape) > 1 else 1
    batch = math.prod(torch.broadcast_shapes(tuple(a_shape[:-2]), tuple(b_shape[:-2])))
    return int(2 * batch * rows * columns * a_shape[-1])
