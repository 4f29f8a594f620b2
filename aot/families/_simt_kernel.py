"""The fallback family's kernel, in CuTe DSL. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Constexpr, Int32, const_expr, cute, memory, range_constexpr

from aot.core.element import ElementType
from aot.core.formats import FactorLayout, Operand
from aot.core.grouping import Grouping
from aot.core.operands import element_of
from aot.core.operation import Operation
from aot.core.signature import Argument, Signature
from aot.families._arguments import cutlass_type
from aot.families._epilogue_registers import in_turns
from aot.families._epilogue_steps import EpilogueOperands, finish
from aot.families._simt_narrow import element_at, factor_at
from aot.families._simt_quantized import inserted, store_row, with_factors_of_d
from aot.families._simt_tile import NUM_THREADS, PAD, TILE, TILE_K, num_halves

SIDE = 4
"""Rows and columns of D a thread holds."""

THREADS_ACROSS = TILE // SIDE
LOADS = TILE * TILE_K // NUM_THREADS
ROW = TILE + PAD

IN_MEMORY = {
    ElementType.TFLOAT32: ElementType.FLOAT32,
    ElementType.E2M1: ElementType.INT8,
    ElementType.E8M0: ElementType.INT8,
}
"""Element types that are read as another: TF32 is multiplied as it is in memory, exactly; the others are bytes."""


@cute.jit
def _stage(
    source: cute.Tensor,
    staged: cute.Tensor,
    first_row: Int32,
    first_k: Int32,
    thread: Int32,
    scale: cute.Tensor | None,
    form: Constexpr[Operand],
    turn: Constexpr[int | None] = None,
) -> None:
    """Copy a TILE by TILE_K piece of a (rows, k) operand to shared memory, widened and scaled, zero outside.

    With a turn, 0 or 1, it is a piece of those of each two rows that come first or second.
    """
    for i in range_constexpr(LOADS):
        element = thread + i * NUM_THREADS
        k = element % TILE_K
        row = element // TILE_K
        value = staged.element_type(0)
        at = first_row + row if const_expr(turn is None) else 2 * (first_row + row) + turn
        if at < source.shape[0] and first_k + k < source.shape[1]:
            value = element_at(source, at, first_k + k, form).to(staged.element_type)
            if const_expr(scale is not None):
                value = value * factor_at(scale, at, first_k + k, source.shape[1], form)
        staged[k, row] = value


@cute.jit
def _multiply(staged_a: cute.Tensor, staged_b: cute.Tensor, sums: cute.Tensor, row: Int32, column: Int32) -> None:
    """Multiply a thread's rows and columns of two staged tiles, to its sums.

    What is read is held in Python's lists, each element once: traced with a read for each product, a kernel took half
    as long again to compile, to the same bytes.
    """
    totals = [[sums[i, j] for j in range(SIDE)] for i in range(SIDE)]
    for k in range_constexpr(TILE_K):
        rows = [staged_a[k, row + i] for i in range(SIDE)]
        columns = [staged_b[k, column + j] for j in range(SIDE)]
        for i in range_constexpr(SIDE):
            for j in range_constexpr(SIDE):
                totals[i][j] = totals[i][j] + rows[i] * columns[j]
    for i in range_constexpr(SIDE):
        for j in range_constexpr(SIDE):
            sums[i, j] = totals[i][j]


@cute.jit
def _store(
    sums: Any,
    d: cute.Tensor,
    own_d: cute.Tensor | None,
    factors_d: cute.Tensor | None,
    row: Int32,
    column: Int32,
    operands: Any,
    operation: Constexpr[Operation],
) -> None:
    """Finish, round and store a thread's rows and columns of D, from `row` and `column` on."""
    if const_expr(operation.factors_of_d is not None):
        for i in range_constexpr(SIDE):
            of_row = [tuple(x[i, j] for x in sums) for j in range(SIDE)]
            store_row(of_row, d, factors_d, own_d, row + i, d.shape[0], column, row + i, operands, operation)
    else:
        for i in range_constexpr(SIDE):
            for j in range_constexpr(SIDE):
                if row + i < d.shape[0] and column + j < d.shape[1]:
                    value = finish(tuple(x[i, j] for x in sums), row + i, column + j, operands, operation)
                    d[row + i, column + j] = value.to(d.element_type)


