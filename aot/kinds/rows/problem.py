"""A problem of an operation on rows: the operation and its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from aot.core.constraints import Extent, Range
from aot.kinds.rows.catalogue import CataloguedRow
from aot.kinds.rows.operation import MAX_COLS


@dataclass(frozen=True, order=True)
class RowProblem:
    """One row operation and the sizes of Y. A rotary embedding has a row for each head of each token."""

    operation: CataloguedRow
    rows: Extent
    cols: Annotated[int, Range(1, MAX_COLS)]

    @property
    def num_bytes(self) -> int:
        """Count the fewest bytes that device memory must move, without a residual."""
        return self.operation.num_bytes(self.rows, self.cols)

    @property
    def flops(self) -> int:
        """Count the arithmetic, an exponential or a root as one: memory bounds every one of them."""
        return self.operation.flops_of_element * self.rows * self.cols

    @property
    def name(self) -> str:
        """Return the name used in tables and messages, such as `bf16_rms_norm rows 16 cols 4096`."""
        return f"{self.operation.tag} rows {self.rows} cols {self.cols}"
