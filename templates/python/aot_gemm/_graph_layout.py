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
    """Copy operands of sums so that the sums are contiguous; return how many were copied.

    Only where all extents are known, and where each result of the graph keeps its strides.

    Args:
        module: a functional graph of ATen operators.
        inputs: the fake tensors that it is traced with.
    """
    mode = next((x.fake_mode for x in inputs if isinstance(x, torch._subclasses.FakeTensor)), None)  # noqa: SLF001
    if mode is None or not _is_static(module):
        return 0
    before = [value.stride() for value in _results(module)]
    copied: list[tuple[Node, Node]] = []
    while (found := _first_across(module)) is not None:
        node, operand = found
        with module.graph.inserting_before(node):
            options = {"memory_format": torch.contiguous_format}
            copy = module.graph.call_function(aten.clone.default, (operand,), options)
        node.replace_input_with(operand, copy)
        copied.append((copy, operand))
        _propagate(module, mode)
    if [value.stride() for value in _results(module)] != before:
        for copy, operand in reversed(copied):
            copy.replace_all_uses_with(operand)
            module.graph.erase_node(copy)
        _propagate(module, mode)
        return 0
    return len(copied)


def _is_static(module: GraphModule) -> bool:
    found = [node.meta.get("val") for node in module.graph.nodes if node.op != "output"]
    if any(x is None or isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) for x in found):
        return False
    return all(isinstance(x, int) for value in found if isinstance(value, torch.Tensor) for x in value.shape)


def _results(module: GraphModule) -> list[Any]:
    return [x for x in map(value_of, module.graph.output_node().all_input_nodes) if x is not None]


def _first_across(module: GraphModule) -> tuple[Node, Node] | None:
    """Return the first sum that is not contiguous though an operand of its shape is, and the operand that is not."""
    for node in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        value = value_of(node)
        pair = [value_of(x) for x in node.args]
        if value is None or value.is_contiguous() or any(x is None for x in pair):
            continue
        whole = [x for x, y in zip(node.args, pair, strict=True) if same_shape(y.shape, value.shape)]
        across = [x for x in whole if not value_of(x).is_contiguous()]
        if len(across) == 1:
            return node, across[0]
    return None


def _propagate(module: GraphModule, mode: Any) -> None:
    """Work out anew what each operator gives."""
    with mode:
        for node in module.graph.nodes:
            if node.op == "call_function" and not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
                node.meta["val"] = node.target(*args, **kwargs)
