"""What is to be computed: an operation and its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.constraints import Extent
from aot.core.grouping import Grouping
from aot.core.operation import Operation


@dataclass(frozen=True, order=True)
class Problem:
    """One GEMM, a batch of them or groups: an operation and its sizes in elements.

    Of groups, m is the rows that are expected of one, or k its expected share of k: what there is over the number of
    groups, rounded up.
    """

    operation: Operation
    m: Extent
    n: Extent
    k: Extent
    num_groups: Extent = 1
    """Products of a batch, or groups; 1 where there is one product."""

    @property
    def flops(self) -> int:
        """Count the operations of the products, a multiply and an add each; with a gate, of both halves of B."""
        return 2 * self.m * self.operation.num_rows_of_b(self.n) * self.k * self.num_groups

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move."""
        return self.operation.num_bytes(self.m, self.n, self.k, self.num_groups)

    @property
    def name(self) -> str:
        """Return the name used in tables and messages, such as `bf16_kk m1 n4096 k4096`."""
        groups = "" if self.operation.grouping is Grouping.DENSE else f" g{self.num_groups}"
        return f"{self.operation.tag}{groups} m{self.m} n{self.n} k{self.k}"
