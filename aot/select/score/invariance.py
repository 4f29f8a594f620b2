"""Whether a row's bits depend on m, by the orders of kernels' sums, and what it costs that they do not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.dispatch import Section, look_up
from aot.families import family_of
from aot.families._sum_order import order_of
from aot.select.selection import Price

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.core.candidate import KernelKey
    from aot.core.dispatch import DispatchTable
    from aot.core.measurement import OperationTimes, Times

SMALL_M = 512
"""Rows up to which a mean is stated by itself: what decoding and short prompts have."""


def has_one_order(sections: Sequence[Section], kernels: Sequence[KernelKey]) -> bool:
    """Say whether all kernels of an operation's sections add up k in one order, whatever m, n and k are.

    Where groups are found by offsets this is what makes results batch-invariant: the bits of a group's row then depend
    neither on the rows that are in the group, nor on the other groups, nor on how many there are, by which a section is
    chosen. Kernels whose CTAs wait for each other do not count as such: another stands for them on a device of fewer
    SMs. Fallbacks, which take what is not aligned, are left out, as of every batch-invariant table.

    Args:
        sections: those of one operation; a batch-invariant one is left out.
        kernels: by the index that the sections use.
    """
    named = {kernels[index] for section in sections if not section.batch_invariant for index in _named(section)}
    return len({order_of(x) for x in named}) == 1 and all(map(has_order, named))


def has_order(key: KernelKey) -> bool:
    """Say whether a kernel always adds up k in one order, and is replaced by no other on a device of fewer SMs."""
    return order_of(key) != "" and not family_of(key.candidate).workspace(key.candidate).waits


def _named(section: Section) -> Iterator[int]:
    """Yield the kernels that a section's rows and columns may answer with."""
    for row in (x for ladder in section.ladders for x in ladder.rows):
        yield from (row.kernel, row.general)
    for column in section.grid.columns:
        yield from column.kernels


def _ratios(
    ours: Section, other: Section, kernels: Sequence[KernelKey], times: Times, multiples: tuple[tuple[int, int], ...]
) -> Iterator[tuple[float, int, str]]:
    """Give, of each problem that both kernels were timed on, the ratio of their times, m and its name."""
    for problem, row in times.items():
        pair = [kernels[look_up(x, problem, multiples).kernel].candidate for x in (ours, other)]
        if all(x in row for x in pair):
            yield row[pair[0]] / row[pair[1]], problem.m, problem.name


def prices(
    table: DispatchTable,
    kernels: Sequence[KernelKey],
    times: OperationTimes,
    multiples: tuple[tuple[int, int], ...],
) -> Iterator[Price]:
    """Give what each batch-invariant section of a table costs, by known times.

    Args:
        table: the dispatch table.
        kernels: by the index that the table uses.
        times: by operation, problem and candidate.
        multiples: (m_multiple, n_multiple) of every kernel.
    """
    for section in table.sections:
        if not section.batch_invariant:
            continue
        other = table.section(section.operation, section.num_groups)
        rows = times.get(section.operation, {}).items()
        known = {problem: row for problem, row in rows if problem.num_groups == section.num_groups}
        found = list(_ratios(section, other, kernels, known, multiples))
        if not found:
            continue
        logs = np.log([ratio for ratio, _, _ in found])
        small = logs[[m <= SMALL_M for _, m, _ in found]]
        worst, _, name = max(found)
        yield Price(
            operation=section.operation,
            num_problems=len(found),
            mean=round(float(np.exp(logs.mean())), 5),
            mean_to_512=round(float(np.exp(small.mean())), 5) if len(small) else 1.0,
            worst=round(worst, 5),
            worst_problem=name,
        )
