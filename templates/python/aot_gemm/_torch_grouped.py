"""`grouped_linear` as an operator of torch: its schema, what it gives of fake tensors, and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from . import _operations, errors
from ._extras import is_in_blocks, split_listed, split_result, weights_of
from ._request import Request, find
from ._torch_experts import PackedExperts
from ._torch_in_blocks import LISTED
from ._torch_operators import LIBRARY, MODES, NAMESPACE, RECORDED
from ._torch_packed_groups import packed_grouped_linear
from ._torch_products import dispatch
from ._torch_promises import promised
from ._torch_result import TensorCall, dtype_text, result_of
from ._torch_transforms import refuse_of_out, register_batches, register_derivatives

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor offsets, Tensor? bias=None, Tensor? index=None, Tensor? scale_x=None, "
    "Tensor? scale_w=None, Tensor? scale_out=None, *, str? gate=None, bool interleaved=False, "
    f"ScalarType? out_dtype=None, {MODES}"
)
_TENSORS = ("x", "weight", "offsets", "bias", "index", "scale_x", "scale_w", "scale_out", "factors")
"""The tensors by position."""
_REQUEST = Request("grouped_linear", "", "", "", "none", "float32", "float32", "none", "kgrouped", *[False] * 4)
"""The gradient of weights, but for its element types."""
_LISTED = _ARGUMENTS.replace("Tensor weight", "Tensor[] weight").replace(
    "Tensor? scale_out=None", "Tensor? scale_out=None, Tensor[]? factors=None"
)
"""With `factors` those of each weight, in the place of `scale_w`."""
SCHEMAS = {
    "grouped_linear": f"({_ARGUMENTS}) -> Tensor",
    "grouped_linear.out": f"({_ARGUMENTS}, Tensor(a!) out) -> ()",
    LISTED: f"({_LISTED}) -> Tensor",
    f"{LISTED}.out": f"({_LISTED}, Tensor(a!) out) -> ()",
}


def _kernel(
    x: Any,
    weight: Any,
    offsets: Any,
    bias: Any = None,
    index: Any = None,
    scale_x: Any = None,
    scale_w: Any = None,
    scale_out: Any = None,
    factors: Any = None,
    **options: Any,
) -> Any:
    scale_w = scale_w if factors is None else factors
    tensors = {"index": index, "scale_x": scale_x, "scale_w": scale_w, "scale_out": scale_out}
    weight = weight if isinstance(weight, list) else promised(weight)
    return _operations.grouped_linear(x, weight, offsets, bias, **tensors, **options)


def _kernel_out(*operands: Any, **options: Any) -> None:
    _kernel(*operands, **options)


def _call_of(operands: tuple[Any, ...], options: dict[str, Any]) -> TensorCall:
    tensors = dict(zip(_TENSORS, operands, strict=False)) | {"out": options.get("out")}
    if isinstance(tensors["weight"], list):
        tensors["weight"] = list(
            weights_of(tensors["weight"], "grouped_linear", "one (n, k) for each group, one or more")
        )
    factors = tensors.pop("factors", None)
    if factors is not None:
        tensors["scale_w"] = list(factors)
    return TensorCall("grouped_linear", tensors, options)


def _fake(*operands: Any, **options: Any) -> Any:
    shape, dtype = result_of(_call_of(operands, options))
    return operands[0].new_empty(shape, dtype=getattr(torch, dtype))


def _fake_out(*operands: Any, **options: Any) -> None:
    result_of(_call_of(operands, options))


def _check_recordable(call: TensorCall) -> None:
    added = (*(call.tensors.get(name) for name in _TENSORS[3:]), call.options.get("gate"))
    groups_k = not isinstance(call.tensors["weight"], list) and call.weight.ndim == 2
    is_plain = all(x is None for x in added) and not groups_k
    if is_plain and call.x.dtype in RECORDED and call.options.get("out_dtype") in (None, call.x.dtype):
        return
    raise errors.GradientError(
        "grouped_linear: an operand requires a gradient, which is recorded of plain products of groups of rows alone, "
        "in bfloat16 and float16; run it under torch.no_grad(), or compose it: grouped_linear(x[index], weight, "
        "offsets), and bias and gate by torch"
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any] | None = None) -> None:  # noqa: ARG001
    options = keyword_only_inputs or {}
    _check_recordable(_call_of(inputs, options))
    ctx.modes = {name: options.get(name, False) for name in ("deterministic", "batch_invariant")}
    needs_x, needs_weight = ctx.needs_input_grad[0], _needs_weight(ctx)
    x, weight, offsets = inputs[:3]
    if needs_weight:  # of a wheel without kernels for its gradient this is told now, and not in the backward pass
        find(_REQUEST._replace(**dict.fromkeys("abd", dtype_text(x.dtype))))
    ctx.is_listed = isinstance(weight, list)
    ctx.num_groups = len(weight)
    weights = weight if ctx.is_listed else [weight]
    ctx.save_for_backward(x if needs_weight else None, offsets, *(weights if needs_x else []))


def _needs_weight(ctx: Any) -> bool:
    """Say whether the gradient of the weight is asked for, or of any of a list."""
    needs = ctx.needs_input_grad[1]
    return any(needs) if isinstance(needs, (list, tuple)) else bool(needs)


def _gradient_of_x(
    gradient: Any, weights: tuple[Any, ...], offsets: Any, modes: dict[str, bool], *, is_listed: bool
) -> Any:
    """Multiply each group's rows by its weight. Rows of no group, which no product writes, are zeros."""
    out = gradient.new_zeros((gradient.shape[0], weights[0].shape[-1]))
    transposed = [x.transpose(-2, -1) for x in weights]
    if is_listed:
        getattr(_operators, LISTED).out(gradient, transposed, offsets, out=out, **modes)
    else:
        _operators.grouped_linear.out(gradient, transposed[0], offsets, out=out, **modes)
    return out


