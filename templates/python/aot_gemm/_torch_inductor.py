"""A pass by which torch.compile has a model's products computed by this package, chosen by its table: no autotuning.

It goes in by Inductor's extension point for passes over its graph (`post_grad_custom_pre_pass`), whose class
`CustomGraphPass` is what torch documents for that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import _torch_modules
from ._torch_operators import LIBRARY
from ._version import __version__

_aten = torch.ops.aten
_TRANSPOSES = (_aten.permute.default, _aten.t.default, _aten.transpose.int)


class ProductsPass(CustomGraphPass):
    """Replaces x @ weight^T, and the same with a bias, where the table has a tuned kernel for every number of rows."""

    def __call__(self, graph: Any) -> None:
        """Rewrite a graph of Inductor."""
        for node in list(graph.nodes):
            operands = _operands(node)
            if operands is None or not _is_tuned(*operands):
                continue
            x, weight, bias = operands
            operator = getattr(torch.ops, LIBRARY.ns).linear.default
            with graph.inserting_before(node):
                product = graph.call_function(operator, (x, weight) if bias is None else (x, weight, bias))
            product.meta.update(node.meta)
            product.meta.pop("eager_input_vals", None)
            node.replace_all_uses_with(product)
            graph.erase_node(node)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Return what Inductor's caches tell graphs apart by."""
        return f"{LIBRARY.ns} {__version__}"


def _operands(node: Any) -> tuple[Any, Any, Any] | None:
    """Return x, weight (n, k) and bias of a node that multiplies x with a weight's transpose; None for any other."""
    if node.target is _aten.mm.default:
        (x, right), bias = node.args, None
    elif node.target is _aten.addmm.default and not node.kwargs and len(node.args) == 3:
        bias, x, right = node.args
    else:
        return None
    if not isinstance(right, torch.fx.Node) or right.target not in _TRANSPOSES:
        return None
    return x, right.args[0], bias


def _is_tuned(x: Any, weight: Any, bias: Any) -> bool:
    values = [None if node is None else node.meta.get("val") for node in (x, weight, bias)]
    if any(not isinstance(value, torch.Tensor) for value in values[:2]):
        return False
    left, right, added = values
    if left.device.type not in _torch_modules.DEVICES or left.dtype != right.dtype:
        return False
    n, k = right.shape
    if not all(isinstance(extent, int) for extent in (n, k)) or tuple(right.stride()) != (k, 1):
        return False
    if added is not None and (tuple(added.shape) != (n,) or added.dtype != left.dtype):
        return False
    if left.dtype not in _torch_modules.DTYPES:
        return False
    return _torch_modules.why_not_planned(n, k, left.dtype, bias=added is not None) is None
