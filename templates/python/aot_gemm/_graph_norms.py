"""Norms of a graph by the package's kernels: alone, with the sum in front, and with the quantisation behind."""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from ._graph_choice import has_rows
from ._graph_expressions import Norm, bare_norm_of, norm_of
from ._graph_match import aten, is_conversion, same_shape, value_of
from ._graph_nodes import OPERATORS, clean, put, put_item, replace


def replace_norms(graph: Graph, *, most_layer_rows: int | None = None) -> dict[str, int]:
    """Replace the norms of a graph; return how many there were, by what was joined.

    Args:
        graph: what is rewritten in place.
        most_layer_rows: rows above which layer norms are left as they are; None where there is no limit.
    """
    counts = {"norm": 0, "sum and norm": 0}
    for read in (norm_of, bare_norm_of):
        for node in list(graph.nodes):
            norm = None if node.op != "call_function" else read(node)
            if norm is None or not _is_alone(node, norm) or not has_rows(norm.name, value_of(norm.x)):
                continue
            if norm.name != "layer_norm" or not _has_more_rows(norm.x, most_layer_rows):
                counts["sum and norm" if _replace(node, norm) else "norm"] += 1
        clean(graph)
    return {name: count for name, count in counts.items() if count}


def _has_more_rows(x: Node, most: int | None) -> bool:
    """Say whether a tensor has more rows than so many; one whose rows are left open is taken to have few."""
    rows = math.prod(value_of(x).shape[:-1])
    return most is not None and isinstance(rows, int) and rows > most


def _is_alone(node: Node, norm: Norm) -> bool:
    """Say whether nothing else reads what a norm computes on its way, as a backward pass does: it would stay.

    A conversion of an operand may be read by others.
    """
    ends = {norm.x, norm.weight, norm.bias}
    inside, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in ends and source not in inside:
                inside.add(source)
                pending.append(source)
    return all(
        found is node or set(found.users) <= inside or (is_conversion(found) and found.args[0] in ends)
        for found in inside
    )


def _replace(node: Node, norm: Norm) -> bool:
    """Replace a norm; say whether the sum in front of it went along."""
    total = norm.x
    addends = _addends(total) if all(map(_is_early, (norm.weight, norm.bias))) else None
    operator = getattr(OPERATORS, norm.name).default
    options: dict[str, Any] = {"eps": norm.eps}
    if norm.name == "rms_norm":
        options |= {"weight_offset": norm.weight_offset, "round_norm": norm.round_norm}
    vectors = (norm.weight,) if norm.name == "rms_norm" else (norm.weight, norm.bias)
    y = value_of(node)
    if addends is None:
        several = put(node, operator, (norm.x, *vectors), options, [y])
        replace(node, put_item(node, several, 0))
        return False
    x, residual = addends
    several = put(total, operator, (x, *vectors, residual), options, [y, value_of(total)])
    normed, added = put_item(total, several, 0), put_item(total, several, 1)
    total.replace_all_uses_with(added)
    replace(node, normed)
    if not total.users:
        graph = total.graph
        graph.erase_node(total)
    return True


def _is_early(vector: Node | None) -> bool:
    """Say whether a weight is there from the start, so that a norm may stand where the sum in front of it does."""
    return vector is None or vector.op in ("placeholder", "get_attr")


def _addends(node: Node) -> tuple[Node, Node] | None:
    """Return what a sum is of, where the kernel can compute it: two tensors like the sum."""
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    first, second = node.args
    z = value_of(node)
    for addend in (first, second):
        value = value_of(addend)
        if value is None or value.dtype != z.dtype or not same_shape(value.shape, z.shape):
            return None
        if not value.is_contiguous():
            return None
    return first, second  # type: ignore[return-value]


QUANTIZED = (torch.float8_e4m3fn,)
"""Types of 8 bits that a norm's kernel can give."""
_NORMS = {OPERATORS.rms_norm.default: "rms_norm", OPERATORS.layer_norm.default: "layer_norm"}


def join_quantisation(graph: Graph) -> int:
    """Have norms give 8 bits where all that reads them is one quantisation by rows; return how many do."""
    count = 0
    for node in list(graph.nodes):
        if node.target is not OPERATORS.quantize.default or len(node.args) != 1:
            continue
        dtype, granularity = node.kwargs["dtype"], node.kwargs.get("granularity", "row")
        source = node.args[0]
        if dtype not in QUANTIZED or granularity != "row" or source.target is not getitem or len(source.users) != 1:
            continue
        norm, place = source.args
        name = _NORMS.get(norm.target)
        if place == 0 and name is not None and has_rows(name, value_of(source), dtype):
            _join(node, source, norm)
            count += 1
    clean(graph)
    return count


def _join(node: Node, source: Node, norm: Node) -> None:
    """Have a norm give rows of 8 bits and their factors; a sum that it gives too stands between them."""
    values, scale = node.meta["val"]
    norm.kwargs = {**norm.kwargs, "out_dtype": values.dtype}
    norm.meta["val"] = [values, *norm.meta["val"][1:], scale]
    last = len(norm.meta["val"]) - 1
    for user in list(node.users):
        with node.graph.inserting_before(user):
            other = node.graph.call_function(getitem, (norm, 0 if user.args[1] == 0 else last))
        other.meta["val"] = user.meta["val"]
        replace(user, other)
    node.graph.erase_node(node)
    node.graph.erase_node(source)
