"""Rotary position embeddings of a graph by the package's kernel: x * cos + cat(-x2, x1) * sin, as Llama has them.

Phi-3 and others turn the first elements of a head alone, or write it so: cat((turned, the rest of the head)).

For graphs that run as they are. A compiler of loops joins these with what stands beside them. Where keys and values are
written to a cache, `_graph_cache` has all of it in one launch, for compilers too.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import getitem
from typing import Any

from torch.fx import Graph, Node

from ._graph_choice import has_rows
from ._graph_match import ADD, MUL, VIEWS, aten, bind, call, first, is_conversion, same_extent, tensor, value_of
from ._graph_nodes import OPERATORS, clean, put, replace

_TURNED = call(
    ADD,
    call(MUL, tensor("x"), tensor("cos"), commutes=True),
    call(MUL, bind("turned"), tensor("sin"), commutes=True),
    commutes=True,
)
_ELEMENTWISE = (
    *(aten.cos.default, aten.sin.default, aten.unsqueeze.default),
    *(aten.alias.default, aten.clone.default),
)
_HEAD_DIMS = 4
_SWAPPED = [0, 2, 1, 3]
"""Heads and tokens exchanged."""


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of a graph."""

    node: Node
    """What gives it, (batch, heads, tokens, dim)."""
    x: Node
    """Of that shape."""
    cos: Node
    """(batch or 1, tokens, rotary dim), as `sin`; both halves of the last dimension are the same."""
    sin: Node
    part: Node | None = None
    """What gives the turned elements alone, where others are joined behind them."""

    @property
    def options(self) -> dict[str, Any]:
        """Return what the kernel is told of how much of a head is turned."""
        dim = value_of(self.cos).shape[-1]
        return {} if same_extent(dim, value_of(self.x).shape[-1]) else {"rotary_dim": dim}

    @property
    def is_read_by_tokens(self) -> bool:
        """Say whether the result lies in memory as the kernel's does, (batch, tokens, heads, dim)."""
        return bool(value_of(self.node).transpose(1, 2).is_contiguous())


def rotaries_of(graph: Graph) -> dict[Node, Rotary]:
    """Find the rotary embeddings of a graph that the package's kernel computes, by the nodes that give them."""
    found = {node: rotary for node in graph.nodes if (rotary := rotary_of(node)) is not None}
    parts = {x.part for x in found.values()}
    return {node: rotary for node, rotary in found.items() if node not in parts}


def rotary_of(node: Node) -> Rotary | None:
    """Read a node as a rotary embedding that the package's kernel computes; None where it is none."""
    return _all_turned(node) or _first_turned(node)


def _all_turned(node: Node) -> Rotary | None:
    found = first(_TURNED, node)
    if found is None or not _is_turned(found["turned"], found["x"]):
        return None
    cos, sin = _angles_of(found["cos"]), _angles_of(found["sin"])
    if cos is None or sin is None or not _fits(node, found["x"], cos, sin):
        return None
    return Rotary(node, found["x"], cos, sin)


def _first_turned(node: Node) -> Rotary | None:
    """Read a node as the first elements of a head, turned, and the others behind them; there may be no others."""
    if node.target is aten.cat.default and _is_along_last(node):
        parts = list(node.args[0])  # type: ignore[arg-type]
    elif node.target is aten.clone.default:
        parts = list(node.args)
    else:
        return None
    found = _all_turned(parts[0]) if len(parts) in (1, 2) and isinstance(parts[0], Node) else None
    if found is None:
        return None
    whole, size = _whole_of(found.x), value_of(found.x).shape[-1]
    others = [x for x in parts[1:] if value_of(x).shape[-1] != 0]
    if whole is None or value_of(node).shape != value_of(whole).shape or not has_rows("rotary", value_of(whole)):
        return None
    is_all = not others and value_of(whole).shape[-1] == size
    return Rotary(node, whole, found.cos, found.sin, parts[0]) if is_all or _are_rest(others, whole, size) else None


def _whole_of(part: Node) -> Any:
    """Return what a node has the first elements of, along the last dimension; None where it has others of it."""
    if part.target is not aten.slice.Tensor or len(part.args) != 4:
        return part
    whole: Any = part.args[0]
    if part.args[1] not in (-1, value_of(whole).ndim - 1):
        return part
    return whole if part.args[2] == 0 else None


def _are_rest(nodes: list[Node], x: Node, start: int) -> bool:
    """Say whether of some nodes there is one, all of x from some element on along the last dimension."""
    if len(nodes) != 1 or nodes[0].target is not aten.slice.Tensor or len(nodes[0].args) != 4:
        return False
    source, dim, begin, end = nodes[0].args
    is_last, last = dim in (-1, value_of(x).ndim - 1), value_of(x).shape[-1]
    return source is x and is_last and begin == start and end >= last  # type: ignore[operator]


