"""Which selection a command speaks of: the one named, the last one made here, the committed one, or a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import RECORDS, SELECTIONS, Decorator, is_given, option, options, shapes_option
from aot.core.epilogue import Epilogue
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.progress import waiting
from aot.core.shape_set import ShapeSet, load_shape_set
from aot.core.target import Target, load_target
from aot.select import pipeline
from aot.select.join import joined, operations_of, restricted
from aot.select.portfolio.objective import NAMED_WEIGHT, Objective, SelectionLimits
from aot.select.reuse.narrow import narrowed
from aot.select.reuse.siblings import as_sibling, sibling_in
from aot.select.selection import Selection, read_selection
from aot.select.table.stepped import SteppedSelection, select_stepped, times_of
from aot.space.calibration import constants_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.core.work import AnyOperation


NAMED = "with --selection"
RECORDED = "with --record and without --selection"
PREDICTED = "where the cost model selects, as with --predicted"
LAST = "with the last selection in build/selections, which is taken by default"
COMMITTED = "with the committed selection, which is taken by default"
UNSELECTED = "where there is a record and no selection"
MODES = (NAMED, RECORDED, PREDICTED, LAST, COMMITTED, UNSELECTED)


def told_options(predicted: str) -> Decorator:
    """Make the options by which `aot explain` and `aot report` are told which selection to speak of."""
    path = click.Path(path_type=Path)
    return options(
        shapes_option(only=[RECORDED, PREDICTED, UNSELECTED]),
        option("--selection", type=path, help="Selection to speak of; default build/selections/."),
        option("--record", only=[NAMED, RECORDED], type=path, help="Record to select from, or behind --selection."),
        option("--predicted", only=[PREDICTED], is_flag=True, help=predicted),
    )


def target_name(context: click.Context) -> str:
    """Return the name of the target: of the selection that is named, unless --target is given too."""
    given = str(context.params["target"])
    path = context.params.get("selection")
    return given if path is None or is_given(context, "target") else read_selection(path).target


def check_target(selection: Selection, device: Target, context: click.Context) -> None:
    """Refuse a selection of another target than the one that was asked for.

    Raises:
        SelectionError: it is.
    """
    if is_given(context, "target") and selection.target != device.name:
        raise SelectionError(
            f"the selection is for {selection.target}, --target is {device.name}; give --target {selection.target}"
        )


@dataclass(frozen=True)
class Request:
    """What a new selection is asked to be; the defaults are those of `aot select`, but for the curve."""

    target: Target
    shapes: str
    is_default_shapes: bool
    """Whether the shape set was not asked for: a wheel by the model then has kernels of every layout."""
    record: Path | None = None
    """None: by the cost model."""
    limits: SelectionLimits = field(default_factory=SelectionLimits)
    kernels: str = ""
    calibration: Path | None = None
    heldout: str = "atlas_heldout"
    incumbent: Path | None = None
    """The selection that ties go to."""
    like: Path | None = None
    """Another target's selection whose kernels and table are taken."""
    keep: Path | None = None
    """A selection of the same target whose operations are kept, but for those that are selected."""
    named_weight: float = NAMED_WEIGHT
    epilogues: tuple[Epilogue, ...] = ()
    """Those that kernels are chosen for by imputed times."""
    operations: tuple[Operation, ...] = ()
    """The only ones that it is to have; where there are none, those of the record or of the shape set."""
    curve: bool = False
    batch_invariant: bool = False
    unaligned: bool = True
    """Whether 16-bit products get tables for what is not aligned."""
    only_unaligned: bool = False
    """Whether only the tables of `keep` for what is not aligned are chosen anew."""


def select(request: Request) -> Selection:
    """Select, from a record or by the cost model.

    Raises:
        AotError: see aot.select.pipeline.
    """
    shapes = load_shape_set(request.shapes)
    objective = Objective(
        request.limits,
        read_selection(request.incumbent) if request.incumbent else None,
        shapes,
        request.named_weight,
        request.epilogues,
        shapes.having(request.operations) if request.operations else (),
        unaligned=request.unaligned,
        batch_invariant=request.batch_invariant,
        with_curves=request.curve,
        like=_like(request),
    )
    kept = _kept(request)
    if request.only_unaligned and kept is not None:
        heldout = load_shape_set(request.heldout) if request.heldout else None
        with waiting("select kernels for what is not aligned") as at:
            told = replace(objective, progress=at, operations=())
            return pipeline.select_unaligned(kept, request.record, request.target, told, request.kernels, heldout)
    with waiting("select kernels") as at:
        chosen = _selected(request, shapes, replace(objective, progress=at))
    if kept is None:
        return chosen
    rest = [x for x in operations_of(kept) if x not in operations_of(chosen)]
    both = joined(chosen, restricted(kept, rest)) if rest else chosen
    return replace(both, coverage=replace(objective, operations=()).covered(both.table, both.kernels))


