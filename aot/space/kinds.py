"""What each kind of work says of its candidates: which families have them, what else is refused, predicted times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Candidate, Reason, Rejected
from aot.core.constraints import MAX_EXTENT
from aot.core.dispatch import LOADS
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import KIND as GEMM
from aot.families import families_of, family_of, row_tiling_of, rows_families_of, rows_family_of, tiling_of
from aot.kinds.rows.cost import Reading, row_time_us
from aot.kinds.rows.operation import KIND as ROWS
from aot.space.cost import DEFAULTS, Constants, estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.core.work import AnyOperation
    from aot.families import Family, GemmFamily, RowsFamily
    from aot.kinds.rows.operation import RowOperation
    from aot.kinds.rows.problem import RowProblem


class KindSpace(ABC):
    """The space of a kind's candidates, beside what is legal of any: `aot.space.legality`."""

    @abstractmethod
    def families(self, operation: Any, target: Target) -> Sequence[Family]:
        """List the families for a target that have candidates of an operation, by name."""

    @abstractmethod
    def unbuilt(self, family: Any, operation: Any) -> Reason | None:
        """Say what of an operation a family has no code for, whatever the candidate is; None where it has all."""

    @abstractmethod
    def unbuilt_text(self, family: Any, operation: Any, reason: Reason) -> str:
        """Say what the family builds and what the operation needs."""

    def inconsistency(self, candidate: Candidate) -> Rejected | None:
        """Refuse knobs that contradict each other, before the family is asked for resources."""
        del candidate
        return None

    def excess(self, candidate: Candidate, target: Target) -> Rejected | None:
        """Refuse what a target does not have of what a kernel of the kind takes beside resources."""
        del candidate, target
        return None

    def is_timed(self, candidate: Candidate, target: Target) -> bool:
        """Say whether a kernel is to be timed on problems that are aligned."""
        del candidate, target
        return True

    def most(self, candidate: Candidate, operation: Any) -> int:
        """Return the largest size along the key axis of the kind's tables that a kernel takes."""
        del candidate, operation
        return MAX_EXTENT

    @abstractmethod
    def times_us(
        self, candidates: Sequence[Candidate], problem: Any, target: Target, constants: Constants = DEFAULTS
    ) -> list[float]:
        """Predict the times of legal candidates on a problem that they take, in microseconds."""


USUAL_REGISTERS = 64
"""Registers of a thread, for times, where a family leaves them to the compiler: an assumption."""

_NO_SPLIT, *_SPLITS = (mode.value for mode in SplitK)


