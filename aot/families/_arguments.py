"""The fake arguments and tensor views that the families' entries share. Imports CUTLASS: only for use by `entry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
from cutlass import cute

from aot.core.element import ElementType
from aot.core.formats import FactorLayout
from aot.core.grouping import Grouping
from aot.core.signature import Argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.formats import Operand
    from aot.core.operation import Operation
    from aot.core.signature import Signature

ALIGNMENT_BYTES = 16


def cutlass_type(element: ElementType) -> Any:
    """Return CUTLASS's class of an element type."""
    return getattr(cutlass, element.cutlass_name)


def matrix_argument(
    element: ElementType, shape: tuple[Any, ...], leading: int, alignment: int = ALIGNMENT_BYTES
) -> Any:
    """Make a fake tensor whose `leading` mode is contiguous and whose other strides are multiples of `alignment` bytes.

    An alignment of 1 stands for that of the element.
    """
    alignment = max(alignment, element.size_of(1))
    elements = element.num_in(alignment)
    strides = tuple(1 if mode == leading else cute.sym_int64(divisibility=elements) for mode in range(len(shape)))
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=alignment)


def vector_argument(element: ElementType, alignment: int = ALIGNMENT_BYTES) -> Any:
    """Make a fake contiguous vector of any length; an alignment of 1 stands for that of the element."""
    alignment = max(alignment, element.num_bytes)
    return cute.runtime.make_fake_tensor(cutlass_type(element), (cute.sym_int(),), stride=(1,), assumed_align=alignment)


def optional_arguments(signature: Signature, operation: Operation, alignment: int = ALIGNMENT_BYTES) -> list[Any]:
    """Make the bias, the workspace and the int32s of weight prefetch and order, each None where the signature has none.

    A parameter that is None is no parameter of the exported C function.
    """
    made = (
        (Argument.BIAS, lambda: vector_argument(operation.bias, alignment)),
        (Argument.WORKSPACE, lambda: vector_argument(ElementType.FLOAT32)),
        (Argument.PREFETCH_B, lambda: cutlass.Int32(0)),
        (Argument.TILE_ORDER, lambda: cutlass.Int32(0)),
    )
    return [make() if argument in signature else None for argument, make in made]


def aligned_arguments(signature: Signature, operation: Operation, stores: int = ALIGNMENT_BYTES) -> tuple[Any, ...]:
    """Make a (m, k), b (n, k), d (m, n), what else a signature may have, None where it has not, and the stream.

    Of a batch each of the three has its products in front, at strides that may be 0. The rows of D and the bias begin
    at multiples of `stores` bytes.
    """
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    batch = (cute.sym_int(),) if operation.grouping is Grouping.BATCHED else ()
    tensors = (
        matrix_argument(operation.a.element, (*batch, m, k), leading=len(batch) + (1 if operation.a.is_k_major else 0)),
        matrix_argument(operation.b.element, (*batch, n, k), leading=len(batch) + (1 if operation.b.is_k_major else 0)),
        matrix_argument(operation.d, (*batch, m, n), len(batch) + 1, stores),
    )
    return (*tensors, *optional_arguments(signature, operation, stores), cute.runtime.make_fake_stream())


def parts_argument() -> Any:
    """Make a fake vector of what is told of several weights, `PART_WORDS` of each."""
    return cute.runtime.make_fake_tensor(cutlass.Int64, (cute.sym_int(),), stride=(1,), assumed_align=8)


def strided_argument(element: ElementType, shape: tuple[Any, ...]) -> Any:
    """Make a fake tensor of any strides and alignment."""
    strides = tuple(cute.sym_int64() for _ in shape)
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=element.num_bytes)


def atoms_argument(operand: Operand) -> Any:
    """Make a fake vector of the bytes of an operand's scale factors, in atoms."""
    if operand.scale is None:
        raise ValueError(f"operand {operand} has no scale factors; expected some in atoms")
    return vector_argument(operand.scale.element)


def epilogue_arguments(
    signature: Signature, operation: Operation, stores: int = ALIGNMENT_BYTES, loads: int = ALIGNMENT_BYTES
) -> tuple[Any, ...]:
    """Make an argument for each of `Argument`, in that order, None where the signature has none of it.

    With a gate the operands of n rows are of (2, n) rows: the gate's, and the linear half's. Of a batch A, B and D have
    its products in front, at strides that may be 0. The rows of D and of the residual begin at multiples of `stores`
    bytes, those of A and B of `loads`.
    """
    m, n = cute.sym_int(), cute.sym_int()
    k = cute.sym_int(divisibility=max(operation.a.whole, operation.b.whole))
    batch = (cute.sym_int(),) if operation.grouping is Grouping.BATCHED else ()
    pair = () if operation.gate is None else (cute.sym_int(),)
    front = (*batch, *pair)
    is_block = operation.types.factors is FactorLayout.BLOCK
    in_atoms = operation.types.factors is FactorLayout.ATOMS
    float32, a, b = ElementType.FLOAT32, operation.a, operation.b
    made: dict[Argument, Callable[[], Any]] = {
        Argument.A: lambda: matrix_argument(a.element, (*batch, m, k), len(batch) + int(a.is_k_major), loads),
        Argument.B: lambda: matrix_argument(b.element, (*front, n, k), len(front) + int(b.is_k_major), loads),
        Argument.D: lambda: matrix_argument(operation.d, (*batch, m, n), len(batch) + 1, stores),
        Argument.SCALE_A: lambda: (
            atoms_argument(a) if in_atoms else strided_argument(float32, (m, cute.sym_int()) if is_block else (m,))
        ),
        Argument.SCALE_B: lambda: (
            atoms_argument(b)
            if in_atoms
            else strided_argument(float32, (cute.sym_int(), cute.sym_int()) if is_block else (*pair, n))
        ),
        Argument.BIAS: lambda: (
            strided_argument(operation.bias, (*pair, cute.sym_int()))
            if pair
            else vector_argument(operation.bias, operation.bias.num_bytes)
        ),
        Argument.RESIDUAL: lambda: matrix_argument(operation.d, (m, n), 1, stores),
        Argument.SCALE_D: lambda: vector_argument(float32, float32.num_bytes),
        **({Argument.PARTS: parts_argument} if operation.has_parts else {}),
        Argument.WORKSPACE: lambda: vector_argument(float32),
        Argument.PREFETCH_B: lambda: cutlass.Int32(0),
        Argument.TILE_ORDER: lambda: cutlass.Int32(0),
    }
    arguments = (make() if argument in signature else None for argument, make in made.items())
    return (*arguments, cute.runtime.make_fake_stream())


def transpose(tensor: Any) -> Any:
    """View a matrix, or each of a batch, with its modes exchanged; to be called while tracing."""
    order = [1, 0] if cute.rank(tensor) == 2 else [0, 2, 1]
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, order))


def batched(tensor: Any) -> Any:
    """View a matrix as one of a batch of one, batch last; to be called while tracing."""
    return cute.make_tensor(tensor.iterator, cute.append(tensor.layout, cute.make_layout(1, stride=0)))


def seen_as(tensor: Any, element: Any) -> Any:
    """View a tensor as if its elements were of another of CUTLASS's types, whatever its size; while tracing."""
    return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=element), tensor.layout)
