"""The TMA boxes in which a partial tile may be loaded."""

from __future__ import annotations

BOX_ROWS = (8, *range(16, 128, 16), *range(128, 257, 32))
"""Rows of the boxes in which a partial tile may be loaded. Source: measured on an H200, 2026-11-20: steps of 8 were no
faster than 16; steps of 32 below 128 rows were slower, by up to a quarter with 64x128 tiles. Each size is a descriptor
that the host writes at every launch. All are multiples of the 8 rows after which the layout of a k-major stage repeats
(PTX ISA, 128-byte swizzling) and at most the 256 of a box (CUDA driver API, cuTensorMapEncodeTiled)."""


def box_rows(tile: int) -> tuple[int, ...]:
    """List the rows of the boxes in which a partial tile of `tile` rows may be loaded, ascending; never none.

    A tile of 8 rows is never partial in that sense: its own box is the least.
    """
    return tuple(rows for rows in BOX_ROWS if rows < tile) or BOX_ROWS[:1]
