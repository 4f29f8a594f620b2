"""What a selection is made from and what it is to be like: known times, limits, the wheel's problems. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from aot.core.alignment import as_launched
from aot.core.candidate import KernelKey
from aot.core.epilogue import Epilogue
from aot.core.grouping import Grouping
from aot.core.measurement import OperationTimes
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.core.progress import quietly
from aot.select.coverage import coverage_of
from aot.select.portfolio.choose import Budget
from aot.select.selection import BY_COST_MODEL, BY_IMPUTED_TIMES, Selection
from aot.select.times.orders import OrderedTimes
from aot.space.cost import DEFAULTS, Constants

if TYPE_CHECKING:
    from aot.core.measurement import ProductRecord
    from aot.core.shape_set import ShapeSet

NAMED_WEIGHT = 8.0
"""How much a problem of the shape set counts that a selection is made for, in the mean; others measured, and sampled
ones, count 1. Source: the H200 record, where the 204 problems of `representative` stand beside 655 others and 600
sampled ones that would outvote them (research/log/2026-11-21-selections.md)."""


MAX_EPILOGUE_UNALIGNED = 6
"""Kernels of a section for what is not aligned, of an epilogue, whose times are those of the product without. Source:
on an H200's times of 2026-11-27, 6 kernels of `bf16_kk` have mean regrets of 2 to 9%, 4 have 6 to 14%
(docs/selection.md)."""

MAX_OTHER_UNALIGNED = 4
"""The same of epilogues, and of other layouts than linear's, where nothing was timed."""

MAX_PREDICTED_UNALIGNED = 6
"""The same of linear's layout without an epilogue, where nothing was timed: what a cost model tells apart."""


MIN_GAIN = 0.005
"""Least gain of mean regret, with a share of the worst, that a kernel more of an operation on rows is shipped for."""


@dataclass(frozen=True)
class SelectionLimits:
    """How many kernels an operation may have, or which regret; the latter counts in linear's layout."""

    max_kernels: int = 24
    max_layout_kernels: int = 8
    max_epilogue_kernels: int = 24
    max_mean: float | None = None
    """Regrets are fractions. With either, as few kernels as reach it, up to `max_kernels`."""
    max_worst: float | None = None
    max_unaligned_kernels: int = 20
    """Of a section for what is not aligned that was timed and has no epilogue; the constants above of others. Source:
    an H200's times of unaligned problems of 16 bits, and the size of its wheel; 12 take 3 to 9% longer than the best of
    all in the mean, 20 take 1 to 5% (research/log/2026-11-30-wheel-size.md)."""

    max_row_kernels: int = 12
    """Of an operation on rows, beside its fallback."""

    max_grid_kernels: int = 8
    """That a grid chosen anew has beside those of its operation, for each of the two kinds of rows. Source: of 330
    products of an H200 whose rows begin between sectors, a third left out in turn, by the 171 kernels that ship the
    trees' choice takes 3.1 and 2.7% longer than the best, with 8 more 2.0 and 1.6%, with 16 1.7 and 1.3%, with 36 1.6
    and 1.3% (research/log/2026-11-29-between-sectors.md)."""

    def of_rows(self) -> Budget:
        """Return the budget of an operation on rows, of which a kernel more must be worth it."""
        return Budget(self.max_row_kernels, kernel_cost=MIN_GAIN)

    def of_unaligned(self, operation: Operation, *, is_measured: bool) -> Budget:
        """Return the budget of a section of an operation for what is not aligned."""
        has_steps = bool(operation.epilogue.steps)
        is_other = has_steps or (operation.grouping is Grouping.DENSE and operation.layout is not Layout.KK)
        most = MAX_EPILOGUE_UNALIGNED if has_steps else self.max_unaligned_kernels
        if not is_measured:
            most = MAX_OTHER_UNALIGNED if is_other else MAX_PREDICTED_UNALIGNED
        return Budget(min(most, self.max_unaligned_kernels, self.max_kernels))

    def of(self, operation: Operation) -> Budget:
        """Return the budget of one operation."""
        if operation.epilogue.steps:
            return Budget(self.max_epilogue_kernels)
        if operation.layout is not Layout.KK:
            return Budget(self.max_layout_kernels)
        return Budget(self.max_kernels, self.max_mean, self.max_worst)


