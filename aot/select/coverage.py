"""How a selection answers the problems that it is made for: by a time, by a prediction, or by the general kernel.

Pure: tables and problems in, counts out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aot.core.alignment import as_launched, misalignment, section_loads
from aot.core.constraints import Count, Positive, Text
from aot.core.dispatch import Tier, look_up
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, Provenance
from aot.families import family_of
from aot.kinds.registry import kind_of
from aot.kinds.rows.dispatch import look_up_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aot.core.candidate import KernelKey
    from aot.core.dispatch import DispatchTable, Row, Section
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.shape_set import ShapeSet
    from aot.core.work import AnyOperation, AnyProblem
    from aot.kinds.rows.candidate import RowLimits
    from aot.kinds.rows.dispatch import RowSection
    from aot.kinds.rows.problem import RowProblem

NUM_REASONS = 4
"""Most reasons that a line names; the others are counted."""

MEASURED = "measured"
PREDICTED = "predicted"
GENERAL = "general"
REFUSED = "refused"


@dataclass(frozen=True)
class Answer:
    """How one problem is answered: one of the four words above, and why where it is one of the last two."""

    kind: str
    reason: str = ""
    kernel: int | None = None
    """The index of the kernel that answers; None where none does."""
    row: Row | None = None
    """What a ladder knows of the very problem, and of this kernel; None where it knows nothing."""


@dataclass(frozen=True)
class Coverage:
    """How many problems are answered how."""

    num_measured: Count
    """By the kernel that was the best choice when all were timed on this very problem."""
    num_predicted: Count
    first_predicted: Text
    """The name of the first of them; empty where there is none."""
    general: dict[Text, Positive]
    """By the slow general kernel, which takes what no tuned kernel takes: numbers of problems by reason."""
    refused: dict[Text, Positive]
    """Not at all: numbers of problems by reason."""

    @property
    def num_general(self) -> int:
        """Count the problems that the general kernel answers."""
        return sum(self.general.values())

    @property
    def num_refused(self) -> int:
        """Count the problems that are not answered."""
        return sum(self.refused.values())

    @property
    def num_problems(self) -> int:
        """Count all problems."""
        return self.num_measured + self.num_predicted + self.num_general + self.num_refused

    @property
    def is_measured(self) -> bool:
        """Say whether every problem is answered by a kernel that was chosen by times of it."""
        return self.num_measured == self.num_problems

    @property
    def is_mostly_measured(self) -> bool:
        """Say whether more than half of the problems are answered by a kernel that was chosen by times of them."""
        return 2 * self.num_measured > self.num_problems

    @property
    def text(self) -> str:
        """Say it in a line: `16 problems: 12 measured, 3 predicted, 1 by the slow general kernel: n 7 is not ...`."""
        parts = [f"{self.num_measured} measured"]
        if self.num_predicted:
            parts.append(f"{self.num_predicted} predicted (first {self.first_predicted})")
        if self.num_general:
            parts.append(f"{self.num_general} by the slow general kernel: {_reasons(self.general)}")
        if self.num_refused:
            parts.append(f"{self.num_refused} not answered: {_reasons(self.refused)}")
        return f"{self.num_problems} {'problem' if self.num_problems == 1 else 'problems'}: {', '.join(parts)}"

    @property
    def text_of_general(self) -> str:
        """Say which problems the slow general kernel answers, why, and what may be done."""
        return (
            f"the slow general kernel answers {self.num_general} of {self.num_problems} problems: "
            f"{_reasons(self.general)}; rows of zeros beside a weight's own give such an n a tuned kernel"
        )


def _reasons(counts: dict[str, int]) -> str:
    most = sorted(counts, key=lambda reason: (-counts[reason], reason))
    named = [reason if len(counts) == 1 else f"{reason} ({counts[reason]})" for reason in most[:NUM_REASONS]]
    return "; ".join([*named, *([f"and {len(most) - NUM_REASONS} more reasons"] if len(most) > NUM_REASONS else [])])


def called(provenance: Provenance, found: Coverage | None) -> Provenance:
    """Return what a table may be called: measured only where most of what it was made for is.

    Args:
        provenance: whether any of its kernels were chosen by measured times.
        found: how it answers what it was made for; where that is not known, the provenance stands.
    """
    return provenance if found is None or found.is_mostly_measured else PROVENANCE_PREDICTED


def untuned(operations: Sequence[Operation], shapes: ShapeSet) -> dict[str, int]:
    """Count the problems that no tuned kernel of some operations takes, by reason."""
    reasons: Counter[str] = Counter()
    for operation in operations:
        asked = shapes.problems(operation)
        launched = ((x, as_launched(x, operations), section_loads(x, operations)) for x in asked)
        reasons.update(misalignment(x) for x, aligned, loads in launched if aligned is None and not loads)
    return dict(reasons)


def why_general(problem: Problem) -> str:
    """Say why no tuned kernel of a table takes a problem that the table leaves to the general kernel."""
    reason = misalignment(problem)
    return reason or f"no kernels of layout {problem.operation.layout.value}: they were not asked for"


def only_fallback(section: Section) -> bool:
    """Say whether the table of an operation has no kernel but the fallback."""
    return not section.ladders and all(set(x.kernels) == {section.fallback} for x in section.grid.columns)


def _row(section: Section, problem: Problem) -> Row | None:
    """Return the row of a ladder whose upper edge is the problem; None where there is none."""
    for ladder in section.ladders:
        if (ladder.n, ladder.k) == (problem.n, problem.k) and problem.m in ladder.m_edges:
            return ladder.rows[ladder.m_edges.index(problem.m)]
    return None


def multiples_of(kernels: Iterable[KernelKey]) -> tuple[tuple[int, int], ...]:
    """Return what m and n must be multiples of for each of some kernels of products; errors as `family_of`."""
    return tuple(family_of(key.candidate).multiples(key.candidate) for key in kernels)


def answer(table: DispatchTable, multiples: tuple[tuple[int, int], ...], problem: Problem) -> Answer:
    """Say how a table answers a packed problem.

    Args:
        table: the dispatch table.
        multiples: (m_multiple, n_multiple) of every kernel of the selection.
        problem: what is asked for.
    """
    call = problem.operation.call
    sections = {x.operation: x for x in table.sections if x.operation.call == call}
    if not sections:
        return Answer(REFUSED, f"no kernels of {call}")
    launched = as_launched(problem, sections)
    found = table.unaligned_section(problem.operation, section_loads(problem, sections), problem.num_groups)
    if launched is None and found is None:
        return Answer(GENERAL, why_general(problem), next(iter(sections.values())).fallback)
    launched = launched or problem
    section = found or table.aligned_section(launched)
    if only_fallback(section):
        reason = f"no tuned kernel of {launched.operation.tag} can be built for the device"
        return Answer(GENERAL, reason, section.fallback)
    is_edge = section.num_groups == launched.num_groups
    choice, row = look_up(section, launched, multiples), _row(section, launched) if is_edge else None
    own = row if choice.tier is Tier.TUNED and row is not None and choice.kernel == row.kernel else None
    is_measured = own is not None and own.provenance == PROVENANCE_MEASURED
    return Answer(MEASURED if is_measured else PREDICTED, "", choice.kernel, own)


def answer_of_steps(section: RowSection, limits: Sequence[RowLimits], problem: RowProblem) -> Answer:
    """Say how a table with steps answers a packed problem of its operation.

    Args:
        section: the table of the problem's operation.
        limits: those of every kernel that the table names, by index.
        problem: what is asked for.
    """
    choice = look_up_rows(section, problem, limits, ALIGNMENT_BYTES)
    if choice.kernel == section.fallback:
        reason = f"no tuned kernel of {problem.operation.tag} takes {problem.cols} columns"
        return Answer(GENERAL, reason, choice.kernel)
    column, place = section.place(choice.index)
    step = column.steps[place]
    is_edge = (column.cols, step.rows) == (problem.cols, problem.rows)
    is_measured = is_edge and step.provenance == PROVENANCE_MEASURED
    return Answer(MEASURED if is_measured else PREDICTED, "", choice.kernel)


class Answering(Protocol):
    """What answers problems of any kind: a selection."""

    @property
    def products(self) -> tuple[Operation, ...]:
        """Return the products that it has a table of."""

    @property
    def operations(self) -> tuple[AnyOperation, ...]:
        """Return the operations of all kinds that it has a table of, the products first."""

    def answer(self, problem: Any) -> Answer:
        """Say how a packed problem is answered."""


def coverage(answering: Answering, problems: Iterable[AnyProblem]) -> Coverage:
    """Count how packed problems, each given once, are answered."""
    answers = [(problem, answering.answer(problem)) for problem in problems]
    counts = Counter(x.kind for _, x in answers)
    first = next((problem.name for problem, x in answers if x.kind == PREDICTED), "")
    general, refused = (Counter(x.reason for _, x in answers if x.kind == kind) for kind in (GENERAL, REFUSED))
    return Coverage(
        counts[MEASURED], counts[PREDICTED], first, dict(sorted(general.items())), dict(sorted(refused.items()))
    )


def coverage_of(answering: Answering, shapes: ShapeSet, products: Sequence[Operation] = ()) -> Coverage:
    """Count how a shape set is answered, and what each kind asks of the operations that sets say nothing of.

    Args:
        answering: where it has no products, none are asked for.
        shapes: what it is for.
        products: those that are asked for; by default the shape set's.
    """
    asked = (products or shapes.operations) if answering.products else ()
    others = answering.operations[len(answering.products) :]
    return coverage(answering, (problem for x in (*asked, *others) for problem in kind_of(x).asked(x, shapes)))
