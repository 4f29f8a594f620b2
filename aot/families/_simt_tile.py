"""The tile of the fallback kernel."""

from __future__ import annotations

from aot.core.element import ElementType

TILE = 64
"""Rows and columns of D that a block computes, a 4 by 4 square to a thread."""

TILE_K = 32
"""Elements of k staged at once: 64 bytes of a k-major row, two sectors, read by 32 neighbouring threads."""

NUM_THREADS = 256

PAD = 4
"""Floats added to a row of the staged tile, so that neighbouring k fall into other shared-memory banks while a
thread's four values stay 16-byte aligned."""

SMEM_BYTES = 2 * ElementType.FLOAT32.size_of(TILE_K * (TILE + PAD))
