"""The entries of row kernels: functions of a signature's arguments, and fake arguments to compile them with.

Imports CUTLASS. No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they
are.
"""

from collections.abc import Callable
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, cute

from aot.core.candidate import Candidate
from aot.core.element import ElementType
from aot.families import Entry
from aot.families._arguments import cutlass_type
from aot.families.rows._factor_kernel import FactorKernel
from aot.families.rows._operands import Operands
from aot.families.rows._rotary_kernel import RotaryKernel, Tensors
from aot.families.rows._row_kernel import RowKernel
from aot.families.rows._tensor_scale_kernel import TensorScaleKernel
from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.function import ROTARY
from aot.kinds.rows.operation import RowOperation, RowScale
from aot.kinds.rows.signature import RowArgument


def _tensor(element: ElementType, rank: int, elements: int) -> Any:
    """Make a fake tensor of rows that lie on multiples of some elements; of 1 its strides are all dynamic."""
    shape = tuple(cute.sym_int() for _ in range(rank))
    last = (cute.sym_int64(),) if elements == 1 else (1,)
    strides = (*(cute.sym_int64(divisibility=elements) for _ in range(rank - 1)), *last)
    alignment = elements * element.num_bytes
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=alignment)


def _vector(element: ElementType, elements: int) -> Any:
    alignment = elements * element.num_bytes
    return cute.runtime.make_fake_tensor(cutlass_type(element), (cute.sym_int(),), stride=(1,), assumed_align=alignment)


def _written(operation: RowOperation, rank: int, elements: int) -> Any:
    """Make Y; of elements that share bytes a tensor of bytes, whose extents and strides count the elements."""
    if operation.multiple == 1:
        return _tensor(operation.y, rank, elements)
    shape = tuple(cute.sym_int() for _ in range(rank))
    last = (cute.sym_int64(),) if elements == 1 else (1,)
    strides = (*(cute.sym_int64(divisibility=max(elements, operation.multiple)) for _ in range(rank - 1)), *last)
    alignment = max(elements // operation.multiple, 1)
    return cute.runtime.make_fake_tensor(cutlass.Uint8, shape, stride=strides, assumed_align=alignment)


def _cache(element: ElementType, elements: int) -> Any:
    """Make a fake cache (batch, cache length, heads, dim), whose heads lie on multiples of some elements."""
    shape = tuple(cute.sym_int() for _ in range(4))
    strides: tuple[Any, ...] = (*(cute.sym_int64(divisibility=elements) for _ in range(3)), 1)
    alignment = elements * element.num_bytes
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=alignment)


def fake_arguments(operation: RowOperation, elements: int) -> dict[RowArgument, Any]:
    """Make an argument for each one that an operation has; tensors lie on multiples of some elements."""
    rank = 3 if RowArgument.COS in operation.signature else 2
    made: dict[RowArgument, Callable[[], Any]] = {
        RowArgument.X: lambda: _tensor(operation.x, rank, elements),
        RowArgument.RESIDUAL: lambda: _tensor(operation.x, 2, elements),
        RowArgument.WEIGHT: lambda: _vector(operation.x, elements),
        RowArgument.BIAS: lambda: _vector(operation.x, elements),
        RowArgument.COS: lambda: _tensor(operation.x, 2, elements),
        RowArgument.SIN: lambda: _tensor(operation.x, 2, elements),
        RowArgument.KEYS: lambda: _tensor(operation.x, rank, elements),
        RowArgument.VALUES: lambda: _tensor(operation.x, rank, elements),
        RowArgument.Y: lambda: _written(operation, rank, elements),
        RowArgument.KEY_CACHE: lambda: _cache(operation.x, elements),
        RowArgument.VALUE_CACHE: lambda: _cache(operation.x, elements),
        RowArgument.RESIDUAL_OUT: lambda: _tensor(operation.x, 2, elements),
        RowArgument.SCALE: lambda: _tensor(
            ElementType.FLOAT32 if operation.factors is None else ElementType.UINT8, 2, 1
        ),
        RowArgument.TENSOR_SCALE: lambda: _vector(ElementType.FLOAT32, 1),
        RowArgument.OFFSETS: lambda: _vector(ElementType.INT32, 1),
        RowArgument.INDEX: lambda: _vector(ElementType.INT32, 1),
        RowArgument.CACHE_POSITION: lambda: cute.runtime.make_fake_tensor(
            cutlass.Int64, (cute.sym_int(),), stride=(1,), assumed_align=8
        ),
        RowArgument.EPS: lambda: Float32(0.0),
        RowArgument.WEIGHT_OFFSET: lambda: Float32(0.0),
        RowArgument.FLAGS: lambda: Int32(0),
        RowArgument.STREAM: cute.runtime.make_fake_stream,
    }
    return {argument: made[argument]() for argument in operation.signature}


