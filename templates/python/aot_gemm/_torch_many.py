"""Products of one x with several weights in one launch: the function for torch, and its operator."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from . import _operations, errors
from ._manifest import is_batch_invariant
from ._table import plan
from ._torch_check import check_tensor
from ._torch_modules import ALIGNMENT
from ._torch_operators import CONSTANT, LIBRARY, NAMESPACE
from ._torch_products import is_compiling, is_recorded, linear
from ._torch_promises import promised
from ._torch_transforms import is_transformed, refuse_derivatives, register_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WEIGHTS = 4
"""Of one launch. Source: aot_gemm.h, AOT_GEMM_MAX_PARTS."""

_MATRIX_DIMS = 2
_SCHEMA = f"linear_many(Tensor x, Tensor[] weights, Tensor?[] biases, *, {CONSTANT}) -> Tensor[]"


FEW_ROWS = 16
"""Rows of x up to which every kernel of several weights is as fast as others of one weight. Source: H100, driver
580.159.04, 2026-11-27: one launch is 1.13 to 2.42 times as fast as three up to here, and 0.93 times at 32 rows by
`cluster_split_k`, which is for few rows."""
MOST_ROWS = 1024
"""Rows of x up to which those of `wgmma` are. By an H200's times one launch for the query, key and value of 13 models
is 1.5 to 1.8 times as fast as three up to 384 rows, 1.22 times at 1024, 0.93 at the least, and 1.07 times at 2048.
Source: research/log/2026-11-30-several-weights.md of the toolchain, which has drawn sizes too."""
_OF_WGMMA = "_sm90_"
"""A kernel whose name has this multiplies by `wgmma`, which is as fast with many rows as with few."""


@lru_cache(maxsize=1024)
def takes_one_launch(rows: int, sizes: tuple[int, ...], k: int, dtype: Any, device: int | None) -> bool:
    """Say whether one launch is for so many rows of x by weights (n, k), by the kernel that the table has for it.

    Args:
        rows: of x.
        sizes: n of each weight.
        k: columns of x and of each weight.
        dtype: of all, torch's.
        device: number of the GPU that is current, whose table is asked, or None; it keeps answers of several apart.
    """
    del device
    if k * dtype.itemsize % ALIGNMENT:
        return False
    if rows <= FEW_ROWS or is_batch_invariant({}):  # whose bits may not depend on the rows
        return True
    if rows > MOST_ROWS or any(n * dtype.itemsize % ALIGNMENT for n in sizes):
        return False
    try:
        return _OF_WGMMA in plan(rows, sum(sizes), k, dtype, many=True).kernel
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError):
        return False


def _launch(x: Any, weights: Sequence[Any], biases: Sequence[Any], *, constant_weight: bool = False) -> list[Any]:
    """Compute all of them, into new tensors."""
    held = [promised(weight, is_constant=constant_weight) for weight in weights]
    results = [x.new_empty((*x.shape[:-1], weight.shape[0])) for weight in weights]
    k = x.shape[-1]
    rows, sizes = x.numel() // max(k, 1), tuple(weight.shape[0] for weight in weights)
    is_one = takes_one_launch(rows, sizes, k, x.dtype, x.device.index)
    if not is_one and _compute_apart(x, held, biases, results):
        return results
    _operations.linear_many(x, held, list(biases), out=results)
    return results


def _compute_apart(x: Any, weights: Sequence[Any], biases: Sequence[Any], results: list[Any]) -> bool:
    """Compute one product after the other; say whether the wheel has kernels for each."""
    try:
        for weight, bias, result in zip(weights, biases, results, strict=True):
            _operations.linear(x, weight, bias, out=result)
    except errors.UnsupportedError:
        return False
    return True


def _fake(x: Any, weights: Sequence[Any], biases: Sequence[Any], *, constant_weight: bool = False) -> list[Any]:
    del constant_weight
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

    That is up to FEW_ROWS rows of x, and up to MOST_ROWS where the table has a kernel of `wgmma` for it and each n
    makes rows of multiples of 16 bytes; else it is `linear` of each, and so it is where k makes rows of others. A
    wheel that is batch-invariant has one launch for any number of rows.

    It pays where one product alone leaves a part of the GPU empty. No weight is joined or copied; each stays where it
    is. Each element is rounded as by `linear`. Where gradients are recorded or torch.func
    transforms, it is `linear` of each weight, which has those. The promise of `patch(constant=True)` holds here too.

    Args:
        x: (..., k), bfloat16 or float16, in GPU memory.
        weights: one to four of (n, k), of x's type; n may differ, and strides too. Where one, or its rows, lies at no
            multiple of 16 bytes, the slow fallback has a launch for each.
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
