"""The fallback's entry of several weights: the product of each, one launch after the other. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from typing import Any

from cuda.bindings import driver as cuda
from cutlass import Int32, cute, select_

from aot.core.epilogue import MAX_PARTS
from aot.core.operation import Operation
from aot.core.signature import PART_WORDS, Signature
from aot.families._arguments import cutlass_type, parts_argument
from aot.families._simt_kernel import _kernel
from aot.families._simt_kernel import arguments as arguments_of_one
from aot.families._simt_tile import NUM_THREADS, TILE


def _view(address: Any, element: Any, shape: Any, stride: Any) -> Any:
    """View memory at an address; to be called while tracing."""
    pointer = cute.make_ptr(element, address, cute.AddressSpace.gmem, assumed_align=int(element.width) // 8)
    return cute.make_tensor(pointer, cute.make_layout(shape, stride=stride))


def make_entry(operation: Operation) -> Any:
    """Make the entry, which launches a kernel for each weight that has rows; `PART_WORDS` say where those lie."""
    bias_type = cutlass_type(operation.bias)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        _bias: cute.Tensor,
        parts: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        for part in range(MAX_PARTS):
            n, of_b, b_row, b_column, of_d, d_row, d_column, of_bias = [
                parts[part * len(PART_WORDS) + i] for i in range(len(PART_WORDS))
            ]
            n = Int32(n)
            if n > 0:
                num_added = select_(of_bias == 0, Int32(0), n)
                _kernel(
                    a,
                    _view(of_b, b.element_type, (n, a.shape[1]), (b_row, b_column)),
                    _view(of_d, d.element_type, (d.shape[0], n), (d_row, d_column)),
                    _view(of_bias, bias_type, (num_added,), (1,)),
                    scale_a=None,
                    scale_b=None,
                    residual=None,
                    scale_d=None,
                    own_d=None,
                    factors_d=None,
                    operation=operation,
                ).launch(
                    grid=(cute.ceil_div(d.shape[0], TILE) * cute.ceil_div(n, TILE), 1, 1),
                    block=(NUM_THREADS, 1, 1),
                    stream=stream,
                )

    return entry


def arguments(signature: Signature, operation: Operation) -> tuple[Any, ...]:
    """Make the arguments of the entry: those of one product that there are, and the parts in front of the stream."""
    *made, stream = (x for x in arguments_of_one(signature, operation) if x is not None)
    return (*made, parts_argument(), stream)
