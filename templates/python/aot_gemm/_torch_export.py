"""Exported programs with the package's products."""

from __future__ import annotations

from typing import Any

import torch

from . import errors
from ._graph_pass import rewrite

_ASSERTION = torch.ops.aten._assert_tensor_metadata.default  # noqa: SLF001 - an operator that torch names so


def fuse(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Have this package compute the products and norms of an exported program; return another program.

        program = aot_gemm.torch.fuse(torch.export.export(model, (x,)))
        y = program.module()(x)
        torch._inductor.aoti_compile_and_package(program, package_path="model.pt2")

    It is decomposed into core ATen operators first, by `run_decompositions({})`, so that it is one for inference. What
    the table does not serve stays torch's. A program that is saved, or compiled by AOTInductor, needs this module
    imported in the process that runs it.

    Raises:
        OperandError: it is no exported program.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise errors.OperandError(
            f"fuse: got a {type(program).__qualname__}; expected a torch.export.ExportedProgram, as torch.export."
            "export(model, inputs) returns; for a model take patch, or torch.compile with backend="
            f"{__package__!r}"
        )
    found: Any = program.run_decompositions({})
    graph = found.graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_ASSERTION):
        # It says of a value in between what the graph itself decides, and would keep what is replaced.
        if node.args[0].op == "call_function":
            graph.erase_node(node)
    with torch.no_grad():
        rewrite(graph)
    found.graph_module.recompile()
    return found
