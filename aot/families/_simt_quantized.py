"""How the fallback stores a D of narrow elements with a factor for each block along n. Imports CUTLASS.

A thread has a few columns of each of its rows, and its neighbours in the warp the rest of a block. The bits are those
of `aot.core.block_quantization`, of the float32 value in front of them, on any chip.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Float32, Int32, Int64, Uint8, const_expr, cute, range_constexpr

from aot.core.element import ElementType
from aot.core.factor_atoms import ATOM_BYTES, byte_in_atom
from aot.core.operation import Operation
from aot.core.signature import Argument, Signature
from aot.core.weight_format import ATOM_COLUMNS, ATOM_ROWS
from aot.families._epilogue_steps import finish
from aot.families.rows._factor_codes import e2m1_code, mx_factor, nvfp4_factor
from aot.families.rows._memory import maximum
from aot.families.rows._quotient import divide, in_float32

PER_BYTE = ElementType.E2M1.num_sharing


@cute.jit
def _write_byte(target: cute.Tensor, position: Int64, value: Int32) -> None:
    """Write a byte, counted from a tensor's first."""
    start = cute.recast_ptr(target.iterator, dtype=Uint8) + position
    cute.make_tensor(start, cute.make_layout(1))[0] = Uint8(value)


@cute.jit
def _write_factor(
    factors: cute.Tensor, code: Int32, row: Int32, column: Int32, n: Int32, block_k: Constexpr[int]
) -> None:
    """Write the factor of the block that a column begins, and 0 for those that fill a row's last atom up behind it."""
    along = cute.ceil_div(n, block_k * ATOM_COLUMNS)
    block = column // block_k
    atom = (Int64(row // ATOM_ROWS) * along + block // ATOM_COLUMNS) * ATOM_BYTES
    _write_byte(factors, atom + Int64(byte_in_atom(row, block)), code)
    for i in range_constexpr(1, ATOM_COLUMNS):
        if (column + block_k >= n) & (block % ATOM_COLUMNS + i < ATOM_COLUMNS):
            _write_byte(factors, atom + Int64(byte_in_atom(row, block + i)), Int32(0))


def _factor_of(values: Any, magnitude: Any, own: Any, operation: Operation) -> Any:
    """Divide a thread's values by the factor of their block, in place; return the factor's code."""
    if operation.factors_of_d.has_tensor_factor:
        factor = nvfp4_factor(magnitude, own[0])
        divide(values, factor.by, magnitude)
    else:
        factor = mx_factor(magnitude, operation.d)
        for j in range(cute.size(values)):
            values[j] = in_float32("mul.rn.f32 {$w0}, {$r0}, {$r1};", values[j], factor.by)
    return factor.code


@cute.jit
def _write_elements(values: Any, d: cute.Tensor, row: Int32, column: Int32, operation: Constexpr[Operation]) -> None:
    """Round and store a thread's values of a row of D."""
    n = d.shape[1]
    if const_expr(operation.d is ElementType.E2M1):
        for j in range_constexpr(0, cute.size(values), PER_BYTE):
            pair = e2m1_code(values[j]) | (e2m1_code(values[j + 1]) << ElementType.E2M1.bits)
            if column + j < n:
                _write_byte(d, (Int64(row) * Int64(d.stride[0]) + Int64(column + j)) // PER_BYTE, pair)
    else:
        for j in range_constexpr(cute.size(values)):
            if column + j < n:
                d[row, column + j] = values[j].to(d.element_type)


@cute.jit
def store_row(
    totals: Any,
    d: cute.Tensor,
    factors: cute.Tensor,
    own: cute.Tensor | None,
    row: Int32,
    end: Int32,
    column: Int32,
    row_of_factors: Int32,
    operands: Any,
    operation: Constexpr[Operation],
) -> None:
    """Finish, round and store a thread's columns of a row, and the factor of their block.

    All lanes of a warp come here.

    Args:
        totals: for each column the sum, or those of a gate's two halves.
        d: of elements that share bytes it is those, with the strides of elements.
        factors: atoms.
        own: D's own factor, where its format has one.
        row: of D.
        end: of the rows; one behind the last is not stored.
        column: the first.
        row_of_factors: the row of atoms that the row's factors are.
        operands: what the epilogue reads.
        operation: what is computed.
    """
    n = d.shape[1]
    count, block_k = const_expr(len(totals)), const_expr(operation.factors_of_d.block_k)
    values = cute.make_rmem_tensor(cute.make_layout(count), Float32)
    magnitude = Float32(0.0)
    for j in range_constexpr(count):
        there = cutlass.min(column + j, n - 1)
        value = finish(totals[j], cutlass.min(row, end - 1), there, operands, operation)
        values[j] = Float32(cutlass.select_(column + j < n, value, Float32(0.0)))
        magnitude = maximum(magnitude, cute.math.absf(values[j]))
    magnitude = cute.arch.warp_reduction(magnitude, maximum, threads_in_group=block_k // count)
    code = _factor_of(values, magnitude, own, operation)
    if row < end:
        _write_elements(values, d, row, column, operation)
        if (column % block_k == 0) & (column < n):
            _write_factor(factors, code, row_of_factors, column, n, block_k)


def with_factors_of_d(launch: Any) -> Any:
    """Make the entry of an operation whose D has factors; `launch` takes what the plain one does, and the two more."""

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
        own_d: cute.Tensor | None,
        factors_d: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        launch(a, b, d, scale_a, scale_b, bias, residual, scale_d, own_d, factors_d, stream)

    return entry


def inserted(made: tuple[Any, ...], signature: Signature, own: Any, factors: Any) -> tuple[Any, ...]:
    """Return arguments with D's own factor and its factors in their place, in front of the stream."""
    *others, stream = made
    return (
        *others,
        *(x if y in signature else None for x, y in ((own, Argument.OWN_D), (factors, Argument.FACTORS_D))),
        stream,
    )
