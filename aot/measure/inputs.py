"""Random operands: a few MiB made on the host, tiled over device memory at random offsets, and known to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.numerics import encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from aot.core.element import ElementType
    from aot.core.numerics import Bits
    from aot.measure.gpu import Gpu

SOURCE_ELEMENTS = 16 << 20
"""Random elements made for each type: 32 MiB, about half a second of host time."""

OFFSET_STEP = 8
"""Offsets are multiples of 8 elements, the 16 bytes of a device's widest load; more would let whole rows of A and of B
coincide often, each such pair giving one huge element of D."""


@dataclass(frozen=True)
class Tiling:
    """What a stretch of device memory holds: element i is `source[offsets[i // chunk] + i % chunk]`."""

    source: Bits
    chunk: int
    offsets: NDArray[np.int64]

    def gather(self, positions: NDArray[np.int64]) -> Bits:
        """Return the elements at positions counted from the stretch's start."""
        bits: Bits = self.source[self.offsets[positions // self.chunk] + positions % self.chunk]
        return bits


class RandomPool:
    """Standard normal values of one type, on the host and on the device.

    Each chunk of a tiled stretch starts at another random offset, so that no two rows of an operand are equal and a
    kernel that reads the wrong one is found. The values are never zeros, which run faster than data does.
    """

    def __init__(
        self, gpu: Gpu, dtype: ElementType, rng: np.random.Generator, num_elements: int = SOURCE_ELEMENTS
    ) -> None:
        self._gpu = gpu
        self._rng = rng
        self._num_bytes = dtype.num_bytes
        self.source = encode(dtype, rng.standard_normal(num_elements, dtype=np.float32))
        self._address = gpu.alloc(self.source.nbytes)
        gpu.upload(self._address, self.source)

    def tile(self, address: int, num_elements: int) -> Tiling:
        """Fill device memory with random elements, in stream order, and tell what went where."""
        chunk = len(self.source) // 2
        num_chunks, size = -(-num_elements // chunk), self._num_bytes
        offsets = self._rng.integers(0, chunk // OFFSET_STEP, num_chunks, dtype=np.int64) * OFFSET_STEP
        for i, offset in enumerate(offsets.tolist()):
            count = min(chunk, num_elements - i * chunk)
            self._gpu.copy(address + i * chunk * size, self._address + offset * size, count * size)
        return Tiling(self.source, chunk, offsets)
