"""What it costs that a row's bits do not depend on m: the price of batch-invariant tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.dispatch import Section, look_up
from aot.families import family_of
from aot.select.selection import Price

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aot.core.candidate import KernelKey
    from aot.core.dispatch import DispatchTable
    from aot.core.measurement import OperationTimes, Times

SMALL_M = 512
"""Rows up to which a mean is stated by itself: what decoding and short prompts have."""


def orders_of(section: Section, kernels: Sequence[KernelKey]) -> dict[tuple[int, int], frozenset[str]]:
    """Return the orders of sums of the kernels that each (n, k) of a section may get: of ladders, then of columns.

    Of a batch-invariant section each has one, and none is empty.
    """

    def order(index: int) -> str:
        candidate = kernels[index].candidate
        return family_of(candidate).sum_order(candidate)

    found = {
        section.grid.corner(i): frozenset(map(order, column.kernels)) for i, column in enumerate(section.grid.columns)
    }
    for ladder in section.ladders:
        named = {x for row in ladder.rows for x in (row.kernel, row.general)}
        found[ladder.n, ladder.k] = frozenset(map(order, named))
    return found


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
        other = table.section(section.operation)
        found = list(_ratios(section, other, kernels, times.get(section.operation, {}), multiples))
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
