"""What a new selection is asked to be, by `aot select` and by commands that need one, and how it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import click

from aot.core.errors import SelectionError
from aot.core.progress import waiting
from aot.core.shape_set import ShapeSet, load_shape_set, shape_set_path
from aot.kinds.named_operations import NamedOperations, default_operations
from aot.select import pipeline
from aot.select.join import joined, restricted, with_unaligned_of
from aot.select.portfolio.objective import NAMED_WEIGHT, Objective, SelectionLimits
from aot.select.renew import Renewed, renew
from aot.select.reuse.twin_ladders import with_twins_ladders
from aot.select.selection import BY_COST_MODEL, Selection, read_selection
from aot.space.calibration import calibration_of
from aot.space.enumeration import Patterns, check_total, has_tuned_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aot.core.epilogue import Epilogue
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.core.work import AnyOperation
    from aot.select.runs import Run


@dataclass(frozen=True)
class Request:
    """What a new selection is asked to be; the defaults are those of `aot select`, but for the curve."""

    target: Target
    shapes: str
    is_default_shapes: bool
    """Whether the shape set was not asked for: a wheel by the model then has the target's default operations."""
    records: tuple[Path, ...] = ()
    """Read as one, which is named as the first; where there are none, it is by the cost model."""
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
    """The only products that it is to have; where there are none, those of the record or of the shape set."""
    others: tuple[AnyOperation, ...] = ()
    """Those of other kinds that it is to have; where `operations` is empty, it has no products then."""
    other_records: tuple[Path, ...] = ()
    """What those are selected by, each by the first that has times of it; else by the cost model."""
    other_incumbents: tuple[Path, ...] = ()
    """The first of these selections that has one of them is what ties go to."""
    curve: bool = False
    batch_invariant: bool = False
    unaligned: bool = True
    """Whether 16-bit products get tables for what is not aligned."""
    only: Renewed | None = None
    """The only tables of `keep` that are chosen anew."""
    run: Run | None = None
    """What the selection is to say of how it was made; None where it is not to be written."""

    def said(self, selection: Selection, *before: Run) -> Selection:
        """Return what was chosen of a selection, which says so, behind it what earlier runs chose."""
        own = (replace(self.run, operations=selection.operations),) if self.run else ()
        return replace(selection, runs=(*own, *before) or None)

    @property
    def has_products(self) -> bool:
        """Say whether products are selected."""
        return bool(self.operations or not self.others)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return what is read of files."""
        found = [shape_set_path(self.shapes), self.like, self.keep]
        if self.has_products:
            heldout = [shape_set_path(self.heldout)] if self.heldout and self.records else []
            found += [*heldout, *self.records, self.incumbent, self.calibration]
        if self.others:
            found += [*self.other_records, *self.other_incumbents]
        return tuple(dict.fromkeys(x for x in found if x))


def select(request: Request) -> Selection:
    """Select, from a record or by the cost model.

    Raises:
        AotError: see aot.select.pipeline.
    """
    check_total((*request.operations, *request.others), request.target)
    shapes, like = load_shape_set(request.shapes), _like(request)
    if like and not (request.operations or request.others):
        request = _of_all(request, like)
    objective = Objective(
        request.limits,
        _incumbent(request.incumbent) if request.incumbent else None,
        shapes,
        request.named_weight,
        request.epilogues,
        shapes.having(request.operations) if request.operations else (),
        unaligned=request.unaligned,
        batch_invariant=request.batch_invariant,
        with_curves=request.curve,
        like=restricted(like, request.operations or like.products) if like else None,
    )
    kept = _kept(request)
    if request.only is not None and kept is not None:
        heldout = load_shape_set(request.heldout) if request.heldout else None
        with waiting(f"select kernels for {request.only.value}") as at:
            told = replace(objective, progress=at)
            found = renew(request.only, kept, request.records, request.target, told, request.kernels, heldout)
        return request.said(found, *(kept.runs or ()))
    parts: list[Selection] = []
    added = _added(request)
    if request.has_products:
        with waiting("select kernels") as at:
            parts.append(_selected(request, shapes, replace(objective, progress=at), added.products))
    if others := (*request.others, *added.others):
        goal = Objective(request.limits, _other_incumbent(request), like=like)
        parts.append(select_others(others, request.target, request.other_records, request.kernels, goal))
    chosen = request.said(reduce(joined, parts))
    if kept is not None:
        rest = [x for x in kept.operations if x not in chosen.operations]
        chosen = chosen if request.unaligned or like else with_unaligned_of(chosen, kept)
        chosen = joined(chosen, restricted(kept, rest)) if rest else chosen
        asked = tuple(x for x in shapes.operations if x in chosen.products) if request.is_default_shapes else ()
        objective = replace(objective, operations=asked)
    with waiting("look up the problems"):
        return objective.covered(chosen if like else with_twins_ladders(chosen))


def _incumbent(path: Path) -> Selection:
    with waiting(f"read {path.name}"):
        return read_selection(path)


def _like(request: Request) -> Selection | None:
    """Read the other target's selection.

    Raises:
        SelectionError: it has no table of one.
    """
    if request.like is None:
        return None
    return _having(request.like, read_selection(request.like), request)


def _having(path: Path, found: Selection, request: Request) -> Selection:
    """Return a selection that was read from a file, which has a table of each operation that is asked for.

    Raises:
        SelectionError: it has not.
    """
    tags = [x.tag for x in found.operations]
    asked = (*request.operations, *request.others)
    missing = [x.tag for x in asked if x.tag not in tags]
    if missing:
        raise SelectionError(
            f"{path} has no table of {', '.join(missing)}; give --operations some of what it has, {', '.join(tags)}"
        )
    return found


def _of_all(request: Request, like: Selection) -> Request:
    """Ask for all that another target's selection has, where it has operations other than products."""
    others = tuple(x for x in like.operations if x not in like.products)
    return replace(request, operations=like.products, others=others) if others else request


