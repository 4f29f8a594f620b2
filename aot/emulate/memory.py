"""Memories of the simulated device: guarded allocations of global memory, and the shared memory of a CTA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.order import Agent, Shadow, bits_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Addresses = NDArray[np.uint64]

FIRST_ADDRESS = 0x6000_0000_0000
"""Where allocations begin: below 2^47, as the addresses of a 64-bit process do."""
ALIGNMENT = 256
"""Of an allocation. Source: CUDA C++ Programming Guide, "Device Memory Accesses"."""
DISTANCE = 1 << 28
"""Bytes from one allocation's end to the next one's start at the least, so that no stray access meets a neighbour."""

SHARED_START = 1024
"""Bytes at the start of shared memory that the system keeps. Source: CUDA C++ Programming Guide, compute capability
9.x."""
RANK_SHIFT = 24
"""Where a shared::cluster address has the CTA's rank: inferred; only mapa and a kernel's own masks see it."""
OFFSET_MASK = (1 << RANK_SHIFT) - 1
SHARED_WINDOW = 0x7FFF_0000_0000
"""The generic address of shared memory: inferred; only cvta sees it."""
PARAMETER_WINDOW = 0x7EEE_0000_0000
"""The generic address of the parameters: inferred; only cvta.param sees it."""
MAX_PARAMETER_BYTES = 32764
"""Of a launch. Source: CUDA C++ Programming Guide, "Function Parameters"."""
WORD = 4
"""Bytes of a cell whose accesses are ordered, in shared memory."""
FILL = 0xFF
"""Of shared memory that nothing has written, and that a copy under way will write: NaN in every format of 16 bits and
more."""


def is_parameter(address: int) -> bool:
    """Say whether a generic address is that of a parameter."""
    return PARAMETER_WINDOW <= address < PARAMETER_WINDOW + MAX_PARAMETER_BYTES


@dataclass(eq=False)
class Allocation:
    """A buffer of global memory."""

    name: str
    start: int
    content: Bytes
    writable: bool
    shadow: Shadow | None = None

    @property
    def end(self) -> int:
        """Return the first address behind it."""
        return self.start + self.content.size


class GlobalMemory:
    """Allocations at made-up addresses; whatever lies outside of them is a fault."""

    def __init__(self) -> None:
        self._allocations: list[Allocation] = []
        self._next = FIRST_ADDRESS

    def allocate(self, num_bytes: int, name: str, *, writable: bool = True) -> int:
        """Make a buffer that ends where it is said to end; return its address."""
        found = Allocation(name, self._next, np.full(num_bytes, FILL, np.uint8), writable)
        self._allocations.append(found)
        self._next = -(-(found.end + DISTANCE) // ALIGNMENT) * ALIGNMENT
        return found.start

    def free(self, address: int) -> None:
        """Take a buffer away."""
        self._allocations.remove(self._starting(address))

    def _starting(self, address: int) -> Allocation:
        found = next((x for x in self._allocations if x.start == address), None)
        if found is None:
            raise Fault(FaultKind.ADDRESS, f"no allocation starts at {address:#x}")
        return found

    def view(self, address: int, num_bytes: int) -> Bytes:
        """Return bytes of an allocation, which stay those of the memory."""
        found = self.find(address, address + num_bytes, "the host")
        return found.content[address - found.start : address - found.start + num_bytes]

    def protect(self, address: int, *, writable: bool) -> None:
        """Say whether a kernel may write a buffer."""
        self._starting(address).writable = writable

    def allocations(self) -> tuple[Allocation, ...]:
        """List the buffers."""
        return tuple(self._allocations)

    def find(self, low: int, high: int, where: str) -> Allocation:
        """Return the allocation that holds [low, high).

        Raises:
            Fault: there is none.
        """
        for found in self._allocations:
            if found.start <= low and high <= found.end:
                return found
        near = min(self._allocations, key=lambda x: min(abs(x.start - low), abs(x.end - low)), default=None)
        text = f"{where}: bytes {low:#x} to {high:#x} are in no allocation"
        if near is not None:
            text += f"; the nearest is {near.name}, {near.start:#x} to {near.end:#x}"
        raise Fault(FaultKind.ADDRESS, text)

    def _places(self, addresses: Addresses, size: int, where: str) -> list[tuple[Allocation, NDArray[np.int64], Any]]:
        """Return allocation, offsets of bytes (n, size) and the lanes that they are of."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        for found in self._allocations:
            if found.start <= low and high <= found.end:
                first = (addresses - np.uint64(found.start)).astype(np.int64)
                return [(found, first[:, None] + np.arange(size), slice(None))]
        places = []
        for i, x in enumerate(addresses):
            found = self.find(int(x), int(x) + size, where)
            places.append((found, np.array([[int(x) - found.start]]) + np.arange(size), slice(i, i + 1)))
        return places

    def read(self, agent: Agent, addresses: Addresses, size: int) -> Bytes:
        """Read `size` bytes at each address: (n, size) bytes."""
        found = np.empty((addresses.size, size), np.uint8)
        if addresses.size:
            for allocation, places, lanes in self._places(addresses, size, agent.where):
                if allocation.shadow is not None:
                    allocation.shadow.read(agent, places.reshape(-1))
                found[lanes] = allocation.content[places]
        return found

    def note_read(self, agent: Agent, address: int, size: int) -> Bytes:
        """Take note of an operation's read that may happen at any time from now on; return what it will read, live."""
        found = self.find(address, address + size, agent.where)
        low = address - found.start
        if found.shadow is not None:
            found.shadow.read(agent, slice(low, low + size))
        return found.content[low : low + size]

    def note_strong(self, agent: Agent, addresses: Addresses, size: int, *, is_write: bool) -> None:
        """Take note of atomic or strong accesses of `size` bytes at each address."""
        for allocation, places, _ in self._places(addresses, size, agent.where):
            if allocation.shadow is not None:
                allocation.shadow.strong(agent, places.reshape(-1), is_write=is_write)

    def write(self, agent: Agent, addresses: Addresses, data: Bytes) -> None:
        """Write (n, size) bytes at n addresses; where two are equal, the later row stays."""
        if not addresses.size:
            return
        for allocation, places, lanes in self._places(addresses, data.shape[1], agent.where):
            if not allocation.writable:
                raise Fault(FaultKind.READ_ONLY, f"{agent.where}: writes {allocation.name}")
            if allocation.shadow is not None:
                allocation.shadow.write(agent, places.reshape(-1))
            allocation.content[places] = data[lanes]


