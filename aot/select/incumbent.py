"""What an earlier selection dispatches: ties go to it, so that a new tuning changes little. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.dispatch import look_up
from aot.families import family_of
from aot.select.portfolio import Incumbent

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.core.candidate import Candidate
    from aot.core.dispatch import Section
    from aot.core.measurement import Times
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.select.selection import Selection


def kept_section(selection: Selection | None, operation: Operation) -> Section | None:
    """Return the section that an earlier selection has of an operation; None where it has none."""
    sections = () if selection is None else selection.table.sections
    return next((x for x in sections if x.operation == operation and not x.batch_invariant), None)


def incumbent_kernel(selection: Selection | None, operation: Operation) -> Callable[[Problem], Candidate | None]:
    """Make a function that gives what a selection dispatches an operation's problems to; None where it has no table."""
    section = kept_section(selection, operation)
    if selection is None or section is None:
        return lambda _problem: None
    multiples = tuple(family_of(key.candidate).multiples(key.candidate) for key in selection.kernels)
    # A look-up goes through all ladders, one of which at most concerns a problem; a grid asks for 400,000 problems.
    grid = replace(section, ladders=())
    parts = {(ladder.n, ladder.k): replace(section, ladders=(ladder,)) for ladder in section.ladders}

    def kernel(problem: Problem) -> Candidate:
        choice = look_up(parts.get((problem.n, problem.k), grid), problem, multiples)
        return selection.kernels[choice.kernel].candidate

    return kernel


def incumbent_of(selection: Selection | None, operation: Operation, times: Times) -> Incumbent:
    """Return what ties of an operation's portfolio go to: the kernels of an earlier selection, and its solutions."""
    if selection is None:
        return Incumbent()
    kernel = incumbent_kernel(selection, operation)
    solutions = {problem: candidate for problem in times if (candidate := kernel(problem)) is not None}
    return Incumbent(frozenset(key.candidate for key in selection.kernels if key.operation == operation), solutions)
