"""From times to a selection: each operation's kernels, their table, what they cost, and the bucketing loss. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import Candidate, KernelKey
from aot.core.dispatch import DispatchTable
from aot.core.epilogue import Epilogue
from aot.core.errors import SelectionError
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, OperationTimes, Times
from aot.core.operands import as_launched, is_aligned
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.families import family_of
from aot.select.coverage import Coverage, coverage
from aot.select.curve import curve
from aot.select.heldout import against, score
from aot.select.incumbent import incumbent_kernel, incumbent_of, kept_section
from aot.select.portfolio import MODELLED_TIE, TIE, Budget, Portfolio, choose
from aot.select.sampled import sampled_problems
from aot.select.selection import SELECTION_VERSION, AgainstReference, Curve, Regret, Selection
from aot.select.table import Timed, build_section, is_general, renamed
from aot.select.time_model import Model, Prior, TimeModel
from aot.select.times import with_imputed_times
from aot.space.cost import DEFAULTS, Constants
from aot.space.enumeration import fallback

if TYPE_CHECKING:
    from aot.core.dispatch import Section
    from aot.core.measurement import Record
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target

NUM_SAMPLED = 600
"""Problems that no shape set names, with predicted times, that a portfolio is chosen for beside those measured, where
those are many. Source: on the committed H200 record, with a quarter of (n, k) left out, 24 kernels have a mean regret
of 5.0 percent there without, 3.5 with (docs/log/2026-11-21-selections.md)."""

MIN_MEASURED = 100
"""Problems from which on the learned times are trusted on sampled ones."""

NAMED_WEIGHT = 8.0
"""How much a problem of the shape set counts that a selection is made for, in the mean; others measured, and sampled
ones, count 1. Source: the H200 record, where the 204 problems of `representative` stand beside 655 others and 600
sampled ones that would outvote them (docs/log/2026-11-21-selections.md)."""

CURVE_MIN_PROBLEMS = 30
"""Problems from which on a curve of kernels against regret says something."""


@dataclass(frozen=True)
class SelectionLimits:
    """How many kernels an operation may have, or which regret; the latter counts in linear's layout."""

    max_kernels: int = 24
    max_layout_kernels: int = 8
    max_epilogue_kernels: int = 24
    max_mean: float | None = None
    """Regrets are fractions. With either, as few kernels as reach it, up to `max_kernels`."""
    max_worst: float | None = None

    def of(self, operation: Operation) -> Budget:
        """Return the budget of one operation."""
        if operation.epilogue.steps:
            return Budget(self.max_epilogue_kernels)
        if operation.layout is not Layout.KK:
            return Budget(self.max_layout_kernels)
        return Budget(self.max_kernels, self.max_mean, self.max_worst)


def _no_progress(_what: str) -> None:
    pass


@dataclass(frozen=True)
class KnownTimes:
    """The times that a selection is made from, in microseconds, and what is known of them."""

    times: OperationTimes
    spreads: OperationTimes = field(default_factory=dict)
    """Relative half-distance of the quartiles."""
    heldout: OperationTimes = field(default_factory=dict)
    """Times that are only scored on."""
    references: Mapping[Problem, float] = field(default_factory=dict)
    """Of the reference library, torch say, on the problems where it was timed."""
    record: Record | None = None
    """Where they were measured; None if they are predicted."""
    constants: Constants = DEFAULTS
    """Of the cost model that predicted them; where they were measured, of none."""


@dataclass(frozen=True)
class Objective:
    """What a selection is to be like."""

    limits: SelectionLimits = field(default_factory=SelectionLimits)
    incumbent: Selection | None = None
    """The selection that ties go to."""
    shapes: ShapeSet | None = None
    """What the wheel is for."""
    named_weight: float = NAMED_WEIGHT
    """How often the problems of `shapes` count."""
    epilogues: tuple[Epilogue, ...] = ()
    """Those that kernels are chosen for by imputed times, beside what was measured."""
    with_curves: bool = False
    kernel_bytes: Mapping[KernelKey, int] = field(default_factory=dict)
    """Compressed bytes of the kernels that are compiled, for the curves."""
    progress: Callable[[str], None] = _no_progress
    """Told what is being done."""

    def weights(self, operation: Operation) -> dict[Problem, float]:
        """Return how much the problems count that the wheel is for, as the table will be asked for them."""
        if self.shapes is None:
            return {}
        launched = (as_launched(problem, [operation]) for problem in self.shapes.problems(operation))
        return {problem: self.named_weight for problem in launched if problem}

    @property
    def named(self) -> frozenset[tuple[int, int]] | None:
        """Return the (n, k) that the wheel is for; None where that is not known."""
        return None if self.shapes is None else frozenset((n, k) for n, k, _ in self.shapes.sizes)

    def covered(self, table: DispatchTable, kernels: Sequence[KernelKey]) -> Coverage | None:
        """Count how a table answers what the wheel is for; None where that is not known."""
        if self.shapes is None:
            return None
        asked = (problem for operation in self.shapes.operations for problem in self.shapes.problems(operation))
        return coverage(table, kernels, asked)


