"""The fallback of row operations: element by element, of any size, address and stride. It makes dispatch total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Reason, Rejected
from aot.kinds.rows.candidate import RowCandidate
from aot.kinds.rows.operation import RowScale
from aot.row_families import _space
from aot.row_families.row_looped import num_reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.families import Entry
    from aot.kinds.rows.operation import RowOperation


class RowScalar(_space.RowKernels):
    """The family `row_scalar`."""

    name = "row_scalar"
    is_fallback = True

    def candidates(self, operation: RowOperation) -> Iterator[RowCandidate]:
        """Enumerate the one candidate."""
        if not _space.is_row(operation):
            yield RowCandidate(self.name, 32, 8, 1, 1)
        elif operation.scale is RowScale.BLOCK:
            yield RowCandidate(self.name, 32, 8, 1, 4)
        else:
            yield RowCandidate(self.name, 256, 1, 1, 4)

    def check(self, candidate: RowCandidate, operation: RowOperation) -> Rejected | None:
        """Accept the one candidate only."""
        (only,) = self.candidates(operation)
        if candidate != only:
            return Rejected(Reason.COMBINATION, f"row_scalar has one candidate of {operation.tag}, {only.name}")
        return None

    def registers(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        return _space.registers(candidate, operation, _space.LOOP_REGISTERS)

    def num_reads(self, candidate: RowCandidate, operation: RowOperation) -> int:
        """Read once for each step."""
        return num_reads(operation) if operation.reduces_rows else super().num_reads(candidate, operation)

    def entry(self, candidate: RowCandidate, operation: RowOperation) -> Entry:
        """Make the entry."""
        from aot.row_families._entry import rotary_entry, row_entry

        if not _space.is_row(operation):
            return rotary_entry(operation, candidate)
        registers = self.registers(candidate, operation)
        return row_entry(operation, candidate, registers, is_looped=operation.reduces_rows)


FAMILY = RowScalar()
