"""What a report tells of a selection, worked out from it, its record and its target. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import Candidate, KernelKey
from aot.core.dispatch import Section, Tier
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, Outcome, Status
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC
from aot.kinds.gemm.kind import GEMM
from aot.select.portfolio.choose import Matrix
from aot.select.portfolio.exchange import MISSING_RATIO
from aot.select.score.heldout import LookUp, look_ups
from aot.select.selection import Curve, HeldOut, Regret, Selection
from aot.select.times.known import measured_times, split, with_imputed_times
from aot.space.enumeration import FamilyCensus, Patterns, census
from aot.space.roofline import Roofline, roofline

if TYPE_CHECKING:
    from aot.core.measurement import AnyMeasurement, AnyRecord, OperationTimes, ProductRecord, Times
    from aot.core.target import Target

NO_TIMES: OperationTimes = {}


@dataclass(frozen=True)
class Cell:
    """A row of tier 1: m above `after`, up to its problem's."""

    problem: Problem
    after: int
    is_last: bool
    kernel: int
    time_us: float
    is_measured: bool
    roofline: Roofline

    @property
    def fraction(self) -> float:
        """Return the share of the roofline that is reached: the roofline's time over the row's."""
        return self.roofline.time_us / self.time_us


@dataclass(frozen=True)
class Scored:
    """A look-up of a problem, and whether both of its times were measured in the problem's own element type."""

    found: LookUp[Problem]
    is_own: bool


@dataclass(frozen=True)
class Unchosen:
    """A kernel that was measured and is not shipped: what the operation's problems would gain if it were.

    Gains are fractions of the best time known: how far the mean, and one problem's, regret would fall.
    """

    candidate: Candidate
    num_problems: int
    num_best: int
    """Problems on which no other kernel known is faster."""
    mean_gain: float
    largest_gain: float
    largest_problem: Problem


@dataclass(frozen=True)
class Failure:
    """Pairs of a kernel and a problem that have no time for one cause."""

    status: Status
    """Without a reason where that differs from problem to problem."""
    num_pairs: int
    num_kernels: int
    example: str


@dataclass(frozen=True)
class OperationFacts:
    """What there is to tell of one operation."""

    section: Section
    kernels: tuple[KernelKey, ...]
    """Of the whole selection, by the index that the table uses."""
    provenance: str
    regret: Regret | None
    curve: Curve | None
    heldout: tuple[HeldOut, ...]
    cells: tuple[Cell, ...]
    inside: tuple[Scored, ...]
    """The problems that were selected on; empty without a record, as the next three."""
    outside: tuple[LookUp[Problem], ...]
    """The problems that were held out, in both tiers."""
    failures: tuple[Failure, ...]
    unchosen: tuple[Unchosen, ...]
    """Those with most to gain first."""
    families: tuple[FamilyCensus, ...]

    @property
    def operation(self) -> Operation:
        """Return the operation."""
        return self.section.operation

    @property
    def measured(self) -> list[Cell]:
        """List the rows whose time was measured."""
        return [cell for cell in self.cells if cell.is_measured]

    def outside_of(self, tier: Tier) -> list[LookUp[Problem]]:
        """List the held-out problems that fell to a tier."""
        return [item for item in self.outside if item.tier is tier]


@dataclass(frozen=True)
class SearchPoint:
    """A search strategy at a budget, replayed on a record; fractions, and seconds of device time."""

    strategy: str
    fraction: float
    """Of the candidates, measured."""
    device_s: float
    mean_regret: float
    worst_regret: float


@dataclass(frozen=True)
class Facts:
    """What there is to tell of a tuning."""

    selection: Selection
    target: Target
    operations: tuple[OperationFacts, ...]
    """The one with most rows measured first."""
    searches: tuple[SearchPoint, ...]
    num_measurements: int

    @property
    def is_predicted(self) -> bool:
        """Say whether nothing here was measured."""
        return self.selection.provenance == PROVENANCE_PREDICTED


def _cells(section: Section, target: Target) -> tuple[Cell, ...]:
    cells = []
    for ladder in section.ladders:
        after = 0
        for m, row in zip(ladder.m_edges, ladder.rows, strict=True):
            problem = Problem(section.operation, m, ladder.n, ladder.k, section.num_groups)
            is_measured = row.provenance == PROVENANCE_MEASURED
            is_last = m == ladder.m_edges[-1]
            cells.append(Cell(problem, after, is_last, row.kernel, row.time_us, is_measured, roofline(problem, target)))
            after = m
    return tuple(cells)


def unchosen(times: Times, shipped: Collection[Candidate]) -> tuple[Unchosen, ...]:
    """List the kernels that are not shipped and would be the fastest of the shipped somewhere, most gain first.

    Args:
        times: microseconds by problem and candidate.
        shipped: the operation's kernels.
    """
    matrix = Matrix.of(times)
    columns = [j for j, candidate in enumerate(matrix.candidates) if candidate in shipped]
    if not columns:
        return ()
    best = matrix.ratios[:, columns].min(axis=1)
    known = matrix.ratios < MISSING_RATIO
    gains = np.where(known & (best < MISSING_RATIO)[:, None], np.maximum(best[:, None] - matrix.ratios, 0.0), 0.0)
    means = gains.mean(axis=0)
    found = []
    for j in np.flatnonzero(means > 0).tolist():
        largest = int(gains[:, j].argmax())
        num_best = int((matrix.ratios[:, j] <= 1.0).sum())
        numbers = int(known[:, j].sum()), num_best, float(means[j]), float(gains[largest, j])
        found.append(Unchosen(matrix.candidates[j], *numbers, matrix.problems[largest]))
    return tuple(sorted(found, key=lambda x: (-x.mean_gain, x.candidate)))


