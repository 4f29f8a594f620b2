"""How the rows of operands lie to the sectors of the L2, which changes which kernel is the fastest. Pure.

TMA takes rows that begin at multiples of 16 bytes, and the L2 gives sectors of 32. A box of rows that begin at odd
multiples of 16 would read a sector more of each: that is supposed, not profiled. On an H200, of FP8 with m above
255, tiles of 128 columns and more that no CTA of a cluster shares take 1.27 to 1.36 times as long as the best kernel
there, and 1.06 to 1.13 times where rows begin at multiples of 32; tiles that two CTAs share 1.06 to 1.14 times in both
(research/log/2026-11-29-fewer-features.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aot.core.alignment import begins_between_sectors
from aot.core.element import BYTE_BITS
from aot.core.formats import ALIGNMENT_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.element import ElementType
    from aot.core.formats import Operand
    from aot.core.problem import Problem
    from aot.space.cost_operands import Sizes

    Array = NDArray[np.float64]

MOST_BYTES = 64
"""Bytes beyond which a multiple says no more: two sectors. An assumption."""


def _alignment(extent: Array, element: ElementType) -> Array:
    """Return the logarithm of the bytes, at most MOST_BYTES, of which rows of an extent begin at multiples."""
    num_bytes = extent.astype(np.int64) * element.bits // BYTE_BITS
    found: Array = np.log2(np.clip(num_bytes & -num_bytes, 1, MOST_BYTES))
    return found


def run_alignments(sizes: Sizes) -> tuple[Array, Array]:
    """Return of packed operands (problem, 1) logarithms of bytes: the lesser of A's and B's rows, and D's.

    Of a packed weight, whose layout is its own, nothing is said, nor of a single row, which begins where A does.
    """
    a, b = sizes.operation.a, sizes.operation.b
    rows = _alignment(sizes.k if a.is_k_major else sizes.m, a.element)
    loaded = [np.where((sizes.m > 1) | (not a.is_k_major), rows, np.log2(MOST_BYTES))]
    if b.weight is None:
        loaded.append(_alignment(sizes.k if b.is_k_major else sizes.n, b.element))
    return np.minimum.reduce(loaded), _alignment(sizes.n, sizes.operation.d)


def beside(problem: Problem) -> Problem:
    """Return the problem next below whose rows of A or B begin between two sectors: itself where they do.

    Args:
        problem: one of an upper edge, of an operation that has such rows (`has_sections_between_sectors`). An extent of
            one step of 16 bytes, or less, stays.
    """
    if begins_between_sectors(problem):
        return problem
    a, b = problem.operation.a, problem.operation.b

    def lowered(extent: int, *operands: Operand) -> int:
        step = max((x.element.num_in(ALIGNMENT_BYTES) for x in operands), default=0)
        return extent - step if step < extent else extent

    m = lowered(problem.m, *(x for x in (a,) if not x.is_k_major))
    n = lowered(problem.n, *(x for x in (b,) if not x.is_k_major))
    return replace(problem, m=m, n=n, k=lowered(problem.k, *(x for x in (a, b) if x.is_k_major)))
