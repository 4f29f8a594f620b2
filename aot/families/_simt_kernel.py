"""The fallback family's kernel, in CuTe DSL. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, const_expr, cute, memory, range_constexpr

from aot.core.element import ElementType
from aot.core.operation import Operation
from aot.core.signature import Signature
from aot.families._arguments import cutlass_type, optional_arguments
from aot.families._simt_tile import NUM_THREADS, PAD, TILE, TILE_K

SIDE = 4
"""Rows and columns of D a thread holds."""

THREADS_ACROSS = TILE // SIDE
LOADS = TILE * TILE_K // NUM_THREADS
ROW = TILE + PAD


@cute.jit
def _stage(source: cute.Tensor, staged: cute.Tensor, first_row: Int32, first_k: Int32, thread: Int32) -> None:
    """Copy a TILE by TILE_K piece of a (rows, k) operand to shared memory as float32, zero outside."""
    for i in range_constexpr(LOADS):
        element = thread + i * NUM_THREADS
        k = element % TILE_K
        row = element // TILE_K
        value = Float32(0.0)
        if first_row + row < source.shape[0] and first_k + k < source.shape[1]:
            value = source[first_row + row, first_k + k].to(Float32)
        staged[k, row] = value


@cute.kernel
def _kernel(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, bias: cute.Tensor | None) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tiles_n = cute.ceil_div(d.shape[1], TILE)
    block_m, block_n = block // tiles_n, block % tiles_n
    shared = memory.SmemAllocator()
    layout = cute.make_layout((TILE_K, TILE), stride=(ROW, 1))
    staged_a = shared.allocate_tensor(Float32, layout, 16)
    staged_b = shared.allocate_tensor(Float32, layout, 16)
    first_m, first_n = block_m * TILE, block_n * TILE
    row, column = thread // THREADS_ACROSS * SIDE, thread % THREADS_ACROSS * SIDE
    sums = cute.make_rmem_tensor((SIDE, SIDE), Float32)
    sums.fill(0.0)
    for step in range(cute.ceil_div(a.shape[1], TILE_K)):
        _stage(a, staged_a, first_m, step * TILE_K, thread)
        _stage(b, staged_b, first_n, step * TILE_K, thread)
        cute.arch.sync_threads()
        for k in range_constexpr(TILE_K):
            for i in range_constexpr(SIDE):
                for j in range_constexpr(SIDE):
                    sums[i, j] = sums[i, j] + staged_a[k, row + i] * staged_b[k, column + j]
        cute.arch.sync_threads()
    for i in range_constexpr(SIDE):
        for j in range_constexpr(SIDE):
            if first_m + row + i < d.shape[0] and first_n + column + j < d.shape[1]:
                value = sums[i, j]
                if const_expr(bias is not None):
                    value = value + bias[first_n + column + j].to(Float32)
                d[first_m + row + i, first_n + column + j] = value.to(d.element_type)


@cute.jit
def entry(
    a: cute.Tensor,
    b: cute.Tensor,
    d: cute.Tensor,
    bias: cute.Tensor | None,
    _workspace: None,
    _prefetch_b: None,
    stream: cuda.CUstream,
) -> None:
    """Launch one block for each TILE by TILE piece of D, all along x: only x takes more than 65,535 blocks."""
    grid = (cute.ceil_div(d.shape[0], TILE) * cute.ceil_div(d.shape[1], TILE), 1, 1)
    _kernel(a, b, d, bias).launch(grid=grid, block=(NUM_THREADS, 1, 1), stream=stream)


def arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make a (m, k), b (n, k), d (m, n) of any strides, the bias, all aligned to an element, and the stream."""
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()

    def matrix(element: ElementType, shape: tuple[Any, Any]) -> Any:
        strides = (cute.sym_int64(), cute.sym_int64())
        return cute.runtime.make_fake_tensor(
            cutlass_type(element), shape, stride=strides, assumed_align=element.num_bytes
        )

    a, b, d = operation.a.element, operation.b.element, operation.d
    tensors = (matrix(a, (m, k)), matrix(b, (n, k)), matrix(d, (m, n)))
    return (*tensors, *optional_arguments(signature, operation, d.num_bytes), cute.runtime.make_fake_stream())
