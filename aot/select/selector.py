"""From times to a selection: each operation's kernels, their table, what they cost, and the bucketing loss. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from aot.core.alignment import unaligned_loads
from aot.core.candidate import Candidate, KernelKey
from aot.core.dispatch import Column, DispatchTable, Grid, Section
from aot.core.errors import SelectionError
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED, OperationTimes, Times
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.select.coverage import multiples_of
from aot.select.portfolio.candidates import Chosen, legal, pool_of, within
from aot.select.portfolio.choose import MODELLED_TIE, TIE, Budget, Portfolio, choose
from aot.select.portfolio.curve import curve
from aot.select.portfolio.objective import Basis, KnownTimes, Objective
from aot.select.score.heldout import against, score
from aot.select.score.invariance import has_one_order, has_order, prices
from aot.select.selection import (
    SELECTION_VERSION,
    AgainstReference,
    Curve,
    HeldOut,
    Regret,
    Selection,
)
from aot.select.table import unaligned
from aot.select.table.between import Making, parted
from aot.select.table.incumbent import incumbent_kernel, incumbent_of, kept_section
from aot.select.table.sections import build_section, renamed
from aot.select.table.unaligned import UnalignedTimes
from aot.select.times.inputs import Timed, is_general
from aot.select.times.known import aligned, learned_where_missing, with_imputed_times, within_rows
from aot.select.times.model import Model, Prior, TimeModel
from aot.select.times.orders import OrderedTimes, Orders
from aot.select.times.sample import sampled_problems
from aot.space import cost
from aot.space.enumeration import fallback
from aot.space.widths import of_widths

if TYPE_CHECKING:
    from aot.core.target import Target

NUM_SAMPLED = 600
"""Problems that no shape set names, with predicted times, that a portfolio is chosen for beside those measured, where
those are many. Source: on the committed H200 record, with a quarter of (n, k) left out, 24 kernels have a mean regret
of 5.0 percent there without, 3.5 with (research/log/2026-11-21-selections.md)."""

MIN_MEASURED = 100
"""Problems from which on the learned times are trusted on sampled ones."""

MIN_SHARED = 0.5
"""Least part of the kernels of the operation without an epilogue that must have it, so that it is chosen among them.
Those that are left may be for few rows alone. Source: of the committed H200 selection's 96 for bf16, 2026-11-22, 15
have a gate or a residual, all of `cluster_split_k`, and 52 have an activation."""

MAX_NUM_GROUPS = 16
"""Numbers of groups that an operation has sections for: of drawn batches nearly each has a number of its own, and a
section takes some KB of a library. Where a number has none, the next one's section answers."""

CURVE_MIN_PROBLEMS = 30
"""Problems from which on a curve of kernels against regret says something."""


def fallback_key(operation: Operation, target: Target) -> KernelKey:
    """Return the kernel that takes an operation's unaligned problems, whatever their layout."""
    operation = operation.layouts[0]
    return KernelKey(operation, fallback(operation, target))


def _choose(
    operation: Operation,
    filled: Times,
    measured: KnownTimes,
    model: Model,
    objective: Objective,
    found: Sequence[Chosen],
    target: Target,
) -> Chosen:
    """Choose an operation's kernels: those of a twin, or some of those of the operation without its epilogue.

    One that was measured itself is bound by a twin's alone.
    """
    basis, known_times = measured.basis_of(operation), filled
    pool = pool_of(operation, filled, measured, objective, found)
    able, timed = legal(pool.candidates, operation, target), {x for row in filled.values() for x in row}
    may_bind = pool.like is not None or basis is not Basis.MEASURED
    is_bound = may_bind and able & timed and len(able) >= MIN_SHARED * len(pool.candidates)
    shared = tuple(x for x in pool.candidates if x in able) if is_bound else ()
    if shared or basis is Basis.IMPUTED or operation.epilogue.steps:
        filled = within(filled, frozenset(shared) or legal(timed, operation, target))
    if not filled:
        raise SelectionError(
            f"{operation.tag}: no kernel of an equivalent operation that was timed can be built for it; tune it, or "
            "select with --predicted"
        )
    if basis is not Basis.PREDICTED:
        filled = learned_where_missing(filled, model, shared)
    beside: dict[Problem, dict[Candidate, float]] = {}
    if basis is not Basis.PREDICTED and len(filled) >= MIN_MEASURED:
        candidates = sorted({candidate for row in filled.values() for candidate in row})
        problems = sampled_problems(operation, NUM_SAMPLED)
        rows = model.times_us(candidates, problems).tolist()
        sampled = zip(problems, rows, strict=True)
        beside = {p: within_rows(p, dict(zip(candidates, row, strict=True))) for p, row in sampled}
    like = pool.like.operation if pool.like and shared == pool.candidates else None
    portfolio = choose(
        filled,
        Budget(len(shared)) if like else objective.limits.of(operation),
        beside=beside,
        weights=objective.weights(operation),
        references=measured.references,
        spreads=measured.spreads.get(operation),
        tie=MODELLED_TIE if basis is Basis.PREDICTED else TIE,
        incumbent=incumbent_of(objective.incumbent, operation, filled),
        is_general=is_general,
        object_of=partial(_object_of, operation=operation, target=target),
    )
    if like is not None:
        portfolio = replace(portfolio, candidates=shared)
    return Chosen(operation, basis, _judged(portfolio, known_times), filled, beside, like)


