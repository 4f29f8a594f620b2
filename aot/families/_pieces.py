"""Pieces of 16 bytes of elements of 16 bits, and one that is taken out of two. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute

from aot.families._mma_sync_tile import ITEM_BYTES

SEGMENT = 8
"""Elements of a piece; `ldmatrix` reads as many rows of a matrix, and as many elements of each. Source: PTX ISA."""

SEGMENT_BYTES = SEGMENT * ITEM_BYTES


def words_at(stage: cute.Tensor, offset: Int32) -> Any:
    """View 16 bytes of a stage as four 32-bit words; to be called while tracing."""
    start = stage.iterator + cute.assume(offset, divby=SEGMENT)
    pointer = cute.recast_ptr(start.align(SEGMENT_BYTES), dtype=Uint32)
    return cute.make_tensor(pointer, cute.make_layout(4))


def by_words(words: list[Any], shift: Any) -> list[Any]:
    """Return words of which the first has the `shift`-th of their elements, of 0 to 7; to be called while tracing."""
    for step in (2, 1):  # words
        is_far = shift // 2 // step % 2 == 1
        words = [
            cutlass.select_(is_far, words[i + step], words[i]) if i + step < len(words) else words[i]
            for i in range(len(words))
        ]
    return words


def shifted(words: list[Any], begin: Any) -> Any:
    """Take the 16 bytes that are a row's out of 32, as a tensor of 4 words; to be called while tracing.

    Args:
        words: 8 words, of a piece from the aligned address in front of where the row's begins, and of the one behind.
        begin: that address, or its last bits.
    """
    shift = (begin & (SEGMENT_BYTES - 1)) // ITEM_BYTES
    words = by_words(words, shift)
    found = cute.make_rmem_tensor(4, Uint32)
    for i in range(4):
        found[i] = cute.arch.shf(Uint32(words[i]), Uint32(words[i + 1]), shift % 2 * 16, "r")
    return found
