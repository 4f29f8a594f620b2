"""What a graph computes twice, computed once; and what it computes from no input, computed when it is compiled.

Compilers do both by themselves. The backend without one would else have torch compute a mask, or the positions of
tokens, for each layer and each call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from ._graph_match import aten, value_of

MOST_BYTES = 2**24
"""Bytes of the largest tensor that is kept. An assumption: the mask of 2,896 tokens in 16 bits; of more tokens, a mask
costs less than the attention that reads it."""
_UNSET = tuple(getattr(aten, name) for name in ("empty", "empty_like", "empty_strided", "new_empty"))
"""Operators whose result nobody has written yet."""


def compute_once(module: GraphModule) -> int:
    """Have a functional graph compute nothing twice, and nothing that depends on no input; return how many are kept.

    A result that the graph gives, or that shares memory with one, is computed for each call as before: its caller may
    write it.
    """
    module.graph = _without_doubles(module.graph)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return 0  # what is computed now would be recorded
    constants = _constants(module)
    kept = [node for node in constants if any(user not in constants for user in node.users)]
    with _disable_current_modes(), torch.no_grad():
        values: dict[Node, Any] = {}
        for node in constants:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    for place, node in enumerate(kept):
        name = f"_computed_once_{place}"
        module.register_buffer(name, values[node], persistent=False)
        with module.graph.inserting_before(node):
            held = module.graph.get_attr(name)
        held.meta["val"] = value_of(node)
        node.replace_all_uses_with(held)
    for node in reversed(constants):
        module.graph.erase_node(node)
    return len(kept)


def _without_doubles(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Join equal nodes, as torch's own partitioner does; a torch that has no such function leaves the graph."""
    try:
        from torch._functorch.compile_utils import fx_graph_cse
    except ImportError:
        return graph
    return fx_graph_cse(graph)


def _constants(module: GraphModule) -> dict[Node, None]:
    """List the nodes that depend on no input, in their order."""
    given = {_memory_of(node) for node in module.graph.output_node().all_input_nodes}
    found: dict[Node, None] = {}
    for node in module.graph.nodes:
        is_free = all(source in found for source in node.all_input_nodes)
        if is_free and _is_fixed(node) and _memory_of(node) not in given:
            found[node] = None
    return found


def _memory_of(node: Node) -> StorageWeakRef | None:
    value = value_of(node)
    return None if value is None else StorageWeakRef(value.untyped_storage())


def _is_fixed(node: Node) -> bool:
    """Say whether a node gives the same tensor whenever it is called with the same operands, and one worth keeping."""
    operator, value = node.target, value_of(node)
    if node.op != "call_function" or not isinstance(operator, torch._ops.OpOverload) or value is None:  # noqa: SLF001
        return False
    if operator._schema.is_mutable or torch.Tag.nondeterministic_seeded in operator.tags:  # noqa: SLF001
        return False
    if operator.overloadpacket in _UNSET or not all(isinstance(x, int) for x in (*value.shape, *value.stride())):
        return False
    return bool(value.untyped_storage().nbytes() <= MOST_BYTES)