@cute.kernel
def _kernel(
    a: cute.Tensor,
    b: cute.Tensor,
    d: cute.Tensor,
    bias: cute.Tensor | None,
    *,
    scale_a: cute.Tensor | None,
    scale_b: cute.Tensor | None,
    residual: cute.Tensor | None,
    scale_d: cute.Tensor | None,
    own_d: cute.Tensor | None,
    factors_d: cute.Tensor | None,
    operation: Constexpr[Operation],
) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if const_expr(operation.grouping is Grouping.BATCHED):
        tiles = cute.ceil_div(d.shape[1], TILE) * cute.ceil_div(d.shape[2], TILE)
        product, block = block // tiles, block % tiles
        a, b, d = a[product, None, None], b[product, None, None], d[product, None, None]
    tiles_n = cute.ceil_div(d.shape[1], TILE)
    block_m, block_n = block // tiles_n, block % tiles_n
    shared = memory.SmemAllocator()
    layout = cute.make_layout((TILE_K, TILE), stride=(ROW, 1))
    accumulator = cutlass_type(operation.accumulator)
    halves = num_halves(operation)
    is_blocked = operation.types.factors in (FactorLayout.BLOCK, FactorLayout.ATOMS)
    staged_a = shared.allocate_tensor(accumulator, layout, 16)
    staged_b = [shared.allocate_tensor(accumulator, layout, 16) for _ in range(halves)]
    parts_b = [b] if const_expr(halves == 1) else [b[half, None, None] for half in range(halves)]
    if const_expr(operation.is_interleaved):
        parts_b = [in_turns(b)] * halves
    first_m, first_n = block_m * TILE, block_n * TILE
    row, column = thread // THREADS_ACROSS * SIDE, thread % THREADS_ACROSS * SIDE
    sums = [cute.make_rmem_tensor((SIDE, SIDE), accumulator) for _ in range(halves)]
    for half in range_constexpr(halves):
        sums[half].fill(accumulator(0))
    for step in range(cute.ceil_div(a.shape[1], TILE_K)):
        _stage(a, staged_a, first_m, step * TILE_K, thread, scale_a if const_expr(is_blocked) else None, operation.a)
        for half in range_constexpr(halves):
            factors = scale_b if const_expr(is_blocked) else None
            turn = half if const_expr(operation.is_interleaved) else None
            _stage(parts_b[half], staged_b[half], first_n, step * TILE_K, thread, factors, operation.b, turn)
        cute.arch.sync_threads()
        for half in range_constexpr(halves):
            _multiply(staged_a, staged_b[half], sums[half], row, column)
            cute.arch.sync_threads()  # keeps one half's loads behind the other's multiplication too: fewer registers
    operands = EpilogueOperands(scale_a, scale_b, bias, residual, scale_d)
    _store(sums, d, own_d, factors_d, first_m + row, first_n + column, operands, operation)


def make_entry(operation: Operation) -> Any:
    """Make the entry, which launches one block for each TILE by TILE piece of D, of all products.

    All blocks lie along x: only x takes more than 65,535.
    """

    @cute.jit
    def launch(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        own_d: cute.Tensor | None,
        factors_d: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        m, n = d.shape[-2:]
        blocks = cute.ceil_div(m, TILE) * cute.ceil_div(n, TILE)
        if const_expr(operation.grouping is Grouping.BATCHED):
            blocks = blocks * d.shape[0]
        _kernel(
            a,
            b,
            d,
            bias,
            scale_a=scale_a,
            scale_b=scale_b,
            residual=residual,
            scale_d=scale_d,
            own_d=own_d,
            factors_d=factors_d,
            operation=operation,
        ).launch(grid=(blocks, 1, 1), block=(NUM_THREADS, 1, 1), stream=stream)

    if operation.factors_of_d is not None:
        return with_factors_of_d(launch)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        scale_a: cute.Tensor | None,
        scale_b: cute.Tensor | None,
        bias: cute.Tensor | None,
        residual: cute.Tensor | None,
        scale_d: cute.Tensor | None,
        stream: cuda.CUstream,
    ) -> None:
        launch(a, b, d, scale_a, scale_b, bias, residual, scale_d, None, None, stream)

    return entry


def _tensor(element: ElementType, rank: int, *, is_contiguous: bool = False) -> Any:
    """Make a fake tensor of any sizes and strides, aligned to an element."""
    shape = tuple(cute.sym_int() for _ in range(rank))
    strides = (1,) if is_contiguous else tuple(cute.sym_int64() for _ in range(rank))
    element = IN_MEMORY.get(element, element)
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=element.num_bytes)


def arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make the arguments of the entry, each None where the signature has none: a kernel of it has no such parameter."""
    factor = ElementType.FLOAT32
    has_gate = operation.gate is not None
    rank = 2 if operation.types.factors is FactorLayout.BLOCK else 1
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    modes = 3 if operation.grouping is Grouping.BATCHED else 2
    made = {
        Argument.A: _tensor(operation.a.element, modes),
        Argument.B: _tensor(operation.b.element, 3 if has_gate else modes),
        Argument.D: _tensor(operation.d, modes),
        Argument.SCALE_A: _tensor(element_of(operation, Argument.SCALE_A), rank, is_contiguous=in_atoms),
        Argument.SCALE_B: _tensor(
            element_of(operation, Argument.SCALE_B), 2 if has_gate and not in_atoms else rank, is_contiguous=in_atoms
        ),
        Argument.BIAS: _tensor(operation.bias, 2) if has_gate else _tensor(operation.bias, 1, is_contiguous=True),
        Argument.RESIDUAL: _tensor(operation.d, 2),
        Argument.SCALE_D: _tensor(factor, 1, is_contiguous=True),
        Argument.STREAM: cute.runtime.make_fake_stream(),
    }
    found = tuple(x if argument in signature else None for argument, x in made.items())
    if operation.factors_of_d is None:
        return found
    of_d = _tensor(operation.factors_of_d.element, 1, is_contiguous=True)
    return inserted(found, signature, _tensor(factor, 1, is_contiguous=True), of_d)