def _object_of(candidate: Candidate, operation: Operation, target: Target) -> Candidate:
    """Return the kernel of several widths that a kernel may be one of, or the kernel itself."""
    found = of_widths(candidate, operation, target)
    return candidate if found is None else found[0]


def _judged(portfolio: Portfolio[Problem], times: Times) -> Portfolio[Problem]:
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


def _curve(chosen: Chosen, objective: Objective, references: Mapping[Problem, float], target: Target) -> Curve | None:
    if not objective.with_curves or len(chosen.times) < CURVE_MIN_PROBLEMS:
        return None
    operation = chosen.operation
    known = {key.candidate: size for key, size in objective.kernel_bytes.items() if key.operation == operation}
    return curve(
        operation,
        chosen.times,
        chosen.beside,
        len(chosen.portfolio.objects),
        known,
        is_general=is_general,
        object_of=partial(_object_of, operation=operation, target=target),
        weights=objective.weights(operation),
        references=references,
        progress=lambda size: objective.progress(f"{operation.tag}: the curve at {size} kernels"),
    )


def _regret(chosen: Chosen, *, is_predicted: bool) -> Regret:
    """Make the entry of an operation; where all is predicted, the selection says so, and no entry need."""
    found = chosen.portfolio
    method = found.method if is_predicted else f"{found.method}{chosen.basis.value}"
    figures = round(found.mean_regret, 5), round(found.worst_regret, 5), method, round(found.mean_bound, 5)
    return Regret(chosen.operation, len(chosen.times), len(found.objects), *figures)


def _asked_of(section: Section, table: DispatchTable, times: OperationTimes) -> Times:
    """Return the times of the problems that a section answers where nothing is asked of the order of sums."""
    rows = {} if section.batch_invariant else times.get(section.operation, {})
    if section.loads:
        own = {x: row for x, row in rows.items() if unaligned_loads(x) == section.loads}
        return {
            x: row
            for x, row in own.items()
            if table.unaligned_section(x.operation, section.loads, x.num_groups) is section
        }
    return {x: row for x, row in rows.items() if not unaligned_loads(x) and table.aligned_section(x) is section}


def compared(table: DispatchTable, kernels: Sequence[KernelKey], measured: KnownTimes) -> Iterator[AgainstReference]:
    """Compare each section with the reference library, on what was selected on and on what was held out."""
    for section in table.sections:
        for times, is_heldout in ((measured.times, False), (measured.heldout, True)):
            rows = _asked_of(section, table, times)
            found = against(section, kernels, rows, measured.references, measured.ordered, is_heldout=is_heldout)
            if found is not None:
                yield found


def scored(table: DispatchTable, kernels: Sequence[KernelKey], measured: KnownTimes) -> Iterator[HeldOut]:
    """Score each section on what was held out."""
    for section in table.sections:
        yield from score(section, kernels, _asked_of(section, table, measured.heldout), measured.ordered)


def _with_imputed(times: OperationTimes, objective: Objective) -> OperationTimes:
    """Add the operations that are wanted and were not timed, but an equivalent was, with no times: theirs are imputed.

    `Objective.epilogues` asks for the operations that differ from measured ones by an epilogue alone.
    """
    more = (
        x
        for x in Operation
        if (x.epilogue in objective.epilogues and x.plain in times)
        or (x in objective.operations and any(y in times for y in x.equivalents))
    )
    return {**times, **{operation: {} for operation in more if operation not in times}}


