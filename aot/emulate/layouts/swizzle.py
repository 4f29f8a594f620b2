"""Exchange 16- or 32-byte chunks of shared memory as TMA, wgmma and tcgen05.mma do.

Every mode is tested against the swizzles that CuTe DSL gives its shared memory layouts.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]


class Swizzle(Enum):
    """How address bits are exchanged: (number of bits, lowest bit that changes, distance of the bits that change it).

    Source: PTX ISA, "Tensor swizzling modes"; CUTLASS, include/cute/atom/copy_traits_sm90_tma_swizzle.hpp, which names
    them Swizzle<bits, lowest, distance>.
    """

    NONE = (0, 4, 3)
    B32 = (1, 4, 3)
    B64 = (2, 4, 3)
    B128 = (3, 4, 3)
    B128_ATOM_32B = (2, 5, 2)
    """128 bytes in which pairs of 16-byte chunks stay together."""

    @property
    def span_bytes(self) -> int:
        """Return the bytes of a row within which chunks are exchanged: 16 where none are."""
        return 128 if self is Swizzle.B128_ATOM_32B else 16 << self.value[0]


def swizzle(addresses: Addresses, mode: Swizzle) -> Addresses:
    """Return the addresses at which the bytes of logical `addresses` lie.

    The hardware takes the bits of the address in shared memory, not of the offset in a tile. A tile that begins inside
    the repeating pattern (1024 bytes for 128-byte rows) is therefore exchanged by where it begins.

    Args:
        addresses: byte addresses in the shared memory window of a CTA, of any shape.
        mode: the swizzle of the descriptor.
    """
    num_bits, lowest, distance = mode.value
    if num_bits == 0:
        return addresses
    moved = ((1 << num_bits) - 1) << lowest
    return addresses ^ (addresses >> distance & moved)
