"""Rows of any width, of which each is read several times: once for each step that needs all of it."""

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

THREADS_PER_ROW = (256, 512)
VECTORS = (1, 2)
"""With four, the kernel of a layer norm with quantised output spills."""


def num_reads(operation: RowOperation) -> int:
    """Count how often a row is read: for its mean, its variance, its largest magnitude and its result."""
    return operation.function.num_reductions + operation.reads_for_scales + 1


class RowLooped(_space.RowKernels):
    """The family `row_looped`."""

    name = "row_looped"

    def computes(self, operation: RowOperation) -> bool:
        """Leave out what can be cut into pieces."""
        return operation.reduces_rows and super().computes(operation)

    def candidates(self, operation: RowOperation, target: Target) -> Iterator[Candidate]:
        """Enumerate threads and vectors; an operation whose rows can be cut needs none of it."""
        del target
        for threads in THREADS_PER_ROW:
            for vectors in VECTORS:
                yield row_candidate(self.name, threads, 1, _space.vector_elements(operation), vectors)

    def registers(self, knobs: RowKnobs, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        return _space.registers(knobs, operation, _space.LOOP_REGISTERS)

    def num_reads(self, candidate: Candidate, operation: RowOperation) -> int:
        """Read once for each step."""
        del candidate
        return num_reads(operation)

    def entry(self, candidate: Candidate, operation: RowOperation, target: Target) -> Entry:
        """Make the entry."""
        del target
        from aot.families.rows._entry import row_entry

        return row_entry(operation, candidate, self.registers(RowKnobs.of(candidate), operation), is_looped=True)


FAMILY = RowLooped()
