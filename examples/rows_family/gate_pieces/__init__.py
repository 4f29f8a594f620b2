"""The family `gate_pieces`: Y = silu(gate) * linear, eight elements a thread. An example of a family of rows.

X has a gate and a linear element for each one of Y: in two halves of its rows, or side by side, as a flag says. No
element depends on others of its row, so that a CTA takes a piece of it.

Nothing here imports CUTLASS but what `entry` calls: commands that compile nothing ask for the space of a family too.
There is no `from __future__ import annotations`, since CuTe DSL reads the annotations of its functions as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from aot.core.candidate import Candidate, Rejected, Resources
from aot.core.constraints import Range
from aot.core.feature import Feature
from aot.core.knobs import Knobs
from aot.core.target import Target
from aot.families import Entry
from aot.kinds.rows.candidate import RowKnobs, RowLimits
from aot.kinds.rows.catalogue import row_operation
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.signature import RowFlag

LANES = 32
LOAD = 8
"""Elements of 16 bits that a thread loads at once."""


@dataclass(frozen=True)
class GateKnobs(Knobs):
    """What can be set of a kernel. A candidate's name is made of it: `gate_pieces_warps4`."""

    warps: Annotated[int, Range(1, 32)]
    """Of a CTA."""


class GatePieces:
    """The family."""

    name = "gate_pieces"
    kind = "rows"
    knobs = GateKnobs
    needs: tuple[Feature, ...] = ()
    is_fallback = False
    operations = (row_operation("bf16_silu_mul"), row_operation("fp16_silu_mul"))

    def candidates(self, operation: RowOperation, target: Target) -> Iterator[Candidate]:
        """Enumerate the space."""
        del operation, target
        for warps in (2, 4, 8):
            yield Candidate(self.name, GateKnobs(warps))

    def check(self, candidate: Candidate, operation: RowOperation, target: Target) -> Rejected | None:
        """Refuse nothing: `aot` looks at threads itself."""
        del candidate, operation, target
        return None

    def resources(self, candidate: Candidate, operation: RowOperation, target: Target) -> Resources:
        """Count what a CTA takes: its threads, no shared memory, and as many registers as the compiler likes."""
        del operation, target
        return Resources(0, 0, LANES * GateKnobs.of(candidate).warps, 0)

    def limits(self, candidate: Candidate, operation: RowOperation) -> RowLimits:
        """Ask for rows that begin at multiples of 16 bytes and are whole loads."""
        del candidate, operation
        return RowLimits(alignment_bytes=2 * LOAD, cols_multiple=LOAD)

    def num_reads(self, candidate: Candidate, operation: RowOperation) -> int:
        """Read X once."""
        del candidate, operation
        return 1

    def tiling(self, candidate: Candidate) -> RowKnobs:
        """Describe a CTA's work to the cost model, in the words that it knows."""
        return RowKnobs(LANES * GateKnobs.of(candidate).warps, 1, LOAD, 1)

    def entry(self, candidate: Candidate, operation: RowOperation, target: Target) -> Entry:
        """Make the function to compile, and its arguments: those of the signature, here X, Y, flags and the stream."""
        del target
        import cutlass
        from cutlass import Int32, cute

        element = getattr(cutlass, operation.x.cutlass_name)
        rows, cols, width = cute.sym_int(), cute.sym_int(), cute.sym_int()

        def matrix(*shape: Any) -> Any:
            """Make an argument whose rows begin at multiples of 16 bytes, as `limits` asks for."""
            strides = (cute.sym_int64(divisibility=LOAD), 1)
            return cute.runtime.make_fake_tensor(element, shape, stride=strides, assumed_align=2 * LOAD)

        arguments = (matrix(rows, width), matrix(rows, cols), Int32(0), cute.runtime.make_fake_stream())
        return Entry(_entry(LANES * GateKnobs.of(candidate).warps), arguments)


def _entry(threads: int) -> Any:
    """Make the kernel and what launches it."""
    import cutlass
    from cuda.bindings import driver as cuda
    from cutlass import Float32, Int32, Int64, cute, range_constexpr

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, flags: Int32) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        cols = y.shape[1]
        pieces = cute.ceil_div(cols, threads * LOAD)
        row = block // pieces
        at = (block % pieces * threads + thread) * LOAD
        if at < cols:
            is_interleaved = (flags & int(RowFlag.IS_INTERLEAVED)) != 0
            place = at // LOAD
            first, second = (cute.make_rmem_tensor(LOAD, x.element_type) for _ in range(2))
            one = cutlass.select_(is_interleaved, 2 * place, place)
            other = cutlass.select_(is_interleaved, 2 * place + 1, cols // LOAD + place)
            cute.autovec_copy(cute.local_tile(x[row, None], (LOAD,), (one,)), first)
            cute.autovec_copy(cute.local_tile(x[row, None], (LOAD,), (other,)), second)
            found = cute.make_rmem_tensor(LOAD, y.element_type)
            in_turn = [first[i] for i in range(LOAD)] + [second[i] for i in range(LOAD)]
            for i in range_constexpr(LOAD):
                gate = cutlass.select_(is_interleaved, in_turn[2 * i].to(Float32), first[i].to(Float32))
                linear = cutlass.select_(is_interleaved, in_turn[2 * i + 1].to(Float32), second[i].to(Float32))
                found[i] = (gate / (Float32(1.0) + cute.math.exp(-gate)) * linear).to(y.element_type)
            cute.autovec_copy(found, cute.local_tile(y[row, None], (LOAD,), (place,)))

    @cute.jit
    def entry(x: cute.Tensor, y: cute.Tensor, flags: Int32, stream: cuda.CUstream) -> None:
        blocks = Int64(y.shape[0]) * Int64(cute.ceil_div(y.shape[1], threads * LOAD))
        launched = Int32(cutlass.min(blocks, Int64(2**32 - 1)))  # too many are refused, and not launched in part
        kernel(x, y, flags).launch(grid=(launched, 1, 1), block=(threads, 1, 1), stream=stream)

    return entry


FAMILY = GatePieces()