def _like(request: Request) -> Selection | None:
    """Read the other target's selection: of what operations are asked for.

    Raises:
        SelectionError: it has no table of one.
    """
    if request.like is None:
        return None
    found = read_selection(request.like)
    tags = [x.tag for x in operations_of(found)]
    missing = [x.tag for x in request.operations if x.tag not in tags]
    if missing:
        raise SelectionError(
            f"{request.like} has no table of {', '.join(missing)}; give --operations some of what it has, "
            f"{', '.join(tags)}"
        )
    return restricted(found, request.operations) if request.operations else found


def _kept(request: Request) -> Selection | None:
    """Read the selection whose other operations are kept, before anything is selected.

    Raises:
        SelectionError: it is of another target.
    """
    if request.keep is None:
        return None
    kept = read_selection(request.keep)
    if kept.target != request.target.name:
        raise SelectionError(
            f"{request.keep} is of {kept.target}, and {request.target.name} is selected for; give --keep a selection "
            f"of {request.target.name}, or --target {kept.target}"
        )
    return kept


def _selected(request: Request, shapes: ShapeSet, objective: Objective) -> Selection:
    if request.record is None:
        constants = constants_of(request.calibration, request.target.name)
        any_layout = request.is_default_shapes and not request.operations
        return pipeline.select_predicted(
            shapes, request.target, objective, request.kernels, constants, any_layout=any_layout
        )
    heldout = load_shape_set(request.heldout) if request.heldout else None
    return pipeline.select_measured(request.record, request.target, objective, request.kernels, heldout)


def _select_anew(
    context: click.Context, device: Target, record: Path | None, operations: tuple[Operation, ...] = ()
) -> Selection:
    shapes, is_default = context.params["shapes"], not is_given(context, "shapes")
    incumbent = pipeline.committed_selection(device)
    return select(Request(device, shapes, is_default, record, incumbent=incumbent, operations=operations))


def selection_with(
    context: click.Context, device: Target, operations: tuple[Operation, ...], *, is_predicted: bool
) -> Selection:
    """Make the selection of some operations: what the committed ones have of them, and what is selected for the others.

    The others get the kernels and the table of a sibling that a committed selection has, unless they were timed
    themselves or --shapes is given. Where there is none, they get kernels by the target's record where an equivalent
    operation was measured, else by the cost model.

    Args:
        context: of a command with the option --shapes.
        device: the target.
        operations: what the selection is to have.
        is_predicted: whether to leave the committed selections and the records aside.

    Raises:
        AotError: see aot.select.pipeline.
    """
    if is_predicted:
        return _select_anew(context, device, None, operations)
    parts, others = _shipped(operations, device, takes_siblings=not is_given(context, "shapes"))
    for record, asked in pipeline.records_for(others, device, RECORDS).items():
        click.echo(f"{', '.join(asked)}: by {record or 'the cost model'}", err=True)
        parts.append(_select_anew(context, device, record, tuple(asked)))
    return reduce(joined, parts)


def selection_for_shapes(path: str, device: Target) -> Selection | None:
    """Make the selection of a shape set of the target's committed ones: their kernels for its problems, and few more.

    It takes seconds. What no committed selection has, and no sibling of it, is selected by a record or the cost model.

    Args:
        path: the shape set.
        device: the target.

    Returns:
        The selection; None where the target has no committed one.

    Raises:
        AotError: see aot.select.pipeline.
    """
    incumbent = pipeline.committed_selection(device)
    if incumbent is None:
        return None
    shapes = load_shape_set(path)
    parts, others = _shipped(shapes.operations, device, takes_siblings=True)
    for record, asked in pipeline.records_for(others, device, RECORDS).items():
        click.echo(f"{', '.join(asked)}: by {record or 'the cost model'}", err=True)
        request = Request(device, path, is_default_shapes=False, record=record, incumbent=incumbent)
        parts.append(select(replace(request, operations=tuple(asked))))
    problems = [problem for operation in shapes.operations for problem in shapes.problems(operation)]
    with waiting("take what answers the problems"):
        return narrowed(reduce(joined, parts), problems, device)


def _shipped(
    operations: Sequence[Operation], device: Target, *, takes_siblings: bool
) -> tuple[list[Selection], list[Operation]]:
    """Take what committed selections have of some operations, or of their siblings; return the other operations too."""
    committed: list[Selection] = []
    parts: list[Selection] = []
    others = list(operations)
    for path in pipeline.committed_selections(device):
        if not others:
            break
        selection = read_selection(path)
        committed.append(selection)
        known = [x for x in others if x in operations_of(selection)]
        others = [x for x in others if x not in known]
        if known:
            parts.append(restricted(selection, known))
    adopted = _as_siblings(others, committed, device) if takes_siblings else {}
    parts += adopted.values()
    return parts, [x for x in others if x not in adopted]


