"""How the rows of operands lie to the sectors of the L2, which changes which kernel is the fastest. Pure.

TMA takes rows that begin at multiples of 16 bytes, and the L2 gives sectors of 32. A box of rows that begin at odd
multiples of 16 would read a sector more of each: that is supposed, not profiled. On an H200, of FP8 with m above
255, tiles of 128 columns and more that no CTA of a cluster shares take 1.27 to 1.36 times as long as the best kernel
there, and 1.06 to 1.13 times where rows begin at multiples of 32; tiles that two CTAs share 1.06 to 1.14 times in both
(research/log/2026-11-29-fewer-features.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import BYTE_BITS
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.grouping import Grouping
from aot.core.operation import Operation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.element import ElementType
    from aot.space.cost_operands import Sizes

    Array = NDArray[np.float64]

MOST_BYTES = 64
"""Bytes beyond which a multiple says no more: two sectors. An assumption."""

BETWEEN_SHARE = 0.25
"""Part that rows between two sectors have in what a cell's kernel is chosen by: an assumption, of how many products
have such. Source of what it does: with a third of the (n, k) of an H200's record of FP8 left out, a cell's kernel by
times of whole sectors alone loses 2.3% on such and 7.1% on others; by three quarters of these and a quarter of the
others' 2.4% and 3.8%; by half and half 2.8% both (research/log/2026-11-29-fewer-features.md)."""


def _alignment(extent: Array, element: ElementType) -> Array:
    """Return the logarithm of the bytes, at most MOST_BYTES, of which rows of an extent begin at multiples."""
    num_bytes = extent.astype(np.int64) * element.bits // BYTE_BITS
    found: Array = np.log2(np.clip(num_bytes & -num_bytes, 1, MOST_BYTES))
    return found


def run_alignments(sizes: Sizes) -> tuple[Array, Array]:
    """Return of packed operands (problem, 1) logarithms of bytes: the lesser of A's and B's rows, and D's.

    Of a packed weight, whose layout is its own, nothing is said.
    """
    a, b = sizes.operation.a, sizes.operation.b
    loaded = [_alignment(sizes.k if a.is_k_major else sizes.m, a.element)]
    if b.weight is None:
        loaded.append(_alignment(sizes.k if b.is_k_major else sizes.n, b.element))
    return np.minimum.reduce(loaded), _alignment(sizes.n, sizes.operation.d)


def between_sectors(operation: Operation, n: int, k: int) -> tuple[int, int] | None:
    """Return the n and k next below whose rows of A or B begin at odd multiples of 16 bytes; None where there are none.

    Args:
        operation: a product's; of batches, groups and packed weights nothing was tried.
        n: of an upper edge.
        k: likewise. Where rows of the edge are those that begin at odd multiples, the others are returned, so that
            both are looked at all the same.
    """
    a, b = operation.a, operation.b
    if operation.grouping is not Grouping.DENSE or b.weight is not None:
        return None
    step_k = max((x.element.num_in(ALIGNMENT_BYTES) for x in (a, b) if x.is_k_major), default=0)
    step_n = 0 if b.is_k_major else b.element.num_in(ALIGNMENT_BYTES)
    return (n - step_n, k - step_k) if n > step_n and k > step_k else None
