"""Products of a graph by the package's kernels, with the gate, activation or sum behind them."""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any

from torch.fx import Graph, Node

from . import _torch_modules, errors
from ._extras import GATES
from ._graph_choice import is_chosen
from ._graph_expressions import activation_of
from ._graph_many import join_many
from ._graph_match import MUL, aten, is_used_by, same_extent, same_shape, value_of
from ._graph_nodes import (
    OPERATORS,
    GraphProduct,
    clean,
    product_of,
    put,
    put_product,
    replace,
)
from ._request import find, request_of
from ._table import plan

if TYPE_CHECKING:
    from collections.abc import Callable

_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
_HALVES = _MATRIX_DIMS = 2


def replace_products(graph: Graph) -> dict[str, int]:
    """Replace the products of a graph; return how many there were, by what was joined."""
    counts: dict[str, int] = {}
    for step in (_join_gate, _join_sum, _join_activation):
        _count_steps(graph, step, counts)
    joined = join_many(graph)
    if joined:
        counts["several weights"] = joined
    clean(graph)
    for step in (_take_alone, _take_groups):
        _count_steps(graph, step, counts)
    return counts


def _count_steps(graph: Graph, step: Callable[[Node], str | None], counts: dict[str, int]) -> None:
    """Take a step at each node, and count what was replaced by its name."""
    for node in list(graph.nodes):
        if node.op == "call_function" and (name := step(node)) is not None:
            counts[name] = counts.get(name, 0) + 1
    clean(graph)


def _join_gate(node: Node) -> str | None:
    """Replace activation(gate) * linear."""
    if node.target not in MUL or len(node.args) != 2:
        return None
    for gate, line in (node.args, node.args[::-1]):
        activation = activation_of(gate) if isinstance(gate, Node) else None
        if activation is None or activation.name not in GATES:
            continue
        name, x = activation.name, activation.x
        if _join_two(node, name, x, line) or _join_halves(node, name, x, line) or _join_packed(node, name, x, line):
            return "gate"
    return None


def _join_two(node: Node, name: str, gate: Node, line: Any) -> bool:
    """Replace a gate of two weights."""
    one, other = product_of(gate), product_of(line)
    if one is None or other is None or one.root is other.root:
        return False
    if one.x is not other.x or one.bias is not None or other.bias is not None:
        return False
    if not same_shape(value_of(one.weight).shape, value_of(other.weight).shape):
        return False
    if not (is_used_by(one.root, node) and is_used_by(other.root, node)):
        return False
    if not (is_chosen(one, activation=name, gated=True, num_weights=2) and _is_like(node, one)):
        return False
    operands = one.x, one.weight, other.weight
    replace(node, put_product(node, one, OPERATORS.gated_linear.parts, operands, activation=name))
    return True


def _join_halves(node: Node, name: str, gate: Node, line: Any) -> bool:
    """Replace a gate of one weight whose result is split in two."""
    both = halves_of(gate, line)
    product = product_of(both)
    if product is None or product.shape is not None or not is_used_by(product.root, node):
        return False
    if not is_chosen(product, columns=value_of(node).shape[-1], activation=name, gated=True):
        return False
    operands = product.x, product.weight, product.bias
    replace(node, put_product(node, product, OPERATORS.gated_linear.default, operands, activation=name))
    return True


def _join_packed(node: Node, name: str, gate: Node, line: Any) -> bool:
    """Replace a gate of two packed weights, where the wheel has it: which way is faster is decided with each call."""
    found = [_packed_operands(x, node) for x in (gate, line)]
    if None in found or gate is line:
        return False
    (x, weight, scale), (other_x, other, other_scale) = found
    options, value = gate.kwargs, value_of(node)
    if x is not other_x or options != line.kwargs or not same_shape(value.shape, value_of(gate).shape):
        return False
    if value.dtype != value_of(gate).dtype or not _are_alike(scale, other_scale):
        return False
    try:
        find(request_of(value_of(x).dtype, gated=True, activation=name, weight_dtype=options["weight_format"]))
    except (errors.UnsupportedError, errors.DtypeError):
        return False
    operands = x, weight, other, scale, other_scale
    replace(node, put(node, OPERATORS.packed_gated_linear.default, operands, {**options, "activation": name}, value))
    return True


def _packed_operands(node: Any, user: Node) -> tuple[Any, Any, Any] | None:
    """Return x, bytes and factors of a product of a packed weight, whose result one node alone uses; else None.

    With a bias, or an x that may be rounded, it is none.
    """
    if not isinstance(node, Node) or node.target is not OPERATORS.packed_linear.default or not is_used_by(node, user):
        return None
    x, weight, bias, scale, scale_x, *_ = (*node.args, *(None,) * len(("bias", "scale_w", "scale_x")))
    is_plain = bias is None and scale_x is None and set(node.kwargs) <= {"weight_format", "columns"}
    return (x, weight, scale) if is_plain else None


def _are_alike(scale: Any, other: Any) -> bool:
    """Say whether both weights have factors of one shape, or neither."""
    if scale is None or other is None:
        return scale is other
    return tuple(value_of(scale).shape) == tuple(value_of(other).shape)


def halves_of(first: Any, second: Any) -> Node | None:
    """Return what two nodes are the first and the second half of along the last dimension; None where of nothing."""
    one, other = _half_of(first), _half_of(second)
    if one is None or other is None or one[0] is not other[0] or (one[1], other[1]) != (0, 1):
        return None
    return one[0]


