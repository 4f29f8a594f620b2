"""Selections some of whose tables are chosen anew, by times of the problems that these answer; all else stays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.measurement import OperationTimes, reference_times
from aot.select.portfolio.objective import KnownTimes, Objective
from aot.select.table import between, unaligned
from aot.select.table.library import with_library_times
from aot.select.times.known import aligned, legal_part, measured_times, split
from aot.select.times.model import TimeModel
from aot.select.times.record import read_products_together
from aot.space.enumeration import Patterns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aot.core.shape_set import ShapeSet
    from aot.core.target import Target
    from aot.select.selection import Selection


def select_unaligned(
    selection: Selection,
    paths: Sequence[Path],
    target: Target,
    objective: Objective,
    kernels: str,
    heldout: ShapeSet | None,
) -> Selection:
    """Choose anew only the tables of a selection for what is not aligned.

    Args:
        selection: whose other tables are kept.
        paths: records that have times of unaligned problems, read as one; where there are none, the cost model decides.
        target: the selection's.
        objective: limits, and what the wheel is for.
        kernels: include and exclude patterns on candidate names.
        heldout: problems that are kept out.

    Raises:
        StoreError: the record cannot be read, or is another target's.
    """
    patterns = Patterns.parse(kernels)
    operations = [x.operation for x in selection.table.sections]
    record = read_products_together(paths, target) if paths else None
    times: OperationTimes = {}
    if record is not None:
        unseen = frozenset(heldout.sizes if heldout else ())
        times, _ = split(measured_times(legal_part(record, patterns, target)), unseen)
    references = {} if record is None else reference_times(record)
    guessed = unaligned.predicted(operations, target, patterns)
    known = KnownTimes(times, unaligned=guessed, references=references, record=record)
    found = unaligned.renewed(selection, known, target, objective)
    return replace(found, table=with_library_times(found.table, references, only_unaligned=True))


def select_between(
    selection: Selection,
    paths: Sequence[Path],
    target: Target,
    objective: Objective,
    kernels: str,
    heldout: ShapeSet | None,
) -> Selection:
    """Choose anew only the grids of a selection for aligned rows between sectors, with some kernels more.

    Args:
        selection: whose other tables are kept.
        paths: records that have times of such problems, read as one.
        target: the selection's.
        objective: the operations whose grids are chosen; where it names none, all.
        kernels: include and exclude patterns on the names of candidates whose times are read.
        heldout: problems that are kept out.

    Raises:
        StoreError: the record cannot be read, or is another target's.
    """
    record = read_products_together(paths, target)
    unseen = frozenset(heldout.sizes if heldout else ())
    inside, _ = split(measured_times(legal_part(record, Patterns.parse(kernels), target)), unseen)
    times = aligned(inside)
    objective.progress("learning from the times")
    model = TimeModel.fit(times, target)
    operations = objective.operations or selection.products
    found = between.renewed(selection, operations, times, model, target, reference_times(record), objective.progress)
    return replace(objective, operations=()).covered(found)
