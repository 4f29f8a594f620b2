"""The products as operators of torch: schemas, kernels, what they give of fake tensors, and gradients.

They are registered in a namespace of the package's import name, so that two wheels do not meet. A kernel is one call of
the package's own function, on torch's current stream and with memory of torch's allocator; so a CUDA graph captures it
as it captures that.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from . import _operations, errors
from ._torch_promises import promised
from ._torch_result import TensorCall, result_of
from ._torch_transforms import MATRIX_DIMS, refuse_of_out, register_batches, register_derivatives

NAMESPACE = (__package__ or "").replace(".", "_")
MODES = "bool deterministic=False, bool batch_invariant=False"
"""The part of a schema that says what is asked of results beside their values."""
CONSTANT = "bool constant_weight=False"
"""The part that a graph adds, which knows of a product that nothing writes its weight any more: `_graph_order`."""
_OPTIONS = (
    "str? activation=None, ScalarType? out_dtype=None, bool allow_tf32=False, bool use_fast_accum=False, "
    f"{MODES}, {CONSTANT}"
)
_LINEAR = (
    "Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale_x=None, Tensor? scale_w=None, Tensor? residual=None, "
    f"Tensor? scale_out=None, *, {_OPTIONS}"
)
_GATED = (
    "Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale_x=None, Tensor? scale_w=None, "
    "Tensor? scale_out=None, *, "
    f'str activation="silu", bool interleaved=False, ScalarType? out_dtype=None, {MODES}, {CONSTANT}'
)
_MATMUL = "Tensor a, Tensor b, *"
SCHEMAS = {
    "linear": f"({_LINEAR}) -> Tensor",
    "linear.out": f"({_LINEAR}, Tensor(a!) out) -> ()",
    "gated_linear": f"({_GATED}) -> Tensor",
    "gated_linear.out": f"({_GATED}, Tensor(a!) out) -> ()",
    "matmul": f"({_MATMUL}, {MODES}) -> Tensor",
    "matmul.out": f"({_MATMUL}, {MODES}, Tensor(a!) out) -> ()",
}
"""By operator. Tensors go by position, as torch records gradients of those alone; what writes `out` gives nothing."""
_TENSORS = {
    "linear": ("x", "weight", "bias", "scale_x", "scale_w", "residual", "scale_out"),
    "gated_linear": ("x", "weight", "bias", "scale_x", "scale_w", "scale_out"),
    "matmul": ("a", "b"),
}
"""The tensors by position."""
_ADVICE = {
    "linear": "linear(x, weight, bias) in bfloat16 or float16, and what follows it by torch",
    "gated_linear": "linear(x, weight, bias) in bfloat16 or float16, and the gate by torch",
    "matmul": "bfloat16 or float16 operands, or torch's own product",
}
RECORDED = (torch.bfloat16, torch.float16)
"""Element types that gradients are recorded of."""


def _linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    scale_x: Any = None,
    scale_w: Any = None,
    residual: Any = None,
    scale_out: Any = None,
    *,
    out: Any = None,
    constant_weight: bool = False,
    **options: Any,
) -> Any:
    tensors = {"scale_x": scale_x, "scale_w": scale_w, "residual": residual, "scale_out": scale_out}
    given = {name: value for name, value in (tensors | options).items() if value is not None and value is not False}
    return _operations.linear(x, promised(weight, is_constant=constant_weight), bias, out=out, **given)


def _gated_linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    scale_x: Any = None,
    scale_w: Any = None,
    scale_out: Any = None,
    *,
    out: Any = None,
    constant_weight: bool = False,
    **options: Any,
) -> Any:
    scales = {"scale_x": scale_x, "scale_w": scale_w, "scale_out": scale_out}
    held = promised(weight, is_constant=constant_weight)
    return _operations.gated_linear(x, held, bias, out=out, **scales, **options)


def _matmul(a: Any, b: Any, *, out: Any = None, **options: Any) -> Any:
    return _operations.matmul(a, b, out=out, **options)


def _call_of(name: str, operands: tuple[Any, ...], options: dict[str, Any]) -> TensorCall:
    """Put an operator's arguments together; those that are as by default may have been left away."""
    tensors = dict(zip(_TENSORS[name], operands, strict=False)) | {"out": options.get("out")}
    return TensorCall(name, tensors, ({"activation": "silu"} if name == "gated_linear" else {}) | options)


