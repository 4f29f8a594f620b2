"""The order in which the linker gets kernels: those whose code is alike side by side, so that a wheel deflates well.

Deflate looks back 32 KiB (RFC 1951), which is one or two kernels. The images of the default wheel of an H200, 858, take
2.83 MB by zlib in the order of their names and 2.34 MB in this one (research/log/2026-11-30-wheel-size.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_STEP_BYTES = 8
"""Objects align the device's image to that, and no less."""

_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd and large, so that words that differ seldom have one sum; where they have, it costs bytes alone. Source: the
64-bit golden ratio, and the second prime of xxHash."""

_COMMON = 8
"""Words that more than one in so many objects have tell little apart, and would take most of the time: with them, and
with those of one in 2, 4, 20 and 50 objects left out, those images take 2.33 to 2.35 MB."""


def _words(content: bytes) -> NDArray[np.uint64]:
    """Return a number for each 16 bytes, as long as an instruction of the device is, at every eighth byte, once."""
    parts = np.frombuffer(content, "<u8", len(content) // _STEP_BYTES)
    return np.unique(parts[:-1] * _FACTORS[0] + parts[1:] * _FACTORS[1])


def _likenesses(contents: list[bytes]) -> NDArray[np.float32]:
    """Return the share of the words of two that both have (Jaccard's index), of each pair."""
    from scipy.sparse import csr_array

    words = [_words(x) for x in contents]
    known, columns, counts = np.unique(np.concatenate(words), return_inverse=True, return_counts=True)
    rows = np.repeat(np.arange(len(words)), [len(x) for x in words])
    tells = counts[columns] <= max(2, len(words) // _COMMON)
    ones = np.ones(int(tells.sum()), np.float32)
    has = csr_array((ones, (rows[tells], columns[tells])), shape=(len(words), len(known)))
    common = (has @ has.T).toarray()
    sizes = common.diagonal()
    likenesses: NDArray[np.float32] = common / np.maximum(sizes[:, None] + sizes - common, 1)
    return likenesses


def link_order(objects: Mapping[str, bytes]) -> list[str]:
    """Order objects so that each is followed by the one that is most like it of those that are left.

    Args:
        objects: their bytes, by name.

    Returns:
        The names; equal objects of equal names give an equal order.
    """
    names = sorted(objects)
    if not names:
        return []
    likenesses = _likenesses([objects[x] for x in names])
    is_left = np.ones(len(names), bool)
    order = [0]
    while len(order) < len(names):
        is_left[order[-1]] = False
        order.append(int(np.where(is_left, likenesses[order[-1]], -1).argmax()))
    return [names[i] for i in order]
