"""Products of one x with several weights in one launch: the function for torch, and its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _operations, errors
from ._torch_check import check_tensor
from ._torch_modules import ALIGNMENT
from ._torch_operators import LIBRARY, NAMESPACE
from ._torch_products import is_compiling, is_recorded, linear
from ._torch_promises import promised
from ._torch_transforms import is_transformed, refuse_derivatives, register_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WEIGHTS = 4
"""Of one launch. Source: aot_gemm.h, AOT_GEMM_MAX_PARTS."""

_MATRIX_DIMS = 2
_SCHEMA = "linear_many(Tensor x, Tensor[] weights, Tensor?[] biases) -> Tensor[]"


MOST_ROWS = 1024
"""Of one launch. By the times of an H200 one launch for the query, key and value of 13 models is 1.5 to 1.8 times as
fast as three up to 384 rows, 1.22 times at 1024 and 1.07 times at 2048, in the geometric mean; 0.93 times at the least,
for three weights of 4096 x 4096 by 1024 rows. Source: research/log/2026-11-30-several-weights.md of the toolchain."""


def _launch(x: Any, weights: Sequence[Any], biases: Sequence[Any]) -> list[Any]:
    """Compute all of them, into new tensors."""
    results = [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]
    is_one = x.numel() <= MOST_ROWS * x.shape[-1] and x.shape[-1] * x.itemsize % ALIGNMENT == 0
    if not is_one and _compute_apart(x, weights, biases, results):
        return results
    _operations.linear_many(x, list(map(promised, weights)), list(biases), out=results)
    return results


def _compute_apart(x: Any, weights: Sequence[Any], biases: Sequence[Any], results: list[Any]) -> bool:
    """Compute one product after the other; say whether the wheel has kernels for each."""
    try:
        for weight, bias, result in zip(weights, biases, results, strict=True):
            _operations.linear(x, promised(weight), bias, out=result)
    except errors.UnsupportedError:
        return False
    return True


def _fake(x: Any, weights: Sequence[Any], biases: Sequence[Any]) -> list[Any]:
    _check(x, weights, biases)
    return [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]


def _check(x: Any, weights: Sequence[Any], biases: Sequence[Any]) -> None:
    """Refuse what no launch takes, by shapes and types alone.

    Raises:
        OperandError: one is no tensor of torch.
        ShapeError: there are too many or too few, or a shape does not fit.
        DtypeError: one is of another type than x.
    """
    if not 1 <= len(weights) <= MAX_WEIGHTS or len(biases) != len(weights):
        raise errors.ShapeError(
            f"linear_many: got {len(weights)} weights and {len(biases)} biases; expected 1 to {MAX_WEIGHTS}, and as "
            "many biases or None; call it for some of them at a time"
        )
    check_tensor("linear_many", "x", x)
    for weight, bias in zip(weights, biases, strict=True):
        check_tensor("linear_many", "a weight", weight)
        if bias is not None:
            check_tensor("linear_many", "a bias", bias)
        if x.ndim < 1 or weight.ndim != _MATRIX_DIMS or weight.shape[1] != x.shape[-1]:
            raise errors.ShapeError(
                f"linear_many: got x {tuple(x.shape)} and a weight {tuple(weight.shape)}; expected x (..., k) and "
                "weights (n, k)"
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise errors.ShapeError(
                f"linear_many: a bias has shape {tuple(bias.shape)}; expected ({weight.shape[0]},), an element for "
                "each row of its weight"
            )
        for name, tensor in (("weight", weight), ("bias", bias)):
            if tensor is not None and tensor.dtype != x.dtype:
                raise errors.DtypeError(
                    f"linear_many: a {name} is {tensor.dtype}; expected {x.dtype}, as x is; convert it"
                )


_ADVICE = (
    ", which the operator does not record; call the function of this package, which computes by linear then, or run it "
    "under torch.no_grad()"
)


def _register() -> Any:
    """Register the operator in the library of the products, and return it."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    LIBRARY.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag, strides))
    LIBRARY.impl("linear_many", _launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::linear_many", _fake, lib=LIBRARY)
    refuse_derivatives(LIBRARY, "linear_many", _ADVICE)
    register_batches(LIBRARY, "linear_many")
    return getattr(torch.ops, NAMESPACE).linear_many.default


_operator = _register()


def linear_many(x: Any, weights: Sequence[Any], biases: Sequence[Any] | None = None) -> list[Any]:
    """Compute x @ weight^T + bias of each of several weights, in one launch: query, key and value of a layer.

    That is up to MOST_ROWS rows of x; of more it is `linear` of each, whose kernels are faster then.

    It pays where x has few rows, so that one product alone leaves a part of the GPU empty. No weight is joined or
    copied; each stays where it is. Each element is rounded as by `linear`. Where gradients are recorded or torch.func
    transforms, it is `linear` of each weight, which has those. The promise of `patch(constant=True)` holds here too.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory.
        weights: one to four of (n, k), of x's type; n may differ, and strides too. Where each lies at a multiple of 16
            bytes, as do its rows and x's, it is one launch; else the slow fallback has one for each.
        biases: as many, each (n,) of x's type or None; None for none at all.

    Returns:
        A tensor (..., n) for each weight, contiguous and of its own memory.

    Raises:
        OperandError: weights are no list, or one of all is no tensor of torch.
        ShapeError: there are none or more than four weights, or a shape does not fit.
        DtypeError: a weight or a bias is of another type than x.
        UnsupportedError: this wheel has no such kernels.
        AotGemmError: another of its classes, as of `linear`.
    """
    for name, given in (("weights", weights), ("biases", biases)):
        if not isinstance(given, (list, tuple)) and (given is not None or name == "weights"):
            raise errors.OperandError(
                f"linear_many: {name} is a {type(given).__qualname__}; expected a list or a tuple of one to "
                f"{MAX_WEIGHTS} tensors"
            )
    weights = list(weights)
    biases = [None] * len(weights) if biases is None else list(biases)
    _check(x, weights, biases)
    operands = [y for y in (x, *weights, *biases) if y is not None]
    if is_transformed() or (torch.is_grad_enabled() and any(y.requires_grad for y in operands)):
        return [linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    if is_compiling() or is_recorded(*operands):
        return list(_operator(x, weights, biases))
    return _launch(x, weights, biases)
