"""The entry of kernels of our own that may load B early and need no workspace. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, Optional

from cuda.bindings import driver as cuda
from cutlass import Int32, const_expr, cute

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import ALIGNMENT_BYTES, aligned_arguments


def prefetch_entry(gemm: Any, signature: Signature, operation: Operation, stores: int = ALIGNMENT_BYTES) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, the bias or None, whether B is constant, the
            stream, and the order of the tiles where the kernel takes one.
        signature: the entry's arguments.
        operation: element type, layout and epilogue.
        stores: bytes of which rows of D begin at multiples, and what the epilogue reads; 1 for any element.
    """

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        bias: cute.Tensor | None,
        _workspace: None,
        prefetch_b: Int32,
        tile_order: Optional[Int32],  # noqa: UP045 - the compiler reads this form alone
        stream: cuda.CUstream,
    ) -> None:
        orders = () if const_expr(tile_order is None) else (tile_order,)
        gemm(a, b, d, bias, prefetch_b, stream, *orders)

    return Entry(entry, aligned_arguments(signature, operation, stores))
