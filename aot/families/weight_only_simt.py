"""The fallback of packed weights: any x and any D, multiplied on the CUDA cores as `simt` does. It is not fast.

The weight itself is at a multiple of 16 bytes, as all packed ones are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, gemm_candidate
from aot.core.operation import Operation
from aot.families import Defaults
from aot.families._simt_tile import NUM_THREADS, TILE, smem_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.families import Entry


class WeightOnlySimt(Defaults):
    """The family `weight_only_simt`."""

    name = "weight_only_simt"
    num_strides = 2
    is_fallback = True
    loads_outside = True
    types = tuple(dict.fromkeys(x.types for x in Operation if x.types.weight is not None))

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
        from aot.families._weight_only_simt_kernel import arguments, make_entry

        del target
        return Entry(make_entry(operation), arguments(signature(KernelKey(operation, candidate)), operation))


FAMILY = WeightOnlySimt()
