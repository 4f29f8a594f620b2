"""What stands in front of attention with a cache, in one launch: queries and keys turned, keys and values written.

A graph has a rotary embedding of the queries and one of the keys, and two writes of the cache, which are functional:
each gives the whole cache, and a copy at the graph's end writes that to the input. The kernel writes to the input, and
the graph says so by the operator that torch has for it, `auto_functionalized`: Inductor takes it apart again, and so
does `_graph_inplace` for graphs that run as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch.fx import Graph, Node

from ._graph_match import aten, same_extent, same_shape, value_of
from ._graph_nodes import OPERATORS, clean, put, replace
from ._graph_rotary import Rotary, by_tokens, rotaries_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_CACHE_DIMS, _POSITIONS = 4, 2
"""A cache is (batch, heads, length, dim); which of them positions are along."""


@dataclass(frozen=True)
class _Write:
    """A write of tokens to a cache."""

    node: Node
    """What gives the whole cache."""
    cache: Node
    """The input, which nothing else reads."""
    position: Node
    """(tokens,), int64."""
    tokens: Node
    """(batch, heads, tokens, dim)."""
    copy: Node
    """What writes it back."""

    @property
    def num_tokens(self) -> int:
        """Count those of all sequences; 0 where the graph leaves that open."""
        extents = value_of(self.tokens).shape
        count = extents[0] * extents[_POSITIONS]
        return count if isinstance(count, int) else 0


def replace_caches(graph: Graph, *, most_tokens: int | None = None) -> dict[str, int]:
    """Have queries turned, and keys and values written to caches, in one launch; return how often.

    Args:
        graph: what is rewritten in place.
        most_tokens: of all sequences, with which that is still done; None for any number. A graph that leaves it open
            is taken to have few.
    """
    count = 0
    while _join_one(graph, most_tokens):
        count += 1
    clean(graph)
    return {"rotary and cache": count} if count else {}


def _join_one(graph: Graph, most_tokens: int | None) -> bool:
    """Join the first keys of a graph that can be; say whether there were some. What is left is read anew each time."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    turned = rotaries_of(graph)
    writes = [x for x in map(_write_of, order) if x is not None]
    of_keys = [x for x in writes if x.tokens in turned and (most_tokens is None or x.num_tokens <= most_tokens)]
    queries = [x for x in turned.values() if all(x.node is not y.tokens for y in of_keys) and x.is_read_by_tokens]
    of_values = [x for x in writes if x.tokens not in turned]
    for keys in of_keys:
        found = _Joined.among(turned[keys.tokens], keys, queries, of_values, order)
        if found is not None:
            found.replace()
            return True
    return False


def _lies_by_tokens(node: Node) -> bool:
    """Say whether the tokens of heads (batch, heads, tokens, dim) lie at one stride, those of all sequences."""
    value = value_of(node)
    batch, _, tokens, _ = value.shape
    if same_extent(batch, 1) or same_extent(tokens, 1):
        return True
    return same_extent(value.stride(0), tokens * value.stride(_POSITIONS))


def _write_of(node: Node) -> _Write | None:
    """Read a node as a write of tokens to an input of the graph that nothing else reads; None where it is none."""
    if node.kwargs or node.target not in (aten.index_copy.default, aten.index_put.default):
        return None
    if node.target is aten.index_copy.default:
        cache, dim, position, tokens = node.args
        is_along = dim in (_POSITIONS, _POSITIONS - _CACHE_DIMS)
    else:
        cache, indices, tokens, *accumulate = node.args
        is_along = len(indices) == _POSITIONS + 1 and indices[:_POSITIONS] == [None] * _POSITIONS  # type: ignore[arg-type]
        is_along = is_along and not any(accumulate)
        position = indices[-1]  # type: ignore[index]
    if not is_along or not isinstance(cache, Node) or cache.op != "placeholder":
        return None
    copies = [x for x in cache.users if x.target is aten.copy_.default and x.args[:2] == (cache, node)]
    if len(copies) != 1 or set(cache.users) != {node, *copies} or copies[0].users:
        return None
    found = _Write(node, cache, position, tokens, copies[0])  # type: ignore[arg-type]
    return found if _is_taken(found) else None


