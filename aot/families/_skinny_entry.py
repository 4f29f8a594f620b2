"""The entry of `cluster_split_k` with vectors of scale factors. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Int32, cute

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import epilogue_arguments


def scaled_entry(gemm: Any, signature: Signature, operation: Operation) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, (scale_a, scale_b, bias), whether B is constant, and
            the stream.
        signature: the entry's arguments.
        operation: element types, layout and epilogue.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor,
        scale_b: cute.Tensor,
        bias: cute.Tensor,
        _residual: None,
        _scale_d: None,
        _workspace: None,
        prefetch_b: Int32,
        _tile_order: None,
        stream: cuda.CUstream,
    ) -> None:
        gemm(a, b, d, (scale_a, scale_b, bias), prefetch_b, stream)

    return Entry(entry, epilogue_arguments(signature, operation))
