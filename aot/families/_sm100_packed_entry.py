"""What `sm100_weight_only` compiles: an entry of a kernel, and fake arguments. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, Uint8, cute

from aot.families._sm100_packed_kernel import PackedGemmSm100
from aot.families._sm100_packed_tile import PackedTile


def packed_entry(tile: PackedTile, element: Any, *, is_scaled: bool) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments: those of `Argument` that a packed weight has, in that order."""
    gemm = PackedGemmSm100(element, tile)
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()

    def matrix(kind: Any, shape: Any) -> Any:
        strides = (cute.sym_int64(divisibility=128 // int(kind.width)), 1)
        return cute.runtime.make_fake_tensor(kind, shape, stride=strides, assumed_align=16)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_b: Any,
        bias: cute.Tensor,
        prefetch_b: Int32,
        stream: cuda.CUstream,
    ) -> None:
        gemm(a, b, d, (scale_b, bias), prefetch_b, stream)

    factors = cute.runtime.make_fake_tensor(Float32, (n,), stride=(cute.sym_int64(),), assumed_align=4)
    arguments = (
        matrix(element, (m, k)),
        matrix(Uint8, (cute.sym_int(), cute.sym_int())),
        matrix(element, (m, n)),
        factors if is_scaled else None,
        cute.runtime.make_fake_tensor(element, (cute.sym_int(),), stride=(1,), assumed_align=2),
        Int32(0),
        cute.runtime.make_fake_stream(),
    )
    return entry, arguments
