"""From a record, or for want of one the cost model, to what a target ships; and what two selections differ in."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from aot.compile.artifact import Artifact
from aot.compile.compiler import ArtifactStore
from aot.compile.workplace import ARTIFACTS
from aot.core.alignment import misalignment
from aot.core.candidate import Accepted, KernelKey
from aot.core.errors import SelectionError
from aot.core.measurement import (
    PROVENANCE_MEASURED,
    PROVENANCE_PREDICTED,
    OperationTimes,
    reference_times,
)
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.core.target import Target, load_target
from aot.kinds.registry import kind_of
from aot.select.coverage import NUM_REASONS
from aot.select.join import joined
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.reuse.adopt import adopt, check_alike
from aot.select.reuse.adopt_steps import adopt_steps
from aot.select.score.diff import Difference, compare
from aot.select.selection import Selection, read_selection
from aot.select.selector import MIN_MEASURED, MIN_SHARED, select_kernels
from aot.select.table import stepped, unaligned
from aot.select.table.library import with_library_times
from aot.select.times.inputs import Timed
from aot.select.times.known import legal_part, measured_times, predicted_times, split, spreads
from aot.select.times.model import TimeModel
from aot.select.times.orders import OrderedTimes
from aot.select.times.record import of_target, read_products, read_products_together, read_record, recorded_kernels
from aot.space import cost
from aot.space.enumeration import Patterns, has_tuned_kernels
from aot.space.legality import check

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.operation import Operation
    from aot.core.shape_set import ShapeSet
    from aot.core.work import AnyOperation
    from aot.space.calibration import Calibration


def default_record(target: Target, records: Path) -> Path | None:
    """Return the committed record of a target, or None."""
    path = records / f"{target.name}.jsonl.gz"
    return path if path.exists() else None


def imputable(operation: Operation, timed: Mapping[Operation, Collection[Candidate]], target: Target) -> bool:
    """Say whether an operation's kernels can be chosen by times of its own or of an equivalent one.

    Of the kernels that were timed in an equivalent one, `MIN_SHARED` must be such that can be built for it; of several
    weights, whose kernels do the same work by the same tiles and are of few families, one will do.
    """

    def share(other: Operation) -> float:
        legal = [isinstance(check(x, operation, target), Accepted) for x in timed.get(other, ())]
        return sum(legal) / max(1, len(legal))

    if operation.has_parts:
        return any(share(x) > 0 for x in (operation, *operation.equivalents))
    return share(operation) > 0 or any(share(x) >= MIN_SHARED for x in operation.equivalents)


def _num_problems(path: Path) -> Counter[Operation]:
    """Count the problems of each operation that a record has times of."""
    return Counter(x.operation for x in {item.problem for item in read_products(path).measurements if item.ok})


def records_of(target: Target, records: Path) -> list[Path]:
    """List a target's committed records: its own, then others of its name, such as `h200_quack`."""
    first = default_record(target, records)
    return ([] if first is None else [first]) + sorted(records.glob(f"{target.name}_*.jsonl.gz"))


def _recorded_products(path: Path) -> list[KernelKey]:
    """Read the kernels of products that a record has measurements of (StoreError)."""
    return [key for key in recorded_kernels(path) if isinstance(key, KernelKey)]


def timed_operations(target: Target, records: Path) -> frozenset[Operation]:
    """Return the operations that a committed record of a target has times of their own of."""
    return frozenset(key.operation for path in records_of(target, records) for key in _recorded_products(path))


def records_for(operations: Sequence[Operation], target: Target, records: Path) -> dict[Path | None, list[Operation]]:
    """Part operations by the committed record that their kernels can be chosen by; None where there is none.

    An operation's own times come first, then those of its equivalents in their order, where a record has enough of
    them. For want of that it is the first record with kernels that can be built: the target's own, then others of its
    name, such as `h200_quack`.
    """
    timed: dict[Path, dict[Operation, set[Candidate]]] = {}
    for path in records_of(target, records):
        for key in _recorded_products(path):
            timed.setdefault(path, {}).setdefault(key.operation, set()).add(key.candidate)
    count = cache(_num_problems)

    def record_for(operation: Operation) -> Path | None:
        able = [x for x, kernels in timed.items() if imputable(operation, kernels, target)]
        asked = product((operation, *operation.equivalents), able) if len(able) > 1 else ()
        enough = (
            x
            for other, x in asked
            if imputable(operation, {other: timed[x].get(other, ())}, target) and count(x)[other] >= MIN_MEASURED
        )
        return next(enough, able[0] if able else None)

    found: dict[Path | None, list[Operation]] = {}
    for operation in operations:
        found.setdefault(record_for(operation), []).append(operation)
    return found