def stepped_with(operations: Sequence[AnyOperation], device: Target) -> SteppedSelection:
    """Select kernels of operations that are no products by the target's committed records, else by the cost model."""
    times = times_of(operations, pipeline.records_of(device, RECORDS))
    predicted = [x.tag for x in operations if x not in times]
    if predicted:
        click.echo(f"{', '.join(predicted)}: by the cost model", err=True)
    return select_stepped(operations, device, times)


def _as_siblings(
    operations: Sequence[Operation], selections: Sequence[Selection], device: Target
) -> dict[Operation, Selection]:
    """Make the selections of those operations that have a sibling in another selection and no times of their own."""
    timed = pipeline.timed_operations(device, RECORDS) if operations else ()
    found = {}
    for operation in (x for x in operations if x not in timed):
        nearest = ((x, sibling_in(x, operation, device)) for x in selections)
        selection, sibling = next((pair for pair in nearest if pair[1] is not None), (None, None))
        if selection is not None and sibling is not None:
            click.echo(f"{operation}: the kernels and the table of {sibling}", err=True)
            found[operation] = as_sibling(selection, sibling, operation, device)
    return found


def last_selection(target: str) -> Path | None:
    """Return the path of the last selection that was made here for a target; None where there is none."""
    path = SELECTIONS / f"{target}.json"
    return path if path.exists() else None


def shipped_mode(device: Target, *, is_predicted: bool = False, is_committed: bool = False) -> str:
    """Say which selection of a target `aot build` takes where none is named.

    That is the last one that was made here, else the committed one, else one made of the target's record, else the cost
    model's.

    Raises:
        SelectionError: the committed one is asked for, and there is none.
    """
    if is_predicted:
        return PREDICTED
    committed = pipeline.committed_selection(device)
    if is_committed and committed is None:
        raise SelectionError(f"--committed: {device.name} has no committed selection; leave --committed out")
    if last_selection(device.name) and not is_committed:
        return LAST
    if committed:
        return COMMITTED
    return UNSELECTED if pipeline.default_record(device, RECORDS) else PREDICTED


def told_mode(values: Mapping[str, Any]) -> str:
    """Say which selection `aot explain` and `aot report` speak of."""
    if values["selection"]:
        return NAMED
    if values["record"] and not values["predicted"]:
        return RECORDED
    return shipped_mode(load_target(values["target"]), is_predicted=values["predicted"])


def selection_of(context: click.Context, mode: str) -> Selection:
    """Return the selection of a mode, and say on standard error which one it is.

    Raises:
        AotError: it cannot be read, made, or is of another target than the one asked for.
    """
    return selection_for(context, mode, load_target(target_name(context)), context.params["selection"])


def selection_for(context: click.Context, mode: str, device: Target, named: Path | None) -> Selection:
    """Return a target's selection of a mode, and say on standard error which one it is.

    Args:
        context: of a command with the options --shapes and --predicted.
        mode: where the selection comes from.
        device: the target.
        named: the file of the mode NAMED.

    Raises:
        AotError: it cannot be read, made, or is of another target than the one asked for.
    """
    if mode in (RECORDED, PREDICTED, UNSELECTED):
        record = context.params["record"] if mode == RECORDED else None
        if mode == UNSELECTED:
            record = pipeline.default_record(device, RECORDS)
            click.echo(f"{device.name} has no selection yet: selecting from its record, {record}", err=True)
        elif mode == PREDICTED and not context.params["predicted"]:
            click.echo(f"{device.name} has no committed selection: selecting by the cost model", err=True)
        return _select_anew(context, device, record)
    committed = pipeline.committed_selection(device)
    path = {NAMED: named, LAST: last_selection(device.name), COMMITTED: committed}[mode]
    if path is None:
        raise SelectionError(f"the selection {mode}, has been removed meanwhile; run again")
    found = read_selection(path)
    check_target(found, device, context)
    if mode == LAST:
        _say_last(path, device, committed)
    elif mode == COMMITTED:
        click.echo(f"the selection is the committed one, {path}", err=True)
    return found


def _say_last(path: Path, device: Target, committed: Path | None) -> None:
    """Say that the selection is the last one made here, what it goes before, and whether the record is newer."""
    other = f"aot build --committed ships {committed} instead" if committed else "without it aot build selects anew"
    click.echo(f"the selection is {path}, made here last; {other}", err=True)
    record = pipeline.default_record(device, RECORDS)
    if record and record.stat().st_mtime > path.stat().st_mtime:
        click.echo(
            f"{record} was written after that selection; to build what it says: aot select --target {device.name}",
            err=True,
        )
