"""What a tuning asks of each kind of work: its problems, which candidates each is measured with, its tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aot.core.alignment import unaligned_loads
from aot.core.candidate import Candidate
from aot.core.dispatch import LOADS
from aot.core.errors import CandidateError
from aot.core.operation import Operation
from aot.core.shape_set import ShapeSet
from aot.core.work import AnyKey, AnyOperation
from aot.families import is_for_rows, rows_family_of
from aot.kinds.gemm.kind import GEMM
from aot.kinds.registry import kind_of
from aot.kinds.rows.kind import ROWS
from aot.kinds.rows.operation import RowOperation
from aot.kinds.rows.sizes import usual_problems
from aot.kinds.rows.tuned import takes_packed
from aot.select.times.known import launched_problems, unaligned_problems
from aot.select.times.model import TimeModel
from aot.space import enumeration as space
from aot.space.cost import DEFAULTS, NAME, Constants
from aot.space.kinds import space_of
from aot.space.shortlist import shortlist, within

if TYPE_CHECKING:
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.kinds.rows.problem import RowProblem


@dataclass(frozen=True)
class TuningRequest:
    """What to tune.

    `limit` is how many candidates of each operation the model may put forward; `ratio` leaves a pair of kernel and
    problem out where the model says that the kernel takes this many times its best.
    """

    shapes: ShapeSet
    operations: tuple[AnyOperation, ...]
    patterns: space.Patterns
    limit: int
    ratio: float
    candidates: tuple[Candidate, ...] = ()
    """If given, what to measure, whatever the model says: the kernels of an earlier selection, say."""
    constants: Constants = DEFAULTS
    """The cost model's, as a calibration found them."""
    learned: TimeModel | None = None
    """If given, each problem is measured with the `per_problem` candidates that this predicts fastest."""
    per_problem: int = 24
    predicted_by: str = NAME
    """What predicts the times of products: the cost model and its constants, or what was learned of which times."""

    @property
    def by_kind(self) -> dict[str, list[AnyOperation]]:
        """Return the operations by the name of their kind."""
        found: dict[str, list[AnyOperation]] = {}
        for operation in self.operations:
            found.setdefault(operation.kind, []).append(operation)
        return found


class KindTuning(ABC):
    """How a kind's operations are tuned."""

    @abstractmethod
    def problems(self, request: TuningRequest, operations: Sequence[Any]) -> Mapping[Any, Sequence[Any]]:
        """List the problems that operations are measured on, by operation."""

    @abstractmethod
    def candidates(self, request: TuningRequest, target: Target, operation: Any) -> list[Candidate]:
        """Choose the candidates of one operation to measure, beside its fallback.

        Raises:
            CandidateError: none is left.
        """

    @abstractmethod
    def promising(
        self, request: TuningRequest, candidates: Sequence[Candidate], problem: Any, target: Target
    ) -> dict[Candidate, float]:
        """Choose the candidates to measure a problem with; return their predicted times in microseconds."""


