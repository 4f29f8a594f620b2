"""Rows that the registers of their threads hold: each element is read once. Norms, pairs and quantisation."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from aot.core.formats import SCALE_BLOCK
from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import MAX_COLS, RowScale
from aot.row_families import _space

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.families import Entry
    from aot.kinds.rows.candidate import RowLimits
    from aot.kinds.rows.operation import RowOperation

THREADS_OF_CTA = (128, 256)
"""Threads of a CTA that takes several rows, or blocks or pieces of them."""
THREADS_PER_ROW = (32, 64, 128, 256, 512, 1024)
VECTORS = (1, 2, 4)
"""Eight vectors are 64 elements, for which a thread has too few registers to keep them all under way."""
PIECE_VECTORS = (1, 2, 4)
"""Of operations whose rows are cut into pieces."""


def _threads(operation: RowOperation) -> Iterator[tuple[int, int, int]]:
    """List threads a row, rows a CTA and vectors a thread of an operation."""
    if operation.scale is RowScale.BLOCK:
        whole = SCALE_BLOCK // _space.vector_elements(operation)
        for vectors, total in product((1, 2, 4), THREADS_OF_CTA):
            yield whole // vectors, total * vectors // whole, vectors
    elif operation.reduces_rows:
        for threads in THREADS_PER_ROW:
            for rows in sorted({max(total // threads, 1) for total in THREADS_OF_CTA}):
                yield from ((threads, rows, vectors) for vectors in VECTORS)
    else:
        yield from ((threads, 1, vectors) for threads, vectors in product(THREADS_OF_CTA, PIECE_VECTORS))


class RowRegisters(_space.RowKernels):
    """The family `row_registers`."""

    name = "row_registers"

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate threads a row, rows a CTA and vectors a thread."""
        if _space.is_row(operation):
            for threads, rows, vectors in _threads(operation):
                yield RowCandidate(self.name, threads, rows, _space.vector_elements(operation), vectors)

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        return _space.registers(candidate, operation)

    def limits(self, candidate: RowCandidate, operation: RowOperation) -> RowLimits:
        """Ask for aligned rows, no wider than the registers."""
        return _space.limits(candidate, max_cols=candidate.columns if operation.reduces_rows else MAX_COLS)

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Make the entry."""
        from aot.row_families._entry import row_entry

        return row_entry(operation, candidate, self.registers(candidate, operation), is_looped=False)


FAMILY = RowRegisters()
