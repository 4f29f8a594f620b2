"""Products in a graph of ATen operators, and nodes put in their place."""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from . import (
    _torch_gates,  # noqa: F401 - these register the operators that nodes call
    _torch_grouped,  # noqa: F401
    _torch_modules,
    _torch_packed_gates,  # noqa: F401
    _torch_rows,  # noqa: F401
)
from ._graph_match import VIEWS, aten, same_extent, same_shape, value_of
from ._torch_operators import LIBRARY

OPERATORS = getattr(torch.ops, LIBRARY.ns)
_TRANSPOSES = (aten.permute.default, aten.t.default, aten.transpose.int)
_MATRIX_DIMS, _NUM_OPERANDS = 2, 3


@dataclass(frozen=True)
class GraphProduct:
    """x @ weight^T + bias, as a graph has it."""

    node: Node
    """What gives it, (..., n)."""
    root: Node
    """The operator that computes it: `node`, or what that is a view of."""
    x: Node
    """(..., k), of the leading dimensions of `node`, or where `shape` is given (m, k)."""
    weight: Node
    """(n, k), contiguous."""
    bias: Node | None
    shape: Any = None
    """What a product of rows is viewed as; None where x has the leading dimensions of the result."""

    @property
    def rows(self) -> int | None:
        """Return how many rows there are; None where the graph leaves that open."""
        count = value_of(self.x).numel() // value_of(self.weight).shape[1]
        return count if isinstance(count, int) else None


def product_of(node: Any) -> GraphProduct | None:
    """Read a node as a product with a weight that is held as nn.Linear holds it; None where it is none."""
    if not isinstance(node, Node) or value_of(node) is None:
        return None
    found = _linear_of(node) or _rows_of(node, node)
    if found is None and node.target in VIEWS and isinstance(node.args[0], Node):
        found = _rows_of(node, node.args[0])
    return found if found is not None and _is_served(found) else None


def _linear_of(node: Node) -> GraphProduct | None:
    if node.target not in (aten.linear.default, OPERATORS.linear.default) or len(node.args) > _NUM_OPERANDS:
        return None
    if any(name != "bias" for name in node.kwargs):
        return None
    x, weight, *bias = node.args
    return GraphProduct(node, node, x, weight, bias[0] if bias else node.kwargs.get("bias"))


def _rows_of(node: Node, root: Node) -> GraphProduct | None:
    """Read a product of two matrices, and the view of it that gives back the leading dimensions of x."""
    bias: Any = None
    if root.target is aten.mm.default:
        left, right = root.args
    elif root.target is aten.addmm.default and not root.kwargs:
        bias, left, right = root.args
    else:
        return None
    if not isinstance(right, Node) or right.target not in _TRANSPOSES or value_of(right) is None:
        return None
    weight = right.args[0]
    if node is root:
        return GraphProduct(node, root, left, weight, bias)
    result, rows = value_of(node), value_of(root)
    if not same_extent(result.shape[-1], rows.shape[-1]):
        return None
    source = left.args[0] if left.target in VIEWS else None
    whole = value_of(source)
    if whole is not None and same_shape(whole.shape[:-1], result.shape[:-1]):
        return GraphProduct(node, root, source, weight, bias)
    return GraphProduct(node, root, left, weight, bias, node.args[1])


def _is_served(product: GraphProduct) -> bool:
    """Say whether the operands are of types, shapes and strides that the package's products take."""
    x, weight, bias = (value_of(y) for y in (product.x, product.weight, product.bias))
    if x is None or weight is None or weight.ndim != _MATRIX_DIMS or x.ndim < 1:
        return False
    if not _is_plain_matrix(weight) or not same_extent(x.shape[-1], weight.shape[1]):
        return False
    if x.device.type not in _torch_modules.DEVICES or weight.device != x.device:
        return False
    if x.dtype not in _torch_modules.DTYPES or x.dtype != weight.dtype:
        return False
    if product.bias is None:
        return True
    return bias is not None and bias.shape == weight.shape[:1] and bias.dtype == x.dtype and bias.stride() == (1,)


def _is_plain_matrix(weight: Any) -> bool:
    """Say whether a weight is contiguous, of known extents, and lies where no fallback is needed."""
    n, k = weight.shape
    if not (isinstance(n, int) and isinstance(k, int)) or k == 0 or tuple(weight.stride()) != (k, 1):
        return False
    return bool(weight.storage_offset() * weight.element_size() % _torch_modules.ALIGNMENT == 0)


def put(place: Node, operator: Any, operands: tuple[Any, ...], options: dict[str, Any], value: Any) -> Node:
    """Insert a call in front of a node, and say what it gives.

    Args:
        place: the node.
        operator: what is called.
        operands: by position; those at the end that are None are left away.
        options: by keyword.
        value: the fake tensor, or those, that it gives.
    """
    while operands and operands[-1] is None:
        operands = operands[:-1]
    with place.graph.inserting_before(place):
        node = place.graph.call_function(operator, operands, options)
    node.meta.update({key: kept for key, kept in place.meta.items() if key in _KEPT})
    node.meta["val"] = value
    return node


_KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten", "from_node", "seq_nr", "partitioner_tag")
"""What is known of a node beside its value, and holds of what takes its place: where in the program it is from."""


def put_item(place: Node, several: Node, index: int) -> Node:
    """Insert one result of a call that gives several."""
    return put(place, getitem, (several, index), {}, several.meta["val"][index])


def put_product(place: Node, product: GraphProduct, operator: Any, operands: tuple[Any, ...], **options: Any) -> Node:
    """Insert a product for a node, which has its shape."""
    value = value_of(place)
    if product.shape is None:
        return put(place, operator, operands, options, value)
    rows = value_of(product.root)
    flat = put(place, operator, operands, options, rows.new_empty((rows.shape[0], value.shape[-1])))
    return put(place, aten.reshape.default, (flat, product.shape), {}, value)


def written_by(node: Node) -> set[Node]:
    """List what a node may write: what its operator's schema says, and all operands of what has no schema."""
    if node.op in ("placeholder", "get_attr", "output") or node.target is getitem:
        return set()
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return set(node.all_input_nodes)
    if not schema.is_mutable:
        return set()
    given = dict(zip((x.name for x in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    written = [given.get(x.name) for x in schema.arguments if x.alias_info is not None and x.alias_info.is_write]
    return {y for x in written for y in (x if isinstance(x, (list, tuple)) else [x]) if isinstance(y, Node)}


def replace(node: Node, other: Node) -> None:
    """Have another node be used in a node's place, which is taken out."""
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def clean(graph: Graph) -> None:
    """Take out what nothing uses."""
    graph.eliminate_dead_code()
