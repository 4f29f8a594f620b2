"""The backend of torch.compile that needs neither Triton nor a C compiler where it runs.

AOTAutograd traces the model, `rewrite` has this package compute its products and norms, and what is left is torch's own
kernels, called one after the other: what depends on no input once, when the graph is compiled. With
mode="reduce-overhead" they are captured in CUDA graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from . import errors
from ._graph_constants import compute_once
from ._graph_inplace import write_in_place
from ._graph_layout import order_sums
from ._graph_nodes import written_by
from ._graph_pass import rewrite
from ._graph_replay import Replayed

MODES = (None, "default", "reduce-overhead")


def backend(module: Any, inputs: Any, *, mode: str | None = None, options: dict[str, Any] | None = None) -> Any:
    """Compile a graph of torch.compile: torch.compile(model, backend="aot_gemm"), by the wheel's entry point.

    Under torch.no_grad() or torch.inference_mode() products and norms are this package's where its table serves them,
    and the rest is torch's. Where gradients are recorded, all is torch's.

    Args:
        module: the graph.
        inputs: what it is called with.
        mode: "reduce-overhead" captures CUDA graphs, and replays them; None or "default" does not. A stream that is
            being captured already captures what the model does either way.
        options: none.

    Raises:
        UnsupportedError: there is no such mode, or options are given.
    """
    if mode not in MODES or options:
        raise errors.UnsupportedError(
            f'backend "{__package__}" got mode {errors.show(mode)} and options {errors.show(options)}; expected no '
            'options, and mode="reduce-overhead" for CUDA graphs, or none'
        )
    does_replay = mode == "reduce-overhead"

    def compile_inference(graph_module: Any, example_inputs: Any) -> Any:
        can_replay = does_replay and _are_on_gpu(example_inputs)
        return make_boxed_func(compiled(graph_module, example_inputs, does_replay=can_replay))

    compiler = aot_autograd(
        fw_compiler=lambda graph_module, _: make_boxed_func(graph_module.forward),
        inference_compiler=compile_inference,
        keep_inference_input_mutations=True,
    )
    return compiler(module, inputs)


def compiled(graph_module: Any, inputs: Any, *, does_replay: bool) -> Any:
    """Rewrite a functional graph for inference in place, and return what computes it.

    Args:
        graph_module: the graph.
        inputs: the fake tensors that it was traced with.
        does_replay: whether it is captured in CUDA graphs.
    """
    order_sums(graph_module, inputs)
    compute_once(graph_module)
    rewrite(graph_module.graph, joins_rows=True)
    write_in_place(graph_module.graph)
    graph_module.recompile()
    if not does_replay:
        return graph_module.forward
    places = {node: place for place, node in enumerate(graph_module.graph.find_nodes(op="placeholder"))}
    # What has no schema may write anything, but to keep all of its operands would capture a graph for each address.
    writes = [node for node in graph_module.graph.nodes if hasattr(node.target, "_schema")]
    written = {places[x] for node in writes for x in written_by(node) if x in places}
    return Replayed(graph_module.forward, frozenset(written) | _static_inputs())


def _static_inputs() -> frozenset[int]:
    """Return the places of a graph's inputs that are a module's parameters and buffers, as torch.compile has noted.

    Inductor asks the same of it, for its own CUDA graphs. A torch that does not say so gives none.
    """
    metadata = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)  # noqa: SLF001
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def _are_on_gpu(inputs: Any) -> bool:
    """Say whether a CUDA graph can hold a call: all tensors of more than one element are on a GPU."""
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    is_static = all(isinstance(x, (torch.Tensor, int)) and not isinstance(x, torch.SymInt) for x in inputs)
    return is_static and any(x.is_cuda for x in tensors) and all(x.is_cuda for x in tensors)
