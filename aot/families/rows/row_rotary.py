"""Rotary position embedding of aligned heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.families.rows import _space
from aot.kinds.rows.candidate import RowKnobs, row_candidate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Candidate
    from aot.core.target import Target
    from aot.families import Entry
    from aot.kinds.rows.operation import RowOperation

THREADS_OF_CTA = (128, 256)
THREADS_PER_ROW = (4, 8, 16)
"""A thread rotates 16 elements at a time: 8 threads take the 128 of a usual head at once."""


class RowRotary(_space.RowKernels):
    """The family `row_rotary`."""

    name = "row_rotary"

    def computes(self, operation: RowOperation) -> bool:
        """Take heads alone."""
        return _space.is_of_heads(operation)

    def candidates(self, operation: RowOperation, target: Target) -> Iterator[Candidate]:
        """Enumerate threads a head and heads a CTA."""
        del target
        for threads in THREADS_PER_ROW:
            for total in THREADS_OF_CTA:
                yield row_candidate(self.name, threads, total // threads, _space.vector_elements(operation), 1)

    def registers(self, knobs: RowKnobs, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        del knobs, operation
        return _space.ROTARY_REGISTERS

    def entry(self, candidate: Candidate, operation: RowOperation, target: Target) -> Entry:
        """Make the entry."""
        del target
        from aot.families.rows._entry import rotary_entry

        return rotary_entry(operation, candidate)


FAMILY = RowRotary()
