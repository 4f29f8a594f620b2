"""The entry of `cluster_split_k` with more of an epilogue than a bias. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, Optional

from cuda.bindings import driver as cuda
from cutlass import Int32, const_expr, cute

from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families import Entry
from aot.families._arguments import ALIGNMENT_BYTES, epilogue_arguments
from aot.families._epilogue_registers import in_order
from aot.families._skinny_epilogue_kernel import Vectors


def skinny_epilogue_entry(
    gemm: Any, signature: Signature, operation: Operation, stores: int = ALIGNMENT_BYTES
) -> Entry:
    """Make the entry of a configured kernel.

    Args:
        gemm: what launches it while tracing: called with A, B, D, `Vectors`, whether B is constant, the stream, and
            the order of the tiles where the kernel takes one.
        signature: the entry's arguments.
        operation: element types, layout and epilogue.
        stores: bytes of which rows of D begin at multiples, and what the epilogue reads; 1 for any element.
    """
    has_gate = operation.gate is not None

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor,
        residual: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        _workspace: None,
        prefetch_b: Int32,
        tile_order: Optional[Int32],  # noqa: UP045 - the compiler reads this form alone
        stream: cuda.CUstream,
    ) -> None:
        linear_first = None
        if const_expr(has_gate):
            b, scale_b, bias, linear_first = in_order(b, scale_b, bias)
        orders = () if const_expr(tile_order is None) else (tile_order,)
        gemm(a, b, d, Vectors(scale_a, scale_b, bias, residual, scale_d, linear_first), prefetch_b, stream, *orders)

    return Entry(entry, epilogue_arguments(signature, operation, stores))
