"""Which selection a command speaks of: the one named, the last one made here, the committed one, or a new one."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli.options import RECORDS, SELECTIONS, Decorator, is_given, option, options, shapes_option
from aot.cli.request import Request, select, select_others
from aot.core.errors import SelectionError
from aot.core.operation import Operation
from aot.core.progress import waiting
from aot.core.shape_set import load_shape_set
from aot.core.target import Target, load_target
from aot.kinds.named_operations import NamedOperations, default_operations
from aot.select import pipeline
from aot.select.join import joined, restricted
from aot.select.reuse.narrow import narrowed
from aot.select.reuse.siblings import as_sibling, sibling_in
from aot.select.selection import Selection, read_selection
from aot.space.enumeration import check_total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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


def _select_anew(
    context: click.Context,
    device: Target,
    record: Path | None,
    operations: tuple[Operation, ...] = (),
) -> Selection:
    shapes, is_default = context.params["shapes"], not is_given(context, "shapes")
    incumbent = pipeline.committed_selection(device)
    records = (record,) if record else ()
    return select(Request(device, shapes, is_default, records, incumbent=incumbent, operations=operations))


def selection_with(
    context: click.Context, device: Target, operations: NamedOperations, *, is_predicted: bool
) -> Selection:
    """Make the selection of some operations: what the committed ones have of them, and what is selected for the others.

    The others get the kernels and the table of a sibling that a committed selection has, unless they were timed
    themselves or --shapes is given. Where there is none, they get kernels by the target's record where an equivalent
    operation was measured, else by the cost model. Operations of other kinds have no siblings.

    Args:
        context: of a command with the option --shapes.
        device: the target.
        operations: what the selection is to have.
        is_predicted: whether to leave the committed selections and the records aside.

    Raises:
        AotError: see aot.select.pipeline.
    """
    check_total(operations.operations, device)
    products, source = operations.products, "the request"
    if is_predicted:
        parts = [_select_anew(context, device, None, products)] if products else []
        parts += [select_others(operations.others, device, ())] if operations.others else []
        return _whole(parts, source)
    with waiting("read what is committed"):
        parts, left = _shipped(operations.operations, device, takes_siblings=not is_given(context, "shapes"))
        named = NamedOperations(tuple(left))
        records = pipeline.records_for(named.products, device, RECORDS)
    for record, asked in records.items():
        click.echo(f"{', '.join(asked)}: by {record or 'the cost model'}", err=True)
        parts.append(_select_anew(context, device, record, tuple(asked)))
    if named.others:
        parts.append(select_others(named.others, device, pipeline.records_of(device, RECORDS)))
    return _whole(parts, source)


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
    parts, left = _shipped(shapes.operations, device, takes_siblings=True)
    others = NamedOperations(tuple(left)).products
    for record, asked in pipeline.records_for(others, device, RECORDS).items():
        click.echo(f"{', '.join(asked)}: by {record or 'the cost model'}", err=True)
        records = (record,) if record else ()
        request = Request(device, path, is_default_shapes=False, records=records, incumbent=incumbent)
        parts.append(select(replace(request, operations=tuple(asked))))
    problems = [problem for operation in shapes.operations for problem in shapes.problems(operation)]
    with waiting("take what answers the problems"):
        return narrowed(_whole(parts, path), problems, device)


def _whole(parts: Sequence[Selection], source: str) -> Selection:
    """Join the selections of the operations that a request or a shape set names (SelectionError: it names none)."""
    if not parts:
        raise SelectionError(f"{source} names no operation; expected one or more of docs/operations.md")
    return reduce(joined, parts)


def _shipped(
    operations: Sequence[AnyOperation], device: Target, *, takes_siblings: bool
) -> tuple[list[Selection], list[AnyOperation]]:
    """Take what committed selections have of some operations, or of their siblings; return the other operations too."""
    committed: list[Selection] = []
    parts: list[Selection] = []
    others = list(operations)
    for path in pipeline.committed_selections(device):
        if not others:
            break
        selection = read_selection(path)
        committed.append(selection)
        known = [x for x in others if x in selection.operations]
        others = [x for x in others if x not in known]
        if known:
            parts.append(restricted(selection, known))
    products = NamedOperations(tuple(others)).products
    adopted = _as_siblings(products, committed, device) if takes_siblings else {}
    parts += adopted.values()
    return parts, [x for x in others if x not in adopted]


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


def check_products(selection: Selection) -> None:
    """Refuse a selection without products, of which every wheel has some.

    Raises:
        SelectionError: it has none.
    """
    if not selection.table.sections:
        tags = ", ".join(x.tag for x in selection.operations)
        raise SelectionError(
            f"the selection is of {tags} alone; expected products too; join them: aot select --target "
            f"{selection.target} --operations {tags.replace(' ', '')} --keep a selection of products"
        )


def selection_of(context: click.Context, mode: str) -> Selection:
    """Return the selection of a mode, and say on standard error which one it is.

    Raises:
        AotError: it cannot be read, made, or is of another target than the one asked for.
    """
    return selection_for(context, mode, load_target(target_name(context)), context.params["selection"])


def selection_answering(context: click.Context, operation: Operation) -> Selection:
    """Return the selection that a product is answered by, and say on standard error which one it is.

    Of what the cost model selects for a whole wheel, which takes minutes, these are the tables of the operation and of
    those that share kernels with it. What a wheel has where it is asked for alone is selected as `aot build` does then.

    Args:
        context: of a command with the options of `told_options`.
        operation: the product's.

    Raises:
        AotError: as `selection_of`.
    """
    mode, device = told_mode(context.params), load_target(target_name(context))
    check_total([operation], device)
    if mode != PREDICTED or is_given(context, "shapes"):
        found = selection_of(context, mode)
        if mode != COMMITTED or operation.call in {x.call for x in found.products}:
            return found
    else:
        whole = _of_whole(context, device, [operation])
        if whole is not None and operation.call in {x.call for x in whole.products}:
            return whole
    tag = operation.tag
    click.echo(f"{tag}: as in a wheel of aot build --target {device.name} --operations {tag}", err=True)
    return selection_with(context, device, NamedOperations((operation,)), is_predicted=mode == PREDICTED)


def selection_of_layers(context: click.Context, operations: Collection[Operation]) -> Selection:
    """Return the selection that a model's Linears are looked up in, and say on standard error which one it is.

    Of what the cost model selects for a whole wheel these are the tables of `_of_whole`. Operations that such a wheel
    does not have are left out.

    Raises:
        AotError: as `selection_of`.
    """
    mode, device = told_mode(context.params), load_target(target_name(context))
    is_whole = mode == PREDICTED and not is_given(context, "shapes")
    found = _of_whole(context, device, operations) if is_whole else None
    return found or selection_of(context, mode)


def _of_whole(context: click.Context, device: Target, operations: Iterable[Operation]) -> Selection | None:
    """Select what a whole wheel by the cost model has of some operations, and of those whose kernels they take.

    A whole one takes minutes; these tables are the same in it. None where it has none of the operations.
    """
    alike = {z for x in operations for y in (x, x.plain) for z in (y, *y.twins)}
    asked = tuple(x for x in default_operations(device).products if x in alike)
    if not asked:
        return None
    if not context.params["predicted"]:
        _say_no_selection(device)
    return _select_anew(context, device, None, asked)


def _say_no_selection(device: Target) -> None:
    click.echo(f"{device.name} has no committed selection: selecting by the cost model", err=True)


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
            _say_no_selection(device)
        return _select_anew(context, device, record)
    committed = pipeline.committed_selection(device)
    path = {NAMED: named, LAST: last_selection(device.name), COMMITTED: committed}[mode]
    if path is None:
        raise SelectionError(f"the selection {mode}, has been removed meanwhile; run again")
    with waiting(f"read {path.name}"):
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
