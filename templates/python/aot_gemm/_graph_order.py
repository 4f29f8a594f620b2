"""Which products of a graph may load their weight before the kernel in front of them has ended.

A kernel of this package that is told that its weight is constant may load it as soon as it starts. That is no value of
the past where nothing that may still run writes it, and a graph shows where that is so:

- It does not write the weight itself: that is one of its inputs, and nothing copies to it or changes it in place.
- What it was written by in front of the graph has ended. A kernel of this package lets the next one start only after
  it has waited for the end of all that was enqueued in front of it (docs/safety.md of the toolchain). So when a kernel
  starts that comes behind one of them in the graph, nothing from in front of the graph still runs.

That a product comes behind one of them is certain where an operand of it depends on its result, in whatever order a
compiler has the graph run. The first product of a graph, with nothing of this package in front, loads as by default.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ._graph_nodes import OPERATORS
from ._torch_operators import LIBRARY

_WEIGHTS = {
    OPERATORS.linear.default: (1,),
    OPERATORS.gated_linear.default: (1,),
    OPERATORS.gated_linear.parts: (1, 2),
    OPERATORS.linear_many.default: (1,),
    OPERATORS.packed_linear.default: (1,),
    OPERATORS.packed_gated_linear.default: (1, 2),
}
"""The places of the weights among the operands of products."""
_MAY_BE_TORCHS = (OPERATORS.gated_linear.parts, OPERATORS.packed_gated_linear.default)
"""Operators of which a part may be computed by kernels of torch."""


def mark_constant_weights(graph: Graph) -> int:
    """Tell products of a graph that their weights are constant, where that is so; return how many."""
    written = _written(graph)
    behind: set[Node] = set()
    count = 0
    for node in graph.nodes:
        is_behind = any(x in behind for x in node.all_input_nodes)
        if is_behind and node.target in _WEIGHTS and all(_is_held(x, written) for x in _weights_of(node)):
            node.kwargs = {**node.kwargs, "constant_weight": True}
            count += 1
        if is_behind or _launches(node):
            behind.add(node)
    return count


def _weights_of(node: Node) -> list[Any]:
    given = [node.args[place] for place in _WEIGHTS[node.target]]
    return [y for x in given for y in (x if isinstance(x, (list, tuple)) else [x])]


def _is_held(weight: Any, written: set[Node]) -> bool:
    """Say whether a weight is an input of the graph, or a constant of it, that the graph does not write."""
    return isinstance(weight, Node) and weight.op in ("placeholder", "get_attr") and weight not in written


def _written(graph: Graph) -> set[Node]:
    """List what operators of a graph may write: what their schema says, and all operands of one without a schema."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op == "output":
            continue
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or (schema is None and isinstance(node.target, torch._ops.HigherOrderOperator)):  # noqa: SLF001
            found.update(node.all_input_nodes)
        elif schema is not None and schema.is_mutable:
            given = dict(zip((x.name for x in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
            for argument in schema.arguments:
                value = given.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    found.update(
                        x for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, Node)
                    )
    return found


def _launches(node: Node) -> bool:
    """Say whether a node launches a kernel of this package, whatever the graph is called with."""
    target = node.target
    if node.op != "call_function" or getattr(target, "namespace", None) != LIBRARY.ns or target in _MAY_BE_TORCHS:
        return False
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and all(statically_known_true(x > 0) for x in first.shape)