def _fake(name: str) -> Any:
    def give(*operands: Any, **options: Any) -> Any:
        shape, dtype = result_of(_call_of(name, operands, options))
        return operands[0].new_empty(shape, dtype=getattr(torch, dtype))

    return give


def _fake_out(name: str) -> Any:
    def give(*operands: Any, **options: Any) -> None:
        result_of(_call_of(name, operands, options))

    return give


def check_recordable(call: TensorCall) -> None:
    """Refuse a product that torch is to record a gradient of, and cannot: all but plain ones and those with a bias.

    Raises:
        GradientError: there is no gradient of it.
    """
    added = (*(call.tensors.get(name) for name in _TENSORS["linear"][3:]), call.options.get("activation"))
    is_plain = call.function != "gated_linear" and all(x is None for x in added)
    if is_plain and call.x.dtype in RECORDED and call.options.get("out_dtype") in (None, call.x.dtype):
        return
    raise errors.GradientError(
        f"{call.function}: an operand requires a gradient, which is recorded of plain products and a bias alone, in "
        f"bfloat16 and float16; run it under torch.no_grad(), or compose it: {_ADVICE[call.function]}"
    )


def _save(name: str) -> Any:
    def save(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any] | None = None) -> None:  # noqa: ARG001
        check_recordable(_call_of(name, inputs, keyword_only_inputs or {}))
        needs_left, needs_right = ctx.needs_input_grad[:2]
        left, right = inputs[:2]
        ctx.save_for_backward(left if needs_right else None, right if needs_left else None)
        ctx.shapes = left.shape, right.shape

    return save