def _is_taken(write: _Write) -> bool:
    """Say whether the kernel takes the shapes, types and strides of a write."""
    cache, position, tokens = (value_of(x) for x in (write.cache, write.position, write.tokens))
    if cache is None or position is None or tokens is None or cache.ndim != _CACHE_DIMS or tokens.ndim != _CACHE_DIMS:
        return False
    if position.dtype != torch.int64 or position.ndim != 1 or not position.is_contiguous():
        return False
    if not cache.is_contiguous() or cache.dtype != tokens.dtype or not cache.device == tokens.device == position.device:
        return False
    others = [0, 1, 3]
    are_one_head = same_shape([cache.shape[x] for x in others], [tokens.shape[x] for x in others])
    return are_one_head and same_extent(position.shape[0], tokens.shape[_POSITIONS])


@dataclass(frozen=True)
class _Joined:
    """What one launch computes."""

    query: Rotary
    key: Rotary
    keys: _Write
    values: _Write
    place: Node
    """In front of which the launch stands: the last of what it takes the place of."""

    @staticmethod
    def among(
        key: Rotary, keys: _Write, queries: list[Rotary], of_values: list[_Write], order: Mapping[Node, int]
    ) -> _Joined | None:
        """Find the queries and the values that stand nearest to keys, and fit them; None where there are none."""
        if set(key.node.users) != {keys.node} or not _lies_by_tokens(key.x):
            return None

        def near(node: Node) -> int:
            return abs(order[node] - order[keys.node])

        for query in sorted((x for x in queries if _are_beside(x, key)), key=lambda x: near(x.node)):
            for values in sorted((x for x in of_values if _are_alike(x, keys)), key=lambda x: near(x.node)):
                found = _Joined(
                    query, key, keys, values, max(query.node, keys.node, values.node, key=order.__getitem__)
                )
                if found._is_in_order(order):
                    return found
        return None

    def _is_in_order(self, order: Mapping[Node, int]) -> bool:
        """Say whether all that uses the results stands behind the place."""
        last = order[self.place]
        replaced = self.query.node, self.keys.node, self.values.node
        return all(order[user] > last for node in replaced for user in node.users)

    def replace(self) -> None:
        """Put the launch in the place of its parts."""
        place, caches = self.place, (self.keys.cache, self.values.cache)
        operands = {
            "x": by_tokens(place, self.query.x),
            "cos": self.query.cos,
            "sin": self.query.sin,
            "keys": by_tokens(place, self.key.x),
            "values": by_tokens(place, self.values.tokens),
            "key_cache": caches[0],
            "value_cache": caches[1],
            "cache_position": self.keys.position,
            **self.query.options,
        }
        result = value_of(self.query.node).transpose(1, 2)
        given = [result, *(torch.empty_like(value_of(x)) for x in caches)]
        several = put(place, auto_functionalized, (OPERATORS.rotary_cache.default,), operands, tuple(given))
        parts = [put(place, getitem, (several, i), {}, x) for i, x in enumerate(given)]
        replaced = self.query.node, self.keys.node, self.values.node
        for node, other in zip(replaced, (by_tokens(place, parts[0]), *parts[1:]), strict=True):
            replace(node, other)


def _are_beside(query: Rotary, key: Rotary) -> bool:
    """Say whether queries and keys have the same angles, and the same tokens."""
    if query.cos is not key.cos or query.sin is not key.sin or not _lies_by_tokens(query.x):
        return False
    one, other = value_of(query.x), value_of(key.x)
    return one.dtype == other.dtype and all(same_extent(one.shape[x], other.shape[x]) for x in (0, 2, 3))


def _are_alike(values: _Write, keys: _Write) -> bool:
    """Say whether values go where keys go, in a cache of the same sizes."""
    if values.position is not keys.position or values.cache is keys.cache or not _lies_by_tokens(values.tokens):
        return False
    pairs = [(keys.cache, values.cache), (keys.tokens, values.tokens)]
    return all(
        same_shape(value_of(x).shape, value_of(y).shape) and value_of(x).dtype == value_of(y).dtype for x, y in pairs
    )


def write_at_once(graph: Graph) -> None:
    """Have these launches write to the graph's inputs, for a graph that runs as it is."""
    for node in list(graph.nodes):
        operator: Any = OPERATORS.rotary_cache.default
        if node.target is not auto_functionalized or node.args[0] is not operator:
            continue
        items = {x.args[1]: x for x in node.users}
        result = put(node, operator, (), dict(node.kwargs), node.meta["val"][0])
        for place, given in enumerate((result, node.kwargs["key_cache"], node.kwargs["value_cache"])):
            item = items.get(place)
            if item is None:
                continue
            for user in list(item.users):
                if user.target is aten.copy_.default and user.args[0] is given:  # what is written already
                    graph.erase_node(user)
            replace(item, given)
        graph.erase_node(node)
