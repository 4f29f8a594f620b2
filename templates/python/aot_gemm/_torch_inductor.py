"""A pass by which torch.compile has a model's products and norms computed by this package: no autotuning.

It goes in by Inductor's extension point for passes over its graph (`post_grad_custom_pre_pass`), whose class
`CustomGraphPass` is what torch documents for that.
"""

from __future__ import annotations

from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass

from ._graph_pass import rewrite
from ._torch_operators import LIBRARY
from ._version import __version__


class ProductsPass(CustomGraphPass):
    """Rewrites a graph of Inductor, as `rewrite` does any."""

    def __call__(self, graph: Any) -> None:
        """Rewrite a graph of Inductor."""
        rewrite(graph)

    def uuid(self) -> Any:
        """Return what Inductor's caches tell graphs apart by."""
        return f"{LIBRARY.ns} {__version__}"
