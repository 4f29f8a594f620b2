"""Rows that the registers of their threads hold: each element is read once. Norms, pairs and quantisation."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from aot.core.formats import SCALE_BLOCK
from aot.families.rows import _space
from aot.kinds.rows.candidate import RowKnobs, row_candidate
from aot.kinds.rows.operation import MAX_COLS, RowScale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Candidate
    from aot.core.target import Target
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

    def candidates(self, operation: RowOperation, target: Target) -> Iterator[Candidate]:
        """Enumerate threads a row, rows a CTA and vectors a thread."""
        del target
        for threads, rows, vectors in _threads(operation):
            yield row_candidate(self.name, threads, rows, _space.vector_elements(operation), vectors)

    def limits(self, candidate: Candidate, operation: RowOperation) -> RowLimits:
        """Ask for aligned rows, no wider than the registers."""
        knobs = RowKnobs.of(candidate)
        return _space.limits(knobs, max_cols=knobs.columns if operation.reduces_rows else MAX_COLS)

    def entry(self, candidate: Candidate, operation: RowOperation, target: Target) -> Entry:
        """Make the entry."""
        del target
        from aot.families.rows._entry import row_entry

        return row_entry(operation, candidate, self.registers(RowKnobs.of(candidate), operation), is_looped=False)


FAMILY = RowRegisters()