def _gradient_of_weight(gradient: Any, x: Any, offsets: Any, modes: dict[str, bool], num_groups: int) -> Any:
    """Sum up each group's rows: runs of k of a product of both, transposed."""
    sums = _operators.grouped_linear.default(gradient.t(), x.t(), offsets, **modes)
    # Where the first group's start is given, the rows in front of it are a run too, whose sums are left away.
    return sums[offsets.shape[0] - num_groups :]


def _backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    x, offsets, *weights = ctx.saved_tensors
    needs = ctx.needs_input_grad
    gradient = gradient.contiguous()
    of_x = _gradient_of_x(gradient, weights, offsets, ctx.modes, is_listed=ctx.is_listed) if needs[0] else None
    of_weight = _gradient_of_weight(gradient, x, offsets, ctx.modes, ctx.num_groups) if _needs_weight(ctx) else None
    if ctx.is_listed:
        of_weight = [None] * ctx.num_groups if of_weight is None else list(of_weight.unbind())
    return (of_x, of_weight, *[None] * (len(needs) - 2))


def _by_torch(*_: Any, **__: Any) -> Any:
    raise errors.GradientError(
        "grouped_linear: torch.func or forward mode differentiates it, of which groups have no rule; expected a "
        "backward pass, as of loss.backward(); or call linear for each group"
    )


def _register() -> None:
    """Register the operator in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    for operator, schema in SCHEMAS.items():
        LIBRARY.define(f"{operator}{schema}", tags=(torch.Tag.pt2_compliant_tag, strides))
    for name in ("grouped_linear", LISTED):
        qualified = f"{NAMESPACE}::{name}"
        LIBRARY.impl(name, _kernel, "CompositeExplicitAutograd")
        LIBRARY.impl(f"{name}.out", _kernel_out, "CompositeExplicitAutograd")
        torch.library.register_fake(qualified, _fake, lib=LIBRARY)
        torch.library.register_fake(f"{qualified}.out", _fake_out, lib=LIBRARY)
        register_derivatives(LIBRARY, name, _backward, _save, _by_torch)
        refuse_of_out(LIBRARY, name)
        register_batches(LIBRARY, name)


_operators: Any = getattr(torch.ops, NAMESPACE)
_register()


def grouped_linear(
    x: Any,
    weight: Any,
    offsets: Any,
    bias: Any = None,
    *,
    index: Any = None,
    scale_x: Any = None,
    scale_w: Any = None,
    scale_out: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    """Compute x[rows of g] @ weight[g]^T: the package's `grouped_linear`, under torch.compile and autograd too.

    Arguments, result and errors are those of the package's `grouped_linear`. Gradients are recorded of x and of weight
    in bfloat16 and float16, of groups of rows without an index, a bias, a gate or factors; else GradientError. The
    backward pass is of grouped products too, in the same modes: with the weights transposed, and with runs of rows for
    the weights. A row that is in no group has a gradient of zeros. Weights of a list have a gradient each, which are
    one stack in memory.

    The weight may be what `stack` or `pack` returned of experts, with `bias`, `index`, `out`, `out_dtype` and the modes
    alone beside it; no gradient is recorded then.
    """
    if isinstance(weight, PackedExperts):
        scales = {"scale_x": scale_x, "scale_w": scale_w, "scale_out": scale_out}
        return packed_grouped_linear(x, weight, offsets, bias, index=index, out=out, **scales, **options)
    is_listed = isinstance(weight, (list, tuple))
    weights = weight if is_listed else None
    has_blocks = is_in_blocks(options.get("out_dtype"))
    _, scale_d, own, _ = split_result("grouped_linear", options.get("out_dtype"), None, scale_out)
    *scales, factors = split_listed("grouped_linear", scale_x, scale_w, scale_d, weights)
    if has_blocks:
        scales[-1] = scales[-1], own
    operands = (x, weight, offsets, bias, index, *scales)
    if not is_listed:
        return dispatch("grouped_linear", _direct, operands, out, options)
    return dispatch(LISTED, _direct, (*operands, None if factors is None else list(factors)), out, options)


def _direct(*operands: Any, out: Any, **options: Any) -> Any:
    x, weight, offsets, bias, *others = operands
    tensors = dict(zip(_TENSORS[4:], others, strict=False))
    factors = tensors.pop("factors", None)
    tensors |= {} if factors is None else {"scale_w": factors}
    return _operations.grouped_linear(x, weight, offsets, bias, out=out, **tensors, **options)
