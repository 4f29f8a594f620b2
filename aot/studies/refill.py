"""Bound what a wrong prediction costs in selections that are made: `python -m aot.studies.refill -h`.

Rows and steps that were filled by prediction keep only kernels inside the range that was timed of them
(aot.select.ranges); each other gets the best kernel that is, by what is learned from the record. `aot select` keeps to
the same rule, so that this is for selections from before it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aot.core.errors import SelectionError
from aot.core.grouping import Grouping
from aot.core.measurement import reference_times
from aot.core.shape_set import load_shape_set
from aot.core.target import load_target
from aot.select.coverage import coverage
from aot.select.objective import KnownTimes
from aot.select.orders import OrderedTimes
from aot.select.pipeline import COMMITTED_SHAPES
from aot.select.ranges import KernelRanges
from aot.select.record import read_record
from aot.select.refilled import Refill
from aot.select.selection import Selection, read_selection, write_selection
from aot.select.selector import compared, models_of, orders_of, scored
from aot.select.times import measured_times, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.measurement import OperationTimes, Record

HELDOUT = "atlas_heldout"
"""The shape set that selections are scored on, and that nothing is learned from."""


def refilled(selection: Selection, record: Record, more: Sequence[OperationTimes]) -> tuple[Selection, int]:
    """Fill a selection anew where its kernels may not answer, and score it again.

    Args:
        selection: kernels and table.
        record: what is learned from, of the selection's target.
        more: times of other devices with as many SMs, which widen the kernels' ranges.

    Returns:
        The selection, and the number of rows and steps that got another kernel.

    Raises:
        SelectionError: the record is of another target, or has no times.
    """
    if record.target != selection.target:
        raise SelectionError(
            f"the record is of {record.target}, the selection of {selection.target}; give the record of the latter"
        )
    target = load_target(selection.target)
    inside, outside = split(measured_times(record), frozenset(load_shape_set(HELDOUT).sizes))
    measured = KnownTimes(
        inside,
        heldout=outside,
        references=reference_times(record),
        ordered=OrderedTimes.of(record),
        record=record,
    )
    learned = models_of(measured, target).learned
    if learned is None:
        raise SelectionError(f"the record of {record.target} has no usable times; give one that has")
    ranges = KernelRanges.of((inside, outside, *more), target)
    orders = orders_of(measured, selection.kernels, target)
    refill = Refill(selection.kernels, ranges, learned, target, orders)
    table, count = refill.table(selection.table, lambda section: section.operation.grouping is Grouping.DENSE)
    told = selection.coverage
    if told is not None:
        shapes = load_shape_set(COMMITTED_SHAPES)
        told = coverage(table, selection.kernels, (x for y in shapes.operations for x in shapes.problems(y)))
    found = replace(
        selection,
        table=table,
        heldout=tuple(scored(table, selection.kernels, measured)) if selection.heldout else (),
        references=tuple(compared(table, selection.kernels, measured)) if selection.references else (),
        coverage=told,
    )
    return found, count


def main() -> None:
    """Fill a selection anew, and print how many rows and steps got another kernel."""
    parser = argparse.ArgumentParser(prog="python -m aot.studies.refill", description=__doc__)
    parser.add_argument("selection", type=Path)
    parser.add_argument("record", type=Path, help="what is learned from, of the selection's target")
    parser.add_argument("--more", type=Path, action="append", default=[], help="another record, which widens ranges")
    parser.add_argument("-o", "--output", type=Path, required=True)
    values = parser.parse_args()
    more = [measured_times(read_record(path)) for path in values.more]
    found, count = refilled(read_selection(values.selection), read_record(values.record), more)
    write_selection(values.output, found)
    sys.stdout.write(f"{values.output}: {count} rows and steps got another kernel\n")


if __name__ == "__main__":
    main()
