"""Rows of any width, of which each is read several times: once for each step that needs all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import RowFunction
from aot.row_families import _space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.families import Entry
    from aot.kinds.rows.operation import RowOperation

THREADS_PER_ROW = (256, 512)
VECTORS = (1, 2)
"""With four, the kernel of a layer norm with quantised output spills."""


def num_reads(operation: RowOperation) -> int:
    """Count how often a row is read: for its mean, its variance, its largest magnitude and its result."""
    means = {RowFunction.RMS_NORM: 1, RowFunction.LAYER_NORM: 2}.get(operation.function, 0)
    return means + operation.is_quantized + 1


class RowLooped(_space.RowKernels):
    """The family `row_looped`."""

    name = "row_looped"

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate threads and vectors; an operation whose rows can be cut needs none of it."""
        if not operation.reduces_rows:
            return
        for threads in THREADS_PER_ROW:
            for vectors in VECTORS:
                yield RowCandidate(self.name, threads, 1, _space.vector_elements(operation), vectors)

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        return _space.registers(candidate, operation, _space.LOOP_REGISTERS)

    def num_reads(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Read once for each step."""
        del candidate
        return num_reads(operation)

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Make the entry."""
        from aot.row_families._entry import row_entry

        return row_entry(operation, candidate, self.registers(candidate, operation), is_looped=True)


FAMILY = RowLooped()
