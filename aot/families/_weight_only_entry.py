"""What `weight_only` compiles: an entry of a kernel, and fake arguments. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, Uint8, cute

from aot.families._weight_only_kernel import WeightOnlyGemm
from aot.families._weight_only_tile import Tile


def weight_only_entry(tile: Tile, element: Any, *, is_scaled: bool, is_dependent: bool) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments: those of `Argument` that a packed weight has, in that order."""
    gemm = WeightOnlyGemm(element, tile, is_dependent)
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()

    def matrix(kind: Any, shape: Any, align: int) -> Any:
        per = align * 8 // int(kind.width)
        strides = (cute.sym_int64(divisibility=per), 1)
        return cute.runtime.make_fake_tensor(kind, shape, stride=strides, assumed_align=align)

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
        matrix(element, (m, k), 16),
        matrix(Uint8, (cute.sym_int(), cute.sym_int()), 16),
        matrix(element, (m, n), 2),
        factors if is_scaled else None,
        cute.runtime.make_fake_tensor(element, (cute.sym_int(),), stride=(1,), assumed_align=2),
        Int32(0),
        cute.runtime.make_fake_stream(),
    )
    return entry, arguments
