"""`packed_linear` as an operator of torch, and the product of x with a `PackedWeight` by it."""

from __future__ import annotations

from typing import Any

import torch

from . import _operations, _torch_activations, errors
from ._constant import ConstantWeight
from ._torch_check import check_tensor
from ._torch_operators import CONSTANT, LIBRARY, MODES, NAMESPACE, RECORDED
from ._torch_packed import PackedWeight, dequantize
from ._torch_products import dispatch
from ._torch_promises import promised
from ._torch_result import TensorCall, result_of
from ._torch_transforms import refuse_of_out, register_batches, register_derivatives

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale_w=None, Tensor? scale_x=None, *, str weight_format, "
    f'int columns, str activation_format="{_torch_activations.WIDE}", ScalarType? out_dtype=None, {MODES}, {CONSTANT}'
)
_TENSORS = ("x", "weight", "bias", "scale_w")
"""The tensors by position."""
SCHEMAS = {
    "packed_linear": f"({_ARGUMENTS}) -> Tensor",
    "packed_linear.out": f"({_ARGUMENTS}, Tensor(a!) out) -> ()",
}


def direct(
    x: Any,
    data: Any,
    bias: Any,
    scale: Any,
    scale_x: Any = None,
    *,
    out: Any,
    activation_format: str = _torch_activations.WIDE,
    constant_weight: bool = False,
    **options: Any,
) -> Any:
    """Call the package's function, with the promise of the weight where there is one."""
    data = data if isinstance(data, ConstantWeight) else promised(data, is_constant=constant_weight)
    if activation_format != _torch_activations.WIDE:
        _torch_activations.check_format(activation_format, options["weight_format"])
        if _torch_activations.is_narrow(activation_format, x, bias, options):
            return _torch_activations.narrow_linear((x, data, bias, scale, scale_x), out, options)
    return _operations.packed_linear(x, data, bias, scale_w=scale, out=out, **options)


def _kernel(
    x: Any, weight: Any, bias: Any = None, scale_w: Any = None, scale_x: Any = None, *, out: Any = None, **options: Any
) -> Any:
    return direct(x, weight, bias, scale_w, scale_x, out=out, **options)


def _kernel_out(*operands: Any, **options: Any) -> None:
    _kernel(*operands, **options)


def _call_of(operands: tuple[Any, ...], options: dict[str, Any]) -> TensorCall:
    tensors = dict(zip(_TENSORS, operands, strict=False)) | {"out": options.get("out")}
    return TensorCall("packed_linear", tensors, options)


def _fake(*operands: Any, **options: Any) -> Any:
    _torch_activations.check_format(options.get("activation_format", _torch_activations.WIDE), options["weight_format"])
    shape, dtype = result_of(_call_of(operands, options))
    return operands[0].new_empty(shape, dtype=getattr(torch, dtype))


def _fake_out(*operands: Any, **options: Any) -> None:
    result_of(_call_of(operands, options))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any] | None = None) -> None:  # noqa: ARG001
    options = keyword_only_inputs or {}
    x, weight, _, scale = (*inputs, None, None)[:4]
    _check_recordable(x, options)
    ctx.save_for_backward(weight, scale)
    ctx.made = options["weight_format"], (options["columns"], x.shape[-1]), x.dtype


def _check_recordable(x: Any, options: dict[str, Any]) -> None:
    if x.dtype not in RECORDED or options.get("out_dtype") not in (None, x.dtype):
        raise errors.GradientError(
            f"packed_linear: an operand of {x.dtype} requires a gradient, which is recorded of bfloat16 and float16 "
            "alone, with results of the same type; run it under torch.no_grad()"
        )
    if options.get("activation_format", _torch_activations.WIDE) != _torch_activations.WIDE:
        raise errors.GradientError(
            "packed_linear: an operand requires a gradient, and x may be rounded, which has none; run it under "
            'torch.no_grad(), or with activation_format="16-bit"'
        )


def _backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    weight, scale = ctx.saved_tensors
    needs, (form, shape, dtype) = ctx.needs_input_grad, ctx.made
    of_x = of_bias = None
    if needs[0]:
        of_x = torch.matmul(gradient, dequantize(PackedWeight(weight, scale, form, shape, dtype), dtype))
    if len(needs) > 2 and needs[2]:
        of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
    return (of_x, None, of_bias, None)[: len(needs)] + (None,) * (len(needs) - 4)


