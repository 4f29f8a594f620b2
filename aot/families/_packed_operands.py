"""What kernels of packed weights are given: the entry's fake arguments, and where the weights of a gate or a stack lie.

Imports CUTLASS. No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they
are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, Int64, Uint8, cute

from aot.core.element import ElementType
from aot.core.epilogue import Step
from aot.core.weight_packing import CODE_BYTES
from aot.families._arguments import vector_argument
from aot.families._places import addresses_argument


def packed_arguments(element: Any, stores: int, *, is_scaled: bool, is_stack: bool) -> tuple[Any, ...]:
    """Make the fake arguments: those of `Argument` that a packed weight has, in that order.

    Args:
        element: CUTLASS's type of x and D.
        stores: bytes of which the rows of D begin at multiples.
        is_scaled: whether rows of the weight have float32 factors.
        is_stack: whether weights, their factors and biases are several, a gate's two or those of groups.
    """
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    stack = (cute.sym_int(),) if is_stack else ()

    def matrix(kind: Any, shape: Any, align: int = CODE_BYTES) -> Any:
        per = align * 8 // int(kind.width)
        strides: tuple[Any, ...] = (*(cute.sym_int64(divisibility=per) for _ in shape[1:]), 1)
        return cute.runtime.make_fake_tensor(kind, shape, stride=strides, assumed_align=align)

    steps = *(cute.sym_int64() for _ in stack), cute.sym_int64()
    factors = cute.runtime.make_fake_tensor(Float32, (*stack, n), stride=steps, assumed_align=4)
    return (
        matrix(element, (m, k)),
        matrix(Uint8, (*stack, cute.sym_int(), cute.sym_int())),
        matrix(element, (m, n), stores),
        factors if is_scaled else None,
        matrix(element, (*stack, cute.sym_int()), int(element.width) // 8),
        Int32(0),
        cute.runtime.make_fake_stream(),
    )


def offsets_arguments(*, is_gathered: bool) -> tuple[Any, ...]:
    """Make those that groups of rows are found by: offsets, an index or None, addresses, and places."""

    def integers() -> Any:
        return vector_argument(ElementType.INT32, ElementType.INT32.num_bytes)

    return integers(), integers() if is_gathered else None, addresses_argument(), integers()


def packed_entry(
    launch: Any, element: Any, *, is_scaled: bool, gate: Step | None = None, stores: int = CODE_BYTES
) -> tuple[Any, tuple[Any, ...]]:
    """Make the entry and its fake arguments.

    Args:
        launch: called with the operands while tracing: A, B, D, factors and bias, whether B is constant, the stream.
        element: CUTLASS's type of x and D.
        is_scaled: whether rows of the weight have float32 factors.
        gate: of two weights, or None.
        stores: bytes of which the rows of D begin at multiples.
    """

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
        launch(a, b, d, (scale_b, bias), prefetch_b, stream)

    return entry, packed_arguments(element, stores, is_scaled=is_scaled, is_stack=gate is not None)


def weights_of(b: Any, gate: Step | None) -> tuple[Any, ...]:
    """Return where the bytes of a weight begin, or of a gate's two; to be called while tracing."""
    if gate is None:
        return (b.iterator,)
    return b.iterator, b.iterator + cute.assume(Int64(b.stride[0]), divby=CODE_BYTES)


def added_of(scale_b: Any, bias: Any, *, is_stack: bool) -> tuple[Any, Any]:
    """Return where factors and a bias lie; to be called while tracing.

    Returns:
        Of the factors their address and stride, or None twice; of the bias its address and how many elements it has;
        and of a stack of each how many elements those of a weight lie behind those of the one before.
    """
    rows = int(is_stack)  # the mode of the weight's rows, in front of which are the weights
    scale: tuple[Any, ...] = (None, None)
    if scale_b is not None:
        scale = scale_b.iterator, *(Int64(scale_b.stride[x]) for x in range(rows, -1, -1))
    return scale, (bias.iterator, Int32(bias.shape[rows]), *(Int64(bias.stride[x]) for x in range(rows)))