COMMITTED = Path(__file__).parents[1] / "selections"
"""What the project ships for each target that has a record."""


def committed_selection(target: Target) -> Path | None:
    """Return the committed selection of a target, or None."""
    path = COMMITTED / f"{target.name}.json.gz"
    return path if path.exists() else None


def committed_selections(target: Target) -> list[Path]:
    """Return all committed selections of a target: that of a default wheel, and those of operations that are asked for.

    The latter are `NAME.*.json.gz` beside the first, `NAME.json.gz`.
    """
    first = committed_selection(target)
    return ([] if first is None else [first]) + sorted(COMMITTED.glob(f"{target.name}.*.json.gz"))


def compiled_bytes(keys: Collection[KernelKey], target: Target, artifacts: Path = ARTIFACTS) -> dict[KernelKey, int]:
    """Return the compressed bytes of those kernels that are compiled here."""
    store = ArtifactStore(artifacts)
    found = {key: store.get(key, target) for key in keys}
    return {key: len(zlib.compress(x.path.read_bytes(), 9)) for key, x in found.items() if isinstance(x, Artifact)}


COMMITTED_SHAPES = "representative"
"""The shape set that the committed selections are made for; they do not say it themselves."""


def compare_selections(
    old: Path, new: Path, records: Sequence[Path], committed: Path, at: Callable[[str], None] = quietly
) -> Difference:
    """Compare two selections by the times of records, or of the committed record of their target.

    Raises:
        SelectionError: a selection cannot be read, or they are of two targets.
        StoreError: a record cannot be read.
    """
    before, after = read_selection(old), read_selection(new)
    if before.target != after.target:
        raise SelectionError(f"{old} is for {before.target}, {new} for {after.target}; compare two of one target")
    told = compare(before, after, {}, at)
    if not any(isinstance(x.corner, Problem) for x in told.changes):
        return told  # no change has a cost that would have to be learned
    target = load_target(before.target)
    default = default_record(target, committed)
    times: dict[Operation, list[Timed]] = {}
    for path in records or ([default] if default else []):
        at(f"learn from {path.name} what was not measured")
        found = measured_times(read_products(path))
        model = TimeModel.fit(found, target)
        for operation, rows in found.items():
            times.setdefault(operation, []).append(Timed(rows, rows, PROVENANCE_MEASURED, model))
    return compare(before, after, times, at)


def _parted(objective: Objective, times: OperationTimes, target: Target) -> tuple[Objective, list[Operation]]:
    """Part the operations that are asked for: those that only the fallback computes, and those to predict.

    To predict are those for which no kernel can be built that was timed in them or in an equivalent operation.
    """
    asked = objective.operations
    by_fallback = tuple(x for x in asked if not has_tuned_kernels(x, target))
    timed = {operation: {x for row in rows.values() for x in row} for operation, rows in times.items()}
    unknown = [x for x in asked if x not in by_fallback and not imputable(x, timed, target)]
    return replace(objective, by_fallback=by_fallback), unknown


def select_measured(
    paths: Sequence[Path], target: Target, objective: Objective, kernels: str, heldout: ShapeSet | None
) -> Selection:
    """Select from a record, or from several as one.

    Args:
        paths: the records' files, one or more; the selection names the first.
        target: what it must be of.
        objective: limits, the incumbent, or what is taken from another target.
        kernels: include and exclude patterns on candidate names.
        heldout: problems that are kept out of the selection and scored on.

    Raises:
        StoreError: the record cannot be read, or is another target's.
        SelectionError: nothing can be selected, or nothing taken from that target.
    """
    objective.progress(f"reading {', '.join(x.name for x in paths)}")
    record = read_products_together(paths, target)
    objective.progress("judging the kernels that were measured")
    patterns = Patterns.parse(kernels)
    kept = legal_part(record, patterns, target)
    unseen = frozenset(heldout.sizes if heldout else ())
    inside, outside = split(measured_times(kept), unseen)
    (objective, unknown), at = _parted(objective, inside, target), objective.progress
    if objective.like is not None:
        check_alike(target, load_target(objective.like.target))
        unknown = []
    measured = KnownTimes(
        inside,
        predicted_times(objective.shapes, target, patterns, operations=unknown, at=at) if objective.shapes else {},
        unaligned.predicted(inside if objective.unaligned else (), target, patterns, at),
        spreads(record),
        outside,
        reference_times(record),
        OrderedTimes.of(record),
        record,
    )
    name = paths[0].name.removesuffix(".jsonl.gz")
    if objective.like is not None:
        found = adopt(objective.like, measured, target, objective, name)
    else:
        if objective.with_curves:
            of = {item.kernel for item in kept.measurements}
            objective = replace(objective, kernel_bytes=compiled_bytes(of, target))
        found = select_kernels(measured, target, objective, name)
    return replace(found, table=with_library_times(found.table, measured.references))


