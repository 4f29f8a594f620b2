"""A launch, as the host asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Extents: TypeAlias = tuple[int, int, int]

CLUSTER_DIMENSION, PROGRAMMATIC = 4, 6
"""Launch attributes. Source: CUDA driver API, CUlaunchAttributeID."""


@dataclass(frozen=True)
class Launch:
    """What the host asked for."""

    kernel: str
    grid: Extents
    block: Extents
    cluster: Extents
    smem_bytes: int
    """Dynamic shared memory of a CTA."""
    parameters: tuple[bytes, ...]
    attributes: dict[int, tuple[int, ...]]

    @property
    def is_programmatic(self) -> bool:
        """Say whether it may begin before the kernel in front of it has ended."""
        return bool(self.attributes.get(PROGRAMMATIC, (0,))[0])

    @property
    def num_ctas(self) -> int:
        """Return the number of CTAs."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps_per_cta(self) -> int:
        """Return the number of warps of a CTA."""
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)
