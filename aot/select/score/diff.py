"""What two selections dispatch otherwise, and what that costs. Pure: selections and times in, changes out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import Candidate
from aot.core.dispatch import Tier, look_up
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.core.work import AnyOperation, AnyProblem
from aot.kinds.rows.problem import RowProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot.core.dispatch import Section
    from aot.kinds.rows.dispatch import RowSection
    from aot.select.selection import Selection
    from aot.select.times.inputs import Timed


BATCH = 2000
"""Problems whose times are predicted at once: with 200 kernels, 80 MB of what the predictions are made from."""


@dataclass(frozen=True)
class Change:
    """One bucket that has another kernel."""

    tier: Tier
    corner: AnyProblem
    """The bucket's largest shape."""
    old: Candidate
    new: Candidate
    cost: float | None
    """Time of the new kernel over the old one's at the corner, minus 1; None where there are no times to compare."""
    is_measured: bool
    """Whether both times of all records were measured; else some are learned from the records."""


@dataclass(frozen=True)
class Difference:
    """All that differs for the operations that both selections have."""

    num_entries: int
    """Buckets of either table, cut where one of the two has an edge."""
    changes: tuple[Change, ...]
    added: tuple[str, ...]
    """Names of kernels that only the new selection ships."""
    dropped: tuple[str, ...]
    operations: tuple[AnyOperation, ...]
    """Operations that only one of the two has."""

    @property
    def churn(self) -> float:
        """Return the share of entries that changed."""
        return len(self.changes) / max(self.num_entries, 1)


class _Table:
    """A selection's look-up for one operation, by candidate."""

    def __init__(self, selection: Selection, section: Section) -> None:
        self._selection, self.section = selection, section
        self._multiples = selection.multiples

    def kernel(self, problem: Problem) -> Candidate:
        choice = look_up(self.section, problem, self._multiples)
        return self._selection.kernels[choice.kernel].candidate


def _corners(operation: Operation, old: Section, new: Section) -> Iterator[tuple[Tier, Problem]]:
    """List the largest shape of every bucket, cut where either table has an edge."""
    ladders = [{(x.n, x.k): x.m_edges for x in section.ladders} for section in (old, new)]
    for n, k in sorted(ladders[0].keys() & ladders[1].keys()):
        for m in sorted({*ladders[0][n, k], *ladders[1][n, k]}):
            yield Tier.TUNED, Problem(operation, m, n, k, old.num_groups)
    grids = (old.grid, new.grid)
    for n, k in product(*(sorted({*a, *b}) for a, b in zip(*((x.n_edges, x.k_edges) for x in grids), strict=True))):
        if (n, k) not in ladders[0] and (n, k) not in ladders[1]:
            for m in sorted({m for x in grids for m in x.columns[x.place(n, k)].m_edges}):
                yield Tier.GRID, Problem(operation, m, n, k, old.num_groups)


def _costs(pairs: Sequence[tuple[Problem, Candidate, Candidate]], times: Sequence[Timed]) -> list[tuple[float, bool]]:
    """Return new over old minus 1, by geometric mean over the records, and whether all of it was measured."""
    logs = np.zeros(len(pairs))
    measured = np.ones(len(pairs), dtype=bool)
    candidates = sorted({candidate for _, *both in pairs for candidate in both})
    place = {candidate: j for j, candidate in enumerate(candidates)}
    for timed, start in product(times, range(0, len(pairs), BATCH)):
        batch = pairs[start : start + BATCH]
        rows = timed.times_us(candidates, [problem for problem, _, _ in batch])
        for i, (problem, old, new) in enumerate(batch):
            logs[start + i] += np.log(rows[i, place[new]] / rows[i, place[old]])
            own = timed.own.get(problem, {})
            measured[start + i] &= old in own and new in own
    found = np.exp(logs / max(len(times), 1)) - 1
    return list(zip(found.tolist(), measured.tolist(), strict=True))


def _step_corners(old: RowSection, new: RowSection) -> Iterator[RowProblem]:
    columns = [x for section in (old, new) for x in section.columns]
    rows = sorted({step.rows for x in columns for step in x.steps})
    yield from (RowProblem(old.operation, *x) for x in product(rows, sorted({x.cols for x in columns})))


def _step_changes(old: Selection, new: Selection) -> tuple[int, list[Change], set[AnyOperation]]:
    """Compare tables of steps; return the number of entries, the changes, and the operations of one side alone."""
    sections = [{section.operation: section for section in x.others.table.sections} for x in (old, new)]
    changes, num_entries = list[Change](), 0
    for operation in sorted(sections[0].keys() & sections[1].keys(), key=lambda x: x.position):
        for corner in _step_corners(*(x[operation] for x in sections)):
            num_entries += 1
            (before, tier), (after, _) = (x.others.look_up(corner) for x in (old, new))
            if before != after:
                changes.append(Change(tier, corner, before, after, None, is_measured=False))
    return num_entries, changes, {*(sections[0].keys() ^ sections[1].keys())}


def compare(
    old: Selection,
    new: Selection,
    times: dict[Operation, list[Timed]],
    at: Callable[[str], None] = quietly,
) -> Difference:
    """Compare what two selections dispatch.

    Args:
        old: the earlier selection.
        new: the later one, of the same target.
        times: for each product, the records to judge a change by; without one a change has no cost.
        at: called with how far it is.
    """
    tables = [{section.key: _Table(x, section) for section in x.table.sections} for x in (old, new)]
    changes: list[Change] = []
    num_entries = 0
    shared = sorted(tables[0].keys() & tables[1].keys())
    for number, key in enumerate(shared, start=1):
        before, after, operation = tables[0][key], tables[1][key], key[0]
        at(f"{operation.tag}, table {number} of {len(shared)}")
        found = []
        for tier, corner in _corners(operation, before.section, after.section):
            num_entries += 1
            kernels = before.kernel(corner), after.kernel(corner)
            if kernels[0] != kernels[1]:
                found.append((tier, corner, *kernels))
        costs: list[tuple[float | None, bool]] = [(None, False)] * len(found)
        if found and times.get(operation):
            costs = list(_costs([(corner, a, b) for _, corner, a, b in found], times[operation]))
        changes += [Change(*row, *cost) for row, cost in zip(found, costs, strict=True)]
    num_steps, of_steps, alone = _step_changes(old, new)
    products = sorted({key[0] for key in tables[0].keys() ^ tables[1].keys()})
    names = [{key.name for key in x.all_kernels} for x in (old, new)]
    return Difference(
        num_entries + num_steps,
        (*changes, *of_steps),
        tuple(sorted(names[1] - names[0])),
        tuple(sorted(names[0] - names[1])),
        (*products, *sorted(alone, key=lambda x: x.position)),
    )