def failures(measurements: Sequence[AnyMeasurement]) -> tuple[Failure, ...]:
    """Group what has no time by its outcome, and kernels in quarantine by their reason; the most frequent first."""
    groups: dict[Status, list[AnyMeasurement]] = {}
    for item in measurements:
        outcome = item.status.outcome
        if outcome is not Outcome.OK:
            groups.setdefault(item.status if outcome is Outcome.QUARANTINED else Status(outcome), []).append(item)
    found = []
    for status, items in groups.items():
        first = min(items, key=lambda item: item.place)
        example = f"{first.kernel.candidate.name} on {first.problem.name.partition(' ')[2]}: {first.status}"
        found.append(Failure(status, len(items), len({item.kernel for item in items}), example))
    return tuple(sorted(found, key=lambda x: (-x.num_pairs, str(x.status))))


def _inside(section: Section, selection: Selection, own: Times, filled: Times) -> tuple[Scored, ...]:
    found = look_ups(section, selection.kernels, filled)
    return tuple(Scored(x, x.chosen in own[x.problem] and x.best in own[x.problem]) for x in found)


def _same_heldout(stated: Sequence[HeldOut], outside: Sequence[LookUp[Problem]], record: str) -> None:
    """Refuse held-out problems that are not those that the selection was scored on.

    Raises:
        SelectionError: their numbers differ.
    """
    for x in stated:
        expected = x.num_problems + x.num_unmeasured
        count = sum(item.tier.value == x.tier for item in outside)
        if count != expected:
            raise SelectionError(
                f"{x.operation.tag}, tier {x.tier}: the record {record} and the held-out shapes give {count} problems, "
                f"the selection was scored on {expected}; give the --record and the --heldout that it was made with"
            )


def _operation(
    section: Section,
    selection: Selection,
    target: Target,
    times: tuple[Times, Times, Times],
    record: ProductRecord | None,
) -> OperationFacts:
    """Work out one operation; `times` are its own, those with imputed times, and those held out."""
    own, filled, held = times
    operation = section.operation
    stated = tuple(x for x in selection.heldout if x.operation == operation)
    outside = tuple(look_ups(section, selection.kernels, held)) if stated else ()
    _same_heldout(stated, outside, selection.record)
    shipped = {key.candidate for key in selection.kernels if key.operation == operation}
    return OperationFacts(
        section,
        selection.kernels,
        selection.provenance,
        next((x for x in selection.regrets if x.operation == operation), None),
        next((x for x in selection.curves if x.operation == operation), None),
        stated,
        _cells(section, target),
        _inside(section, selection, own, filled) if own else (),
        outside,
        failures([x for x in record.measurements if x.problem.operation == operation]) if record else (),
        unchosen(filled, shipped) if own else (),
        tuple(census(operation, target, Patterns())),
    )


def _rank(facts: OperationFacts) -> tuple[int, int, int]:
    """Put what was measured most first, then linear's layout, then bfloat16."""
    return -len(facts.measured), facts.operation.layout.code, facts.operation.element.code


def facts_of(
    selection: Selection,
    target: Target,
    record: AnyRecord | None,
    heldout: Collection[tuple[int, int, int]] = (),
    searches: Sequence[SearchPoint] = (),
) -> Facts:
    """Work out what a report tells.

    Args:
        selection: kernels and table.
        target: the selection's device.
        record: what the selection was made from; None if it is predicted.
        heldout: (n, k, m) of the problems that the selection was scored on; ignored if it was scored on none.
        searches: strategies that were replayed, if any were.

    Raises:
        SelectionError: the record or the held-out problems are not those of the selection.
    """
    is_measured = selection.provenance == PROVENANCE_MEASURED
    if is_measured and record is None:
        raise SelectionError(f"the selection rests on the record {selection.record}, which is not here; give --record")
    if record is not None and record.conditions != selection.conditions:
        raise SelectionError(
            f"the selection was made from {len(selection.conditions)} runs of the record {selection.record}, whose "
            f"conditions are not those of the {len(record.conditions)} here; give its own --record, or select again"
        )
    record = record if is_measured else None
    products = GEMM.part(record) if record else None
    times = measured_times(products) if products else NO_TIMES
    inside, outside = split(times, frozenset(heldout if selection.heldout else ()))
    filled = with_imputed_times(inside)

    def facts(section: Section) -> OperationFacts:
        three = tuple(rows.get(section.operation, {}) for rows in (inside, filled, outside))
        return _operation(section, selection, target, (three[0], three[1], three[2]), products)

    found = sorted(map(facts, (x for x in selection.table.sections if x.is_plain)), key=_rank)
    count = sum(x.ok and x.tile_order == HEURISTIC for x in record.measurements) if record else 0
    return Facts(selection, target, tuple(found), tuple(searches), count)