def _fallback_section(operation: Operation, kernels: Sequence[KernelKey], target: Target) -> Section:
    """Make the table of an operation that only the fallback computes."""
    index = kernels.index(fallback_key(operation, target))
    return Section(operation, (), Grid((1,), (1,), (Column((1,), (index,)),)), index)


@dataclass(frozen=True)
class Models:
    """What gives times between those that are known, by what an operation's kernels are chosen by."""

    measured: KnownTimes
    target: Target
    progress: Callable[[str], None] = quietly

    @cached_property
    def _learned(self) -> Model | None:
        """Learned from what was measured, if anything was: some of a minute's work, of no use to predicted tables."""
        times = {} if self.measured.record is None else aligned(self.measured.times)
        if not times:
            return None
        self.progress("learning from the times")
        return TimeModel.fit(times, self.target)

    @cached_property
    def _prior(self) -> Model:
        return Prior(self.target, self.measured.constants)

    def of(self, basis: Basis) -> Model:
        """Return the model of operations whose kernels are chosen so."""
        return self._prior if basis is Basis.PREDICTED or self._learned is None else self._learned


def _named_record(record_name: str, found: Sequence[Chosen]) -> str:
    """Say what a selection rests on in which nothing has a time of its own, although there is a record."""
    return f"{record_name}, imputed" if any(x.basis is Basis.IMPUTED for x in found) else cost.NAME


def select_kernels(measured: KnownTimes, target: Target, objective: Objective, record_name: str) -> Selection:
    """Choose each operation's kernels and build its section.

    Args:
        measured: times, and what is held out of them.
        target: the device that the times are of.
        objective: limits, and the incumbent.
        record_name: the record's name, or the cost model's.

    Raises:
        SelectionError: there are no times, no kernel takes every shape, or no portfolio is within the limits.
        CandidateError: an operation has no kernel on the target, not even the fallback.
    """
    times = aligned({**measured.times, **measured.predicted})
    if not times and not objective.by_fallback:
        raise SelectionError(f"{record_name} has no usable times; tune first")
    if measured.record is not None:
        times = _with_imputed(times, objective)
    models = Models(measured, target, objective.progress)
    operations = [x for x in Operation if x in times and (not objective.operations or x in objective.operations)]
    kernels = list(dict.fromkeys(fallback_key(x, target) for x in (*operations, *objective.by_fallback)))
    fallbacks = {key.operation.call: index for index, key in enumerate(kernels)}
    sections = [_fallback_section(operation, kernels, target) for operation in objective.by_fallback]
    found: list[Chosen] = []
    filled = with_imputed_times(times)
    for operation in operations:
        objective.progress(f"{operation.tag}: choosing kernels")
        basis = measured.basis_of(operation)
        rows = times[operation] if basis is Basis.PREDICTED else filled[operation]
        chosen = _choose(operation, rows, measured, models.of(basis), objective, found, target)
        indices = {candidate: len(kernels) + i for i, candidate in enumerate(chosen.portfolio.candidates)}
        kernels += [KernelKey(operation, candidate) for candidate in chosen.portfolio.candidates]
        provenance = PROVENANCE_PREDICTED if basis is Basis.PREDICTED else PROVENANCE_MEASURED
        incumbent = incumbent_kernel(objective.incumbent, operation)
        kept = kept_section(objective.incumbent, operation)
        timed = Timed(times[operation], rows, provenance, models.of(basis), incumbent, target, kept)
        fallback, references = fallbacks[operation.call], measured.references
        sections += _sections(chosen, timed, indices, fallback, kernels, sections, objective, references)
        found.append(chosen)
    asked = unaligned.asked_of(operations) if objective.unaligned else []
    known = UnalignedTimes.of(measured.times if asked else {}, asked, target)
    for operation in asked:
        fallback = fallbacks[operation.call]
        sections += list(unaligned.sections(operation, known, measured, sections, kernels, fallback, target, objective))
    return _selection(found, sections, kernels, measured, target, objective, record_name)


def _told(objective: Objective, what: str) -> Callable[[str], None]:
    """Make what is told how far a step is."""
    return lambda how_far: objective.progress(f"{what}: {how_far}")


