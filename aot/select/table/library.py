"""The library's times in the rows of a table, by which a graph's products are left to it where it is faster. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.dispatch import DispatchTable
from aot.core.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aot.core.dispatch import Ladder, Section


def with_library_times(
    table: DispatchTable, times: Mapping[Problem, float], of: Callable[[Section], bool] | None = None
) -> DispatchTable:
    """Return a table whose rows say what the library takes at their upper edges, as far as that was timed.

    Where operands are not aligned too: a library is timed with the operands of the kernels, in their memory.

    Args:
        table: kernels and times.
        times: the library's by problem, in microseconds.
        of: whether a section is to say so, all where None; others stay as they are.
    """

    def ladder_of(section: Section, ladder: Ladder) -> Ladder:
        problems = (Problem(section.operation, m, ladder.n, ladder.k, section.num_groups) for m in ladder.m_edges)
        found = (times.get(x) for x in problems)
        rows = zip(ladder.rows, found, strict=True)
        return replace(
            ladder, rows=tuple(replace(x, library_us=None if us is None else round(us, 3)) for x, us in rows)
        )

    def section_of(section: Section) -> Section:
        if of is not None and not of(section):
            return section
        return replace(section, ladders=tuple(ladder_of(section, x) for x in section.ladders))

    return DispatchTable(tuple(map(section_of, table.sections)))
