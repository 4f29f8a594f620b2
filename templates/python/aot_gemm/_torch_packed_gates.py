"""The gate of two packed weights for torch: one product where that is the faster way by the wheel's tables, else two.

Gate and up projections of a quantised model are two packed weights, each an allocation of its own. A kernel of few rows
reads both where they lie. Many rows are faster by kernels that have no gate: two products side by side, and the gate
of both by the package's operation on rows, or torch's. That is decided with each call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from . import _operations, errors
from ._manifest import is_batch_invariant
from ._row_table import plan_rows
from ._table import plan
from ._torch_check import check_tensor
from ._torch_gates import gate_of_halves
from ._torch_operators import CONSTANT, LIBRARY, MODES, NAMESPACE
from ._torch_packed import PackedWeight
from ._torch_products import dispatch
from ._torch_promises import promised
from ._torch_result import TensorCall, result_of
from ._torch_transforms import refuse_derivatives, register_batches

SCHEMA = (
    "(Tensor x, Tensor gate, Tensor up, Tensor? scale_gate=None, Tensor? scale_up=None, Tensor? bias=None, *, "
    f'str weight_format, int columns, str activation="silu", ScalarType? out_dtype=None, {MODES}, '
    f"{CONSTANT}) -> Tensor"
)
MOST_ROWS = 8
"""Rows of x up to which a wheel's gated product is taken where its tables have no times of both ways, or a measured one
beside a predicted one, which says little. On an H200 one launch is 1.02 to 1.18 times as fast at 1 and 4 rows, and
0.71 to 1.16 at 16 and 32. Source: research/log/2026-11-29-packed-gates.md."""
_ROWS = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul"}
_REMEMBERED = 1 << 14
"""Problems whose answer is kept."""


class Gate(NamedTuple):
    """A gated product of packed weights, by its sizes and types."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    weight_format: str
    activation: str
    bias: bool


@lru_cache(maxsize=_REMEMBERED)
def is_one_launch(asked: Gate, device: int | None = None, target: str | None = None) -> bool:
    """Say whether one kernel computes a gate faster than two products and a kernel on rows, by the wheel's tables.

    The times are those of the tables, where both ways have one that was measured, or one that was predicted. A wheel
    that lacks the gated product takes the other way, and one that has nothing else this one.

    Args:
        asked: the product.
        device: of x, whose table `plan` asks.
        target: as `plan` has it.
    """
    del device  # by which answers are kept apart
    m, n, k, dtype, form, activation, bias = asked
    options = {"weight_dtype": form, "bias": bias, "target": target}
    try:
        one = plan(m, n, k, dtype, gated=True, activation=activation, **options)
    except (errors.UnsupportedError, errors.DtypeError):
        return False
    try:
        each = plan(m, n, k, dtype, **options)
    except (errors.UnsupportedError, errors.DtypeError):
        return True
    are_alike = one.time_us is not None and each.time_us is not None and one.provenance == each.provenance
    if "fallback" in (one.tier, each.tier) or not are_alike:
        return m <= MOST_ROWS and (one.tier != "fallback" or each.tier == "fallback")
    return one.time_us < 2 * each.time_us + _time_on_rows_us(asked, target)


def _time_on_rows_us(asked: Gate, target: str | None) -> float:
    """Return what the gate of two results takes, or the least that it can, as far as the wheel says it."""
    try:
        found = plan_rows(_ROWS[asked.activation], asked.m, asked.n, asked.dtype, target=target)
    except (errors.UnsupportedError, errors.DtypeError):
        return 0.0
    return found.time_us or found.roofline_us or 0.0


def direct(
    x: Any,
    gate: Any,
    up: Any,
    scale_gate: Any = None,
    scale_up: Any = None,
    bias: Any = None,
    *,
    out: Any = None,
    constant_weight: bool = False,
    **options: Any,
) -> Any:
    """Compute a gate by one launch, or by two products and the gate of their results."""
    k, n = x.shape[-1], options["columns"]
    form, activation = options["weight_format"], options.get("activation", "silu")
    # Both ways round differently: where a row's bits are not to depend on the others, the way is that of one row.
    m = 1 if is_batch_invariant(options) else x.numel() // k if k else 0
    asked = Gate(m, n, k, x.dtype, form, activation, bias is not None)
    weights = [promised(weight, is_constant=constant_weight) for weight in (gate, up)]
    if is_one_launch(asked, x.device.index):
        return _operations.packed_gated_linear(
            x, *weights, bias, scale_gate=scale_gate, scale_up=scale_up, out=out, **options
        )
    both = x.new_empty((*x.shape[:-1], 2 * n))
    halves = (None, None) if bias is None else bias.split(n)
    own = {name: value for name, value in options.items() if name != "activation"}
    for weight, scale, of_bias, part in zip(weights, (scale_gate, scale_up), halves, both.split(n, -1), strict=True):
        _operations.packed_linear(x, weight, of_bias, scale_w=scale, out=part, **own)
    found = gate_of_halves(both, activation)
    return found if out is None else out.copy_(found)


