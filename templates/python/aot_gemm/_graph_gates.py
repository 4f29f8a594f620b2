"""Gates of a graph whose two halves lie side by side, by the package's kernel on rows: one where torch has two."""

from __future__ import annotations

from torch.fx import Graph, Node

from ._graph_choice import has_rows
from ._graph_expressions import activation_of
from ._graph_match import MUL, same_shape, value_of
from ._graph_nodes import OPERATORS, clean, put, put_item, replace
from ._graph_products import halves_of

_OPERATORS = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul"}
"""Operations on rows by the activation."""


def replace_gates(graph: Graph) -> dict[str, int]:
    """Replace activation(first half) * second half; return how many there were."""
    count = sum(_replace(node) for node in list(graph.nodes) if node.target in MUL and len(node.args) == 2)
    clean(graph)
    return {"gate of rows": count} if count else {}


def _replace(node: Node) -> bool:
    for gate, line in (node.args, node.args[::-1]):
        activation = activation_of(gate) if isinstance(gate, Node) else None
        if activation is None or activation.name not in _OPERATORS:
            continue
        both, name = halves_of(activation.x, line), _OPERATORS[activation.name]
        value, whole = value_of(node), value_of(both)
        if both is None or whole.dtype != value.dtype or not (whole.is_contiguous() and value.is_contiguous()):
            continue
        if same_shape(value.shape[:-1], whole.shape[:-1]) and has_rows(name, whole):
            several = put(node, getattr(OPERATORS, name).default, (both,), {}, [value])
            replace(node, put_item(node, several, 0))
            return True
    return False
