"""Selections some of whose tables are chosen anew, by times of the problems that these answer; all else stays."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from aot.core.dispatch import DispatchTable
from aot.core.errors import SelectionError
from aot.core.measurement import OperationTimes, reference_times
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.table import between, unaligned
from aot.select.table.library import with_library_times
from aot.select.times.known import aligned, legal_part, measured_times, split
from aot.select.times.model import TimeModel
from aot.select.times.orders import OrderedTimes, Orders
from aot.select.times.record import read_products_together
from aot.space.calibration import CALIBRATED
from aot.space.enumeration import Patterns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from aot.core.dispatch import Section
    from aot.core.measurement import ProductRecord
    from aot.core.operation import Operation
    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.select.selection import Selection


class Renewed(Enum):
    """The tables that may be chosen anew by themselves."""

    UNALIGNED = "what is not aligned"
    GRIDS = "grids of aligned products"
    BETWEEN = "grids of aligned products whose rows begin between sectors"


def renew(
    tables: Renewed,
    selection: Selection,
    paths: Sequence[Path],
    target: Target,
    objective: Objective,
    kernels: str,
    heldout: ShapeSet | None,
) -> Selection:
    """Choose anew only some tables of a selection.

    Args:
        tables: for what is not aligned, or the grids of aligned single products, or those for their rows between
            sectors, with some kernels more: of the operations that `objective` names, or of all.
        selection: whose other tables are kept.
        paths: records that have times of such problems, read as one. Where there are none, the cost model chooses for
            what is not aligned.
        target: the selection's.
        objective: limits, and what the wheel is for.
        kernels: include and exclude patterns on candidate names.
        heldout: problems that are kept out.

    Raises:
        StoreError: the record cannot be read, or is another target's.
        SelectionError: there is none, and the selection was made by a calibration, which this does not know; or they
            have too few times for the grid of any operation.
    """
    if not paths and selection.record.startswith(CALIBRATED):
        raise SelectionError(
            f"the selection to keep is by {selection.record!r}, and tables chosen anew would be by other constants; "
            "give a --record, or select everything with --calibration"
        )
    patterns = Patterns.parse(kernels)
    record = read_products_together(paths, target) if paths else None
    times: OperationTimes = {}
    if record is not None:
        unseen = frozenset(heldout.sizes if heldout else ())
        times, _ = split(measured_times(legal_part(record, patterns, target)), unseen)
    references = {} if record is None else reference_times(record)
    goal = replace(objective, operations=())
    operations = objective.operations or selection.products
    if tables is Renewed.UNALIGNED:
        guessed = unaligned.predicted(operations, target, patterns)
        known = KnownTimes(times, unaligned=guessed, references=references, record=record)
        found = unaligned.renewed(selection, operations, known, target, goal)
        timed = with_library_times(found.table, references, lambda x: bool(x.loads) and x.operation in operations)
        return replace(found, table=timed)
    measured = KnownTimes(aligned(times), references=references, record=record)
    renewed = _with_new_grids(selection, operations, measured, target, goal, only_between=tables is Renewed.BETWEEN)
    if renewed is None:
        raise SelectionError(
            f"{', '.join(x.name for x in paths)}: fewer than {between.MIN_BETWEEN} problems of "
            f"{', '.join(x.tag for x in operations)} for {tables.value}, so that nothing would be chosen anew; give a "
            "--record with more, or other --operations"
        )
    return renewed


def _with_new_grids(
    selection: Selection,
    operations: Collection[Operation],
    measured: KnownTimes,
    target: Target,
    goal: Objective,
    *,
    only_between: bool,
) -> Selection | None:
    """Choose grids of aligned single products anew; None where no operation has enough times."""
    goal.progress("learning from the times")
    found, new = between.renewed(
        selection,
        operations,
        measured.times,
        TimeModel.fit(measured.times, target),
        target,
        measured.references,
        goal.progress,
        goal.limits.max_grid_kernels,
        only_between=only_between,
    )
    if not new:
        return None
    return goal.covered(replace(found, table=_with_orders(found, new, measured.record, measured.times, target)))


def _with_orders(
    selection: Selection, new: Collection[Section], record: ProductRecord | None, times: OperationTimes, target: Target
) -> DispatchTable:
    """Return the table of a selection, whose new grids say in which order a kernel takes its tiles."""
    seen = {problem: row for rows in times.values() for problem, row in rows.items()}
    ordered = {} if record is None else OrderedTimes.of(record).times
    known = OrderedTimes({x: rows for x, rows in ordered.items() if x in seen})
    orders = Orders(known, known.model(seen, target.num_sms), selection.kernels)
    sections = (orders.in_grid(x) if x in new else x for x in selection.table.sections)
    return DispatchTable(tuple(sections))
