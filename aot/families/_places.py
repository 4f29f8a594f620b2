"""Where the B of each group lies, and its factors, where those are no one stack of memory. Imports CUTLASS.

Groups whose weights are allocations of their own are seen as a stack all the same: of a small step between its
matrices, from the least address on, in which most places are nobody's. Group i's is the matrix at the place that a
table names, so that one tensor map serves all groups, and no kernel reads or writes a tensor map in memory. Atoms of
factors are found in the same way, by a table of their own: an expert's factors need not lie as its weight does.

The places travel as parameters of a kernel that writes the table in front of the product, in the order of the stream.
So nothing waits for the host, a CUDA graph holds the places that it was captured with, and the table needs to live no
longer than the workspace that it lies in.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Constexpr, Int32, Int64, const_expr, cute

from aot.core.element import BYTE_BITS

PLACES_A_LAUNCH = 128
"""Places that one launch writes: 512 bytes of parameters, of the 4 KiB that a kernel may have. Source: CUDA Programming
Guide, `__global__` function parameters."""


MOST_PLACES = 2**31 - 1
"""Of a stack in which places name the matrices: an int32 counts them, here and in the runtime."""


def addresses_argument() -> Any:
    """Make a fake contiguous vector of addresses, of any length."""
    return cute.runtime.make_fake_tensor(Int64, (cute.sym_int(),), stride=(1,), assumed_align=Int64.width // 8)


def num_groups_of(b: Any, places: Any) -> Any:
    """Count the groups: the places where there are any, else the matrices of the stack; to be called while tracing."""
    return cutlass.select_(places.shape[0] > 0, places.shape[0], b.shape[0])


def steps_of_groups(factors: Any, own_bytes: Any, num_groups: Any, places: Any) -> tuple[Any, Any]:
    """Return how many steps there are between factors of groups, and the bytes of one; to be called while tracing.

    Args:
        factors: a vector of bytes, which has as many as lie between two places where there are any.
        own_bytes: Int64, those of a group's atoms.
        num_groups: Int32.
        places: int32, of the groups; of 0 elements where the atoms lie one behind the other.
    """
    are_apart = places.shape[0] > 0
    count = cutlass.select_(are_apart, Int32(MOST_PLACES), Int32(num_groups))
    return count, cutlass.select_(are_apart, Int64(factors.shape[0]), Int64(own_bytes))


@cute.jit
def place_of(places: cute.Tensor, group: Int32) -> Int32:
    """Return which matrix of the stack a group's is."""
    place = group
    if places.shape[0] > 0:
        place = places[group]
    return place


def _value_of(thread: Any, values: list[Int32]) -> Any:
    """Choose a thread's value of PLACES_A_LAUNCH; to be called while tracing."""
    value = values[0]
    for i in range(1, PLACES_A_LAUNCH):
        value = cutlass.select_(thread == i, values[i], value)
    return value


@cute.kernel
def _write_places(places: cute.Tensor, first: Int32, values: list[Int32], is_dependent: Constexpr[bool]) -> None:
    """Write a table's elements from the first on, a thread each."""
    thread, _, _ = cute.arch.thread_idx()
    value = _value_of(thread, values)
    if const_expr(is_dependent):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
    if first + thread < places.shape[0]:
        places[first + thread] = value


@cute.kernel
def _write_places_and_factors(
    places: cute.Tensor,
    factor_places: cute.Tensor,
    first: Int32,
    values: list[Int32],
    of_factors: list[Int32],
    is_dependent: Constexpr[bool],
) -> None:
    """Write the elements of two tables from the first on, a thread for each pair."""
    thread, _, _ = cute.arch.thread_idx()
    value, of_factor = _value_of(thread, values), _value_of(thread, of_factors)
    if const_expr(is_dependent):
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
    if first + thread < places.shape[0]:
        places[first + thread] = value
        factor_places[first + thread] = of_factor


def _values(addresses: Any, first: Any, base: Any, step: Any) -> list[Int32]:
    """Return the places of PLACES_A_LAUNCH groups, those behind the last the last one's; to be called while tracing."""
    last = addresses.shape[0] - 1
    return [Int32((addresses[cutlass.min(first + i, last)] - base) // step) for i in range(PLACES_A_LAUNCH)]


@cute.jit
def _write_one(
    of_groups: cute.Tensor,
    base: Int64,
    step: Int64,
    places: cute.Tensor,
    first: Int32,
    stream: cuda.CUstream,
    is_dependent: Constexpr[bool],
) -> None:
    """Launch what writes one table, from a group on."""
    for start in cutlass.range(first, of_groups.shape[0], PLACES_A_LAUNCH):
        _write_places(places, start, _values(of_groups, start, base, step), is_dependent).launch(
            grid=(1, 1, 1), block=(PLACES_A_LAUNCH, 1, 1), stream=stream, use_pdl=is_dependent
        )


@cute.jit
def write_places(
    addresses: tuple[cute.Tensor, cute.Tensor | None],
    b: cute.Tensor,
    factors: cute.Tensor | None,
    tables: tuple[cute.Tensor, cute.Tensor | None],
    stream: cuda.CUstream,
    is_dependent: Constexpr[bool],
    bits: Constexpr[int],
) -> None:
    """Launch what writes the tables of places: one launch where both lie apart, nothing where neither does.

    Args:
        addresses: int64, in host memory: of each group's B, and of its atoms of factors; of 0 elements where those are
            one stack, and None of an operation that has none.
        b: the stack that the groups' B are seen as, whose first mode is that of the places.
        factors: a vector of as many bytes as lie between two places of atoms.
        tables: int32 on the device, as many as there are addresses of each.
        stream: CUstream.
        is_dependent: whether the kernel behind it waits for it by griddepcontrol, as it then does for the one in front.
        bits: of an element of B.
    """
    base, step = b.iterator.toint(), Int64(b.stride[0]) * bits // BYTE_BITS
    if const_expr(addresses[1] is None):
        _write_one(addresses[0], base, step, tables[0], Int32(0), stream, is_dependent)
    else:
        base_of_factors, step_of_factors = factors.iterator.toint(), Int64(factors.shape[0])
        num_pairs = cutlass.min(addresses[0].shape[0], addresses[1].shape[0])
        for first in cutlass.range(0, num_pairs, PLACES_A_LAUNCH):
            values = _values(addresses[0], first, base, step)
            of_factors = _values(addresses[1], first, base_of_factors, step_of_factors)
            _write_places_and_factors(tables[0], tables[1], first, values, of_factors, is_dependent).launch(
                grid=(1, 1, 1), block=(PLACES_A_LAUNCH, 1, 1), stream=stream, use_pdl=is_dependent
            )
        _write_one(addresses[0], base, step, tables[0], num_pairs, stream, is_dependent)
        _write_one(addresses[1], base_of_factors, step_of_factors, tables[1], num_pairs, stream, is_dependent)