def select_predicted(
    shapes: ShapeSet,
    target: Target,
    objective: Objective,
    kernels: str,
    calibration: Calibration | None = None,
) -> Selection:
    """Select by the cost model, for want of a record.

    Args:
        shapes: what the wheel is for; the operations that it does not ask for are left to the fallback.
        target: the device.
        objective: limits, and the incumbent.
        kernels: include and exclude patterns on candidate names.
        calibration: the cost model's constants; those that every target starts with where there is none.

    Raises:
        CandidateError: no candidate is left for an operation that the shape set asks for.
        SelectionError: there is nothing to select for, or no portfolio is within the limits.
    """
    asked_for = objective.operations or shapes.operations
    (parted, tuned), at = _parted(replace(objective, operations=asked_for), {}, target), objective.progress
    objective, patterns = replace(objective, by_fallback=parted.by_fallback), Patterns.parse(kernels)
    constants, name = (calibration.constants, calibration.model) if calibration else (cost.DEFAULTS, cost.NAME)
    times = predicted_times(shapes, target, patterns, constants, operations=tuned, at=at)
    if not times and not objective.by_fallback:
        asked = [x for operation in asked_for for x in shapes.problems(operation)]
        reasons = "; ".join(list(dict.fromkeys(map(misalignment, asked)))[:NUM_REASONS])
        raise SelectionError(
            f"no tuned kernel takes any of the {len(asked)} problems of the shape set: {reasons}; every wheel computes "
            "them with its general kernel, so that there is nothing to select; pad the extents, or add problems"
        )
    more = unaligned.predicted(times if objective.unaligned else (), target, patterns, at, constants)
    return select_kernels(KnownTimes(times, unaligned=more, constants=constants), target, objective, name)


def select_stepped(
    operations: Sequence[AnyOperation],
    target: Target,
    records: Sequence[Path],
    kernels: str = "",
    objective: Objective | None = None,
) -> Selection:
    """Select kernels of operations of the other kinds, each by the first record that has times of it.

    For want of that it is the first that has times of an equivalent one, and else the cost model.

    Args:
        operations: what the selection is to have, each once.
        target: the device.
        records: of the target; may be none.
        kernels: include and exclude patterns on candidate names.
        objective: limits, the incumbent, and what is told what is being done.

    Raises:
        StoreError: a record cannot be read, or is another target's.
        SelectionError: the measured candidates do not serve all sizes, or operations are of a kind with several keys;
            or kernels are to be as another target's whose kernels are other code.
        CandidateError: no fallback family compiles for the target.
    """
    if objective is not None and objective.like is not None:
        check_alike(target, load_target(objective.like.target))
    timed = {path: {key.operation for key in recorded_kernels(path)} for path in records}
    parts: dict[Path | None, list[AnyOperation]] = {}
    for operation in operations:
        asked = product((operation, *kind_of(operation).imputed_from(operation)), timed)
        parts.setdefault(next((path for x, path in asked if x in timed[path]), None), []).append(operation)

    def known(path: Path | None) -> stepped.SteppedTimes:
        if path is None:
            return stepped.SteppedTimes()
        return stepped.SteppedTimes.of(of_target(read_record(path), path, target), path.name.removesuffix(".jsonl.gz"))

    patterns, goal = Patterns.parse(kernels), objective or Objective()
    limits, at = goal.limits, goal.progress

    def selected(path: Path | None, own: Sequence[AnyOperation]) -> Selection:
        if goal.like is not None:
            times = known(path)
            return adopt_steps(goal.like, own, times.times, times.record, times.name, target)
        return stepped.select_stepped(
            own, target, known(path), patterns, limits=limits, incumbent=goal.incumbent, at=at
        )

    return reduce(joined, (selected(path, own) for path, own in parts.items()))


def times_behind(
    selection: Selection, record: Path | None, records: Path, wanted: Collection[AnyOperation] | None = None
) -> OperationTimes:
    """Return the measured times that a selection rests on, as far as they are at hand.

    Args:
        selection: kernels and table.
        record: the record's file, or None for the committed one of the name that the selection gives.
        records: where committed records are.
        wanted: operations whose times are read; None for all.

    Raises:
        StoreError: the record cannot be read.
    """
    path = record or records / f"{selection.record}.jsonl.gz"
    if selection.provenance == PROVENANCE_PREDICTED or not (record or path.exists()):
        return {}
    found = read_products(path, wanted)
    return measured_times(found) if record or found.conditions == selection.conditions else {}
