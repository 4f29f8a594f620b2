"""Vectors of a row in global memory, and what the threads of a row add up. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr

from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.signature import RowFlag

VECTOR_BITS = 128
"""Bits of the widest load. Source: PTX ISA, ld.global."""
WORDS = VECTOR_BITS // 32

LOAD = (
    "{ .reg .pred there; setp.ne.s32 there, {$r1}, 0; "
    "mov.b32 {$w0}, 0; mov.b32 {$w1}, 0; mov.b32 {$w2}, 0; mov.b32 {$w3}, 0; "
    "@there ld.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; }"
)
"""Loads a vector from the address r0 where r1 is not 0."""


def has(flags: Any, flag: RowFlag) -> Any:
    """Say whether a flag is set."""
    return (flags & int(flag)) != 0


class Place(NamedTuple):
    """Which part of a matrix a thread works on."""

    knobs: Any
    """RowKnobs: its vectors lie `threads_per_row` vectors apart."""
    row: Any
    """Int32."""
    first: Any
    """Int32: the first column of the thread's first vector."""
    limit: Any
    """Int32: the columns of a row, or 0 where the matrix has no such row."""
    source: Any = None
    """Int32: the row of X, where that may be another one than Y's."""
    source_limit: Any = None
    """Int32: the columns that X has of it."""
    row_of_factors: Any = None
    """Int32: the row of atoms that its factors lie in, where that may be another one than Y's."""

    @property
    def of_x(self) -> "Place":
        """Return where X is read."""
        if self.source is None:
            return self
        return self._replace(row=self.source, limit=self.source_limit)

    def column(self, i: int) -> Any:
        """Return the first column of the thread's vector i."""
        return self.first + i * self.knobs.threads_per_row * self.knobs.vector_elements


def vector(tensor: Any, row: Any, column: Any, elements: int) -> Any:
    """View elements of a row from a column on; several are contiguous, and lie on a multiple of them."""
    offset = Int64(row) * tensor.stride[0]
    if elements == 1:
        return cute.make_tensor(tensor.iterator + (offset + Int64(column) * tensor.stride[1]), cute.make_layout(1))
    start = tensor.iterator + cute.assume(offset + Int64(column), divby=elements)
    return cute.make_tensor(start, cute.make_layout(elements))


def registers(knobs: RowKnobs, element: Any) -> Any:
    """Make room for a thread's vectors, (elements, vectors), all zero."""
    values = cute.make_rmem_tensor((knobs.vector_elements, knobs.vectors_per_thread), element)
    values.fill(element(0))
    return values


@cute.jit
def load(tensor: Any, place: Any, values: Any, is_there: Any, times: Constexpr[int] = 1, offset: Int32 = 0) -> None:
    """Load a thread's vectors, those that the row has; of column c what lies at times * c + offset of the tensor.

    Nothing is loaded where `is_there` is False.
    """
    for i in range_constexpr(place.knobs.vectors_per_thread):
        column = place.column(i)
        source = vector(tensor, place.row, times * column + offset, place.knobs.vector_elements)
        _load_vector(source, values[None, i], is_there & (column < place.limit))


@cute.jit
def load_weights(tensor: Any, place: Any, values: Any, is_there: Any) -> None:
    """Load a thread's elements of a contiguous vector that has one for each column, where it is there."""
    elements = const_expr(place.knobs.vector_elements)
    for i in range_constexpr(place.knobs.vectors_per_thread):
        column = place.column(i)
        start = tensor.iterator + cute.assume(column, divby=elements)
        source = cute.make_tensor(start, cute.make_layout(elements))
        _load_vector(source, values[None, i], is_there & (column < place.limit))


@cute.jit
def _load_vector(source: Any, values: Any, is_there: Any) -> None:
    """Load a vector, or zeros where it is not there.

    An ordinary load in a branch would have the compiler unpack its elements there, and so wait for one vector before it
    loads the next. This one is an instruction with a predicate.
    """
    if const_expr(cute.size(source) * source.element_type.width == VECTOR_BITS):
        words = cute.recast_tensor(values, Int32)
        loaded = cute.arch.inline_ptx(
            LOAD, write_only_types=[Int32] * WORDS, read_only_args=[source.iterator, Int32(is_there)]
        )
        for i in range_constexpr(WORDS):
            words[i] = loaded[i]
    elif is_there:
        cute.autovec_copy(source, values)


@cute.jit
def store(tensor: Any, place: Any, values: Any) -> None:
    """Store a thread's vectors, those that the row has."""
    for i in range_constexpr(place.knobs.vectors_per_thread):
        column = place.column(i)
        if column < place.limit:
            target = vector(tensor, place.row, column, place.knobs.vector_elements)
            cute.autovec_copy(values[None, i], target)


def maximum(x: Any, y: Any) -> Float32:
    """Return the larger, or NaN where one is NaN."""
    return Float32(cute.arch.fmax(x, y, nan=True))


def plus(x: Any, y: Any) -> Any:
    """Return the sum."""
    return x + y


@cute.jit
def reduce(
    value: Float32, combine: Constexpr[Callable[..., Any]], threads_per_row: Constexpr[int], shared: Any
) -> Float32:
    """Combine a value of each thread of a row, and return it to all of them.

    All threads of the CTA come here. `shared` has a place for each of its warps, which nothing else uses.
    """
    width = const_expr(min(threads_per_row, cute.arch.WARP_SIZE))
    value = cute.arch.warp_reduction(value, combine, threads_in_group=width)
    if const_expr(threads_per_row > width):
        thread = cute.arch.thread_idx()[0]
        lane, warp = thread % width, thread // width
        if lane == 0:
            shared[warp] = value
        cute.arch.sync_threads()
        warps = const_expr(threads_per_row // width)
        value = shared[warp // warps * warps + lane % warps]
        value = cute.arch.warp_reduction(value, combine, threads_in_group=warps)
    return value