def fallback_key(operation: Operation, target: Target) -> KernelKey:
    """Return the kernel that takes an operation's unaligned problems, whatever their layout."""
    operation = operation.layouts[0]
    return KernelKey(operation, fallback(operation, target))


@dataclass(frozen=True)
class _Chosen:
    """One operation's portfolio, and the times it was chosen by."""

    operation: Operation
    portfolio: Portfolio
    times: Times
    beside: Times
    is_shared: bool
    """Whether its kernels are those of a twin that was chosen before it."""


def _within(filled: Times, candidates: Collection[Candidate]) -> Times:
    """Keep the times of some candidates, and the problems that one of them was timed on."""
    kept = {problem: {x: row[x] for x in row if x in candidates} for problem, row in filled.items()}
    return {problem: row for problem, row in kept.items() if row}


def _choose(
    operation: Operation,
    filled: Times,
    measured: KnownTimes,
    model: Model,
    objective: Objective,
    found: Sequence[_Chosen],
) -> _Chosen:
    """Choose an operation's kernels: those of a twin, or some of those of the operation without its epilogue."""
    twin = next((x for x in found if x.operation in operation.twins), None)
    plain = next((x for x in found if x.operation is operation.plain), None)
    shared: tuple[Candidate, ...] = ()
    known, known_times = twin or plain, filled
    if known is not None:
        shared = tuple(x for x in known.portfolio.candidates if operation.epilogue in family_of(x).epilogues)
        filled = _within(filled, frozenset(shared))
    if measured.record is not None:
        filled = _learned_where_missing(filled, model, shared)
    beside: dict[Problem, dict[Candidate, float]] = {}
    if measured.record is not None and len(filled) >= MIN_MEASURED:
        candidates = sorted({candidate for row in filled.values() for candidate in row})
        problems = sampled_problems(operation, NUM_SAMPLED)
        rows = model.times_us(candidates, problems).tolist()
        beside = {p: dict(zip(candidates, row, strict=True)) for p, row in zip(problems, rows, strict=True)}
    portfolio = choose(
        filled,
        Budget(len(shared)) if twin else objective.limits.of(operation),
        beside=beside,
        weights=objective.weights(operation),
        references=measured.references,
        spreads=measured.spreads.get(operation),
        tie=MODELLED_TIE if measured.record is None else TIE,
        incumbent=incumbent_of(objective.incumbent, operation, filled),
        is_general=is_general,
    )
    if twin is not None:
        portfolio = replace(portfolio, candidates=shared)
    return _Chosen(operation, _judged(portfolio, known_times), filled, beside, twin is not None)


def _judged(portfolio: Portfolio, times: Times) -> Portfolio:
    """Return a portfolio whose regrets are over the best of all times, also of kernels that it could not choose.

    They are no lower than over what it was chosen among, where a kernel that was not timed has a learned time.
    """
    solutions = portfolio.solutions.items()
    known = [(times[p][x], min(times[p].values())) for p, x in solutions if x in times.get(p, {})]
    regrets = [time / best - 1 for time, best in known]
    if not regrets:
        return portfolio
    mean = max(sum(regrets) / len(regrets), portfolio.mean_regret)
    return replace(portfolio, mean_regret=mean, worst_regret=max([*regrets, portfolio.worst_regret]))


UNTRIED = 1.01
"""A learned time of a kernel that a search left out is at least the best measured time times this: the search took the
kernel for no faster, so that a lower one is the model's error."""


def _learned_where_missing(times: Times, model: Model, more: Sequence[Candidate] = ()) -> Times:
    """Return each problem the times of all candidates: learned ones where a search, or a shortlist, left them out."""
    candidates = sorted({*more, *(candidate for row in times.values() for candidate in row)})
    problems = sorted(times)
    least = UNTRIED * np.array([[min(times[problem].values())] for problem in problems])
    rows = np.maximum(model.times_us(candidates, problems), least).tolist()
    return {p: {**dict(zip(candidates, row, strict=True)), **times[p]} for p, row in zip(problems, rows, strict=True)}


