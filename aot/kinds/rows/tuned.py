"""A kernel of an operation on rows in a tuning library."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.constraints import Sha256
from aot.core.tile_order import HEURISTIC
from aot.kinds.rows.candidate import RowKernelKey, RowLimits
from aot.kinds.rows.kernel import RowKernel
from aot.kinds.rows.problem import RowProblem


@dataclass(frozen=True)
class TunedRowKernel:
    """One kernel of a tuning library; satisfies `aot.kinds.kind.Tuned`."""

    key: RowKernelKey
    object_sha256: Sha256
    limits: RowLimits
    """What it asks of a problem."""
    is_fallback: bool

    @staticmethod
    def of(kernel: RowKernel, *, is_fallback: bool) -> TunedRowKernel:
        """Return what measuring must know of a compiled kernel."""
        return TunedRowKernel(kernel.key, kernel.object_sha256, kernel.limits, is_fallback)

    @property
    def name(self) -> str:
        """Return the kernel's name in the library."""
        return self.key.name

    @property
    def is_reproducible(self) -> bool:
        """Return true: no kernel of these adds in order of arrival."""
        return True

    @property
    def tile_order(self) -> int:
        """Return the only order."""
        return HEURISTIC

    def takes(self, problem: object) -> bool:
        """Say whether the kernel is to be timed on the problem, with packed operands."""
        if self.is_fallback or not isinstance(problem, RowProblem) or problem.operation != self.key.operation:
            return False
        return takes_packed(self.limits, problem)

    def in_order(self, tile_order: int) -> TunedRowKernel:
        """Return the kernel: it takes rows in the order that there is."""
        del tile_order
        return self

    def other_orders(self, problem: RowProblem, num_ctas: float) -> list[int]:
        """Return none."""
        del problem, num_ctas
        return []


def takes_packed(limits: RowLimits, problem: RowProblem) -> bool:
    """Say whether a kernel takes a problem's packed operands.

    Half of a head is rotated with the other half: a kernel of vectors takes whole ones of each.
    """
    step = 2 if problem.operation.is_rotary else 1
    return limits.takes(problem.cols) and problem.cols % (step * limits.cols_multiple) == 0