class GemmSpace(KindSpace):
    """The space of products."""

    def families(self, operation: Operation, target: Target) -> Sequence[GemmFamily]:
        """List those that compute products grouped as the operation's are."""
        return families_of(operation, target)

    def unbuilt(self, family: GemmFamily, operation: Operation) -> Reason | None:
        """Look at types, epilogue, grouping and layout."""
        if operation.types not in family.types:
            return Reason.TYPES
        if operation.epilogue not in family.epilogues:
            return Reason.EPILOGUE
        if operation.grouping not in family.groupings:
            return Reason.GROUPING
        return None if operation.layout in family.layouts else Reason.LAYOUT

    def unbuilt_text(self, family: GemmFamily, operation: Operation, reason: Reason) -> str:
        """Say which of them the family has."""
        kind, built, needed = {
            Reason.TYPES: ("types", [x.tag for x in family.types], operation.types.tag),
            Reason.EPILOGUE: ("epilogues", [str(x) for x in family.epilogues], str(operation.epilogue)),
            Reason.GROUPING: ("groupings", [x.value for x in family.groupings], operation.grouping.value),
            Reason.LAYOUT: ("layouts", [x.value for x in family.layouts], operation.layout.value),
        }[reason]
        return f"{family.name} builds the {kind} {', '.join(built)}, {operation.tag} needs {needed}"

    def inconsistency(self, candidate: Candidate) -> Rejected | None:
        """Refuse a split without a mode and a mode without a split: the workspace would not be the kernel's."""
        tiling = tiling_of(candidate)
        is_split = tiling.split_k_mode != _NO_SPLIT
        is_known = not is_split or tiling.split_k_mode in _SPLITS
        if is_known and tiling.split_k >= 1 and is_split == (tiling.split_k > 1):
            needs_none = tiling.split_k_mode == SplitK.CLUSTER
            if needs_none and family_of(candidate).workspace(candidate).mode != SplitK.NONE:
                text = f"{candidate.name}: {candidate.family} splits k through a workspace, not within a cluster"
                return Rejected(Reason.COMBINATION, text)
            return None
        text = f"{candidate.name}: split_k {tiling.split_k} in mode '{tiling.split_k_mode}'"
        return Rejected(Reason.COMBINATION, f"{text}; 1 goes with {_NO_SPLIT}, 2 and more with {', '.join(_SPLITS)}")

    def excess(self, candidate: Candidate, target: Target) -> Rejected | None:
        """Refuse clusters that are not the target's, nor the family's own."""
        tiling = tiling_of(candidate)
        cluster, clusters = (
            (tiling.cluster_m, tiling.cluster_n),
            (*target.clusters, *family_of(candidate).own_clusters),
        )
        if cluster in clusters:
            return None
        allowed = ", ".join(f"{m}x{n}" for m, n in clusters)
        text = f"{candidate.name}: cluster {cluster[0]}x{cluster[1]} is not one of {target.name}'s: {allowed}"
        return Rejected(Reason.CLUSTER, text)

    def is_timed(self, candidate: Candidate, target: Target) -> bool:
        """Leave out those of unaligned problems alone where the chip has TMA: what loads by it is faster.

        Of a chip without, the kernels that load 16 bytes at once are timed.
        """
        asked = family_of(candidate).alignment(candidate)
        return not asked.only_unaligned or (Feature.TMA not in target.features and asked.loads == LOADS[-1])

    def times_us(
        self, candidates: Sequence[Candidate], problem: Problem, target: Target, constants: Constants = DEFAULTS
    ) -> list[float]:
        """Ask the cost model."""
        found: list[float] = estimate(candidates, [problem], target, constants).total_us[0].tolist()
        return found


class RowsSpace(KindSpace):
    """The space of operations on rows."""

    def families(self, operation: RowOperation, target: Target) -> Sequence[RowsFamily]:
        """List those that compute the operation."""
        return rows_families_of(operation, target)

    def unbuilt(self, family: RowsFamily, operation: RowOperation) -> Reason | None:
        """Look at the family's operations."""
        return None if operation in family.operations else Reason.OPERATION

    def unbuilt_text(self, family: RowsFamily, operation: RowOperation, reason: Reason) -> str:
        """Say that it has no such operation."""
        del reason
        return f"{family.name} computes no {operation.tag}"

    def most(self, candidate: Candidate, operation: RowOperation) -> int:
        """Return the most columns."""
        return rows_family_of(candidate).limits(candidate, operation).max_cols

    def times_us(
        self, candidates: Sequence[Candidate], problem: RowProblem, target: Target, constants: Constants = DEFAULTS
    ) -> list[float]:
        """Ask the model of rows, which has no constants to calibrate."""
        del constants
        operation = problem.operation

        def reading(candidate: Candidate) -> Reading:
            family = rows_family_of(candidate)
            registers = family.resources(candidate, operation, target).registers or USUAL_REGISTERS
            return Reading(row_tiling_of(candidate), registers, family.num_reads(candidate, operation))

        return [row_time_us(reading(x), problem, target) for x in candidates]


SPACES: Mapping[str, KindSpace] = MappingProxyType({GEMM: GemmSpace(), ROWS: RowsSpace()})


def space_of(operation: AnyOperation) -> KindSpace:
    """Return the space of an operation's kind."""
    return SPACES[operation.kind]
