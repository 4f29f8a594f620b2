"""The gate of two weights for torch: one product where they lie so that a kernel can read both, else two.

Gate and up projections of a model are two matrices (n, k), each an allocation of its own. A kernel reads them as a
stack (2, n, k) whose step is the difference of their addresses, and nothing is moved. A tensor map takes steps that are
multiples of 16 bytes and less than 2^40 bytes. Either may lie in front: a kernel finds out which. Weights that a tensor
map cannot step between are two products side by side, and the gate of both is the package's operation on rows, or
torch's. That is decided with each call, since a graph has no addresses.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from . import _operations, _rows, errors
from ._row_table import plan_rows
from ._torch_operators import CONSTANT, LIBRARY, NAMESPACE
from ._torch_promises import promised
from ._torch_result import TensorCall, result_of
from ._torch_transforms import refuse_derivatives, register_batches

_SCHEMA = f'(Tensor x, Tensor gate, Tensor up, *, str activation="silu", {CONSTANT}) -> Tensor'
_ALIGNMENT, _LIMIT = 16, 1 << 40
"""Bytes. Source: CUDA driver API, cuTensorMapEncodeTiled: globalStrides."""
MOST_ROWS = 512
"""Rows of a product up to which it is this package's rather than torch's: see `_graph_choice`."""
_ROWS = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul"}
_ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def are_parts(gate: Any, up: Any) -> bool:
    """Say whether a kernel can read two weights as the parts of one."""
    step = abs(up.data_ptr() - gate.data_ptr())
    return 0 < step < _LIMIT and step % _ALIGNMENT == 0 and gate.stride() == up.stride()


def _gate(x: Any, gate: Any, up: Any, *, activation: str = "silu", constant_weight: bool = False) -> Any:
    held = [promised(weight, is_constant=constant_weight) for weight in (gate, up)]
    if are_parts(gate, up):
        return _operations.gated_linear(x, held, activation=activation)
    n = len(gate)
    both = x.new_empty((*x.shape[:-1], 2 * n))
    for weight, own, out in zip((gate, up), held, (both[..., :n], both[..., n:]), strict=True):
        if x.numel() > MOST_ROWS * x.shape[-1]:
            torch.mm(x.reshape(-1, x.shape[-1]), weight.t(), out=out.view(-1, n))
        else:
            _operations.linear(x, own, out=out)
    return gate_of_halves(both, activation)


def gate_of_halves(both: Any, activation: str) -> Any:
    """Compute activation(first half) * second half of a contiguous result: by the wheel's kernel on rows, or torch."""
    n = both.shape[-1] // 2
    if _has_rows(activation, n, both.dtype):
        return getattr(_rows, _ROWS[activation])(both)
    return _ACTIVATIONS[activation](both[..., :n]) * both[..., n:]


@cache
def _has_rows(activation: str, cols: int, dtype: torch.dtype) -> bool:
    """Say whether the wheel has the gate as an operation on rows, and no fallback alone."""
    try:
        return plan_rows(_ROWS[activation], 1, cols, dtype).tier != "fallback"
    except (errors.UnsupportedError, errors.DtypeError):
        return False


def _fake(x: Any, gate: Any, up: Any, *, activation: str = "silu", constant_weight: bool = False) -> Any:
    del constant_weight
    if gate.shape != up.shape:
        raise errors.ShapeError(
            f"gated_linear: the gate's weight has shape {tuple(gate.shape)}, the linear one {tuple(up.shape)}; "
            "expected one shape"
        )
    shape, dtype = result_of(TensorCall("linear", {"x": x, "weight": gate}))
    both = {"x": x, "weight": torch.cat([gate, up])}
    result_of(TensorCall("gated_linear", both, {"activation": activation}))
    return x.new_empty(shape, dtype=getattr(torch, dtype))


def _is_leading(batched: list[bool], operands: tuple[Any, ...], options: dict[str, Any]) -> bool:  # noqa: ARG001
    """Say whether a batch of x alone is rows like any other."""
    return batched[0] and not any(batched[1:])


def gate_of_parts(
    x: Any, weights: Any, bias: Any = None, *, out: Any = None, activation: str = "silu", **options: Any
) -> Any:
    """Call the operator of a gate whose weights are two, for torch to know of it.

    Raises:
        UnsupportedError: something else is asked of it than an activation, which the operator of one weight has.
    """
    given = [
        key for key, value in {"bias": bias, "out": out, **options}.items() if value is not None and value is not False
    ]
    if given or len(weights) != len(("gate", "up")):
        what = ", ".join(given) if given else f"{len(weights)} weights"
        raise errors.UnsupportedError(
            f"gated_linear: got {what} beside a list of weights where torch traces, records or transforms; expected "
            "two weights and an activation alone; give one weight (2 n, k), as torch.cat makes it, once and not with "
            "each call"
        )
    return getattr(torch.ops, NAMESPACE).gated_linear.parts(x, *weights, activation=activation)


def _register() -> None:
    """Register the overload `gated_linear.parts` in the library of the products."""
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    LIBRARY.define(f"gated_linear.parts{_SCHEMA}", tags=(torch.Tag.pt2_compliant_tag, strides))
    LIBRARY.impl("gated_linear.parts", _gate, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::gated_linear.parts", _fake, lib=LIBRARY)
    refuse_derivatives(LIBRARY, "gated_linear", ", of which there is none; run it under torch.no_grad()", "parts")
    register_batches(LIBRARY, "gated_linear", _is_leading, overload="parts")


_register()
