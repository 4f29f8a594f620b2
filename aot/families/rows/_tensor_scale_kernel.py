"""Quantisation by one scale of a whole tensor, which the kernels find themselves. Imports CUTLASS.

Three kernels follow one another: the scale is cleared, found, and used. Each CTA of the second finds the scale that its
own rows would have, and all leave the largest in memory. That is the tensor's: the scale grows with the magnitude, and
float32 numbers from 0 on, with a NaN behind them, are in the order of their bits. So it does not matter which CTA comes
first, nothing has to be counted, and no workspace is needed. Where all values are 0 the scale stays 0, and the third
kernel makes it 1.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of jit functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cuda.bindings import driver as cuda
from cutlass import Boolean, Float32, Int32, const_expr, cute
from cutlass.memory import SmemAllocator

from aot.core.numerics import max_finite
from aot.families._grid import along_x
from aot.families.rows import _space
from aot.families.rows._memory import Place, load, maximum, reduce, registers
from aot.families.rows._operands import Operands
from aot.families.rows._quotient import divide
from aot.families.rows._row_kernel import RowKernel
from aot.kinds.rows.quantization import LEAST_SCALE

MOST_CTAS = 1024
"""CTAs that find the scale: each adds one atomic operation at the same address, and together they fill any device."""

LARGER = "{ .reg .b32 bits; mov.b32 bits, {$r1}; red.relaxed.gpu.global.max.u32 [{$r0}], bits; }"
"""Leaves the larger of a float32 from 0 on and what is at an address there. Source: PTX ISA, red."""


@dataclass(frozen=True, repr=False)
class TensorScaleKernel(RowKernel):
    """The kernels of one candidate."""

    def launch(self, operands: Operands, stream: cuda.CUstream) -> None:
        """Launch the three kernels; to be called while tracing."""
        rows, cols = operands.y.shape
        pieces = self._num_pieces(cols)
        across = cutlass.min(pieces, MOST_CTAS)
        down = cutlass.max(cutlass.min(rows, MOST_CTAS // across), 1)
        options = {
            "stream": stream,
            "min_blocks_per_mp": _space.blocks_per_sm(self.registers, self.knobs.num_threads),
            "preferred_smem_carveout": _space.SMEM_CARVEOUT,
            "use_pdl": True,
        }
        block = (self.knobs.num_threads, 1, 1)
        self.clear(operands.scale).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream, use_pdl=True)
        self.find(operands.x, operands.y, operands.scale).launch(grid=along_x(across, down), block=block, **options)
        self.use(operands.x, operands.y, operands.scale).launch(grid=along_x(rows, pieces), block=block, **options)

    @cute.kernel
    def clear(self, scale: cute.Tensor) -> None:
        """Make the scale 0."""
        _begin()
        scale[0, 0] = Float32(0.0)

    @cute.kernel
    def find(self, x: cute.Tensor, y: cute.Tensor, scale: cute.Tensor) -> None:
        """Find the scale that a CTA's rows would have, and leave it where it is larger than the others'."""
        _begin()
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        rows, cols = y.shape
        pieces = self._num_pieces(cols)
        across = cutlass.min(pieces, MOST_CTAS)
        down = cute.arch.grid_dim()[0] // across
        first_row, first_piece = block // across, block % across
        magnitude = Float32(0.0)
        # Counted from 0: a row or a piece that steps past the last one could wrap.
        for i in cutlass.range((rows - first_row - 1) // down + 1, unroll=1):
            for j in cutlass.range((pieces - first_piece - 1) // across + 1, unroll=1):
                place = self._place(first_row + i * down, first_piece + j * across, thread, cols)
                magnitude = maximum(magnitude, self._magnitude(self._values(x, place), place))
        num_warps = const_expr(-(-self.knobs.num_threads // cute.arch.WARP_SIZE))
        shared = SmemAllocator().allocate_tensor(Float32, cute.make_layout(num_warps), 16)
        magnitude = reduce(magnitude, maximum, self.knobs.threads_per_row, shared)
        if (thread == 0) & (magnitude != 0.0):  # of a NaN this is so
            found = maximum(magnitude / Float32(max_finite(self.operation.y)), Float32(LEAST_SCALE))
            cute.arch.inline_ptx(LARGER, read_only_args=[scale.iterator.toint(), found])

    @cute.kernel
    def use(self, x: cute.Tensor, y: cute.Tensor, scale: cute.Tensor) -> None:
        """Divide a piece of a row by the scale, and round it."""
        _begin()
        thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        pieces = self._num_pieces(y.shape[1])
        place = self._place(block // pieces, block % pieces, thread, y.shape[1])
        values = self._values(x, place)
        found = scale[0, 0]
        is_zero = found == 0.0
        divisor = cutlass.select_(is_zero, Float32(1.0), found)
        divide(values, divisor, Float32(0.0))  # no value is larger than its quotients' limit: the scale is of them
        self._write(values, Operands(x, None, None, None, y, None, scale, *(None,) * 6), place)
        if is_zero & (block == 0) & (thread == 0):  # those that read it afterwards take 1 either way
            scale[0, 0] = Float32(1.0)

    def _place(self, row: Any, piece: Any, thread: Any, cols: Any) -> Any:
        """Return the place of a thread in a piece of a row that there is."""
        first = piece * self.knobs.columns + thread * self.knobs.vector_elements
        return Place(self.knobs, Int32(row), first, cols)

    @cute.jit
    def _values(self, x: cute.Tensor, place: Any) -> Any:
        """Return a thread's float32 values, those of columns that are not there 0."""
        loaded, values = registers(self.knobs, x.element_type), registers(self.knobs, Float32)
        load(x, place, loaded, Boolean(True))
        values.store(loaded.load().to(Float32))
        return values


def _begin() -> None:
    """Wait for the kernel in front, and let the one behind start."""
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
