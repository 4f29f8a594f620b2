"""The fake arguments and tensor views that the families' entries share. Imports CUTLASS: only for use by `entry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
from cutlass import cute

from aot.core.element import ElementType
from aot.core.signature import Argument

if TYPE_CHECKING:
    from aot.core.operation import Operation
    from aot.core.signature import Signature

ALIGNMENT_BYTES = 16


def cutlass_type(element: ElementType) -> Any:
    """Return CUTLASS's class of an element type."""
    return getattr(cutlass, element.cutlass_name)


def _matrix(element: ElementType, shape: tuple[Any, Any], leading: int) -> Any:
    """Make a fake matrix whose `leading` mode is contiguous and whose other stride is a multiple of 16 bytes."""
    elements = ALIGNMENT_BYTES * 8 // element.bits
    strides = tuple(1 if mode == leading else cute.sym_int64(divisibility=elements) for mode in range(2))
    return cute.runtime.make_fake_tensor(cutlass_type(element), shape, stride=strides, assumed_align=ALIGNMENT_BYTES)


def _vector(element: ElementType, alignment: int = ALIGNMENT_BYTES) -> Any:
    """Make a fake contiguous vector of any length."""
    return cute.runtime.make_fake_tensor(cutlass_type(element), (cute.sym_int(),), stride=(1,), assumed_align=alignment)


def optional_arguments(signature: Signature, operation: Operation, alignment: int = ALIGNMENT_BYTES) -> list[Any]:
    """Make the bias, the workspace and the int32 of the weight prefetch, each None where the signature has none.

    A parameter that is None is no parameter of the exported C function.
    """
    made = (
        (Argument.BIAS, lambda: _vector(operation.d, alignment)),
        (Argument.WORKSPACE, lambda: _vector(ElementType.FLOAT32)),
        (Argument.PREFETCH_B, lambda: cutlass.Int32(0)),
    )
    return [make() if argument in signature else None for argument, make in made]


def aligned_arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make a (m, k), b (n, k), d (m, n), what else a signature may have, None where it has not, and the stream."""
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    tensors = (
        _matrix(operation.a.element, (m, k), leading=1 if operation.a.is_k_major else 0),
        _matrix(operation.b.element, (n, k), leading=1 if operation.b.is_k_major else 0),
        _matrix(operation.d, (m, n), leading=1),
    )
    return (*tensors, *optional_arguments(signature, operation), cute.runtime.make_fake_stream())


def transpose(tensor: Any) -> Any:
    """View a matrix with its modes exchanged; to be called while tracing."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, [1, 0]))


def batched(tensor: Any) -> Any:
    """View a matrix as one of a batch of one, batch last; to be called while tracing."""
    return cute.make_tensor(tensor.iterator, cute.append(tensor.layout, cute.make_layout(1, stride=0)))
