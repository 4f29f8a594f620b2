"""The tile of the fallback kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.element import ElementType

if TYPE_CHECKING:
    from aot.core.operation import Operation

TILE = 64
"""Rows and columns of D that a block computes, a 4 by 4 square to a thread."""

TILE_K = 32
"""Elements of k staged at once: 64 bytes of a k-major row of 16 bits, two sectors, read by 32 neighbouring threads. It
divides a block of scale factors."""

NUM_THREADS = 256

PAD = 4
"""Elements added to a row of the staged tile, so that neighbouring k fall into other shared-memory banks while a
thread's four values stay 16-byte aligned."""


def num_halves(operation: Operation) -> int:
    """Return how many products a tile of D needs: with a gate those of the gate's rows of B and of the linear ones."""
    return operation.num_rows_of_b(1)


def smem_bytes(operation: Operation) -> int:
    """Count the bytes of the staged tiles of A and of each half of B, widened to the accumulator's 32 bits."""
    return (1 + num_halves(operation)) * ElementType.FLOAT32.size_of(TILE_K * (TILE + PAD))
