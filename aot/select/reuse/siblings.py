"""The selection of an operation made of a sibling's: the same kernels and table, for other types or another activation.

Selecting anew takes minutes, and rests on times of the product without an epilogue where a sibling was measured with
one. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.candidate import KernelKey
from aot.core.dispatch import DispatchTable
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.families import family_of
from aot.select.join import operations_of, restricted
from aot.select.portfolio.candidates import legal
from aot.select.selection import BY_IMPUTED_TIMES
from aot.select.selector import fallback_key

if TYPE_CHECKING:
    from aot.core.dispatch import Ladder, Section
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.select.selection import Regret, Selection


def sibling_in(selection: Selection, operation: Operation, target: Target) -> Operation | None:
    """Return the operation of a selection whose kernels and table another one can have; None where there is none.

    It is the nearest sibling (`Operation.siblings`) each of whose kernels may be built for the other one.
    """
    there = operations_of(selection)
    for sibling in (x for x in operation.siblings if x in there):
        candidates = {x.candidate for x in selection.kernels if x.operation is sibling}
        tuned = {x for x in candidates if not family_of(x).is_fallback}
        if tuned and legal(tuned, operation, target) == tuned:
            return sibling
    return None


def _predicted(ladder: Ladder) -> Ladder:
    """Give a ladder whose times are another operation's, and so predictions."""
    return replace(
        ladder, rows=tuple(replace(x, provenance=PROVENANCE_PREDICTED, library_us=None) for x in ladder.rows)
    )


def _section(section: Section, operation: Operation) -> Section:
    """Give an operation the section of another one."""
    return replace(section, operation=operation, ladders=tuple(map(_predicted, section.ladders)))


def _regret(regret: Regret, operation: Operation) -> Regret:
    method = regret.method.removesuffix(BY_IMPUTED_TIMES) + BY_IMPUTED_TIMES
    return replace(regret, operation=operation, method=method)


def as_sibling(selection: Selection, sibling: Operation, operation: Operation, target: Target) -> Selection:
    """Return a selection of one operation, with the kernels and the table that a sibling has.

    Its rows are predicted, its regrets are by imputed times, and what compares with a library or with problems held out
    is left out, since it is of the sibling.

    Args:
        selection: one that has the sibling.
        sibling: as `sibling_in` finds it.
        operation: what the kernels are to compute.
        target: the device of the selection.
    """
    kept = restricted(selection, (sibling,))
    fallback = fallback_key(operation, target)
    return replace(
        kept,
        provenance=PROVENANCE_PREDICTED,
        record=f"{kept.record}, imputed",
        conditions=(),
        regrets=tuple(_regret(x, operation) for x in kept.regrets),
        curves=(),
        heldout=(),
        kernels=tuple(
            fallback if family_of(x.candidate).is_fallback else KernelKey(operation, x.candidate) for x in kept.kernels
        ),
        table=DispatchTable(tuple(_section(x, operation) for x in kept.table.sections)),
        references=(),
        prices=None,
    )
