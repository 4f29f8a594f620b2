"""Where the B of each group lies, where B is no one stack of memory. Imports CUTLASS.

Groups whose weights are allocations of their own are seen as a stack all the same: of a small step between its
matrices, from the least address on, in which most places are nobody's. Group i's is the matrix at the place that a
table names, so that one tensor map serves all groups, and no kernel reads or writes a tensor map in memory.

The places travel as parameters of a kernel that writes the table in front of the product, in the order of the stream.
So nothing waits for the host, a CUDA graph holds the places that it was captured with, and the table needs to live no
longer than the workspace that it lies in.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Int32, Int64, const_expr, cute, range_constexpr

from aot.core.element import BYTE_BITS

PLACES_A_LAUNCH = 128
"""Places that one launch writes: 512 bytes of parameters, of the 4 KiB that a kernel may have. Source: CUDA Programming
Guide, `__global__` function parameters."""


def addresses_argument() -> Any:
    """Make a fake contiguous vector of addresses, of any length."""
    return cute.runtime.make_fake_tensor(Int64, (cute.sym_int(),), stride=(1,), assumed_align=Int64.width // 8)


def num_groups_of(b: Any, places: Any) -> Any:
    """Count the groups: the places where there are any, else the matrices of the stack; to be called while tracing."""
    return cutlass.select_(places.shape[0] > 0, places.shape[0], b.shape[0])


@cute.jit
def place_of(places: cute.Tensor, group: Int32) -> Int32:
    """Return which matrix of the stack a group's is."""
    place = group
    if places.shape[0] > 0:
        place = places[group]
    return place


@cute.kernel
def _write_places(places: cute.Tensor, first: Int32, values: list[Int32], is_dependent: Constexpr[bool]) -> None:
    """Write a table's elements from the first on, a thread each."""
    thread, _, _ = cute.arch.thread_idx()
    value = values[0]
    for i in range_constexpr(1, PLACES_A_LAUNCH):
        value = cutlass.select_(thread == i, values[i], value)
    if const_expr(is_dependent):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
    if first + thread < places.shape[0]:
        places[first + thread] = value


@cute.jit
def write_places(
    b_of_groups: cute.Tensor,
    b: cute.Tensor,
    places: cute.Tensor,
    stream: cuda.CUstream,
    is_dependent: Constexpr[bool],
    bits: Constexpr[int],
) -> None:
    """Launch what writes the table of places; nothing where the groups' are one stack.

    Args:
        b_of_groups: int64, in host memory: the address of each group's B.
        b: the stack that they are seen as, whose first mode is that of the places.
        places: int32, as many as there are addresses, on the device.
        stream: CUstream.
        is_dependent: whether the kernel behind it waits for it by griddepcontrol, as it then does for the one in front.
        bits: of an element of B.
    """
    count = b_of_groups.shape[0]
    base, step = b.iterator.toint(), Int64(b.stride[0]) * bits // BYTE_BITS
    for first in cutlass.range(0, count, PLACES_A_LAUNCH):
        values = [
            Int32((b_of_groups[cutlass.min(first + i, count - 1)] - base) // step) for i in range(PLACES_A_LAUNCH)
        ]
        _write_places(places, first, values, is_dependent).launch(
            grid=(1, 1, 1), block=(PLACES_A_LAUNCH, 1, 1), stream=stream, use_pdl=is_dependent
        )
