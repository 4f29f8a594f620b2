"""Selections of kinds that have one key axis, such as operations on rows: a column for each size along it, with steps.

Kernels are chosen, and steps made, by measured times, by those of an equivalent operation, or else by the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aot.core.candidate import Candidate
from aot.core.dispatch import MAX_STEP_M, DispatchTable
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, AnyRecord
from aot.core.progress import quietly
from aot.core.work import AnyOperation, AnyProblem
from aot.kinds.kind import Use
from aot.kinds.registry import kind_of
from aot.kinds.rows.dispatch import RowColumn, RowSection, RowStep, RowTable
from aot.select.join import joined_steps
from aot.select.portfolio.choose import MODELLED_TIE, TIE, Budget, Incumbent, Portfolio, choose
from aot.select.portfolio.objective import NAMED_WEIGHT, Basis, SelectionLimits
from aot.select.score.heldout import LookUp, scores, step_look_ups
from aot.select.selection import NO_STEPS, SELECTION_VERSION, HeldOut, Regret, Selection, Stepped
from aot.select.table.incumbent import step_incumbent
from aot.select.times.known import measured_times, spreads
from aot.select.times.nearby import NearbyTimes
from aot.space import cost
from aot.space.enumeration import Patterns, fallback, legal
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from aot.core.target import Target

Times: TypeAlias = Mapping[AnyProblem, Mapping[Candidate, float]]
"""Microseconds by problem and candidate."""


@dataclass(frozen=True)
class SteppedTimes:
    """What a selection is made from."""

    times: Mapping[AnyOperation, Times] = field(default_factory=dict)
    """Measured, by operation; those without are by the times of an equivalent operation, or by the cost model."""
    spreads: Mapping[AnyOperation, Times] = field(default_factory=dict)
    """Relative half-distance of the quartiles."""
    record: AnyRecord | None = None
    name: str = cost.NAME
    """Of the record, or of the cost model."""

    @staticmethod
    def of(record: AnyRecord, name: str) -> SteppedTimes:
        """Take what a record has."""
        return SteppedTimes(measured_times(record), spreads(record), record, name)

    def of_operation(self, operation: AnyOperation) -> tuple[Basis, Times]:
        """Return the times that an operation's kernels are chosen by, on problems of its own."""
        own = self.times.get(operation)
        if own:
            return Basis.MEASURED, own
        others = (self.times.get(x) for x in kind_of(operation).imputed_from(operation))
        found: Mapping[Any, Mapping[Candidate, float]] = next((x for x in others if x), {})
        basis = Basis.IMPUTED if found else Basis.PREDICTED
        return basis, {replace(problem, operation=operation): row for problem, row in found.items()}


