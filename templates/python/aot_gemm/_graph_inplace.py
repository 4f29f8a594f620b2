"""Writes of a graph to its inputs where they lie, as a model writes its cache of keys and values.

A functional graph writes a copy of an input, and the copy back at its end: three times the traffic of the whole cache
for one token. Inductor undoes that by itself; this does for graphs that run as they are.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ._graph_cache import write_at_once
from ._graph_match import aten

_WRITES = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
}


def write_in_place(graph: Graph) -> int:
    """Have what is copied back to an input be written there at once; return how many writes of torch's were.

    Only where nothing else reads the input: a later reader would see what was written, and a view of it too. Caches
    that `_graph_cache` joins are such inputs.
    """
    write_at_once(graph)
    count = 0
    for node in list(graph.nodes):
        if node.target is not aten.copy_.default:
            continue
        target, source = node.args[:2]
        if not _is_write_of(target, source) or set(target.users) != {source, node}:
            continue
        source.target = _WRITES[source.target]  # type: ignore[index]
        node.replace_all_uses_with(source)
        graph.erase_node(node)
        count += 1
    return count


def _is_write_of(target: object, source: object) -> bool:
    """Say whether a node writes a part of an input, and gives the whole."""
    is_input = isinstance(target, Node) and target.op == "placeholder"
    return is_input and isinstance(source, Node) and source.target in _WRITES and source.args[0] is target
