"""Random operands: a few MiB made on the host, tiled over device memory at random offsets, and known to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.element import ElementType
from aot.core.numerics import decode, encode
from aot.core.operands import element_of
from aot.core.signature import Argument

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aot.core.numerics import Bits
    from aot.core.operation import Operation
    from aot.measure.gpu import Gpu

SOURCE_ELEMENTS = 16 << 20
"""Random elements made for each type: of 16 bits 32 MiB, about half a second of host time."""

BYTE_SHARE = 4
"""The same over those of 8-bit types, which take the host four times as long to round."""

SCALE_ELEMENTS = 1 << 16
"""Random scale factors made: as many as the rows of a large operand."""

OFFSET_BYTES = 16
"""Offsets are multiples of the 16 bytes of a device's widest load; more would let whole rows of A and of B coincide
often, each such pair giving one huge element of D."""

MAX_INT8 = 127
"""Largest magnitude of random int8, which is never 0, nor -128: what memory beside the operands holds."""

INT8_DEVIATION = math.sqrt((MAX_INT8 + 1) * (2 * MAX_INT8 + 1) / 6)
"""Root mean square of the whole numbers from 1 to 127; of the other types it is 1."""

SCALE_EXPONENT = 4.0
"""Scale factors lie between 2^-4 and 2^4, so that one of another row changes an element by half of it in the mean."""

TIMED_SCALE = 2.0**-4
"""What the factors of an operand are multiplied by where kernels are timed: sums of k = 2^16 still fit float16."""

SCALE_D = 1.25
"""The factor of D: not 1, which a kernel could leave away."""

NUM_EQUAL = 8
"""Elements of the pool that it comes from, which are all the same."""

SCALED = {Argument.SCALE_A: Argument.A, Argument.SCALE_B: Argument.B}
"""The operands that have factors, by the argument of those."""


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
    if dtype.num_bytes == 1:  # the least number in place of 0; of the wider types no element rounds to 0
        bits |= ((bits & np.uint8(0x7F)) == 0).astype(np.uint8)
    return bits


def draw_scales(rng: np.random.Generator, shape: int | tuple[int, ...], factor: float) -> Bits:
    """Draw float32 scale factors, each another, within SCALE_EXPONENT; all times a factor."""
    exponents = rng.uniform(-SCALE_EXPONENT, SCALE_EXPONENT, shape)
    return encode(ElementType.FLOAT32, (factor * np.exp2(exponents)).astype(np.float32))


@dataclass(frozen=True)
class Tiling:
    """What a stretch of device memory holds: element i is `source[offsets[i // chunk] + i % chunk]`."""

    dtype: ElementType
    source: Bits
    chunk: int
    offsets: NDArray[np.int64]

    def gather(self, positions: NDArray[np.int64]) -> Bits:
        """Return the elements at positions counted from the stretch's start."""
        bits: Bits = self.source[self.offsets[positions // self.chunk] + positions % self.chunk]
        return bits

    def values(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the elements stand for."""
        return decode(self.dtype, self.gather(positions))


class RandomPool:
    """Random elements of one kind, on the host and on the device.

    Each chunk of a tiled stretch starts at another random offset, so that no two rows of an operand are equal and a
    kernel that reads the wrong one is found.
    """

    def __init__(self, gpu: Gpu, dtype: ElementType, rng: np.random.Generator, source: Bits) -> None:
        self._gpu = gpu
        self._rng = rng
        self._dtype = dtype
        self.source = source
        self._address = gpu.alloc(self.source.nbytes)
        gpu.upload(self._address, self.source)

    def tile(self, address: int, num_elements: int) -> Tiling:
        """Fill device memory with random elements, in stream order, and tell what went where."""
        chunk, size = len(self.source) // 2, self._dtype.num_bytes
        step, num_chunks = OFFSET_BYTES // size, -(-num_elements // chunk)
        offsets = self._rng.integers(0, chunk // step, num_chunks, dtype=np.int64) * step
        for i, offset in enumerate(offsets.tolist()):
            count = min(chunk, num_elements - i * chunk)
            self._gpu.copy(address + i * chunk * size, self._address + offset * size, count * size)
        return Tiling(self._dtype, self.source, chunk, offsets)


class RandomPools:
    """The pools of all kinds that problems need, each made when it is first asked for.

    Args:
        gpu: the device.
        rng: draws the elements.
        num_elements: of each pool at most.
    """

    def __init__(self, gpu: Gpu, rng: np.random.Generator, num_elements: int = SOURCE_ELEMENTS) -> None:
        self._gpu, self._rng, self._num_elements = gpu, rng, num_elements
        self._pools: dict[tuple[str, ElementType], RandomPool] = {}

    def of(self, operation: Operation, argument: Argument) -> RandomPool:
        """Return the pool of an operand: of its type, or of factors for operands of the type that it scales."""
        dtype = element_of(operation, argument)
        if argument in SCALED:
            scaled = element_of(operation, SCALED[argument])
            return self._get("scales", scaled, dtype, lambda: self._draw_scales(scaled))
        if argument is Argument.SCALE_D:
            return self._get("scale_d", dtype, dtype, lambda: encode(dtype, np.full(NUM_EQUAL, SCALE_D, np.float32)))
        return self._get("elements", dtype, dtype, lambda: self._draw(dtype))

    def _draw(self, dtype: ElementType) -> Bits:
        return draw(dtype, self._rng, self._num_elements // (BYTE_SHARE if dtype.num_bytes == 1 else 1))

    def _draw_scales(self, scaled: ElementType) -> Bits:
        return draw_scales(self._rng, min(SCALE_ELEMENTS, self._num_elements), TIMED_SCALE / deviation(scaled))

    def _get(self, kind: str, of: ElementType, dtype: ElementType, make: Callable[[], Bits]) -> RandomPool:
        if (kind, of) not in self._pools:
            self._pools[kind, of] = RandomPool(self._gpu, dtype, self._rng, make())
        return self._pools[kind, of]