def _numbers_of_groups(problems: Iterable[Problem]) -> list[int]:
    """List the numbers of groups that there are sections for, that of most problems first, and the smaller of equal."""
    counts = Counter(x.num_groups for x in problems)
    return sorted(counts, key=lambda x: (-counts[x], x))[:MAX_NUM_GROUPS]


def _sections(
    chosen: Chosen,
    timed: Timed,
    indices: Mapping[Candidate, int],
    fallback: int,
    kernels: list[KernelKey],
    before: Sequence[Section],
    objective: Objective,
    references: Mapping[Problem, float],
) -> Iterator[Section]:
    """Build the sections of an operation: one for a number of groups that was timed, and one that is invariant.

    The last, where it is asked for, is of one product, and of kernels of which a row's bits do not depend on m. Of
    groups of rows it is there where the kernels of the others have several orders of sums, for any number of groups.
    """
    operation, portfolio = chosen.operation, chosen.portfolio
    numbers, free = _numbers_of_groups(portfolio.solutions), list[Section]()
    for num_groups in sorted(numbers):
        like = next((x for x in before if x.operation is chosen.like and x.num_groups == num_groups), None)
        grid = None if like is None or like.batch_invariant else renamed(like.grid, kernels, indices)
        what = operation.tag if num_groups == 1 else f"{operation.tag} of {num_groups} products"
        named, at = objective.named, _told(objective, f"{what}: building the table")
        most = objective.limits.max_grid_kernels
        section = build_section(
            operation, portfolio, timed, indices, fallback, grid, named, num_groups=num_groups, at=at
        )
        twin = next((x for x in before if x.operation is chosen.like and x.between_sectors), None)
        free.append(section)
        yield from parted(section, portfolio.candidates, timed, Making(kernels, references, at, most), twin)
    grouping = operation.grouping
    is_asked = objective.batch_invariant and (grouping is Grouping.DENSE or grouping.groups_rows)
    if is_asked and not (grouping.groups_rows and has_one_order(free, kernels)):
        able = tuple(x for x in portfolio.candidates if has_order(KernelKey(operation, x)))
        kept = replace(portfolio, candidates=able)
        at = _told(objective, f"{operation.tag}: building the batch-invariant table")
        most, named = numbers[0], objective.named
        yield build_section(
            operation, kept, timed, indices, fallback, None, named, num_groups=most, is_invariant=True, at=at
        )


def _orders(measured: KnownTimes, kernels: Sequence[KernelKey], target: Target) -> Orders:
    own = {problem: row for rows in measured.times.values() for problem, row in rows.items()}
    unseen = {problem for rows in measured.heldout.values() for problem in rows}
    seen = OrderedTimes({x: rows for x, rows in measured.ordered.times.items() if x not in unseen})
    return Orders(seen, seen.model(own, target.num_sms), kernels)


def _selection(
    found: Sequence[Chosen],
    sections: list[Section],
    kernels: Sequence[KernelKey],
    measured: KnownTimes,
    target: Target,
    objective: Objective,
    record_name: str,
) -> Selection:
    """Put together what was chosen, with its curves, its regrets and its scores."""
    curves = [
        _curve(x, objective, measured.references, target) for x in found if x.like is None and _has_curve(x, measured)
    ]
    table = DispatchTable.of(map(_orders(measured, kernels, target).in_section, sections))
    is_measured = any(x.basis is Basis.MEASURED for x in found)
    record = record_name if is_measured or measured.record is None else _named_record(record_name, found)
    chosen = Selection(
        SELECTION_VERSION,
        target.name,
        PROVENANCE_MEASURED if is_measured else PROVENANCE_PREDICTED,
        record,
        measured.record.conditions if is_measured and measured.record else (),
        tuple(_regret(chosen, is_predicted=measured.record is None) for chosen in found),
        tuple(item for item in curves if item is not None),
        tuple(scored(table, kernels, measured)),
        tuple(kernels),
        table,
        tuple(compared(table, kernels, measured)),
        prices=tuple(prices(table, kernels, {**measured.times, **measured.predicted}, multiples_of(kernels))),
    )
    return objective.covered(chosen)


def _has_curve(chosen: Chosen, measured: KnownTimes) -> bool:
    """Say whether kernels against regret says something: not beside measured operations where all is predicted."""
    return measured.record is None or chosen.basis is not Basis.PREDICTED
