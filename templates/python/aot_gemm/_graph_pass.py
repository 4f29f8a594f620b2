"""The pass over graphs of ATen operators that has this package compute their products, and joins what stands beside.

It reads what the graph means, and no source of a model; no weight is moved. A graph that is rewritten computes what it
did, with fewer roundings to 16 bits in between. It has to be one for inference, whose only writes are copies at the
end, as AOTAutograd, Inductor and `ExportedProgram.run_decompositions` give.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch.fx import Graph

from ._graph_cache import replace_caches
from ._graph_choice import MOST_ROWS_OF_LAYER_NORMS, MOST_TOKENS_OF_CACHES
from ._graph_gates import replace_gates
from ._graph_norms import join_quantisation, replace_norms
from ._graph_order import mark_constant_weights
from ._graph_products import replace_products
from ._graph_rotary import replace_rotary
from ._torch_operators import LIBRARY

_LOGGER = logging.getLogger(LIBRARY.ns)


@dataclass(frozen=True)
class GraphReport:
    """What a pass has replaced, and how often: by what was joined."""

    counts: dict[str, int] = field(default_factory=dict)
    """Of `product`, `several weights`, `activation`, `sum`, `gate`, `groups`, `norm`, `sum and norm`,
    `norm and quantisation`, `gate of rows`, `rotary` and `rotary and cache`."""

    def __str__(self) -> str:
        return ", ".join(f"{count} x {name}" for name, count in sorted(self.counts.items())) or "nothing"


def rewrite(graph: Graph, *, joins_rows: bool = False) -> GraphReport:
    """Have the package compute the products and norms of a graph; it stays as it is where that is not served.

    What is replaced is logged, at the level INFO of the logger that has the package's name. Nothing is replaced while
    deterministic algorithms are asked for.

    Args:
        graph: what is rewritten in place.
        joins_rows: whether rotary embeddings without a cache, caches of many tokens, and gates of a product that is
            torch's, are replaced too, as where no compiler takes the graph from here.
    """
    if torch.are_deterministic_algorithms_enabled():
        return GraphReport()
    counts = replace_norms(graph, most_layer_rows=None if joins_rows else MOST_ROWS_OF_LAYER_NORMS)
    counts |= replace_caches(graph, most_tokens=None if joins_rows else MOST_TOKENS_OF_CACHES)
    counts |= replace_rotary(graph) if joins_rows else {}
    quantised = join_quantisation(graph)
    if quantised:
        counts["norm and quantisation"] = quantised
    for name, count in replace_products(graph).items():
        counts[name] = counts.get(name, 0) + count
    counts |= replace_gates(graph) if joins_rows else {}
    mark_constant_weights(graph)
    graph.lint()
    report = GraphReport(counts)
    _LOGGER.info("graph: %s", report)
    return report