def _fake(x: Any, gate: Any, up: Any, *others: Any, **options: Any) -> Any:
    scale_gate, scale_up, bias = (*others, None, None, None)[:3]
    scales = None if scale_gate is None and scale_up is None else [scale_gate, scale_up]
    tensors = {"x": x, "weight": [gate, up], "bias": bias, "scale_w": scales}
    try:
        shape, dtype = result_of(TensorCall("packed_linear", tensors, {"activation": "silu"} | options))
    except errors.UnsupportedError:  # then there are two products
        alone = {name: value for name, value in options.items() if name != "activation"}
        each = {"x": x, "weight": gate, "scale_w": scale_gate}
        shape, dtype = result_of(TensorCall("packed_linear", each, alone))
    return x.new_empty(shape, dtype=getattr(torch, dtype))


def _is_leading(batched: list[bool], operands: tuple[Any, ...], options: dict[str, Any]) -> bool:  # noqa: ARG001
    """Say whether a batch of x alone is rows like any other."""
    return batched[0] and not any(batched[1:])


def _register() -> None:
    """Register the operator in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    LIBRARY.define(f"packed_gated_linear{SCHEMA}", tags=(torch.Tag.pt2_compliant_tag, strides))
    LIBRARY.impl("packed_gated_linear", direct, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::packed_gated_linear", _fake, lib=LIBRARY)
    refuse_derivatives(LIBRARY, "packed_gated_linear", ", of which there is none; run it under torch.no_grad()")
    register_batches(LIBRARY, "packed_gated_linear", _is_leading)


_register()


def packed_gated_linear(x: Any, weight: Any, bias: Any = None, *, out: Any = None, **options: Any) -> Any:
    """Compute activation(x @ gate^T) * (x @ up^T) of packed weights: `gated_linear` of them.

    Args:
        x: as `linear` of a packed weight has it.
        weight: two packed weights of one format and size, the gate's and the linear one, wherever they lie. Their
            float32 factors, where they have some, are of one shape.
        bias: (2 n,), the gate's first; None for none.
        out: (..., n), written to; allocated where it is not given.
        options: `activation`, `out_dtype`, `deterministic` and `batch_invariant`, as the package's
            `packed_gated_linear` has them.

    Raises:
        OperandError: x is no tensor, or `weight` is no two packed weights.
        FormatError: the weights differ in format, size or factors.
        DtypeError: x is of another type than the weights' factors.
        AotGemmError: one of its classes, as of the package's `packed_gated_linear`.
    """
    check_tensor("gated_linear", "x", x)
    is_pair = isinstance(weight, (list, tuple)) and len(weight) == len(("gate", "up"))
    if not is_pair or not all(isinstance(each, PackedWeight) for each in weight):
        raise errors.OperandError(
            f"gated_linear: got {errors.show(weight)}; expected two packed weights, the gate's and the linear one, as "
            "a list: gated_linear(x, [gate, up])"
        )
    gate, up = weight
    got, expected = ((y.format, y.shape, y.dtype, None if y.scale is None else y.scale.numel()) for y in (up, gate))
    if got != expected:
        raise errors.FormatError(
            f"gated_linear: the linear weight is {got}, the gate's {expected}: format, size, type of factors and "
            "number of own factors; expected the same of both; pack them alike, or compute two products by linear"
        )
    if gate.dtype is not None and x.dtype != gate.dtype:
        raise errors.DtypeError(
            f"gated_linear: x is {x.dtype}, and the packed weights have factors of {gate.dtype}; expected one type; "
            "convert x, or pack the weights with factors of its type"
        )
    scales = tuple(None if y.scale is None else y.scale.reshape(-1) for y in weight)
    known = {"weight_format": gate.format, "columns": gate.shape[0]}
    found = dispatch("packed_gated_linear", direct, (x, gate.data, up.data, *scales, bias), None, known | options)
    return found if out is None else out.copy_(found)
