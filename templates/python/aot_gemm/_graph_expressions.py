"""What activations and norms look like in graphs: as operators, and as tracers take them apart.

Each function reads a node, and returns what stands for the operation's operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ._graph_match import (
    ADD,
    MUL,
    Bindings,
    any_number,
    aten,
    bind,
    call,
    dtype_of,
    either,
    first,
    item,
    maybe_converted,
    narrowed,
    number,
    same_shape,
    tensor,
    value_of,
)

_X = tensor("x")
_WIDE = maybe_converted(_X)
"""x in float32, or as it is."""
_HALF = call(MUL, _WIDE, number(0.5), commutes=True)
_CUBE = call(MUL, call(MUL, _WIDE, _WIDE), _WIDE)
_TANH = call(
    aten.tanh.default,
    call(
        MUL,
        call(ADD, _WIDE, call(MUL, _CUBE, number(0.044715), commutes=True), commutes=True),
        number(math.sqrt(2 / math.pi)),
        commutes=True,
    ),
)
_EXP = call(aten.exp.default, call(aten.neg.default, _WIDE))
_ERF = call(aten.erf.default, call(MUL, _WIDE, number(math.sqrt(0.5)), commutes=True))


def _gelu_operator(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
    if isinstance(node, Node) and node.target is aten.gelu.default:
        yield {**known, "x": node.args[0], "approximate": node.kwargs.get("approximate", "none")}


_ACTIVATIONS = {
    "silu": either(
        call(aten.silu.default, _X),
        maybe_converted(
            either(
                call(aten.div.Tensor, _WIDE, call(ADD, _EXP, number(1))),
                call(MUL, _WIDE, call(aten.sigmoid.default, _WIDE), commutes=True),
            )
        ),
    ),
    "relu": call(aten.relu.default, _X),
    "gelu": maybe_converted(call(MUL, _HALF, call(ADD, _ERF, number(1)), commutes=True)),
    "gelu_tanh": maybe_converted(call(MUL, _HALF, call(ADD, _TANH, number(1)), commutes=True)),
}


@dataclass(frozen=True)
class Activation:
    """An activation, by the name that products know it by, and its input, of the element type of its result."""

    name: str
    x: Node


def activation_of(node: Node) -> Activation | None:
    """Read a node as an activation of a tensor; None where it is none."""
    whole = first(_gelu_operator, node)
    if whole is not None:
        return Activation({"none": "gelu", "tanh": "gelu_tanh"}[whole["approximate"]], whole["x"])
    for name, pattern in _ACTIVATIONS.items():
        found = first(pattern, node)
        if found is not None and dtype_of(found["x"]) == dtype_of(node):
            return Activation(name, found["x"])
    return None


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension of x."""

    name: str
    """`rms_norm` or `layer_norm`."""
    x: Node
    eps: float
    weight: Node | None = None
    bias: Node | None = None
    weight_offset: float = 0.0
    round_norm: bool = False