def _half_of(node: Any) -> tuple[Node, int] | None:
    """Return what a node is half of along the last dimension, and which half; None where it is none."""
    if not isinstance(node, Node) or value_of(node) is None:
        return None
    place: Any
    if node.target is getitem and node.args[0].target in _SPLITS:
        split, place = node.args
        source, dim = split.args[0], split.args[2] if len(split.args) > 2 else split.kwargs.get("dim", 0)
    elif node.target is aten.slice.Tensor and len(node.args) == 4 and not node.kwargs:  # without a step
        source, dim, start = node.args[:3]
        place = 0 if start == 0 else 1 if same_extent(start, value_of(node).shape[-1]) else None
    else:
        return None
    whole = value_of(source)
    is_last = whole is not None and dim in (-1, whole.ndim - 1)
    is_half = is_last and whole.shape[-1] == _HALVES * value_of(node).shape[-1]
    return (source, place) if is_half and place in (0, 1) else None


def _is_like(node: Node, product: GraphProduct) -> bool:
    """Say whether a node has the shape and type of a product, and is contiguous as that will be."""
    value, own = value_of(node), value_of(product.node)
    return value.dtype == own.dtype and same_shape(value.shape, own.shape) and value.is_contiguous()


def _activated(node: Any) -> tuple[GraphProduct, str | None] | None:
    """Read a node as a product, or the activation of one that nothing else uses."""
    if not isinstance(node, Node):
        return None
    product = product_of(node)
    if product is not None:
        return product, None
    activation = activation_of(node)
    product = None if activation is None else product_of(activation.x)
    if activation is None or product is None or not is_used_by(product.root, node):
        return None
    return product, activation.name


def _is_only_for(product: GraphProduct, addend: Any, node: Node) -> bool:
    """Say whether nothing but a sum reads an addend, and nothing but that its product; so that no other addend does."""
    return set(addend.users) == {node} and (product.root is addend or is_used_by(product.root, addend))


def _join_sum(node: Node) -> str | None:
    """Replace activation(product) + residual."""
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    for one, residual in (node.args, node.args[::-1]):
        found, added = _activated(one), value_of(residual)
        if found is None or added is None or residual is one:
            continue
        product, name = found
        if product.shape is not None or not _is_like(node, product) or not _is_only_for(product, one, node):
            continue
        if added.dtype != value_of(node).dtype or not same_shape(added.shape, value_of(node).shape):
            continue
        if not added.is_contiguous() or not is_chosen(product, activation=name, residual=True):
            continue
        operands = product.x, product.weight, product.bias, None, None, residual
        options = {} if name is None else {"activation": name}
        replace(node, put_product(node, product, OPERATORS.linear.default, operands, **options))
        return "sum"
    return None


def _join_activation(node: Node) -> str | None:
    """Replace the activation of a product."""
    found = _activated(node)
    if found is None or found[1] is None or not _is_like(node, found[0]):
        return None
    product, name = found
    if not is_chosen(product, activation=name):
        return None
    operands = product.x, product.weight, product.bias
    replace(node, put_product(node, product, OPERATORS.linear.default, operands, activation=name))
    return "activation"


def _take_alone(node: Node) -> str | None:
    """Replace a product, with its bias."""
    product = product_of(node)
    if product is None or product.root.target is OPERATORS.linear.default:  # which is this package's already
        return None
    if not _is_like(node, product) or not is_chosen(product):
        return None
    operands = product.x, product.weight, product.bias
    replace(node, put_product(node, product, OPERATORS.linear.default, operands))
    return "product"


def _take_groups(node: Node) -> str | None:
    """Replace the products of groups of rows, of weights that are held as (groups, n, k)."""
    if node.target is not _GROUPED or len(node.args) != _NUM_GROUPED or node.kwargs:
        return None
    x, right, offsets = node.args
    weight = _stack_of(right)
    if weight is None or not _has_groups(value_of(x), value_of(weight), value_of(node)):
        return None
    replace(node, put(node, OPERATORS.grouped_linear.default, (x, weight, offsets), {}, value_of(node)))
    return "groups"


_GROUPED = getattr(aten._grouped_mm, "default", None) if hasattr(aten, "_grouped_mm") else None  # noqa: SLF001
"""None where this torch has no such operator; nodes of a graph call none that is None."""
_NUM_GROUPED = 3


def _stack_of(right: Any) -> Node | None:
    """Return the contiguous (groups, n, k) that a right operand (groups, k, n) is the transpose of."""
    if not isinstance(right, Node) or right.target not in (aten.transpose.int, aten.permute.default):
        return None
    weight: Any = right.args[0]
    held = value_of(weight)
    if held is None or held.ndim != _NUM_GROUPED or not held.is_contiguous():
        return None
    return weight if tuple(value_of(right).stride()) == (held.stride(0), 1, held.stride(1)) else None


def _has_groups(rows: Any, weight: Any, result: Any) -> bool:
    """Say whether the wheel has tuned kernels for rows (m, k) of groups."""
    if rows.ndim != _MATRIX_DIMS or rows.device.type not in _torch_modules.DEVICES or rows.dtype != weight.dtype:
        return False
    groups, n, k = weight.shape
    try:
        found = plan(groups, n, k, rows.dtype, groups=groups)
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError):
        return False
    return found.tier != "fallback" and rows.is_contiguous() and result.is_contiguous()
