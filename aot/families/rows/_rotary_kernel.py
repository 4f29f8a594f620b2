"""The kernel of rotary position embedding, in CuTe DSL. Imports CUTLASS.

A row is a head of a token. Each thread rotates vectors of both elements of the pairs: of halves the vectors at j and at
j + half, of interleaved pairs the two that hold pairs j to j + a vector. What it writes is what it alone reads, so that
Y may be X.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any

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

    def launch(
        self, x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, y: cute.Tensor, flags: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch a CTA for each few heads; to be called while tracing."""
        rows = Int64(y.shape[0]) * Int64(y.shape[1])
        groups = cutlass.max(cute.ceil_div(rows, self.knobs.rows_per_cta), Int64(1))
        self.kernel(x, cos, sin, y, flags).launch(
            grid=along_x(cutlass.select_(rows <= MAX_ROWS, groups, Int64(TOO_MANY))),
            block=(self.knobs.num_threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=_space.blocks_per_sm(_space.ROTARY_REGISTERS, self.knobs.num_threads),
            preferred_smem_carveout=_space.SMEM_CARVEOUT,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, y: cute.Tensor, flags: Int32) -> None:
        """Rotate the heads of a CTA: see the module."""
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        knobs = self.knobs
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        tokens, heads, dim = y.shape
        row = block * knobs.rows_per_cta + thread // knobs.threads_per_row
        if (row >= 0) & (row < tokens * heads):  # row may wrap
            token, head = row // heads, row % heads
            source, target = _head(x, token, head), _head(y, token, head)
            position = token % cos.shape[0]
            self._rotate(source, target, cos, sin, position, flags, dim)

    @cute.jit
    def _rotate(
        self, source: Any, target: Any, cos: cute.Tensor, sin: cute.Tensor, position: Int32, flags: Int32, dim: Int32
    ) -> None:
        """Rotate a head's pairs, and copy what is behind them."""
        elements = const_expr(self.knobs.vector_elements)
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
        flat = [first[e] for e in range(elements)] + [second[e] for e in range(elements)]
        flat = [x.to(Float32) for x in flat]
        halves, sides = [None] * (2 * elements), [None] * (2 * elements)
        for e in range_constexpr(elements):
            c, s = cos[e].to(Float32), sin[e].to(Float32)
            a = cutlass.select_(is_interleaved, flat[2 * e], flat[e])
            b = cutlass.select_(is_interleaved, flat[2 * e + 1], flat[elements + e])
            left, right = a * c - b * s, b * c + a * s
            halves[e], halves[elements + e] = left, right
            sides[2 * e], sides[2 * e + 1] = left, right
        for e in range_constexpr(elements):
            for vector_of, start in ((first, 0), (second, elements)):
                value = cutlass.select_(is_interleaved, sides[start + e], halves[start + e])
                vector_of[e] = Float32(value).to(vector_of.element_type)


def _head(tensor: Any, token: Any, head: Any) -> Any:
    """View a head of a token as a matrix of one row."""
    offset = Int64(token) * tensor.stride[0] + Int64(head) * tensor.stride[1]
    layout = cute.make_layout((1, tensor.shape[2]), stride=(tensor.stride[1], tensor.stride[2]))
    return cute.make_tensor(tensor.iterator + offset, layout)


def _copy(source: Any) -> Any:
    """Load a vector to registers."""
    values = cute.make_rmem_tensor(cute.size(source), source.element_type)
    cute.autovec_copy(source, values)
    return values
