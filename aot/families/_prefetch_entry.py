"""The entry of kernels of our own that may load B early and need no workspace. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Int32, cute

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import aligned_arguments


def prefetch_entry(gemm: Any, signature: Signature, operation: Operation) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, the bias or None, whether B is constant, the stream.
        signature: the entry's arguments.
        operation: element type, layout and epilogue.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        bias: cute.Tensor | None,
        _workspace: None,
        prefetch_b: Int32,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        gemm(a, b, d, bias, prefetch_b, stream)

    return Entry(entry, aligned_arguments(signature, operation))