class SharedMemory:
    """The shared memory of one CTA, its accesses ordered by words."""

    def __init__(self, rank: int, num_bytes: int, shadow: Shadow) -> None:
        self.rank, self.num_bytes, self.shadow = rank, num_bytes, shadow
        self.content = np.full(-(-num_bytes // 16) * 16, FILL, np.uint8)

    def offsets(self, addresses: NDArray[Any], size: int, where: str) -> NDArray[np.int64]:
        """Turn shared addresses of this CTA into offsets.

        Raises:
            Fault: one is outside, or not a multiple of `size`, up to 16.
        """
        found = (addresses & OFFSET_MASK).astype(np.int64) - SHARED_START
        if found.size and (found.min() < 0 or found.max() + size > self.num_bytes):
            low, high = int(found.min()), int(found.max()) + size
            text = f"{where}: shared memory from {low:#x} to {high:#x} of {self.num_bytes} bytes"
            raise Fault(FaultKind.ADDRESS, text)
        if found.size and (found % min(size & -size, 16)).any():
            raise Fault(
                FaultKind.ALIGNMENT, f"{where}: shared address {int(addresses[0]):#x}; expected a multiple of {size}"
            )
        return found

    def _cells(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        if size <= WORD:
            return offsets // WORD
        return (offsets[:, None] // WORD + np.arange(size // WORD)).reshape(-1)

    def read(self, agent: Agent, offsets: NDArray[np.int64], size: int) -> Bytes:
        """Read `size` bytes at each offset: (n, size) bytes."""
        self.shadow.read(agent, self._cells(offsets, size))
        found: Bytes = self.content[offsets[:, None] + np.arange(size)]
        return found

    def write(self, agent: Agent, offsets: NDArray[np.int64], data: Bytes) -> None:
        """Write (n, size) bytes at n offsets."""
        self.shadow.write(agent, self._cells(offsets, data.shape[1]))
        self.content[offsets[:, None] + np.arange(data.shape[1])] = data


def chunk_cells(chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64] | slice, int]:
    """Return the cells of 16-byte chunks of shared memory, by number, and the same as bits; both may be cached."""
    low, high = int(chunks.min()), int(chunks.max())
    if high - low + 1 == np.unique(chunks).size:
        cells: NDArray[np.int64] | slice = slice(4 * low, 4 * high + 4)
    else:
        cells = (4 * np.unique(chunks)[:, None] + np.arange(4)).reshape(-1)
    return cells, bits_of(cells)
