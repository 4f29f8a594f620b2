"""What is to be computed: an operation and its sizes."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.constraints import Extent
from aot.core.operation import Operation


@dataclass(frozen=True, order=True)
class Problem:
    """One GEMM: an operation and its sizes in elements."""

    operation: Operation
    m: Extent
    n: Extent
    k: Extent

    @property
    def flops(self) -> int:
        """Count the operations of the product, a multiply and an add each; with a gate, of both halves of B."""
        return 2 * self.m * self.operation.num_rows_of_b(self.n) * self.k

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move."""
        return self.operation.num_bytes(self.m, self.n, self.k)

    @property
    def name(self) -> str:
        """Return the name used in tables and messages, such as `bf16_kk m1 n4096 k4096`."""
        return f"{self.operation.tag} m{self.m} n{self.n} k{self.k}"
