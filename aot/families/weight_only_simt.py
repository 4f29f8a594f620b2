"""The fallback of packed weights: any x and any D, multiplied on the CUDA cores as `simt` does. It is not fast.

The weight itself is at a multiple of 16 bytes, as all packed ones are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Candidate, KernelKey
from aot.core.operation import Operation
from aot.families.simt import Simt
from aot.families.weight_only import WEIGHT_EPILOGUES, WEIGHT_GROUPINGS

if TYPE_CHECKING:
    from aot.core.target import Target
    from aot.families import Entry


class WeightOnlySimt(Simt):
    """The family `weight_only_simt`: what `simt` is, of operations with a packed weight."""

    name = "weight_only_simt"
    types = tuple(dict.fromkeys(x.types for x in Operation if x.types.weight is not None))
    epilogues = WEIGHT_EPILOGUES
    groupings = WEIGHT_GROUPINGS

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the entry over tensors whose strides are all dynamic."""
        from aot.families import Entry, signature
        from aot.families._weight_only_simt_kernel import arguments, make_entry

        del target
        return Entry(make_entry(operation), arguments(signature(KernelKey(operation, candidate)), operation))


FAMILY = WeightOnlySimt()
