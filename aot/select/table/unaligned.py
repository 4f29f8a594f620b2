"""The tables for products whose operands are not aligned: kernels that take them, chosen by times of their own. Pure.

What makes a product unaligned is where its rows begin. A vocabulary of 50257 makes rows of D begin at any element, but
TMA loads A and B; a patch of 588 elements makes rows of A and B begin at multiples of 8 bytes. So there is a
section for each number of bytes that A and B can be loaded by (`aot.core.dispatch.LOADS`), and of a batch for each of a
few numbers of products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from aot.core.alignment import has_unaligned_sections, unaligned_loads
from aot.core.candidate import KernelKey
from aot.core.dispatch import LOADS, DispatchTable
from aot.core.errors import SelectionError
from aot.core.grouping import Grouping
from aot.core.measurement import PROVENANCE_MEASURED, PROVENANCE_PREDICTED
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.select.join import named_kernels, only_named, renumbered
from aot.select.portfolio.candidates import legal
from aot.select.portfolio.choose import MODELLED_TIE, TIE, Incumbent, choose
from aot.select.table.sections import build_section
from aot.select.times.batches import BATCHES, OfBatches, batched_loads, batched_problems
from aot.select.times.inputs import Timed, is_general
from aot.select.times.known import learned_where_missing, with_imputed_times
from aot.select.times.model import Model, Prior, TimeModel
from aot.space import cost
from aot.space.enumeration import Patterns, takes_loads, unaligned
from aot.space.shortlist import shortlist

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from aot.core.dispatch import Section
    from aot.core.measurement import OperationTimes, Times
    from aot.core.target import Target
    from aot.select.portfolio.objective import KnownTimes, Objective
    from aot.select.selection import Selection

PREDICTED_CANDIDATES = 120
"""Candidates among which kernels are chosen by the cost model."""

PREDICTED_SIZES = ((1, 16, 64, 256, 1024, 4096), (16, 256, 1024, 4096, 32768), (128, 768, 4096, 16384))
"""(m, n, k) of the problems that the cost model is asked about where nothing was measured."""


def of_loads(times: OperationTimes, loads: int) -> dict[Operation, Times]:
    """Keep the problems of one section, of operations of which a kernel was timed that takes every shape.

    Times of others alone, which need a workspace, make no table: the operation is as one that was not timed.
    """
    kept = {
        operation: {x: row for x, row in rows.items() if unaligned_loads(x) == loads}
        for operation, rows in times.items()
    }
    return {x: rows for x, rows in kept.items() if any(is_general(y) for row in rows.values() for y in row)}


def predicted_loads(operation: Operation) -> tuple[int, ...]:
    """List the sections of an operation nothing of which was measured.

    Kernels that take any operands answer for all; in linear's layout those whose n alone is odd, which are the most
    common, have kernels that load as aligned ones do.
    """
    return (LOADS[0], LOADS[-1]) if operation.layout is Layout.KK else (LOADS[0],)


def asked_of(operations: Iterable[Operation]) -> list[Operation]:
    """List the operations that have sections for what is not aligned, each once."""
    return list(dict.fromkeys(filter(has_unaligned_sections, operations)))


def _predicted_problems(operation: Operation) -> list[Problem]:
    """List the problems that models are asked about where nothing was measured."""
    if operation.grouping is Grouping.BATCHED:
        return batched_problems(operation)
    return [Problem(operation, *sizes) for sizes in product(*PREDICTED_SIZES)]


def predicted(
    operations: Iterable[Operation],
    target: Target,
    patterns: Patterns,
    at: Callable[[str], None] = quietly,
    constants: cost.Constants = cost.DEFAULTS,
) -> Mapping[int, OperationTimes]:
    """Predict the times of the candidates of each section by the cost model, of 16-bit products and batches of them.

    `at` is told of each; `constants` are the model's.
    """
    found: dict[int, dict[Operation, Times]] = {}
    for operation, loads in ((x, y) for x in asked_of(operations) for y in predicted_loads(x)):
        at(f"{operation.tag}, not aligned: predicting times")
        candidates = [x for x in unaligned(operation, target, loads, patterns) if is_general(x)]
        if candidates:
            problems = _predicted_problems(operation)
            few = shortlist(candidates, problems, target, PREDICTED_CANDIDATES, constants)
            rows = cost.estimate(few, problems, target, constants).total_us.tolist()
            by_operation = found.setdefault(loads, {})
            by_operation[operation] = {
                p: dict(zip(few, row, strict=True)) for p, row in zip(problems, rows, strict=True)
            }
    return found


@dataclass(frozen=True)
class UnalignedTimes:
    """What is known of the problems of all sections for what is not aligned."""

    own: Mapping[int, OperationTimes]
    """Measured, by `Section.loads` and operation."""
    filled: Mapping[int, OperationTimes]
    """The same, with those of equivalent operations."""
    models: Mapping[int, Model]
    """Where some of one product are measured: what gives the times between."""
    batch_models: Mapping[int, Model]
    """The same of batches."""

    @staticmethod
    def of(times: OperationTimes, operations: Sequence[Operation], target: Target) -> UnalignedTimes:
        """Arrange measured times; operations that were not timed get those of equivalent ones."""
        own = {loads: found for loads in LOADS if (found := of_loads(times, loads))}
        filled = {loads: with_imputed_times({**{x: {} for x in operations}, **rows}) for loads, rows in own.items()}
        fitted: tuple[dict[int, Model], dict[int, Model]] = ({}, {})
        for loads, found in own.items():
            for is_batch in (False, True):
                rows = {x: y for x, y in found.items() if (x.grouping is Grouping.BATCHED) == is_batch}
                if rows:
                    fitted[is_batch][loads] = TimeModel.fit(rows, target)
        return UnalignedTimes(own, filled, *fitted)

    def model(self, operation: Operation, loads: int) -> Model:
        """Return what gives the times between those of an operation that has some (KeyError)."""
        return (self.batch_models if operation.grouping is Grouping.BATCHED else self.models)[loads]

    def has(self, operation: Operation) -> bool:
        """Say whether some problem of an operation, or of an equivalent one, is measured."""
        return any(rows.get(operation) for rows in self.filled.values())

    def loads_of(self, operation: Operation) -> tuple[int, ...]:
        """List the sections that an operation is to have, as `Section.loads` has them."""
        is_known = self.has(operation)
        if operation.grouping is Grouping.BATCHED and (is_known or self.models):
            return batched_loads(operation)
        return LOADS if is_known else predicted_loads(operation)

    def of_batches(self, operation: Operation, loads: int, target: Target) -> Timed | None:
        """Return what the kernels of a section of batches are chosen by where one product was timed; else None."""
        dense = (rows for x, rows in self.own.get(loads, {}).items() if x.grouping is Grouping.DENSE)
        timed = {x for rows in dense for row in rows.values() for x in row}
        able = sorted(x for x in legal(timed, operation, target) if takes_loads(x, loads) and is_general(x))
        if operation.grouping is not Grouping.BATCHED or not able:
            return None
        model, problems = OfBatches(self.models[loads]), batched_problems(operation)
        rows = model.times_us(able, problems).tolist()
        guessed = {p: dict(zip(able, row, strict=True)) for p, row in zip(problems, rows, strict=True)}
        return Timed({}, guessed, PROVENANCE_PREDICTED, model, target=target)


def _timed(
    operation: Operation, loads: int, known: UnalignedTimes, measured: KnownTimes, target: Target
) -> Timed | None:
    """Return what the kernels of one section are chosen by: times, else predictions; None where there are neither."""
    own = known.filled.get(loads, {}).get(operation, {})
    built = legal({x for row in own.values() for x in row if takes_loads(x, loads)}, operation, target)
    able = {p: {x: us for x, us in row.items() if x in built} for p, row in own.items()}
    rows = {p: row for p, row in able.items() if row}
    if rows:
        model = known.model(operation, loads)
        timed = known.own[loads].get(operation, {})
        return Timed(timed, learned_where_missing(rows, model), PROVENANCE_MEASURED, model, target=target)
    if known.has(operation):
        return None
    by_one = known.of_batches(operation, loads, target)
    guessed = measured.unaligned.get(loads, {}).get(operation, {})
    if by_one is not None or not guessed:
        return by_one
    return Timed({}, guessed, PROVENANCE_PREDICTED, Prior(target, measured.constants), target=target)


def _of_twin(
    operation: Operation, loads: int, found: Sequence[Section], kernels: list[KernelKey], fallback: int, target: Target
) -> list[Section]:
    """Give an operation that was not timed the sections of a twin, and append their kernels; none where it cannot.

    A twin is the operation of other types of the same sizes, whose kernels take as long (`reuse.twin_ladders`).
    """
    theirs = [x for x in found if x.operation in operation.twins and x.loads == loads]
    fallbacks = {x.fallback for x in theirs}
    keys = {i: KernelKey(operation, kernels[i].candidate) for x in theirs for i in named_kernels(x) - fallbacks}
    if len(legal([x.candidate for x in keys.values()], operation, target)) < len(keys):
        return []
    kernels += [x for _, x in sorted(keys.items()) if x not in kernels]
    places = {i: kernels.index(x) for i, x in keys.items()} | dict.fromkeys(fallbacks, fallback)
    moved = renumbered(DispatchTable(tuple(theirs)), places.__getitem__)
    ladders = [tuple(replace(y, rows=tuple(z.predicted for z in y.rows)) for y in x.ladders) for x in moved.sections]
    return [replace(x, operation=operation, ladders=y) for x, y in zip(moved.sections, ladders, strict=True)]


def sections(
    operation: Operation,
    known: UnalignedTimes,
    measured: KnownTimes,
    found: Sequence[Section],
    kernels: list[KernelKey],
    fallback: int,
    target: Target,
    objective: Objective,
) -> Iterator[Section]:
    """Build the sections of an operation for what is not aligned, and append their kernels.

    Args:
        operation: of one product, or of batches.
        known: times of unaligned problems.
        measured: for the reference library's times.
        found: the sections so far, those of twins among them.
        kernels: of the selection so far, to which those that are new are appended.
        fallback: index of the kernel that takes everything.
        target: the device.
        objective: told how far it is.
    """
    for loads in known.loads_of(operation):
        if not known.own.get(loads, {}).get(operation):
            moved = _of_twin(operation, loads, found, kernels, fallback, target)
            yield from moved
            if moved:
                continue
        timed = _timed(operation, loads, known, measured, target)
        if timed is None:
            continue
        objective.progress(f"{operation.tag}: choosing kernels for operands of {loads} bytes")
        is_measured = timed.provenance == PROVENANCE_MEASURED
        shipped = (x.candidate for x in kernels if x.operation == operation and takes_loads(x.candidate, loads))
        try:
            portfolio = choose(
                timed.filled,
                objective.limits.of_unaligned(operation, is_measured=is_measured),
                references=measured.references,
                tie=TIE if is_measured else MODELLED_TIE,
                incumbent=Incumbent(frozenset(shipped)),
                is_general=is_general,
                is_bounded=False,  # a section's regret is not reported
            )
        except SelectionError:
            continue  # none takes every shape: the fallback answers
        keys = {x: KernelKey(operation, x) for x in portfolio.candidates}
        kernels += [x for x in keys.values() if x not in kernels]
        for num_groups in BATCHES if operation.grouping is Grouping.BATCHED else (1,):
            yield build_section(
                operation,
                portfolio if is_measured else replace(portfolio, solutions={}),
                timed,
                {x: kernels.index(key) for x, key in keys.items()},
                fallback,
                named=objective.named,
                num_groups=num_groups,
                loads=loads,
                at=lambda how_far: objective.progress(f"{operation.tag}, not aligned: {how_far}"),
            )


def renewed(
    selection: Selection,
    operations: Collection[Operation],
    measured: KnownTimes,
    target: Target,
    objective: Objective,
) -> Selection:
    """Return a selection some of whose tables for what is not aligned are chosen anew; all else stays.

    Args:
        selection: kernels and tables.
        operations: whose tables are chosen; those that the selection has none of are passed over.
        measured: times of unaligned problems, measured and predicted.
        target: the selection's.
        objective: limits, and what the wheel is for.
    """
    aligned = [x for x in selection.table.sections if not x.loads and not x.batch_invariant]
    kept = tuple(x for x in selection.table.sections if not x.loads or x.operation not in operations)
    named, left = only_named(selection.kernels, DispatchTable(kept))
    kernels, found = list(named), list(left.sections)
    fallbacks = {x.operation: x.fallback for x in found}
    known = UnalignedTimes.of(measured.times, [x.operation for x in aligned], target)
    for operation in asked_of(x.operation for x in aligned if x.operation in operations):
        found += list(sections(operation, known, measured, found, kernels, fallbacks[operation], target, objective))
    table = DispatchTable.of(found)
    return objective.covered(replace(selection, kernels=tuple(kernels), table=table))