def _curve(chosen: _Chosen, objective: Objective, references: Mapping[Problem, float]) -> Curve | None:
    if not objective.with_curves or len(chosen.times) < CURVE_MIN_PROBLEMS:
        return None
    operation = chosen.operation
    known = {key.candidate: size for key, size in objective.kernel_bytes.items() if key.operation == operation}
    return curve(
        operation,
        chosen.times,
        chosen.beside,
        len(chosen.portfolio.candidates),
        known,
        is_general=is_general,
        weights=objective.weights(operation),
        references=references,
        progress=lambda size: objective.progress(f"{operation.tag}: the curve at {size} kernels"),
    )


def _regret(chosen: _Chosen) -> Regret:
    found = chosen.portfolio
    figures = round(found.mean_regret, 5), round(found.worst_regret, 5), found.method, round(found.mean_bound, 5)
    return Regret(chosen.operation, len(chosen.times), len(found.candidates), *figures)


def _aligned(times: OperationTimes) -> OperationTimes:
    """Leave out what no tuned kernel takes: the fallback answers it, which was not timed, whatever a table says."""
    kept = {operation: {x: row for x, row in rows.items() if is_aligned(x)} for operation, rows in times.items()}
    return {operation: rows for operation, rows in kept.items() if rows}


def _against(
    sections: Sequence[Section], kernels: Sequence[KernelKey], measured: KnownTimes
) -> Iterator[AgainstReference]:
    """Compare each section with the reference library, on what was selected on and on what was held out."""
    for section in sections:
        for times, is_heldout in ((measured.times, False), (measured.heldout, True)):
            rows = times.get(section.operation, {})
            found = against(section, kernels, rows, measured.references, is_heldout=is_heldout)
            if found is not None:
                yield found


def _with_epilogues(times: OperationTimes, epilogues: Collection[Epilogue]) -> OperationTimes:
    """Add the operations that differ from measured ones by an epilogue alone, with no times: theirs are imputed."""
    more = (x for x in Operation if x.epilogue in epilogues and x.plain in times and x not in times)
    return {**times, **{operation: {} for operation in more}}


def select_kernels(measured: KnownTimes, target: Target, objective: Objective, record_name: str) -> Selection:
    """Choose each operation's kernels and build its section.

    Args:
        measured: times, and what is held out of them.
        target: the device that the times are of.
        objective: limits, and the incumbent.
        record_name: the record's name, or the cost model's.

    Raises:
        SelectionError: there are no times, no kernel takes every shape, or no portfolio is within the limits.
    """
    times = _aligned(measured.times)
    if not times:
        raise SelectionError(f"{record_name} has no usable times; tune first")
    if measured.record is not None:
        times = _with_epilogues(times, objective.epilogues)
    provenance = PROVENANCE_PREDICTED if measured.record is None else PROVENANCE_MEASURED
    objective.progress("learning from the times")
    model: Model = Prior(target, measured.constants) if measured.record is None else TimeModel.fit(times, target)
    operations = sorted(times, key=lambda operation: operation.position)
    kernels = list(dict.fromkeys(fallback_key(operation, target) for operation in operations))
    fallbacks = {key.operation.call: index for index, key in enumerate(kernels)}
    sections: list[Section] = []
    found: list[_Chosen] = []
    filled = with_imputed_times(times)
    for operation in operations:
        objective.progress(f"{operation.tag}: choosing kernels")
        chosen = _choose(operation, filled[operation], measured, model, objective, found)
        indices = {candidate: len(kernels) + i for i, candidate in enumerate(chosen.portfolio.candidates)}
        kernels += [KernelKey(operation, candidate) for candidate in chosen.portfolio.candidates]
        objective.progress(f"{operation.tag}: building the table")
        incumbent = incumbent_kernel(objective.incumbent, operation)
        kept = kept_section(objective.incumbent, operation)
        timed = Timed(times[operation], filled[operation], provenance, model, incumbent, target, kept)
        twin = next((x for x in sections if chosen.is_shared and x.operation in operation.twins), None)
        grid = None if twin is None else renamed(twin.grid, kernels, indices)
        index = fallbacks[operation.call]
        sections.append(build_section(operation, chosen.portfolio, timed, indices, index, grid, objective.named))
        found.append(chosen)
    curves = [_curve(x, objective, measured.references) for x in found if not x.is_shared]
    table = DispatchTable(tuple(sections))
    return Selection(
        SELECTION_VERSION,
        target.name,
        provenance,
        record_name,
        () if measured.record is None else measured.record.conditions,
        tuple(_regret(chosen) for chosen in found),
        tuple(item for item in curves if item is not None),
        tuple(x for s in sections for x in score(s, kernels, measured.heldout.get(s.operation, {}))),
        tuple(kernels),
        table,
        tuple(_against(sections, kernels, measured)),
        objective.covered(table, kernels),
    )