@dataclass(frozen=True)
class _Axes:
    """The axes of an operation's kind: problems are told by (steps, key)."""

    operation: AnyOperation
    steps: str
    key: str

    @staticmethod
    def of(operation: AnyOperation) -> _Axes:
        """Return those of an operation.

        Raises:
            SelectionError: its kind has several key axes.
        """
        axes = kind_of(operation).axes
        ladders, keys = ([x.name for x in axes if x.use is use] for use in (Use.LADDER, Use.KEY))
        if len(ladders) != 1 or len(keys) != 1:
            raise SelectionError(
                f"{operation.tag}: its tables are by {', '.join(keys)}; expected a kind with one key axis; see "
                "`aot select`"
            )
        return _Axes(operation, ladders[0], keys[0])

    def problem(self, size: tuple[int, int]) -> AnyProblem:
        """Return the problem of a size."""
        make: Any = kind_of(self.operation).problem_type
        found: AnyProblem = make(operation=self.operation, **{self.steps: size[0], self.key: size[1]})
        return found

    def size(self, problem: AnyProblem) -> tuple[int, int]:
        """Return a problem's size, its steps up to the largest edge that a table holds."""
        sizes = kind_of(self.operation).sizes(problem)
        return min(sizes[self.steps], MAX_STEP_M), sizes[self.key]

    def edges(self, sizes: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the edges of steps and keys: the usual ones and those of sizes that were measured."""
        usual = kind_of(self.operation).edges(self.operation)
        return tuple(sorted({*usual[self.steps], *(x for x, _ in sizes)})), tuple(
            sorted({*usual[self.key], *(x for _, x in sizes)})
        )


@dataclass(frozen=True)
class _Grid:
    """The upper corners of an operation's buckets, and the time of each candidate there; infinite where it has none."""

    axes: _Axes
    basis: Basis
    step_edges: tuple[int, ...]
    key_edges: tuple[int, ...]
    """The last one is the largest size that there is: what takes it takes any."""
    candidates: tuple[Candidate, ...]
    times: NDArray[np.float64]
    """(keys, steps, candidates)."""
    is_known: NDArray[np.bool_]
    """Where a candidate was timed, in the operation or in the equivalent one."""

    @cached_property
    def problems(self) -> list[list[AnyProblem]]:
        """Return the problem of each corner, (keys, steps)."""
        return [[self.axes.problem((step, key)) for step in self.step_edges] for key in self.key_edges]

    @staticmethod
    def of(operation: AnyOperation, target: Target, patterns: Patterns, basis: Basis, times: Times) -> _Grid:
        """Take times, and between them those of the cost model, corrected by them."""
        axes = _Axes.of(operation)
        known = {axes.size(problem): row for problem, row in times.items()}
        step_edges, key_edges = axes.edges(list(known))
        timed = {candidate for row in known.values() for candidate in row}
        candidates = tuple(x for x in legal(operation, target, patterns) if not timed or x in timed)
        most = np.array([space_of(operation).most(x, operation) for x in candidates])
        nearby = NearbyTimes.of(operation, {axes.problem(size): row for size, row in known.items()}, target)
        # What takes the last column takes any size: its times are those of twice the largest that is named.
        shown = [*key_edges[:-1], min(key_edges[-1], 2 * key_edges[-2])] if len(key_edges) > 1 else key_edges
        corners = [axes.problem((step, key)) for key in shown for step in step_edges]
        found = nearby.times_us(candidates, corners).reshape(len(key_edges), len(step_edges), len(candidates))
        is_known = np.zeros(found.shape, np.bool_)
        for j, i in product(range(len(key_edges)), range(len(step_edges))):
            row = known.get((step_edges[i], key_edges[j]))
            if row is not None:
                found[j, i] = [row.get(x, math.inf) for x in candidates]
                is_known[j, i] = [x in row for x in candidates]
        found[np.broadcast_to((most < np.array(key_edges)[:, None])[:, None], found.shape)] = math.inf
        return _Grid(axes, basis, step_edges, key_edges, candidates, found, is_known)

    def portfolio(
        self, budget: Budget, spread: Times, incumbent: Selection | None, *, is_bounded: bool
    ) -> Portfolio[AnyProblem]:
        """Choose candidates over all corners, of which those that were timed count more, and get theirs.

        Raises:
            SelectionError: no candidate takes every size, or none some size.
        """
        times: dict[AnyProblem, dict[Candidate, float]] = {}
        beside: dict[AnyProblem, dict[Candidate, float]] = {}
        has_known = self.basis is not Basis.PREDICTED
        for j, i in product(range(len(self.key_edges)), range(len(self.step_edges))):
            row = zip(self.candidates, self.times[j, i].tolist(), strict=True)
            part = times if not has_known or self.is_known[j, i].any() else beside
            part[self.problems[j][i]] = {x: us for x, us in row if us < math.inf}
        operation = self.axes.operation
        takes_all = {x for x in self.candidates if space_of(operation).most(x, operation) >= self.key_edges[-1]}
        try:
            return choose(
                times,
                budget,
                beside=beside,
                weights=dict.fromkeys(times, NAMED_WEIGHT) if has_known else None,
                spreads=spread,
                tie=TIE if self.basis is Basis.MEASURED else MODELLED_TIE,
                incumbent=_able(step_incumbent(incumbent, operation, times), self.candidates),
                is_general=takes_all.__contains__,
                is_bounded=is_bounded,
            )
        except SelectionError as error:
            raise SelectionError(f"{operation.tag}: {error}") from error

    def column(self, j: int, portfolio: Portfolio[AnyProblem], number: Callable[[int], int]) -> RowColumn:
        """Return a column; steps of neighbours that one kernel serves as well are one, unless they were timed.

        Where its time doubles a step ends all the same: a table says times at the edges of its steps alone.
        """
        places = {x: k for k, x in enumerate(self.candidates)}
        chosen = [places[x] for x in portfolio.candidates]
        picks: list[int] = []
        for i, problem in enumerate(self.problems[j]):
            row, own = self.times[j, i], portfolio.solutions.get(problem)
            is_predicted = own is None or self.basis is Basis.PREDICTED
            stays = picks and is_predicted and row[picks[-1]] <= row[chosen].min() * (1 + MODELLED_TIE)
            best = chosen[int(row[chosen].argmin())] if own is None else places[own]
            picks.append(picks[-1] if stays else best)
        is_measured = self.is_known[j] & (self.basis is Basis.MEASURED)

        def bucket(i: int) -> tuple[int, int, int]:
            octave = math.frexp(self.times[j, i, picks[i]])[1]
            return picks[i], i if is_measured[i, picks[i]] else -1, octave

        steps = []
        for (pick, *_), of_bucket in groupby(range(len(picks)), key=bucket):
            last = list(of_bucket)[-1]
            provenance = PROVENANCE_MEASURED if is_measured[last, pick] else PROVENANCE_PREDICTED
            time_us = round(float(self.times[j, last, pick]), 3) if j + 1 < len(self.key_edges) else 0.0
            steps.append(RowStep(self.step_edges[last], number(pick), time_us, provenance))
        return RowColumn(self.key_edges[j], tuple(steps))


@dataclass(frozen=True)
class _Chosen:
    """What is chosen of one operation: its kernels, the fallback first, and its table."""

    steps: Stepped
    regret: Regret


@dataclass(frozen=True)
class _Chooser:
    """Chooses the kernels and the section of one operation, by all times or by some."""

    operation: AnyOperation
    target: Target
    patterns: Patterns
    basis: Basis
    spreads: Times
    budget: Budget

    def choose(self, times: Times, incumbent: Selection | None = None, *, is_bounded: bool = True) -> _Chosen:
        """Choose by times; errors as `select_stepped`."""
        make: Any = kind_of(self.operation).key_type
        grid = _Grid.of(self.operation, self.target, self.patterns, self.basis, times)
        portfolio = grid.portfolio(self.budget, self.spreads, incumbent, is_bounded=is_bounded)
        kept = [k for k, x in enumerate(grid.candidates) if x in set(portfolio.candidates)]
        places = {k: 1 + i for i, k in enumerate(kept)}
        candidates = (fallback(self.operation, self.target), *(grid.candidates[k] for k in kept))
        columns = (grid.column(j, portfolio, places.__getitem__) for j in range(len(grid.key_edges)))
        of_table: Any = self.operation
        mean, worst, bound = (round(getattr(portfolio, x), 5) for x in ("mean_regret", "worst_regret", "mean_bound"))
        method = f"{portfolio.method}{self.basis.value}"
        return _Chosen(
            Stepped(
                tuple(make(self.operation, x) for x in candidates),
                RowTable((RowSection(of_table, tuple(columns), 0),)),
            ),
            Regret(self.operation, len(portfolio.solutions), len(kept), mean, worst, method, bound),
        )

    def heldout(self, times: Times) -> tuple[HeldOut, ...]:
        """Leave each measured size inside the others out in turn, and score it by what is chosen without it."""
        if self.basis is not Basis.MEASURED:
            return ()
        found: list[LookUp[AnyProblem]] = []
        for problem in _inner(self.operation, times):
            chosen = self.choose({x: row for x, row in times.items() if x != problem}, is_bounded=False)
            found += step_look_ups(chosen.steps, {problem: times[problem]})
        return scores(self.operation, found)


def _inner(operation: AnyOperation, times: Times) -> list[AnyProblem]:
    """List the problems between others along each axis: beyond them a table extrapolates, which none says more of."""
    kind = kind_of(operation)
    sizes = [kind.sizes(x) for x in times]
    ends = {x.name: {f(size[x.name] for size in sizes) for f in (min, max)} for x in kind.axes}
    many = [name for name, found in ends.items() if len(found) > 1]
    return [x for x, size in zip(times, sizes, strict=True) if many and not any(size[a] in ends[a] for a in many)]


def _able(incumbent: Incumbent[AnyProblem], candidates: Sequence[Candidate]) -> Incumbent[AnyProblem]:
    """Leave out the kernels that there are no times of."""
    kept = {x: y for x, y in incumbent.solutions.items() if y in candidates}
    return Incumbent(incumbent.candidates.intersection(candidates), kept)


def select_stepped(
    operations: Sequence[AnyOperation],
    target: Target,
    known: SteppedTimes | None = None,
    patterns: Patterns | None = None,
    *,
    limits: SelectionLimits | None = None,
    incumbent: Selection | None = None,
    with_heldout: bool = True,
    at: Callable[[str], None] = quietly,
) -> Selection:
    """Choose the kernels and the table of operations.

    Args:
        operations: what the selection is to have, each once.
        target: the device.
        known: what was measured; by default nothing.
        patterns: which candidates there are.
        limits: how many kernels an operation may have.
        incumbent: the selection that ties go to; not where the table is scored, for it may know what is left out.
        with_heldout: whether to score the table on sizes that are left out in turn.
        at: told what is being done.

    Raises:
        CandidateError: no fallback family compiles for the target.
        SelectionError: the measured candidates do not serve all sizes, or a kind has several key axes.
    """
    known, steps = known or SteppedTimes(), NO_STEPS
    regrets, heldout, budget = list[Regret](), list[HeldOut](), (limits or SelectionLimits()).of_rows()
    for operation in operations:
        at(f"{operation.tag}: choosing kernels")
        basis, times = known.of_operation(operation)
        chooser = _Chooser(operation, target, patterns or Patterns(), basis, known.spreads.get(operation, {}), budget)
        chosen = chooser.choose(times, incumbent)
        steps = joined_steps(steps, chosen.steps)
        regrets.append(chosen.regret)
        if with_heldout:
            at(f"{operation.tag}: leaving out each size in turn")
            heldout += chooser.heldout(times)
    is_measured = any(known.times.get(x) for x in operations)
    return Selection(
        SELECTION_VERSION,
        target.name,
        PROVENANCE_MEASURED if is_measured else PROVENANCE_PREDICTED,
        known.name if is_measured or known.record is None else f"{known.name}, imputed",
        known.record.conditions if is_measured and known.record else (),
        tuple(regrets),
        (),
        tuple(heldout),
        (),
        DispatchTable(()),
        stepped=steps,
    )
