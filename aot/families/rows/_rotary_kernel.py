"""The kernel of rotary position embedding, in CuTe DSL. Imports CUTLASS.

A row is a head of a token: of X, and where a call has them of its keys and of its values. Each thread rotates vectors
of both elements of the pairs: of halves the vectors at j and at j + half, of interleaved pairs the two that hold pairs
j to j + a vector. What it writes is what it alone reads, so that Y may be X. Keys are rotated on their way to their
cache, values go to theirs as they are.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr

from aot.core.candidate import Candidate
from aot.families._grid import TOO_MANY, along_x
from aot.families.rows import _space
from aot.families.rows._memory import has, vector
from aot.kinds.rows.candidate import RowKnobs
from aot.kinds.rows.signature import RowFlag

MAX_ROWS = 2**31 - 1
"""Heads of all tokens, which the kernel counts in 32 bits; a launch of more is refused."""

TRAP = "{ .reg .pred outside; setp.ne.s32 outside, {$r0}, 0; @outside trap; }"
"""Ends the kernel with an error where r0 is not 0. Source: PTX ISA, trap."""


class Tensors(NamedTuple):
    """The tensors of a call. Of one that has no keys, these, the values and the caches have no heads, and no memory."""

    x: cute.Tensor
    cos: cute.Tensor
    sin: cute.Tensor
    keys: cute.Tensor
    values: cute.Tensor
    y: cute.Tensor
    key_cache: cute.Tensor
    value_cache: cute.Tensor
    cache_position: cute.Tensor

    @property
    def heads(self) -> Any:
        """Count the heads of a token: its own, and those of its key and of its value."""
        return self.y.shape[1] + 2 * self.keys.shape[1]


class Head(NamedTuple):
    """A head of a token."""

    token: Any
    number: Any
    """Among those of X, of the keys or of the values."""
    is_of_x: Any
    is_of_keys: Any


@dataclass(frozen=True, repr=False)
class RotaryKernel:
    """The kernel of one candidate."""

    candidate: Candidate

    def __repr__(self) -> str:
        """Return what the compiler names the kernel by."""
        return _space.kernel_text(self)

    @property
    def knobs(self) -> RowKnobs:
        """Return what the candidate sets."""
        return RowKnobs.of(self.candidate)

    def launch(self, tensors: Tensors, flags: Int32, stream: cuda.CUstream) -> None:
        """Launch a CTA for each few heads; to be called while tracing."""
        rows = Int64(tensors.y.shape[0]) * Int64(tensors.heads)
        groups = cutlass.max(cute.ceil_div(rows, self.knobs.rows_per_cta), Int64(1))
        self.kernel(*tensors, flags).launch(
            grid=along_x(cutlass.select_(rows <= MAX_ROWS, groups, Int64(TOO_MANY))),
            block=(self.knobs.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=_space.blocks_per_sm(_space.ROTARY_REGISTERS, self.knobs.num_threads),
            preferred_smem_carveout=_space.SMEM_CARVEOUT,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
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
    ) -> None:
        """Rotate the heads of a CTA: see the module."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        tensors = Tensors(x, cos, sin, keys, values, y, key_cache, value_cache, cache_position)
        knobs = self.knobs
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        row = block * knobs.rows_per_cta + thread // knobs.threads_per_row
        if (row >= 0) & (row < y.shape[0] * tensors.heads):  # row may wrap
            token, place = row // tensors.heads, row % tensors.heads
            first, second = y.shape[1], y.shape[1] + keys.shape[1]
            number = place - cutlass.select_(place < first, 0, cutlass.select_(place < second, first, second))
            head = Head(token, number, place < first, place < second)
            source, target = self._source(tensors, head), self._target(tensors, head)
            self._rotate(source, target, cos, sin, token % cos.shape[0], flags, place < second)

    @cute.jit
    def _source(self, tensors: Any, head: Any) -> Any:
        """View a head that is read as a matrix of one row."""
        x, keys, values = tensors.x, tensors.keys, tensors.values
        start, token_step, head_step, step = _places(x)
        if not head.is_of_x:
            of_keys, of_values = _places(keys), _places(values)
            start = cutlass.select_(head.is_of_keys, of_keys[0], of_values[0])
            token_step = cutlass.select_(head.is_of_keys, of_keys[1], of_values[1])
            head_step = cutlass.select_(head.is_of_keys, of_keys[2], of_values[2])
            step = cutlass.select_(head.is_of_keys, of_keys[3], of_values[3])
        offset = Int64(head.token) * token_step + Int64(head.number) * head_step
        return self._head(x, start + offset * _element_bytes(x), step)

    @cute.jit
    def _target(self, tensors: Any, head: Any) -> Any:
        """View where a head is written: a head of Y, or of a cache at the position of its token."""
        start, token_step, head_step, step = _places(tensors.y)
        offset = Int64(head.token) * token_step + Int64(head.number) * head_step
        if not head.is_of_x:
            count = tensors.cache_position.shape[0]
            position, length = tensors.cache_position[head.token % count], Int64(tensors.key_cache.shape[1])
            position = cutlass.select_(position < 0, position + length, position)
            is_outside = (position < 0) | (position >= length)
            cute.arch.inline_ptx(TRAP, read_only_args=[Int32(is_outside)])
            of_keys, of_values = _places(tensors.key_cache), _places(tensors.value_cache)
            start = cutlass.select_(head.is_of_keys, of_keys[0], of_values[0])
            sequence_step, position_step, head_step = (
                cutlass.select_(head.is_of_keys, of_keys[i], of_values[i]) for i in (1, 2, 3)
            )
            offset = (
                Int64(head.token // count) * sequence_step + position * position_step + Int64(head.number) * head_step
            )
            step = Int64(1)
        return self._head(tensors.y, start + offset * _element_bytes(tensors.y), step)

    def _head(self, like: Any, address: Any, step: Any) -> Any:
        """View a head at an address as a matrix of one row, of elements of a tensor's type."""
        elements = self.knobs.vector_elements
        element = like.element_type
        size = elements * element.width // 8
        pointer = cute.make_ptr(element, address, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(pointer, cute.make_layout((1, like.shape[2]), stride=(0, 1 if elements > 1 else step)))

    @cute.jit
    def _rotate(
        self,
        source: Any,
        target: Any,
        cos: cute.Tensor,
        sin: cute.Tensor,
        position: Int32,
        flags: Int32,
        is_turned: Any,
    ) -> None:
        """Rotate a head's pairs, and copy what is behind them; of values copy all."""
        elements = const_expr(self.knobs.vector_elements)
        dim = source.shape[1]
        half, step = cos.shape[1], self.knobs.threads_per_row * elements
        lane = cute.arch.thread_idx()[0] % self.knobs.threads_per_row
        is_interleaved = has(flags, RowFlag.IS_INTERLEAVED)
        for i in cutlass.range(cute.ceil_div(half, step), unroll=1):
            j = i * step + lane * elements
            if j < half:
                first = cutlass.select_(is_interleaved, 2 * j, j)
                second = cutlass.select_(is_interleaved, 2 * j + elements, half + j)
                places = [vector(source, 0, x, elements) for x in (first, second)]
                angles = [vector(x, position, j, elements) for x in (cos, sin)]
                pairs = [_copy(x) for x in (*places, *angles)]
                if is_turned:
                    self._rotate_vectors(*pairs, is_interleaved)
                cute.autovec_copy(pairs[0], vector(target, 0, first, elements))
                cute.autovec_copy(pairs[1], vector(target, 0, second, elements))
        for i in cutlass.range(cute.ceil_div(dim - 2 * half, step), unroll=1):
            j = 2 * half + i * step + lane * elements
            if j < dim:
                cute.autovec_copy(_copy(vector(source, 0, j, elements)), vector(target, 0, j, elements))

    @cute.jit
    def _rotate_vectors(self, first: Any, second: Any, cos: Any, sin: Any, is_interleaved: Any) -> None:
        """Rotate the pairs of two vectors in place: (first, second) element by element, or side by side."""
        elements = const_expr(self.knobs.vector_elements)
        if is_interleaved:
            for e in range_constexpr(elements):
                held = first if const_expr(2 * e < elements) else second
                place = const_expr(2 * e % elements)
                if const_expr(elements == 1):
                    _rotate_pair(first, 0, second, 0, cos[e], sin[e])
                else:
                    _rotate_pair(held, place, held, place + 1, cos[e], sin[e])
        else:
            for e in range_constexpr(elements):
                _rotate_pair(first, e, second, e, cos[e], sin[e])


def _rotate_pair(one: Any, i: int, other: Any, j: int, cos: Any, sin: Any) -> None:
    """Rotate an element of one vector with one of another."""
    a, b, c, s = (x.to(Float32) for x in (one[i], other[j], cos, sin))
    one[i], other[j] = (Float32(x).to(one.element_type) for x in (a * c - b * s, b * c + a * s))


def _places(tensor: Any) -> tuple[Any, ...]:
    """Return where a tensor begins, and its strides in elements."""
    return Int64(tensor.iterator.toint()), *(Int64(x) for x in tensor.stride)


def _element_bytes(tensor: Any) -> int:
    """Return the bytes of an element."""
    return int(tensor.element_type.width) // 8


def _copy(source: Any) -> Any:
    """Load a vector to registers."""
    values = cute.make_rmem_tensor(cute.size(source), source.element_type)
    cute.autovec_copy(source, values)
    return values