def _last_mean(pattern: Any) -> Any:
    """Match the mean over the last dimension, which stays as one of extent 1."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if not (isinstance(node, Node) and node.target is aten.mean.dim and len(node.args) == 3):
            return
        x, dims, keeps = node.args
        value = value_of(x)
        if keeps is True and value is not None and list(dims) in ([-1], [value.ndim - 1]):
            yield from pattern(x, known)

    return match


def _last_moments(pattern: Any) -> Any:
    """Match variance and mean over the last dimension, of all elements."""

    def match(node: Any, known: Bindings) -> Iterator[dict[str, Any]]:
        if not (isinstance(node, Node) and node.target is aten.var_mean.correction and len(node.args) == 2):
            return
        x, dims = node.args
        value = value_of(x)
        is_whole = node.kwargs.get("correction") == 0 and node.kwargs.get("keepdim") is True
        if is_whole and value is not None and list(dims) in ([-1], [value.ndim - 1]):
            yield from pattern(x, known)

    return match


_EPS = any_number("eps")
_SQUARE = either(call(aten.pow.Tensor_Scalar, _WIDE, number(2)), call(MUL, _WIDE, _WIDE))
_RMS = call(MUL, _WIDE, call(aten.rsqrt.default, call(ADD, _last_mean(_SQUARE), _EPS)), commutes=True)
_WEIGHT = maybe_converted(tensor("weight"))
_OFFSET = call(ADD, _WEIGHT, any_number("offset"), commutes=True)
_MOMENTS = _last_moments(_WIDE)
_LAYER = call(
    MUL,
    call(aten.sub.Tensor, _WIDE, item(_MOMENTS, 1)),
    call(aten.rsqrt.default, call(ADD, item(_MOMENTS, 0), _EPS)),
    commutes=True,
)
_LAYER_WEIGHTED = call(MUL, _LAYER, _WEIGHT, commutes=True)
_LAYER_BIASED = call(ADD, _LAYER_WEIGHTED, maybe_converted(tensor("bias")), commutes=True)
_ROUNDED = call(MUL, tensor("weight"), narrowed(_RMS), commutes=True)
_SPELLINGS = (
    ("rms_norm", narrowed(call(MUL, _RMS, _OFFSET, commutes=True))),
    ("rms_norm", narrowed(call(MUL, _RMS, _WEIGHT, commutes=True))),
    ("layer_norm", narrowed(_LAYER_BIASED)),
    ("layer_norm", narrowed(_LAYER_WEIGHTED)),
)
_SPELLINGS_ALONE = (("rms_norm", narrowed(_RMS)), ("layer_norm", narrowed(_LAYER)))
"""Those without a weight, which are part of others: matched where no other is."""


def norm_of(node: Node) -> Norm | None:
    """Read a node as a norm with a weight, or as a norm operator; None where it is none."""
    found = _norm_operator(node) or _rounded_norm(node) or _spelled_norm(node, _SPELLINGS)
    return found if found is not None and _is_right(node, found) else None


def bare_norm_of(node: Node) -> Norm | None:
    """Read a node as a norm without a weight; None where it is none."""
    found = _spelled_norm(node, _SPELLINGS_ALONE)
    return found if found is not None and _is_right(node, found) else None


def _norm_operator(node: Node) -> Norm | None:
    args = node.args
    if node.target is aten.layer_norm.default:
        return _of_arguments("layer_norm", args, 1e-5)
    if node.target is aten.rms_norm.default:
        return _of_arguments("rms_norm", args, None)
    if first(item(bind("norm"), 0), node) is None:
        return None
    source: Any = args[0]
    if source.target is aten.native_layer_norm.default:
        return _of_arguments("layer_norm", source.args, 1e-5)
    if source.target is getattr(aten, "_fused_rms_norm", _NO_OPERATOR).default:
        return _of_arguments("rms_norm", source.args, None)
    return None


class _NO_OPERATOR:  # noqa: N801 - it stands for an operator
    """Stand for an operator that this torch does not have."""

    default = None


def _of_arguments(name: str, args: tuple[Any, ...], eps: float | None) -> Norm | None:
    """Read the arguments (x, shape, weight, [bias,] eps) of an operator; RMS norms take the type's epsilon for None."""
    x, shape = args[:2]
    if len(shape) != 1:
        return None
    places = 4 if name == "layer_norm" else 3
    given = [*args[2:5], *[None] * 3]
    eps = given[places - 2] if given[places - 2] is not None else eps
    # What torch takes where eps is None: of float32, in which it computes a norm of 16 bits.
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return Norm(name, x, eps, given[0], given[1] if name == "layer_norm" else None)


def _rounded_norm(node: Node) -> Norm | None:
    """Read what rounds the norm before it multiplies with the weight, as Llama of transformers does."""
    found = first(_ROUNDED, node)
    if found is None or found["dtype"] != dtype_of(found["x"]):
        return None
    return Norm("rms_norm", found["x"], found["eps"], found["weight"], round_norm=True)


def _spelled_norm(node: Node, spellings: Any) -> Norm | None:
    for name, pattern in spellings:
        found = first(pattern, node)
        if found is not None:
            offset = found.get("offset", 0.0)
            return Norm(name, found["x"], found["eps"], found.get("weight"), found.get("bias"), offset)
    return None


def _is_right(node: Node, norm: Norm) -> bool:
    """Say whether x, weight and bias have the shapes and types that the operation on rows takes."""
    x, y = value_of(norm.x), value_of(node)
    if x is None or y is None or x.dtype != y.dtype or not same_shape(x.shape, y.shape):
        return False
    if not (x.is_contiguous() and y.is_contiguous()):
        return False
    for added in (norm.weight, norm.bias):
        value = value_of(added)
        if added is not None and (value is None or not same_shape(value.shape, x.shape[-1:]) or value.dtype != x.dtype):
            return False
    return True