class Basis(Enum):
    """What the kernels of an operation are chosen by."""

    MEASURED = ""
    IMPUTED = BY_IMPUTED_TIMES
    """By the times of an equivalent operation: none of its own was measured."""
    PREDICTED = BY_COST_MODEL


@dataclass(frozen=True)
class KnownTimes:
    """The times that a selection is made from, in microseconds, and what is known of them."""

    times: OperationTimes
    """Measured, where there is a record; else predicted."""
    predicted: OperationTimes = field(default_factory=dict)
    """Beside measured ones those that the cost model predicts, of operations that no measured one is equivalent to."""
    unaligned: Mapping[int, OperationTimes] = field(default_factory=dict)
    """Predicted times of kernels that take what is not aligned, by `Section.loads`: for sections nothing of which was
    measured."""
    spreads: OperationTimes = field(default_factory=dict)
    """Relative half-distance of the quartiles."""
    heldout: OperationTimes = field(default_factory=dict)
    """Times that are only scored on."""
    references: Mapping[Problem, float] = field(default_factory=dict)
    """Of the reference library, torch say, on the problems where it was timed."""
    ordered: OrderedTimes = field(default_factory=OrderedTimes)
    """Of kernels in other orders of their tiles than their own, as which all other times are."""
    record: ProductRecord | None = None
    """Where they were measured; None if they are predicted."""
    constants: Constants = DEFAULTS
    """Of the cost model, where it predicted them."""

    def basis_of(self, operation: Operation) -> Basis:
        """Say what an operation's kernels are chosen by."""
        if self.record is None or operation in self.predicted:
            return Basis.PREDICTED
        return Basis.MEASURED if self.times.get(operation) else Basis.IMPUTED


@dataclass(frozen=True)
class Objective:
    """What a selection is to be like."""

    limits: SelectionLimits = field(default_factory=SelectionLimits)
    incumbent: Selection | None = None
    """The selection that ties go to."""
    shapes: ShapeSet | None = None
    """What the wheel is for."""
    named_weight: float = NAMED_WEIGHT
    """How often the problems of `shapes` count."""
    epilogues: tuple[Epilogue, ...] = ()
    """Those that kernels are chosen for by imputed times, beside what was measured."""
    operations: tuple[Operation, ...] = ()
    """The only ones that the selection is to have; where there are none, those with times, and those of `epilogues`."""
    by_fallback: tuple[Operation, ...] = ()
    """Those besides that only the fallback computes on the target."""
    unaligned: bool = False
    """Whether operations of one 16-bit product get tables besides for operands that are not aligned."""
    batch_invariant: bool = False
    """Whether each operation of one product gets a table besides by which a row's bits do not depend on m."""
    with_curves: bool = False
    kernel_bytes: Mapping[KernelKey, int] = field(default_factory=dict)
    """Compressed bytes of the kernels that are compiled, for the curves."""
    progress: Callable[[str], None] = quietly
    """Told what is being done."""
    like: Selection | None = None
    """Another target's selection whose kernels and table are taken."""

    def weights(self, operation: Operation) -> dict[Problem, float]:
        """Return how much the problems count that the wheel is for, as the table will be asked for them.

        They count `named_weight`. Where the shape set says how often problems are launched, these count in proportion
        to that, `named_weight` in the mean of the operation's, but none less than any other measured problem: 1.
        """
        if self.shapes is None:
            return {}
        launches = self.shapes.launches
        counts: dict[Problem, int] = {}
        for asked in self.shapes.problems(operation):
            launched = as_launched(asked, [operation])
            if launched is not None:
                counts[launched] = counts.get(launched, 0) + launches.get(asked, 0)
        counted = [x for x in counts.values() if x]
        unit = self.named_weight * len(counted) / sum(counted) if counted else 0.0
        return {x: max(1.0, unit * count) if count else self.named_weight for x, count in counts.items()}

    @property
    def named(self) -> frozenset[tuple[int, int]] | None:
        """Return the (n, k) that the wheel is for; None where that is not known."""
        return None if self.shapes is None else frozenset((n, k) for n, k, _ in self.shapes.sizes)

    def covered(self, selection: Selection) -> Selection:
        """Return a selection that says how it answers what the wheel is for, where that is known."""
        if self.shapes is None:
            return selection
        return replace(selection, coverage=coverage_of(selection, self.shapes, self.operations))
