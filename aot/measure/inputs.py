"""Random operands: a few MiB made on the host, tiled over device memory at random offsets, and known to the host."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from aot.core.numerics import pack
from aot.kinds.inputs import Tiling

if TYPE_CHECKING:
    from aot.core.element import ElementType
    from aot.core.numerics import Bits
    from aot.kinds.inputs import Content
    from aot.measure.gpu import Gpu

SOURCE_ELEMENTS = 16 << 20
"""Random elements made for each type: of 16 bits 32 MiB, about half a second of host time."""

OFFSET_BYTES = 16
"""Offsets are multiples of the 16 bytes of a device's widest load; more would let whole rows of A and of B coincide
often, each such pair giving one huge element of D."""


class RandomPool:
    """Random elements of one kind, on the host and on the device.

    Each chunk of a tiled stretch starts at another random offset, so that no two rows of an operand are equal and a
    kernel that reads the wrong one is found. What belongs together, `run` elements, stays so.
    """

    def __init__(self, gpu: Gpu, dtype: ElementType, rng: np.random.Generator, source: Bits, run: int = 1) -> None:
        self._gpu = gpu
        self._rng = rng
        self._dtype, self._run = dtype, run
        self.source = source
        stored = pack(source) if dtype.num_sharing > 1 else source
        self._address = gpu.alloc(stored.nbytes)
        gpu.upload(self._address, stored)

    def close(self) -> None:
        """Free the elements on the device."""
        self._gpu.free(self._address)

    def tile(self, address: int, num_elements: int) -> Tiling:
        """Fill device memory with random elements, in stream order, and tell what went where."""
        chunk, size_of = len(self.source) // 2 // self._run * self._run, self._dtype.size_of
        step, num_chunks = lcm(self._dtype.num_in(OFFSET_BYTES), self._run), -(-num_elements // chunk)
        offsets = self._rng.integers(0, chunk // step, num_chunks, dtype=np.int64) * step
        for i, offset in enumerate(offsets.tolist()):
            count = min(chunk, num_elements - i * chunk)
            self._gpu.copy(address + size_of(i * chunk), self._address + size_of(offset), size_of(count))
        return Tiling(self._dtype, self.source, chunk, offsets)


class RandomPools:
    """The pools of all contents that problems need, each made when it is first asked for.

    Args:
        gpu: the device.
        rng: draws the elements.
        num_elements: of each pool at most.
    """

    def __init__(self, gpu: Gpu, rng: np.random.Generator, num_elements: int = SOURCE_ELEMENTS) -> None:
        self._gpu, self._rng, self._num_elements = gpu, rng, num_elements
        self._pools: dict[Content, RandomPool] = {}

    def of(self, content: Content) -> RandomPool:
        """Return the pool of what an operand holds."""
        if content not in self._pools:
            source = content.draw(self._rng, self._num_elements)
            self._pools[content] = RandomPool(self._gpu, content.element, self._rng, source, content.run)
        return self._pools[content]

    def close(self) -> None:
        """Free all pools."""
        for pool in self._pools.values():
            pool.close()
        self._pools = {}
