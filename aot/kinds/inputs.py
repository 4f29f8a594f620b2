"""What operands hold: random elements of each type, and where in device memory which of them lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from aot.core.element import BYTE_BITS, ElementType
from aot.core.numerics import bits_type, decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.numerics import Bits

BYTE_SHARE = 4
"""Random elements made, over those of 8-bit types, which take the host four times as long to round."""

MAX_INT8 = 127
"""Largest magnitude of random int8, which is never 0, nor -128: what memory beside the operands holds."""

INT8_DEVIATION = math.sqrt((MAX_INT8 + 1) * (2 * MAX_INT8 + 1) / 6)
"""Root mean square of the whole numbers from 1 to 127; of the other types it is 1."""


def deviation(dtype: ElementType) -> float:
    """Return the root mean square of random elements of a type."""
    return INT8_DEVIATION if dtype is ElementType.INT8 else 1.0


def draw(dtype: ElementType, rng: np.random.Generator, shape: int | tuple[int, ...], spread: float = 1.0) -> Bits:
    """Draw elements: of a normal distribution of a standard deviation, or whole numbers of all magnitudes alike.

    No element is 0, whose products run faster than those of data do and show no error. TFLOAT32 has elements that the
    tensor cores read as they are.
    """
    if dtype is ElementType.INT8:
        magnitude = rng.integers(1, MAX_INT8 + 1, shape)
        return np.where(rng.integers(0, 2, shape) == 1, magnitude, -magnitude).astype(np.int8).view(np.uint8)
    bits = encode(dtype, rng.standard_normal(shape, dtype=np.float32) * np.float32(spread))
    if dtype.bits <= BYTE_BITS:  # the least number in place of 0; of the wider types no element rounds to 0
        bits |= ((bits & np.uint8((1 << (dtype.bits - 1)) - 1)) == 0).astype(np.uint8)
    return bits


def pick(rng: np.random.Generator, extent: int, count: int) -> NDArray[np.int64]:
    """Choose `count` different indices, sorted, the first and the last among them."""
    if count >= extent:
        return np.arange(extent, dtype=np.int64)
    inner = rng.choice(np.arange(1, extent - 1), max(count - 2, 0), replace=False)
    return np.sort(np.concatenate(([0, extent - 1], inner))).astype(np.int64)


def draw_index(num_rows: int, rows_of_x: int, rng: np.random.Generator, *, has_missing: bool) -> NDArray[np.int64]:
    """Draw the row of A, or of X, that each row is, in no order and some of them several times.

    Args:
        num_rows: of the index.
        rows_of_x: from which it draws.
        rng: draws.
        has_missing: whether the second row is -1, and the third one past the last.
    """
    index = rng.integers(0, rows_of_x, num_rows, dtype=np.int64)
    if has_missing:
        index[1:2], index[2:3] = -1, rows_of_x
    return index


def as_bits(positions: NDArray[np.int64]) -> Bits:
    """Return positions as int32 lie in memory."""
    return positions.astype(np.int32).view(bits_type(ElementType.INT32))


class Content(Protocol):
    """What operands hold whose elements are drawn; operands of equal contents share what was drawn."""

    @property
    def element(self) -> ElementType:
        """Return the type of the elements."""

    @property
    def run(self) -> int:
        """Return the elements that belong together, as a block of a packed weight; 1 where each stands alone."""

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Draw as many elements as are needed, and at most about `num_elements`, for an operand of any size."""


@dataclass(frozen=True)
class Elements:
    """Random elements; satisfies `Content`."""

    element: ElementType
    run: int = 1
    spread: float = 1.0
    """Their standard deviation."""

    def draw(self, rng: np.random.Generator, num_elements: int) -> Bits:
        """Draw them."""
        count = num_elements // (BYTE_SHARE if self.element.bits <= BYTE_BITS else 1)
        return draw(self.element, rng, count, self.spread)


@dataclass(frozen=True)
class Tiling:
    """What a stretch of device memory holds: element i is `source[offsets[i // chunk] + i % chunk]`."""

    dtype: ElementType
    source: Bits
    chunk: int
    offsets: NDArray[np.int64]

    @staticmethod
    def of(dtype: ElementType, bits: Bits) -> Tiling:
        """Return the tiling of a stretch that holds some elements, once."""
        return Tiling(dtype, bits, len(bits), np.zeros(1, np.int64))

    def gather(self, positions: NDArray[np.int64]) -> Bits:
        """Return the elements at positions counted from the stretch's start."""
        bits: Bits = self.source[self.offsets[positions // self.chunk] + positions % self.chunk]
        return bits

    def values(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the elements stand for."""
        return decode(self.dtype, self.gather(positions))
