"""Which products of a graph may load their weight before the kernel in front of them has ended.

A kernel of this package that is told that its weight is constant may load it as soon as it starts. That is no value of
the past where nothing that may still run writes it, and a graph shows where that is so:

- It does not write the weight itself: that is one of its inputs, or a constant of it, and no operator of the graph may
  write that. (An exported program writes a buffer behind all of its graph.)
- What it was written by in front of the graph has ended. A kernel of this package lets the next one start only after
  it has waited for the end of all that was enqueued in front of it (docs/safety.md of the toolchain). So when a kernel
  starts that comes behind one of them in the graph, nothing from in front of the graph still runs.

That a product comes behind one of them is certain where the elements of an operand depend on elements of its result, in
whatever order a compiler has the graph run. The first product of a graph, with nothing of this package in front, loads
as by default.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ._graph_nodes import OPERATORS, written_by
from ._torch_operators import LIBRARY

_OPTION = "constant_weight"
_WEIGHTS = {
    OPERATORS.linear.default: (1,),
    OPERATORS.gated_linear.default: (1,),
    OPERATORS.gated_linear.parts: (1, 2),
    OPERATORS.linear_many.default: (1,),
    OPERATORS.packed_linear.default: (1,),
    OPERATORS.packed_gated_linear.default: (1, 2),
}
"""The places of the weights among the operands of products."""
_MAY_BE_TORCHS = (
    *(OPERATORS.gated_linear.parts, OPERATORS.packed_gated_linear.default),
    OPERATORS.quantize.default,
)
"""Operators that may be computed by kernels of torch, or in part."""


def mark_constant_weights(graph: Graph) -> int:
    """Tell products of a graph that their weights are constant where that is so, and no others; return how many."""
    written = {x for node in graph.nodes for x in written_by(node)}
    behind: set[Node] = set()
    count = 0
    for node in graph.nodes:
        is_behind = any(x in behind for x in node.all_input_nodes)
        if node.target in _WEIGHTS:
            is_constant = is_behind and all(_is_held(x, written) for x in _weights_of(node))
            options = {name: value for name, value in node.kwargs.items() if name != _OPTION}
            node.kwargs = {**options, _OPTION: True} if is_constant else options
            count += is_constant
        if _launches(node) or (is_behind and _reads_elements(node)):
            behind.add(node)
    return count


def _weights_of(node: Node) -> list[Any]:
    given = [node.args[place] for place in _WEIGHTS[node.target]]
    return [y for x in given for y in (x if isinstance(x, (list, tuple)) else [x])]


def _is_held(weight: Any, written: set[Node]) -> bool:
    """Say whether a weight is an input of the graph, or a constant of it, that the graph does not write."""
    return isinstance(weight, Node) and weight.op in ("placeholder", "get_attr") and weight not in written


def _launches(node: Node) -> bool:
    """Say whether a node launches a kernel of this package, whatever the graph is called with."""
    is_ours = node.op == "call_function" and getattr(node.target, "namespace", None) == LIBRARY.ns
    return is_ours and node.target not in _MAY_BE_TORCHS and _has_elements(node)


def _reads_elements(node: Node) -> bool:
    """Say whether a node's elements are made of those of its operands, and not of their shapes alone."""
    name = getattr(getattr(node.target, "_schema", None), "name", "").rpartition("::")[2]
    return not (name.endswith("_like") or name.startswith("new_")) and _has_elements(node)


def _has_elements(node: Node) -> bool:
    """Say whether a node gives tensors, or one, that have elements whatever the graph is called with."""
    value = node.meta.get("val")
    tensors = list(value) if isinstance(value, (list, tuple)) else [value]
    return bool(tensors) and all(
        isinstance(x, torch.Tensor) and all(statically_known_true(y > 0) for y in x.shape) for x in tensors
    )
