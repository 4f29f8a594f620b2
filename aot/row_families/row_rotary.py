"""Rotary position embedding of aligned heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.row_candidate import RowCandidate
from aot.core.row_operation import RowFunction
from aot.row_families import _space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Rejected, Resources
    from aot.core.row_candidate import RowLimits
    from aot.core.row_operation import RowOperation
    from aot.families import Entry

THREADS_OF_CTA = (128, 256)
THREADS_PER_ROW = (4, 8, 16)
"""A thread rotates 16 elements at a time: 8 threads take the 128 of a usual head at once."""


class RowRotary:
    """The family `row_rotary`."""

    name = "row_rotary"
    archs = _space.ARCHS
    is_fallback = False

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate threads a head and heads a CTA."""
        if operation.function is not RowFunction.ROTARY:
            return
        for threads in THREADS_PER_ROW:
            for total in THREADS_OF_CTA:
                yield RowCandidate(self.name, threads, total // threads, _space.vector_elements(operation), 1)

    def check(self, candidate: RowCandidate, operation: RowOperation) -> Rejected | None:
        """Refuse what the kernel's vectors cannot be made of."""
        return _space.check_threads(candidate, operation)

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        del candidate, operation
        return _space.ROTARY_REGISTERS

    def resources(self, candidate: RowCandidate, operation: RowOperation) -> Resources:
        """Count threads."""
        del operation
        return _space.resources(candidate)

    def limits(self, candidate: RowCandidate, operation: RowOperation) -> RowLimits:
        """Ask for aligned heads."""
        del operation
        return _space.limits(candidate)

    def num_reads(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Read once."""
        del candidate, operation
        return 1

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Make the entry."""
        from aot.row_families._entry import rotary_entry

        return rotary_entry(operation, candidate)


FAMILY = RowRotary()