def _as_rows(tensor: Any) -> Any:
    """Join leading dimensions; one of no elements too, whose extents do not follow from each other."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _linear_backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    needs = ctx.needs_input_grad  # of the operands that the call gave: torch leaves those by default away
    rows = _as_rows(gradient)
    of_x = torch.matmul(gradient, weight) if needs[0] else None
    of_weight = torch.mm(rows.t(), _as_rows(x)) if needs[1] else None
    of_bias = rows.sum(0) if len(needs) > 2 and needs[2] else None
    gradients = of_x, of_weight, of_bias, None, None, None, None
    return gradients[: len(needs)]


def _batch_backward(a: Any, b: Any, gradient: Any, of_left: Any, of_right: Any, needs: tuple[bool, ...]) -> Any:
    """Return the gradients of a batch; what was broadcast has the sum of those of its copies."""
    rows = gradient.unsqueeze(-2) if len(of_left) == 1 else gradient
    of_a = of_b = None
    if needs[0]:
        whole = torch.matmul(rows, b.transpose(-1, -2))
        of_a = whole.sum_to_size(whole.shape[-2:] if len(of_left) == 1 else of_left).reshape(of_left)
    if needs[1]:
        columns = (a.unsqueeze(0) if len(of_left) == 1 else a).transpose(-1, -2)
        of_b = torch.matmul(columns, rows).sum_to_size(of_right)
    return of_a, of_b


def _matmul_backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    needs_a, needs_b = ctx.needs_input_grad[:2]
    of_left, shape = ctx.shapes
    if len(shape) > MATRIX_DIMS:
        return _batch_backward(a, b, gradient, of_left, shape, ctx.needs_input_grad)
    is_vector = len(shape) == 1
    columns = gradient.unsqueeze(-1) if is_vector else gradient
    of_a = of_b = None
    if needs_a:
        of_a = torch.matmul(columns, (b.unsqueeze(-1) if is_vector else b).t())
    if needs_b:
        of_b = torch.mm(_as_rows(a).t(), _as_rows(columns)).reshape(shape)
    return of_a, of_b


def _by_torch(name: str) -> Any:
    """Return what computes a product by torch, whose derivatives are those that torch.func and forward mode take."""

    def call(*operands: Any, **options: Any) -> Any:
        check_recordable(_call_of(name, operands, options))
        modes = [key for key, value in options.items() if value is True and key in ("deterministic", "batch_invariant")]
        if modes:
            raise errors.GradientError(
                f"{name}: torch.func or forward mode differentiates it, so that torch computes it, which is not "
                f"promised to be {' and '.join(modes)}; call it without, or with loss.backward()"
            )
        return torch.nn.functional.linear(*operands[:3]) if name == "linear" else torch.matmul(*operands)

    return call


def _is_leading(batched: list[bool], operands: tuple[Any, ...], options: dict[str, Any]) -> bool:  # noqa: ARG001
    """Say whether a batch of x alone, or of the left operand, is rows like any other."""
    return batched[0] and not any(batched[1:]) and operands[1].ndim <= MATRIX_DIMS


def _is_plain(others: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return all(x is None for x in others) and all(value is None or value is False for value in options.values())


def _linear_of_batches(x: Any, weight: Any, bias: Any = None, *others: Any, **options: Any) -> Any:
    if not _is_plain(others, options):
        return None
    result = torch.einsum("b...k,bnk->b...n", x, weight)
    return result if bias is None else result + bias.reshape(bias.shape[0], *(1,) * (x.ndim - 2), bias.shape[1])


def _matmul_of_batches(a: Any, b: Any, **options: Any) -> Any:
    if not _is_plain((), options):
        return None
    if b.ndim > MATRIX_DIMS + 1:
        return torch.vmap(torch.matmul)(a, b)
    return torch.einsum("b...k,bkn->b...n" if b.ndim == 3 else "b...k,bk->b...", a, b)


_OF_BATCHES = {"linear": _linear_of_batches, "matmul": _matmul_of_batches}
"""Torch's own products, all of whose operands have the batch in front."""


def _no_backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:  # noqa: ARG001
    raise errors.GradientError("gated_linear: there is no gradient of it")


_KERNELS = {"linear": _linear, "gated_linear": _gated_linear, "matmul": _matmul}
_BACKWARD = {"linear": _linear_backward, "gated_linear": _no_backward, "matmul": _matmul_backward}


def _write_out(kernel: Any) -> Any:
    def write(*operands: Any, **options: Any) -> None:
        kernel(*operands, **options)

    return write


def register() -> torch.library.Library:
    """Register the operators; they are there as long as what this returns is.

    Their kernel is that of every device: the package's function refuses what is not in GPU memory. Compilers keep the
    strides of operands as they are in the program, since kernels are chosen by them.

    Raises:
        UnsupportedError: this torch is too old.
    """
    if not hasattr(torch.library, "register_vmap"):
        raise errors.UnsupportedError(f"torch {torch.__version__} is too old for operators; expected 2.5 or newer")
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for operator, schema in SCHEMAS.items():
        library.define(f"{operator}{schema}", tags=(torch.Tag.pt2_compliant_tag, strides))
    for name, kernel in _KERNELS.items():
        qualified = f"{NAMESPACE}::{name}"
        library.impl(name, kernel, "CompositeExplicitAutograd")
        library.impl(f"{name}.out", _write_out(kernel), "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, _fake(name), lib=library)
        torch.library.register_fake(f"{qualified}.out", _fake_out(name), lib=library)
        register_derivatives(library, name, _BACKWARD[name], _save(name), _by_torch(name))
        refuse_of_out(library, name)
        register_batches(library, name, _is_leading, _OF_BATCHES.get(name))
    return library


LIBRARY = register()
