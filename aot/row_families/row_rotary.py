"""Rotary position embedding of aligned heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import RowFunction
from aot.row_families import _space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.families import Entry
    from aot.kinds.rows.operation import RowOperation

THREADS_OF_CTA = (128, 256)
THREADS_PER_ROW = (4, 8, 16)
"""A thread rotates 16 elements at a time: 8 threads take the 128 of a usual head at once."""


class RowRotary(_space.RowKernels):
    """The family `row_rotary`."""

    name = "row_rotary"

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate threads a head and heads a CTA."""
        if operation.function is not RowFunction.ROTARY:
            return
        for threads in THREADS_PER_ROW:
            for total in THREADS_OF_CTA:
                yield RowCandidate(self.name, threads, total // threads, _space.vector_elements(operation), 1)

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        del candidate, operation
        return _space.ROTARY_REGISTERS

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Make the entry."""
        from aot.row_families._entry import rotary_entry

        return rotary_entry(operation, candidate)


FAMILY = RowRotary()