def _kept(request: Request) -> Selection | None:
    """Read the selection whose other operations are kept, before anything is selected.

    Raises:
        SelectionError: it is of another target, or has no table of one that alone is to be chosen anew.
    """
    if request.keep is None:
        return None
    kept = read_selection(request.keep)
    if kept.target != request.target.name:
        raise SelectionError(
            f"{request.keep} is of {kept.target}, and {request.target.name} is selected for; give --keep a selection "
            f"of {request.target.name}, or --target {kept.target}"
        )
    return kept if request.only is None else _having(request.keep, kept, request)


def _selected(request: Request, shapes: ShapeSet, objective: Objective, added: tuple[Operation, ...]) -> Selection:
    if not request.records:
        calibration = calibration_of(request.calibration, request.target.name)
        asked = tuple(dict.fromkeys((*shapes.operations, *added)))
        told = replace(objective, operations=shapes.having(asked)) if added else objective
        return pipeline.select_predicted(shapes, request.target, told, request.kernels, calibration)
    heldout = load_shape_set(request.heldout) if request.heldout else None
    return pipeline.select_measured(request.records, request.target, objective, request.kernels, heldout)


def _other_incumbent(request: Request) -> Selection | None:
    """Read the selection that ties of operations of other kinds go to; None where there is none."""
    found = map(read_selection, request.other_incumbents)
    return next((x for x in found if {*x.operations}.intersection(request.others)), None)


def _added(request: Request) -> NamedOperations:
    """List what a wheel by the cost model has where nobody names operations or a shape set.

    Those are a target's default operations, but for those that --kernels leaves no kernels of.
    """
    is_whole = request.is_default_shapes and not (request.operations or request.others)
    if request.records or not is_whole:
        return NamedOperations(())
    patterns = Patterns.parse(request.kernels)
    asked = default_operations(request.target).operations
    found = tuple(x for x in asked if has_tuned_kernels(x, request.target, patterns))
    if len(found) < len(asked):
        left_out = ", ".join(x.tag for x in asked if x not in found)
        click.echo(f"{left_out}: left out, for --kernels leaves no kernel", err=True)
    return NamedOperations(found)


def select_others(
    operations: Sequence[AnyOperation],
    device: Target,
    records: Sequence[Path],
    kernels: str = "",
    objective: Objective | None = None,
) -> Selection:
    """Select kernels of operations that are no products by records, else by the cost model.

    Raises:
        AotError: see aot.select.pipeline.
    """
    with waiting("select kernels of operations on rows") as at:
        goal = replace(objective or Objective(), progress=at)
        found = pipeline.select_stepped(operations, device, records, kernels, goal)
    predicted = [x.operation.tag for x in found.regrets if x.method.endswith(BY_COST_MODEL)]
    if predicted:
        click.echo(f"{', '.join(predicted)}: by the cost model", err=True)
    return found
