"""How a table serves a model, Linear by Linear: with its own kernels, by predictions, slowly, or not at all.

Pure: a selection and a model's Linears in, answers out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.problem import Problem
from aot.core.weight_format import PackedLayout
from aot.select.coverage import GENERAL, MEASURED, PREDICTED, REFUSED
from aot.space.cost import estimate
from aot.space.roofline import roofline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.select.selection import Selection

WORST_FIRST = (REFUSED, GENERAL, PREDICTED, MEASURED)


@dataclass(frozen=True)
class Layer:
    """Linears of one size: what is asked of a table."""

    name: str
    """Under all their names."""
    n: int
    k: int
    count: int
    """How often they stand in the model."""
    m: tuple[int, ...]
    """Rows that they meet."""
    operation: Operation | None
    """None where no operation multiplies their weights' format."""
    why_absent: str = ""
    """Why there is none."""

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the weights as they are stored; 0 where the format is not known.

        Of packed weights the factors of groups are among them.
        """
        if self.operation is None:
            return 0
        weight = self.operation.types.weight
        if weight is None:
            return self.n * self.k * self.operation.b.element.bits // 8 * self.count
        rows, row_bytes = PackedLayout(weight).shape(self.n, self.k)
        return rows * row_bytes * self.count


@dataclass(frozen=True)
class Served:
    """How a table answers one product of a layer; times in microseconds."""

    m: int
    answer: str
    """`measured`, `predicted`, `general` or `refused`, as `aot.select.coverage` has them."""
    reason: str
    """Why it is one of the last two; else empty."""
    kernel: str
    """Empty where it is refused."""
    roofline_us: float
    """The least that the device can take."""
    time_us: float | None
    """What the table knows of the very product, measured or predicted; of the general kernel the cost model's word."""


@dataclass(frozen=True)
class Diagnosis:
    """How a table serves a layer."""

    layer: Layer
    served: tuple[Served, ...]
    """For each of its m; empty where no operation multiplies the format of its weights."""

    @property
    def worst(self) -> str:
        """Return the worst answer."""
        kinds = {x.answer for x in self.served} or {REFUSED}
        return next(x for x in WORST_FIRST if x in kinds)


def diagnose(selection: Selection, layers: Sequence[Layer], target: Target) -> list[Diagnosis]:
    """Say how a selection's table serves a model.

    Args:
        selection: kernels and table.
        layers: the model's.
        target: the selection's device.
    """
    return [Diagnosis(x, tuple(_served(selection, p, target) for p in _problems(x))) for x in layers]


def _problems(layer: Layer) -> list[Problem]:
    return [] if layer.operation is None else [Problem(layer.operation, m, layer.n, layer.k) for m in layer.m]


def _served(selection: Selection, problem: Problem, target: Target) -> Served:
    found, least = selection.answer(problem), roofline(problem, target).time_us
    if found.kernel is None:
        return Served(problem.m, found.kind, found.reason, "", least, None)
    key, time_us = selection.kernels[found.kernel], None
    if found.kind == GENERAL:
        time_us = float(np.ravel(estimate([key.candidate], [problem], target).total_us)[0])
    elif found.row is not None and found.row.time_us >= least:  # else it is not this problem's
        time_us = found.row.time_us
    return Served(problem.m, found.kind, found.reason, key.name, least, time_us)