def _by_torch(x: Any, weight: Any, bias: Any = None, scale: Any = None, *_: Any, **options: Any) -> Any:
    """Multiply by the weight unpacked, by torch, whose derivatives are those that torch.func and forward mode take."""
    _check_recordable(x, options)
    shape = (options["columns"], x.shape[-1])
    wide = dequantize(PackedWeight(weight, scale, options["weight_format"], shape, x.dtype), x.dtype)
    return torch.nn.functional.linear(x, wide, bias)


def _is_leading(batched: list[bool], operands: tuple[Any, ...], options: dict[str, Any]) -> bool:  # noqa: ARG001
    """Say whether a batch of x alone is rows like any other."""
    return batched[0] and not any(batched[1:])


def _register() -> None:
    """Register the operator in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for operator, schema in SCHEMAS.items():
        LIBRARY.define(f"{operator}{schema}", tags=(torch.Tag.pt2_compliant_tag, strides))
    qualified = f"{NAMESPACE}::packed_linear"
    LIBRARY.impl("packed_linear", _kernel, "CompositeExplicitAutograd")
    LIBRARY.impl("packed_linear.out", _kernel_out, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, _fake, lib=LIBRARY)
    torch.library.register_fake(f"{qualified}.out", _fake_out, lib=LIBRARY)
    register_derivatives(LIBRARY, "packed_linear", _backward, _save, _by_torch)
    register_batches(LIBRARY, "packed_linear", _is_leading)
    refuse_of_out(LIBRARY, "packed_linear")


_operators: Any = getattr(torch.ops, NAMESPACE)
_register()


def _refuse_scale(weight_format: str, activation_format: str) -> None:
    """Refuse a factor of an x that has none (OperandError)."""
    if activation_format == _torch_activations.WIDE:
        raise errors.OperandError(
            "linear: got scale_x, the factor of an x that is rounded, and x stays as it is; expected activation_format "
            "'nvfp4' or 'auto' beside it, or no scale_x"
        )
    if not _torch_activations.takes_scale(weight_format):
        raise errors.OperandError(
            f"linear: got scale_x, and beside a weight of {weight_format} x is rounded to "
            f"{_torch_activations.narrow_beside(weight_format)}, which has factors of blocks alone; leave it away"
        )


def packed_linear(
    x: Any, weight: PackedWeight, bias: Any = None, *, out: Any = None, scale_x: Any = None, **options: Any
) -> Any:
    """Compute x @ weight^T + bias of a packed weight: `linear` of it.

    Gradients are recorded of x and the bias: those of torch's product with the dequantised weight.

    Args:
        x: (..., k), bfloat16 or float16; of weights whose factors are of one of the two, of that.
        weight: what `pack` returned.
        bias: (n,), of x's type; None for none.
        out: (..., n), written to; allocated where it is not given.
        scale_x: x's own factor where it is rounded to NVFP4, a float32 tensor of one element, as of a calibration; by
            default it is found of x.
        options: `activation_format`: "16-bit", the default; "nvfp4" of a weight of "nvfp4rows", or "mxfp8" of one of
            "mxfp4rows", by which x is rounded first; or "auto" of either, by which it is rounded where that is faster
            by the wheel's tables. `out_dtype`, `deterministic` and `batch_invariant`, as the package's
            `packed_linear` has them.

    Raises:
        OperandError: x is no tensor, or a factor of it is given where it has none.
        DtypeError: x is of another type than the weight's factors.
        FormatError: x is to be rounded, and the weight's bytes are not in rows, or of another format.
        UnsupportedError: there is no such format of activations, or the wheel has no product of it.
        AotGemmError: one of its classes, as of the package's `packed_linear`.
    """
    check_tensor("linear", "x", x)
    if weight.dtype is not None and x.dtype != weight.dtype:
        raise errors.DtypeError(
            f"linear: x is {x.dtype}, and the packed weight has factors of {weight.dtype}; expected one type; convert "
            "x, or pack the weight with factors of its type"
        )
    known = {"weight_format": weight.format, "columns": weight.shape[0]}
    _torch_activations.check_format(options.get("activation_format", _torch_activations.WIDE), weight.format)
    if scale_x is not None:
        _refuse_scale(weight.format, options.get("activation_format", _torch_activations.WIDE))
    operands = x, weight.data, bias, weight.scale, *(() if scale_x is None else (scale_x,))
    return dispatch("packed_linear", direct, operands, out, known | options)
