"""The family `row_dot`: each warp computes elements of D as dot products, along k. An example of a family of one's own.

It is meant for one row of A, or a few. A warp reads a row of A and some rows of B, 16 bytes a lane at once, adds up in
float32, and brings the lanes' sums together by shuffles. No tensor core is in it, so that it needs nothing of a chip.

Nothing here imports CUTLASS but what `entry` calls: commands that compile nothing ask for the space of a family too.
There is no `from __future__ import annotations`, since CuTe DSL reads the annotations of its functions as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from aot.core.candidate import Candidate, Resources
from aot.core.constraints import Range
from aot.core.knobs import GemmKnobs, Knobs
from aot.core.operation import Layout, Operation
from aot.core.target import Target
from aot.core.types import BF16, FP16
from aot.families import Defaults, Entry

LANES = 32
LOAD = 8
"""Elements of 16 bits that a lane loads at once."""


@dataclass(frozen=True)
class RowDotKnobs(Knobs):
    """What can be set of a kernel. A candidate's name is made of it: `row_dot_columns2_warps4`."""

    warps: Annotated[int, Range(1, 16)]
    """Of a CTA; each takes the next columns."""
    columns: Annotated[int, Range(1, 8)] = 1
    """Of D, that a warp computes at once: so often is a row of A used that is read once."""


class RowDot(Defaults):
    """The family."""

    name = "row_dot"
    knobs = RowDotKnobs
    types = (BF16, FP16)
    layouts = (Layout.KK,)
    peak_share = 0.05
    """An assumption: the CUDA cores' rate beside the tensor cores'."""

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the space."""
        del operation, target
        for warps in (1, 2, 4, 8):
            for columns in (1, 2, 4):
                yield Candidate(self.name, RowDotKnobs(warps, columns))

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count what a CTA takes: no shared memory. A stage is what is under way at once, for the cost model."""
        del operation, target
        knobs = RowDotKnobs.of(candidate)
        return Resources(0, 2 * LOAD * LANES * knobs.warps * (1 + knobs.columns), LANES * knobs.warps, 1)

    def tiling(self, candidate: Candidate) -> GemmKnobs:
        """Describe a CTA's part of D to the cost model, in the words that it knows."""
        knobs = RowDotKnobs.of(candidate)
        return GemmKnobs(1, knobs.warps * knobs.columns, use_tma_store=False)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of additions, which is the same for every m: bits do not depend on it."""
        del candidate
        return "fma of 8 along k by lanes, lanes by halves"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the function to compile, and its arguments: those of the signature, here A, B, D and the stream."""
        del target
        import cutlass
        from cutlass import cute

        element = getattr(cutlass, operation.a.element.cutlass_name)
        m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int()

        def matrix(*shape: Any) -> Any:
            """Make an argument whose rows begin at multiples of 16 bytes, as `Alignment()` asks for."""
            strides = (cute.sym_int64(divisibility=LOAD), 1)
            return cute.runtime.make_fake_tensor(element, shape, stride=strides, assumed_align=2 * LOAD)

        arguments = (matrix(m, k), matrix(n, k), matrix(m, n), cute.runtime.make_fake_stream())
        return Entry(_entry(RowDotKnobs.of(candidate)), arguments)


def _entry(knobs: RowDotKnobs) -> Any:  # noqa: C901 - the kernel's branches, and those of what launches it
    """Make the kernel and what launches it."""
    import cutlass
    from cuda.bindings import driver as cuda
    from cutlass import Float32, Int32, Int64, cute, range_constexpr

    warps, columns = knobs.warps, knobs.columns

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor) -> None:  # noqa: C901
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks_of_row = cute.ceil_div(d.shape[1], warps * columns)
        row = block // blocks_of_row
        first = (block % blocks_of_row * warps + thread // LANES) * columns
        lane = thread % LANES
        k = a.shape[1]
        sums = cute.make_rmem_tensor(columns, Float32)
        sums.fill(0.0)
        of_a = cute.make_rmem_tensor(LOAD, a.element_type)
        of_b = cute.make_rmem_tensor(LOAD, b.element_type)
        for step in cutlass.range(cute.ceil_div(k, LANES * LOAD)):
            at = (step * LANES + lane) * LOAD
            if at + LOAD <= k:
                cute.autovec_copy(cute.local_tile(a[row, None], (LOAD,), (at // LOAD,)), of_a)
                for j in range_constexpr(columns):
                    column = cutlass.min(first + j, d.shape[1] - 1)
                    cute.autovec_copy(cute.local_tile(b[column, None], (LOAD,), (at // LOAD,)), of_b)
                    for i in range_constexpr(LOAD):
                        sums[j] = sums[j] + of_a[i].to(Float32) * of_b[i].to(Float32)
            elif at < k:
                for j in range_constexpr(columns):
                    column = cutlass.min(first + j, d.shape[1] - 1)
                    for i in range_constexpr(LOAD):
                        if at + i < k:
                            sums[j] = sums[j] + a[row, at + i].to(Float32) * b[column, at + i].to(Float32)
        for j in range_constexpr(columns):
            total = cute.arch.warp_reduction_sum(sums[j])
            if lane == 0 and first + j < d.shape[1]:
                d[row, first + j] = total.to(d.element_type)

    @cute.jit
    def entry(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: cuda.CUstream) -> None:
        blocks = Int64(d.shape[0]) * Int64(cute.ceil_div(d.shape[1], warps * columns))
        launched = Int32(cutlass.min(blocks, Int64(2**32 - 1)))  # too many are refused, and not launched in part
        kernel(a, b, d).launch(grid=(launched, 1, 1), block=(warps * LANES, 1, 1), stream=stream)

    return entry


FAMILY = RowDot()