def row_entry(operation: RowOperation, candidate: Candidate, registers: int, *, is_looped: bool) -> Entry:
    """Make the entry of a kernel of `_row_kernel`, or of the three of a tensor's scale.

    What the operation does not have is None, and no parameter.
    """
    if operation.factors is not None:
        return _factor_entry(operation, FactorKernel(operation, candidate, registers, is_looped))
    kind = TensorScaleKernel if operation.scale is RowScale.TENSOR else RowKernel
    row_kernel = kind(operation, candidate, registers, is_looped)

    def entry(
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        y: cute.Tensor,
        residual_out: cute.Tensor | None,
        scale: cute.Tensor | None,
        eps: Float32,
        weight_offset: Float32,
        flags: Int32,
        stream: cuda.CUstream,
    ) -> None:
        more = None, None, None, eps, weight_offset, flags
        operands = Operands(x, residual, weight, bias, y, residual_out, scale, *more)
        row_kernel.launch(operands, stream)

    made = fake_arguments(operation, RowKnobs.of(candidate).vector_elements)
    of_factors = RowArgument.TENSOR_SCALE, RowArgument.OFFSETS, RowArgument.INDEX
    return _entry_of(entry, made, (*ROTARY.arguments, *of_factors))


def _factor_entry(operation: RowOperation, row_kernel: FactorKernel) -> Entry:
    """Make the entry of a kernel of `_factor_kernel`.

    A function of its own, since a parameter that is None is in the symbols of an object, and so in its bytes.
    """

    def entry(
        x: cute.Tensor,
        residual: cute.Tensor | None,
        weight: cute.Tensor | None,
        bias: cute.Tensor | None,
        y: cute.Tensor,
        residual_out: cute.Tensor | None,
        scale: cute.Tensor,
        tensor_scale: cute.Tensor | None,
        offsets: cute.Tensor | None,
        index: cute.Tensor | None,
        eps: Float32,
        weight_offset: Float32,
        flags: Int32,
        stream: cuda.CUstream,
    ) -> None:
        more = offsets, index, eps, weight_offset, flags
        operands = Operands(x, residual, weight, bias, y, residual_out, scale, tensor_scale, *more)
        row_kernel.launch(operands, stream)

    made = fake_arguments(operation, row_kernel.knobs.vector_elements)
    return _entry_of(entry, made, ROTARY.arguments)


def _entry_of(entry: Any, made: dict[RowArgument, Any], left_out: tuple[RowArgument, ...]) -> Entry:
    """Make an entry of a function of all arguments but those that it leaves out; others that are not made are None."""
    arguments = [x for x in RowArgument if x not in left_out]
    # A scalar that is None must be said to be: CuTe DSL would convert it.
    entry.__annotations__ |= {x.value: None for x in arguments if x not in made}
    return Entry(cute.jit(entry), tuple(made.get(x) for x in arguments))


def rotary_entry(operation: RowOperation, candidate: Candidate) -> Entry:
    """Make the entry of a kernel of `_rotary_kernel`."""
    kernel = RotaryKernel(candidate)

    @cute.jit
    def entry(
        x: cute.Tensor,
        cos: cute.Tensor,
        sin: cute.Tensor,
        keys: cute.Tensor,
        values: cute.Tensor,
        y: cute.Tensor,
        key_cache: cute.Tensor,
        value_cache: cute.Tensor,
        cache_position: cute.Tensor,
        flags: Int32,
        stream: cuda.CUstream,
    ) -> None:
        tensors = Tensors(x, cos, sin, keys, values, y, key_cache, value_cache, cache_position)
        kernel.launch(tensors, flags, stream)

    return Entry(entry, tuple(fake_arguments(operation, RowKnobs.of(candidate).vector_elements).values()))
