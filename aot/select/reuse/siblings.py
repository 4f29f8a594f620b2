"""The selection of an operation made of a sibling's: the same kernels and table, for other types or another activation.

Selecting anew takes minutes, and rests on times of the product without an epilogue where a sibling was measured with
one. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aot.core.candidate import KernelKey, Reason, Rejected
from aot.core.dispatch import DispatchTable
from aot.core.measurement import PROVENANCE_PREDICTED
from aot.families import family_of
from aot.select.join import only_named, restricted
from aot.select.portfolio.candidates import legal
from aot.select.reuse.refill import refill_among
from aot.select.selection import BY_IMPUTED_TIMES
from aot.select.selector import fallback_key
from aot.space.legality import check

if TYPE_CHECKING:
    from aot.core.candidate import Candidate
    from aot.core.dispatch import Ladder, Row, Section
    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.select.selection import Regret, Selection


_RESOURCES = frozenset({Reason.SMEM, Reason.TMEM, Reason.REGISTERS, Reason.THREADS})
"""What a kernel may lack for one operation and not for its sibling: factors of narrower groups take more of each."""


def sibling_in(selection: Selection, operation: Operation, target: Target) -> Operation | None:
    """Return the operation of a selection whose kernels and table another one can have; None where there is none.

    It is the nearest sibling (`Operation.siblings`) each of whose kernels may be built for the other one, or lacks
    resources of the chip alone; half of them may be built at least.
    """
    there = selection.products
    for sibling in (x for x in operation.siblings if x in there):
        tuned = {x.candidate for x in selection.kernels if x.operation is sibling} - _fallbacks(selection)
        checked = [check(x, operation, target) for x in tuned]
        refused = [x.reason for x in checked if isinstance(x, Rejected)]
        if tuned and len(refused) * 2 <= len(tuned) and _RESOURCES.issuperset(refused):
            return sibling
    return None


def _fallbacks(selection: Selection) -> set[Candidate]:
    return {x.candidate for x in selection.kernels if family_of(x.candidate).is_fallback}


def _predicted(ladder: Ladder) -> Ladder:
    """Give a ladder whose times are another operation's, and so predictions."""
    return replace(
        ladder, rows=tuple(replace(x, provenance=PROVENANCE_PREDICTED, library_us=None) for x in ladder.rows)
    )


def _section(section: Section, operation: Operation) -> Section:
    """Give an operation the section of another one."""
    return replace(section, operation=operation, ladders=tuple(map(_predicted, section.ladders)))


def _of_built(
    kernels: tuple[KernelKey, ...], table: DispatchTable, target: Target
) -> tuple[tuple[KernelKey, ...], DispatchTable]:
    """Leave out the kernels that cannot be built, and give their places to others by the cost model."""
    operation = table.sections[0].operation
    built = legal({x.candidate for x in kernels}, operation, target)
    if all(x.candidate in built for x in kernels):
        return kernels, table

    def second(row: Row) -> Row:
        is_built = kernels[row.runner_up].candidate in built
        return row if is_built else replace(row, runner_up=row.kernel, runner_up_us=row.time_us)

    def seconds(ladder: Ladder) -> Ladder:
        return replace(ladder, rows=tuple(map(second, ladder.rows)))

    refill = refill_among(kernels, built, target)
    filled = [refill.section(x)[0] for x in table.sections]
    return only_named(kernels, DispatchTable(tuple(replace(x, ladders=tuple(map(seconds, x.ladders))) for x in filled)))


def _regret(regret: Regret, operation: Operation) -> Regret:
    method = regret.method.removesuffix(BY_IMPUTED_TIMES) + BY_IMPUTED_TIMES
    return replace(regret, operation=operation, method=method)


def as_sibling(selection: Selection, sibling: Operation, operation: Operation, target: Target) -> Selection:
    """Return a selection of one operation, with the kernels and the table that a sibling has.

    Its rows are predicted, its regrets are by imputed times, and what compares with a library or with problems held out
    is left out, since it is of the sibling.

    Args:
        selection: one that has the sibling.
        sibling: as `sibling_in` finds it. Where one of its kernels cannot be built, another answers, by the cost model.
        operation: what the kernels are to compute.
        target: the device of the selection.
    """
    kept = restricted(selection, (sibling,))
    fallback = fallback_key(operation, target)
    kernels, table = _of_built(
        tuple(
            fallback if family_of(x.candidate).is_fallback else KernelKey(operation, x.candidate) for x in kept.kernels
        ),
        DispatchTable(tuple(_section(x, operation) for x in kept.table.sections)),
        target,
    )
    return replace(
        kept,
        provenance=PROVENANCE_PREDICTED,
        record=f"{kept.record}, imputed",
        conditions=(),
        regrets=tuple(_regret(x, operation) for x in kept.regrets),
        curves=(),
        heldout=(),
        kernels=kernels,
        table=table,
        references=(),
        prices=None,
    )
