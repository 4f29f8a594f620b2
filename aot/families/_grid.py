"""Grids of kernels that launch a cluster for each tile, all along x. Imports CUTLASS."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64

TOO_MANY = 2**32 - 1
"""Blocks along x that no launch takes. Source: CUDA C++ Programming Guide, technical specifications: 2^31 - 1."""


def along_x(*counts: Any) -> tuple[Any, int, int]:
    """Return the grid of a product of tile and CTA counts; to be called while tracing.

    The product is taken in 64 bits: in 32 it could wrap, and fewer blocks would be launched than there are tiles. Where
    it is past what CUDA launches, x is 2^32 - 1, which the launch refuses.
    """
    blocks = Int64(1)
    for count in counts:
        blocks *= Int64(count)
    return Int32(cutlass.min(blocks, Int64(TOO_MANY))), 1, 1