class GemmTuning(KindTuning):
    """How products are tuned: on the problems of a shape set."""

    def problems(
        self, request: TuningRequest, operations: Sequence[Operation]
    ) -> Mapping[Operation, Sequence[Problem]]:
        """List what is launched, the aligned ones first."""
        aligned = launched_problems(operations, request.shapes)
        unaligned = unaligned_problems(operations, request.shapes)
        asked = dict.fromkeys((*aligned, *unaligned))
        return {x: [*aligned.get(x, []), *unaligned.get(x, [])] for x in asked}

    def candidates(self, request: TuningRequest, target: Target, operation: Operation) -> list[Candidate]:
        """Choose those that the model ranks best, up to the limit, and some for what is not aligned."""
        problems = launched_problems([operation], request.shapes).get(operation, [])
        unaligned = _unaligned_candidates(request, target, operation)
        try:
            legal = space.legal(operation, target, request.patterns)
        except CandidateError:
            if not unaligned:
                raise
            legal = []  # what --kernels leaves is for problems that are not aligned
        if request.candidates:
            return [x for x in dict.fromkeys((*legal, *unaligned)) if x in set(request.candidates)]
        if not problems:
            return unaligned
        if len(legal) > request.limit:
            legal = shortlist(legal, problems, target, request.limit, request.constants)
        return list(dict.fromkeys((*legal, *unaligned)))

    def promising(
        self, request: TuningRequest, candidates: Sequence[Candidate], problem: Problem, target: Target
    ) -> dict[Candidate, float]:
        """Choose those near the model's best, or those that a learned model predicts fastest."""
        loads, kind = unaligned_loads(problem), space_of(problem.operation)
        able = [x for x in candidates if (space.takes_loads(x, loads) if loads else kind.is_timed(x, target))]
        able = [x for x in able if is_for_rows(x, problem.m)]
        if not able:
            return {}
        if request.learned is None:
            near = within(able, problem, target, request.ratio, request.constants)
            return dict(zip(near, kind.times_us(near, problem, target, request.constants), strict=True))
        times = request.learned.times_us(able, [problem])[0].tolist()
        ranked = sorted(zip(times, able, strict=True))[: request.per_problem]
        return {candidate: us for us, candidate in ranked}


def _unaligned_candidates(request: TuningRequest, target: Target, operation: Operation) -> list[Candidate]:
    """Choose the candidates for the problems that are not aligned, for each number of bytes of a load apart."""
    problems = unaligned_problems([operation], request.shapes).get(operation, [])
    found: dict[Candidate, None] = {}
    for loads in LOADS:
        own = [x for x in problems if unaligned_loads(x) == loads]
        able = space.unaligned(operation, target, loads, request.patterns) if own else []
        few = shortlist(able, own, target, request.limit, request.constants) if able else []
        found |= dict.fromkeys(few)
    return list(found)


class RowsTuning(KindTuning):
    """How operations on rows are tuned: on the sizes of models."""

    def problems(
        self, request: TuningRequest, operations: Sequence[RowOperation]
    ) -> Mapping[RowOperation, Sequence[RowProblem]]:
        """List the usual sizes."""
        del request
        return {x: usual_problems(x) for x in operations}

    def candidates(self, request: TuningRequest, target: Target, operation: RowOperation) -> list[Candidate]:
        """Choose those that are near the model's best on some size."""
        legal = space.legal(operation, target, request.patterns)
        near = (self.promising(request, legal, x, target) for x in usual_problems(operation))
        return list(dict.fromkeys(candidate for found in near for candidate in found))

    def promising(
        self, request: TuningRequest, candidates: Sequence[Candidate], problem: RowProblem, target: Target
    ) -> dict[Candidate, float]:
        """Choose those that take a size and that the model does not think far from its best."""
        limits = ((x, rows_family_of(x).limits(x, problem.operation)) for x in candidates)
        able = [x for x, found in limits if takes_packed(found, problem)]
        times = dict(zip(able, space_of(problem.operation).times_us(able, problem, target), strict=True))
        best = min(times.values(), default=0.0)
        return {candidate: us for candidate, us in times.items() if us <= request.ratio * best}


TUNINGS: Mapping[str, KindTuning] = MappingProxyType({GEMM.name: GemmTuning(), ROWS.name: RowsTuning()})


def key_of(operation: AnyOperation, candidate: Candidate) -> AnyKey:
    """Return the kernel of an operation and a candidate."""
    make: Any = kind_of(operation).key_type
    found: AnyKey = make(operation, candidate)
    return found


def tuning_candidates(request: TuningRequest, target: Target, operation: AnyOperation) -> list[Candidate]:
    """Choose the candidates of one operation to measure; see `KindTuning.candidates`."""
    return TUNINGS[operation.kind].candidates(request, target, operation)


def tuning_keys(request: TuningRequest, target: Target) -> list[AnyKey]:
    """List the kernels to measure, of each operation of a request; errors as `KindTuning.candidates`."""
    return [key_of(x, y) for x in request.operations for y in tuning_candidates(request, target, x)]
