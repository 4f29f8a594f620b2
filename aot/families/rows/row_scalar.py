"""The fallback of row operations: element by element, of any size, address and stride. It makes dispatch total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Reason, Rejected
from aot.families.rows import _space
from aot.families.rows.row_looped import num_reads
from aot.kinds.rows.candidate import RowKnobs, row_candidate
from aot.kinds.rows.operation import RowScale

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.candidate import Candidate
    from aot.core.target import Target
    from aot.families import Entry
    from aot.kinds.rows.operation import RowOperation


class RowScalar(_space.RowKernels):
    """The family `row_scalar`."""

    name = "row_scalar"
    is_fallback = True

    def computes(self, operation: RowOperation) -> bool:
        """Take heads too."""
        return _space.is_of_heads(operation) or super().computes(operation)

    def candidates(self, operation: RowOperation, target: Target) -> Iterator[Candidate]:
        """Enumerate the one candidate."""
        del target
        if _space.is_of_heads(operation):
            yield row_candidate(self.name, 32, 8, 1, 1)
        elif operation.scale is RowScale.BLOCK:
            yield row_candidate(self.name, 32, 8, 1, 4)
        else:
            yield row_candidate(self.name, 256, 1, 1, 4)

    def check(self, candidate: Candidate, operation: RowOperation, target: Target) -> Rejected | None:
        """Accept the one candidate only."""
        (only,) = self.candidates(operation, target)
        if candidate != only:
            return Rejected(Reason.COMBINATION, f"row_scalar has one candidate of {operation.tag}, {only.name}")
        return None

    def registers(self, knobs: RowKnobs, operation: RowOperation) -> int:
        """Estimate the registers of a thread."""
        return _space.registers(knobs, operation, _space.LOOP_REGISTERS)

    def num_reads(self, candidate: Candidate, operation: RowOperation) -> int:
        """Read once for each step."""
        return num_reads(operation) if operation.reduces_rows else super().num_reads(candidate, operation)

    def entry(self, candidate: Candidate, operation: RowOperation, target: Target) -> Entry:
        """Make the entry."""
        del target
        from aot.families.rows._entry import rotary_entry, row_entry

        if _space.is_of_heads(operation):
            return rotary_entry(operation, candidate)
        registers = self.registers(RowKnobs.of(candidate), operation)
        return row_entry(operation, candidate, registers, is_looped=operation.reduces_rows)


FAMILY = RowScalar()
