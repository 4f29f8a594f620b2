"""Sums whose rows do not lie in a row, brought in order: one copy in front, in place of slow kernels all along.

A vision tower turns the pixels of a patch into a token by a convolution, whose result has the channels outside. The sum
with the positions keeps that layout, and so does every residual behind it: each of torch's sums and norms then reads
memory across. A compiler chooses layouts; the backend without one does it here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from ._graph_match import aten, same_shape, value_of


def order_sums(module: GraphModule, inputs: Any) -> int:
    """Copy operands of sums so that rows of the sums lie in a row; return how many were copied.

    Only where all extents are known, and where each result of the graph keeps its strides: else nothing is changed.

    Args:
        module: a functional graph of ATen operators.
        inputs: the fake tensors that it is traced with.
    """
    mode = next((x.fake_mode for x in inputs if isinstance(x, torch._subclasses.FakeTensor)), None)  # noqa: SLF001
    if mode is None or not _is_static(module):
        return 0
    values: dict[Node, Any] = {}
    copies: list[tuple[Node, Node]] = []
    while (found := _first_across(module, values)) is not None:
        node, operand = found
        with module.graph.inserting_before(node):
            options = {"memory_format": torch.contiguous_format}
            copy = module.graph.call_function(aten.clone.default, (operand,), options)
        node.replace_input_with(operand, copy)
        copies.append((copy, operand))
        if not _propagate(module, mode, copy, values):
            break
    else:
        if all(
            _strides(values.get(x, value_of(x))) == _strides(value_of(x)) for x in module.graph.output_node().args[0]
        ):
            for node, value in values.items():
                node.meta["val"] = value
            return len(copies)
    for copy, operand in reversed(copies):
        copy.replace_all_uses_with(operand)
        module.graph.erase_node(copy)
    return 0


def _is_static(module: GraphModule) -> bool:
    found = [node.meta.get("val") for node in module.graph.nodes if node.op != "output"]
    if any(x is None or isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) for x in found):
        return False
    return all(isinstance(x, int) for value in found if isinstance(value, torch.Tensor) for x in value.shape)


def _strides(value: Any) -> Any:
    return value.stride() if isinstance(value, torch.Tensor) else None


def _first_across(module: GraphModule, values: dict[Node, Any]) -> tuple[Node, Node] | None:
    """Return the first sum whose rows do not lie in a row though those of an operand do, and the other operand."""
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        value = values.get(node, value_of(node))
        pair = [values.get(x, value_of(x)) if isinstance(x, Node) else None for x in node.args]
        if value is None or not _is_across(value) or any(x is None for x in pair):
            continue
        whole = [(x, y) for x, y in zip(node.args, pair, strict=True) if same_shape(y.shape, value.shape)]
        across = [x for x, y in whole if _is_across(y)]
        if len(across) == 1:
            return node, across[0]
    return None


def _is_across(value: Any) -> bool:
    return bool(value.ndim > 1 and value.shape[-1] > 1 and value.stride(-1) != 1)


def _propagate(module: GraphModule, mode: Any, copy: Node, values: dict[Node, Any]) -> bool:
    """Work out what a copy gives, and what depends on it where strides change; say whether that could be done."""
    changed = {copy}
    try:
        with mode:
            for node in module.graph.nodes:
                if node.op != "call_function" or (node is not copy and not changed.intersection(node.all_input_nodes)):
                    continue
                args, kwargs = torch.fx.node.map_arg(
                    (node.args, node.kwargs), lambda x: values.get(x, x.meta.get("val"))
                )
                value, before = node.target(*args, **kwargs), values.get(node, node.meta.get("val"))
                if node is copy or not isinstance(value, torch.Tensor) or _strides(value) != _strides(before):
                    values[node] = value
                    changed.add(node)
    except (RuntimeError, ValueError):  # a view that the strides of before allowed
        return False
    return True
