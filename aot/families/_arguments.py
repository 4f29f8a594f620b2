"""The fake arguments and tensor views that the families' entries share. Imports CUTLASS: only for use by `entry`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
from cutlass import cute

from aot.core.candidate import SplitK

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.problem import Dtype, Operation

ALIGNMENT_BYTES = 16


def cutlass_dtype(dtype: Dtype) -> Any:
    """Give CUTLASS's type for one of ours."""
    return {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[dtype.value]


def _matrix(dtype: Any, shape: tuple[Any, Any], leading: int) -> Any:
    """Make a fake matrix whose `leading` mode is contiguous and whose other stride is a multiple of 16 bytes."""
    elements = ALIGNMENT_BYTES * 8 // dtype.width
    strides = tuple(1 if mode == leading else cute.sym_int64(divisibility=elements) for mode in range(2))
    return cute.runtime.make_fake_tensor(dtype, shape, stride=strides, assumed_align=ALIGNMENT_BYTES)


def aligned_arguments(candidate: Candidate, operation: Operation) -> tuple[Any, ...]:
    """Make a (m, k), b (n, k), d (m, n), the workspace of a split-K candidate, and the stream."""
    dtype = cutlass_dtype(operation.dtype)
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()
    tensors = [
        _matrix(dtype, (m, k), leading=1 if operation.layout.a_k_major else 0),
        _matrix(dtype, (n, k), leading=1 if operation.layout.b_k_major else 0),
        _matrix(dtype, (m, n), leading=1),
    ]
    if SplitK(candidate.split_k_mode) is not SplitK.NONE:
        tensors.append(
            cute.runtime.make_fake_tensor(
                cutlass.Float32, (cute.sym_int(),), stride=(1,), assumed_align=ALIGNMENT_BYTES
            )
        )
    return (*tensors, cute.runtime.make_fake_stream())


def transpose(tensor: Any) -> Any:
    """View a matrix with its modes exchanged; to be called while tracing."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, [1, 0]))


def batched(tensor: Any) -> Any:
    """View a matrix as one of a batch of one, batch last; to be called while tracing."""
    return cute.make_tensor(tensor.iterator, cute.append(tensor.layout, cute.make_layout(1, stride=0)))
