"""The tensor memory of an SM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.order import Shadow
from aot.emulate.wait_queue import WaitQueue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.emulate.device import Device

TENSOR_LANES, TENSOR_COLUMNS = 128, 512
"""Tensor memory of an SM, of 32 bits each. Source: PTX ISA, "Tensor Memory Addressing"."""
TENSOR_POISON = 0x7FC0DEAD
"""A NaN that shows where nothing was written."""
TENSOR_GROUP_LANES = 16
"""Lanes that are ordered as one, in each column: accumulators of 64 rows have 16 of each warp's 32."""


class TensorMemory:
    """128 lanes of 512 columns of 32 bits; which columns are allocated, and whether more may be."""

    def __init__(self, device: Device) -> None:
        self.words = np.full((TENSOR_LANES, TENSOR_COLUMNS), TENSOR_POISON, np.uint32)
        self.allocated = np.zeros(TENSOR_COLUMNS, bool)
        self.may_allocate = True
        self.queue = WaitQueue()
        self.shadow = Shadow(
            TENSOR_LANES // TENSOR_GROUP_LANES * TENSOR_COLUMNS,
            device.operations.agents,
            device.report,
            has_proxies=False,
        )

    @staticmethod
    def cells(first_lane: int, num_lanes: int, column: int, num_columns: int) -> NDArray[np.int64]:
        """Return the cells of lanes and columns, by number."""
        groups = np.arange(first_lane // TENSOR_GROUP_LANES, -(-(first_lane + num_lanes) // TENSOR_GROUP_LANES))
        return (groups[:, None] * TENSOR_COLUMNS + np.arange(column, column + num_columns)).reshape(-1)

    def check_allocated(self, column: int, num_columns: int, where: str) -> None:
        """Fault where columns are not allocated."""
        end = column + num_columns
        if end > TENSOR_COLUMNS or not self.allocated[column:end].all():
            raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: columns {column} to {end} are not allocated")