def _is_along_last(node: Node) -> bool:
    """Say whether a node joins tensors along their last dimension."""
    return (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) in (-1, value_of(node).ndim - 1)


def replace_rotary(graph: Graph) -> dict[str, int]:
    """Replace the rotary embeddings of a graph; return how many there were."""
    count = 0
    for found in rotaries_of(graph).values():
        if found.is_read_by_tokens:
            _replace(found)
            count += 1
    clean(graph)
    return {"rotary": count} if count else {}


def by_tokens(place: Node, x: Node) -> Node:
    """Insert a view of heads (batch, heads, tokens, dim) as (batch, tokens, heads, dim), or the other way round."""
    return put(place, aten.permute.default, (x, _SWAPPED), {}, value_of(x).transpose(1, 2))


def _is_turned(node: Any, x: Node) -> bool:
    """Say whether a node is cat(-second half of x, first half of x), along the last dimension."""
    if not isinstance(node, Node) or node.target is not aten.cat.default or len(node.args[0]) != 2:  # type: ignore[arg-type]
        return False
    if not _is_along_last(node):
        return False
    negated, plain = node.args[0]  # type: ignore[misc]
    is_negated = negated.target is aten.neg.default
    return is_negated and _is_half(negated.args[0], x, 1) and _is_half(plain, x, 0)


def _is_half(node: Any, x: Node, place: int) -> bool:
    """Say whether a node is the first or second half of x along the last dimension."""
    whole = value_of(x)
    half = whole.shape[-1] // 2
    if node.target is getitem and node.args[0].target is aten.split.Tensor:
        split = node.args[0].args
        is_in_two = split[0] is x and split[1] == half and list(split[2:]) in ([-1], [whole.ndim - 1])
        return is_in_two and node.args[1] == place
    if node.target is not aten.slice.Tensor or node.args[0] is not x or len(node.args) != 4:
        return False
    dim, start, end = node.args[1:]
    is_here = start == place * half and (end == half if place == 0 else end >= whole.shape[-1])
    return dim in (-1, whole.ndim - 1) and is_here


def _angles_of(node: Node) -> Node | None:
    """Return the (batch, tokens, dim) that cos or sin is of each head, where both halves of it are the same."""
    if node.target is not aten.unsqueeze.default or node.args[1] != 1:
        return None
    source: Any = node.args[0]
    step = source
    while isinstance(step, Node):
        if step.target is aten.cat.default or step.target in VIEWS:
            return source if _is_doubled(step) else None
        is_scaled = step.target in MUL and isinstance(step.args[1], (int, float))
        if not (step.target in _ELEMENTWISE or is_conversion(step) or is_scaled):
            return None
        step = step.args[0]
    return None


def _is_doubled(node: Node) -> bool:
    """Say whether a node gives its last dimension twice: as cat((x, x), -1), or as a compiler writes that."""
    if node.target is aten.cat.default:
        parts: Any = node.args[0]
        return len(parts) == 2 and parts[0] is parts[1] and _is_along_last(node)
    step: Any = node.args[0]
    if isinstance(step, Node) and step.target is aten.clone.default:
        step = step.args[0]
    if not isinstance(step, Node) or step.target is not aten.expand.default:
        return False
    both, once = value_of(step), value_of(step.args[0])
    if both.shape[-2:-1] != (2,) or once is None or once.ndim != both.ndim or once.shape[-2] != 1:
        return False
    result = value_of(node)
    return same_extent(once.shape[-1], both.shape[-1]) and same_extent(result.shape[-1], 2 * both.shape[-1])


def _fits(node: Node, x: Node, cos: Node, sin: Node) -> bool:
    """Say whether the kernel takes x (batch, heads, tokens, dim) and angles (batch or 1, tokens, dim)."""
    heads, result = value_of(x), value_of(node)
    if heads.ndim != _HEAD_DIMS or heads.dtype != result.dtype or not has_rows("rotary", heads):
        return False
    for angles in map(value_of, (cos, sin)):
        if angles.ndim != _HEAD_DIMS - 1 or angles.dtype != heads.dtype or not angles.is_contiguous():
            return False
        extents = same_extent(angles.shape[1], heads.shape[2]) and same_extent(angles.shape[2], heads.shape[3])
        if not extents or not (angles.shape[0] == 1 or same_extent(angles.shape[0], heads.shape[0])):
            return False
    return True


def _replace(found: Rotary) -> None:
    node = found.node
    result = value_of(node).transpose(1, 2)
    operands = by_tokens(node, found.x), found.cos, found.sin
    several = put(node, OPERATORS.rotary.default, operands, found.options, [result])
    replace(node, by_tokens(node, put(node, getitem, (several, 0), {}, result)))
