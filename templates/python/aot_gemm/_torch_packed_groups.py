"""`packed_grouped_linear` as an operator of torch, and the product of groups of rows with `PackedExperts` by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _operations, errors
from ._torch_check import check_tensor
from ._torch_operators import LIBRARY, MODES, NAMESPACE
from ._torch_products import dispatch
from ._torch_result import TensorCall, result_of
from ._torch_transforms import refuse_derivatives, refuse_of_out, register_batches

if TYPE_CHECKING:
    from ._torch_experts import PackedExperts

NAME = "packed_grouped_linear"
_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor offsets, Tensor? bias=None, Tensor? index=None, Tensor? scale_w=None, *, "
    f"str weight_format, int columns, ScalarType? out_dtype=None, {MODES}"
)
_TENSORS = ("x", "weight", "offsets", "bias", "index", "scale_w")
"""The tensors by position."""
_OPTIONS = ("out_dtype", "deterministic", "batch_invariant")
"""What a call may ask for beside tensors."""


def _direct(
    x: Any, weight: Any, offsets: Any, bias: Any = None, index: Any = None, scale: Any = None, **options: Any
) -> Any:
    return _operations.packed_grouped_linear(x, weight, offsets, bias, index=index, scale_w=scale, **options)


def _kernel_out(*operands: Any, **options: Any) -> None:
    _direct(*operands, **options)


def _call_of(operands: tuple[Any, ...], options: dict[str, Any]) -> TensorCall:
    tensors = dict(zip(_TENSORS, operands, strict=False)) | {"out": options.get("out")}
    return TensorCall("grouped_linear", tensors, options)


def _fake(*operands: Any, **options: Any) -> Any:
    shape, dtype = result_of(_call_of(operands, options))
    return operands[0].new_empty(shape, dtype=getattr(torch, dtype))


def _fake_out(*operands: Any, **options: Any) -> None:
    result_of(_call_of(operands, options))


def _register() -> None:
    """Register the operator in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for operator, result in ((NAME, " -> Tensor"), (f"{NAME}.out", " -> ()")):
        out = ", Tensor(a!) out" if operator != NAME else ""
        LIBRARY.define(f"{operator}({_ARGUMENTS}{out}){result}", tags=(torch.Tag.pt2_compliant_tag, strides))
    LIBRARY.impl(NAME, _direct, "CompositeExplicitAutograd")
    LIBRARY.impl(f"{NAME}.out", _kernel_out, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{NAME}", _fake, lib=LIBRARY)
    torch.library.register_fake(f"{NAMESPACE}::{NAME}.out", _fake_out, lib=LIBRARY)
    refuse_derivatives(LIBRARY, NAME, ", of which there is none; run it under torch.no_grad()")
    refuse_of_out(LIBRARY, NAME)
    register_batches(LIBRARY, NAME)


_register()


def packed_grouped_linear(
    x: Any, weight: PackedExperts, offsets: Any, bias: Any = None, *, index: Any = None, out: Any = None, **options: Any
) -> Any:
    """Compute x[rows of g] @ weight[g]^T + bias[g] of experts' packed weights: `grouped_linear` of them.

    No gradient is recorded: GradientError.

    Args:
        x: (rows, k), or with an index (tokens, k), bfloat16 or float16; of weights whose factors are of one of the two,
            of that.
        weight: what `stack` or `pack` returned.
        offsets: int32, as the package's `grouped_linear` has it.
        bias: (experts, n), of x's type; None for none.
        index: int32 (rows,), as the package's `grouped_linear` has it.
        out: (rows, n), written to; allocated where it is not given. Rows of no group are not written.
        options: `out_dtype`, `deterministic` and `batch_invariant`, as the package's `packed_grouped_linear` has them.

    Raises:
        OperandError: x is no tensor.
        DtypeError: x is of another type than the weights' factors.
        UnsupportedError: a gate, or factors of x, which packed weights have none of.
        AotGemmError: one of its classes, as of the package's `packed_grouped_linear`.
    """
    check_tensor("grouped_linear", "x", x)
    if weight.dtype is not None and x.dtype != weight.dtype:
        raise errors.DtypeError(
            f"grouped_linear: x is {x.dtype}, and the packed weights have factors of {weight.dtype}; expected one "
            "type; convert x, or pack the weights with factors of its type"
        )
    others = sorted(name for name, value in options.items() if name not in _OPTIONS and value not in (None, False))
    if others:
        raise errors.UnsupportedError(
            f"grouped_linear: got {', '.join(others)} beside packed weights; expected {', '.join(_OPTIONS)} alone; "
            "leave them away, and compute a gate of the result, by silu_mul"
        )
    asked = {name: value for name, value in options.items() if name in _OPTIONS}
    operands = x, weight.data, offsets, bias, index, weight.scale
    return multiply_groups(*operands, weight.format, weight.shape[1], out, **asked)


def multiply_groups(
    x: Any,
    data: Any,
    offsets: Any,
    bias: Any,
    index: Any,
    scale: Any,
    weight_format: str,
    columns: int,
    out: Any = None,
    **options: Any,
) -> Any:
    """Compute groups of rows with bytes that are known to be packed so: the package's function, or the operator."""
    known = {"weight_format": weight_format, "columns": columns}
    return dispatch(NAME, _of_package, (x, data, offsets, bias, index, scale), out, known | options)


def _of_package(*operands: Any, out: Any, **options: Any) -> Any:
    return _direct(*operands, out=out, **options)
