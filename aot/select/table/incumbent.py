"""What an earlier selection dispatches: ties go to it, so that a new tuning changes little. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aot.core.dispatch import look_up
from aot.select.portfolio.choose import Incumbent
from aot.select.times.inputs import no_incumbent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.dispatch import Section
    from aot.core.measurement import Times
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.work import AnyOperation
    from aot.select.selection import Selection


def kept_section(selection: Selection | None, operation: Operation) -> Section | None:
    """Return the section that an earlier selection has of an operation; None where it has none."""
    sections = () if selection is None else selection.table.sections
    return next((x for x in sections if x.operation == operation and x.is_plain), None)


@dataclass(frozen=True)
class Dispatched:
    """Gives what a selection dispatches an operation's problems to."""

    kernels: tuple[KernelKey, ...]
    multiples: tuple[tuple[int, int], ...]
    grid: Section
    """Without its ladders: a look-up goes through all of them, one of which at most concerns a problem, and a grid asks
    for 400,000 problems."""
    parts: Mapping[tuple[int, int], Section]
    """With one ladder each, by (n, k)."""

    @staticmethod
    def of(selection: Selection, section: Section) -> Dispatched:
        """Arrange a section of a selection."""
        multiples = selection.multiples
        parts = {(ladder.n, ladder.k): replace(section, ladders=(ladder,)) for ladder in section.ladders}
        return Dispatched(selection.kernels, multiples, replace(section, ladders=()), parts)

    def __call__(self, problem: Problem) -> Candidate:
        """Return a problem's kernel."""
        choice = look_up(self.parts.get((problem.n, problem.k), self.grid), problem, self.multiples)
        return self.kernels[choice.kernel].candidate


def incumbent_kernel(selection: Selection | None, operation: Operation) -> Callable[[Problem], Candidate | None]:
    """Make a function that gives what a selection dispatches an operation's problems to; None where it has no table."""
    section = kept_section(selection, operation)
    return no_incumbent if selection is None or section is None else Dispatched.of(selection, section)


def incumbent_of(selection: Selection | None, operation: Operation, times: Times) -> Incumbent[Problem]:
    """Return what ties of an operation's portfolio go to: the kernels of an earlier selection, and its solutions."""
    if selection is None:
        return Incumbent()
    kernel = incumbent_kernel(selection, operation)
    solutions = {problem: candidate for problem in times if (candidate := kernel(problem)) is not None}
    return Incumbent(frozenset(key.candidate for key in selection.kernels if key.operation == operation), solutions)


def step_incumbent(selection: Selection | None, operation: AnyOperation, problems: Iterable[Any]) -> Incumbent[Any]:
    """Return the same of an operation on rows: what an earlier selection has of it, and gives some problems."""
    if selection is None or selection.others.section(operation) is None:
        return Incumbent()
    steps = selection.others
    candidates = frozenset(key.candidate for key in steps.kernels if key.operation == operation)
    return Incumbent(candidates, {x: steps.look_up(x)[0] for x in problems})
