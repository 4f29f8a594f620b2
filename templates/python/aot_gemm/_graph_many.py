"""Products of one x in a graph, such as query, key and value, joined to one launch where that is no slower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from ._graph_choice import is_chosen, is_planned
from ._graph_match import VIEWS, value_of
from ._graph_nodes import OPERATORS, GraphProduct, product_of, put, put_item, replace
from ._table import plan
from ._torch_many import MAX_WEIGHTS, MOST_ROWS, takes_one_launch

if TYPE_CHECKING:
    from torch.fx import Graph, Node


def join_many(graph: Graph) -> int:
    """Replace products of one x by one launch for up to four of them; return how many launches there are."""
    groups: dict[Any, list[GraphProduct]] = {}
    for node in graph.nodes:
        product = product_of(node) if node.op == "call_function" else None
        if product is not None and product.root is node and _may_join(product):
            groups.setdefault(_source_of(product.x), []).append(product)
    count = 0
    for found in groups.values():
        for start in range(0, len(found), MAX_WEIGHTS):
            some = _worth_joining(found[start : start + MAX_WEIGHTS])
            if some:
                _replace(some)
                count += 1
    return count


def _worth_joining(products: list[GraphProduct]) -> list[GraphProduct]:
    """Return all of the products, or all but the widest, or fewer, whose one launch is no slower; empty for none.

    A product of many columns may fill the device by itself, and others of few beside it not.
    """
    some = list(products)
    while len(some) > 1 and not _is_no_slower(some):
        some.remove(max(some, key=lambda x: value_of(x.weight).shape[0]))
    return some if len(some) > 1 else []


def _source_of(x: Node) -> Any:
    """Return what tells whether two nodes are the same rows: what they are a view of, and their shape and type."""
    source = x.args[0] if x.target in VIEWS else x
    value = value_of(x)
    return source, tuple(map(str, value.shape)), value.dtype


def _may_join(product: GraphProduct) -> bool:
    """Say whether a product has few rows, is not yet joined, and its weight is there from the beginning."""
    rows, node = product.rows, product.node
    value = value_of(node)
    if node.target is OPERATORS.linear.default or rows is None or not 0 < rows <= MOST_ROWS:
        return False
    held = [x for x in (product.weight, product.bias) if x is not None]
    if any(x.op not in ("placeholder", "get_attr") for x in held):
        return False
    return value.dtype == value_of(product.x).dtype and value.is_contiguous() and is_planned(product)


def _is_no_slower(products: list[GraphProduct]) -> bool:
    """Say whether the table's time of one launch is no more than those of the products one after the other.

    A product that would be torch's takes what torch was measured to take. Where a time is not known, one launch is
    taken for the faster one if each product would be this package's, since it has the same bytes to read and fewer
    beginnings.
    """
    extents, x = [value_of(product.weight).shape for product in products], value_of(products[0].x)
    rows, k = products[0].rows, extents[0][1]
    if not takes_one_launch(rows, tuple(n for n, _ in extents), k, x.dtype, x.device.index):
        return False
    try:
        one = plan(rows, sum(n for n, _ in extents), k, x.dtype, many=True)
        each = [plan(rows, n, k, x.dtype, bias=y.bias is not None) for y, (n, _) in zip(products, extents, strict=True)]
    except (errors.UnsupportedError, errors.DtypeError, errors.ShapeError):
        return False
    if one.tier == "fallback":
        return False
    are_chosen = [is_chosen(product) for product in products]
    times = [y.time_us if ours else y.library_us for y, ours in zip(each, are_chosen, strict=True)]
    known = [us for us in times if us is not None]
    if one.time_us is None or len(known) < len(times):
        return all(are_chosen)
    return one.time_us <= sum(known)


def _replace(products: list[GraphProduct]) -> None:
    """Put one launch in front of the first of the products, and its results in their places."""
    first = products[0].node
    for held in (x for y in products for x in (y.weight, y.bias) if x is not None and x.op == "get_attr"):
        first.prepend(held)
    weights, biases = [x.weight for x in products], [x.bias for x in products]
    values = [value_of(x.node).new_empty(value_of(x.node).shape) for x in products]
    several = put(first, OPERATORS.linear_many.default, (products[0].x, weights, biases), {}, values)
    for number, product in enumerate(products):
        replace(product.node, put_item(product.node, several, number))
