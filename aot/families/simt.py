"""Our own kernel for what the tensor-core families do not take: any size, alignment, layout and stride.

A plain shared-memory GEMM on the CUDA cores, in float32, or in int32 where the accumulator is that. It makes dispatch
total for every operation of the catalogue but those of packed weights, which `weight_only_simt` has; it is not meant to
be fast, and an aligned problem never gets it where a tensor-core family has the operation. tf32 is multiplied as the
float32 that it is in memory, exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.operation import Operation
from aot.families import Defaults
from aot.families._simt_tile import NUM_THREADS, TILE, smem_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.families import Entry


class Simt(Defaults):
    """The family `simt`."""

    name = "simt"
    num_strides = 2
    is_fallback = True
    loads_outside = True
    types = tuple(dict.fromkeys(x.types for x in Operation if x.types.weight is None))
    epilogues = tuple(Epilogue)
    groupings = tuple(Grouping)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate the one candidate."""
        del operation, target
        yield gemm_candidate(family=self.name, tile_m=TILE, tile_n=TILE, use_tma_store=False)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Accept the one candidate only."""
        if candidate not in self.candidates(operation, target):
            return Rejected(Reason.COMBINATION, f"{self.name} has one candidate, {TILE}x{TILE}")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the staged tiles."""
        del candidate, target
        staged = smem_bytes(operation)
        return Resources(staged, stage_bytes=staged, num_threads=NUM_THREADS, num_stages=1)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any."""
        del candidate
        return Alignment(loads=1, stores=1)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of fused multiply-adds from the first of k to the last."""
        del candidate
        return "fma"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the entry over tensors whose strides are all dynamic."""
        from aot.families import Entry, signature

        if operation.grouping.has_offsets:
            from aot.families._simt_grouped_kernel import arguments, make_entry
        elif operation.has_parts:
            from aot.families._simt_parts import arguments, make_entry
        else:
            from aot.families._simt_kernel import arguments, make_entry

        del target
        return Entry(make_entry(operation), arguments(signature(KernelKey(operation, candidate)), operation))


FAMILY = Simt()
