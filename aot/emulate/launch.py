"""A launch: what the host asked for, and how far it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.order import ANY_CLUSTER, Knowledge
from aot.emulate.warp import WaitQueue

if TYPE_CHECKING:
    from aot.emulate.cta import Cluster
    from aot.emulate.program import Program

    Extents = tuple[int, int, int]

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


class RunningLaunch:
    """A launch on the machine: which clusters wait, which run, and whether the next launch may begin."""

    def __init__(self, launch: Launch, program: Program, number: int) -> None:
        self.launch, self.program, self.number = launch, program, number
        self.smem_bytes = launch.smem_bytes + program.kernel.dynamic_start
        grid, cluster = launch.grid, launch.cluster
        x, y, z = (grid[i] // cluster[i] for i in range(3))
        self.waiting = deque((i, j, k) for k in range(z) for j in range(y) for i in range(x))
        self.running: list[Cluster] = []
        self.num_left = launch.num_ctas
        self.num_triggered = 0
        self.is_complete = False
        self.queue = WaitQueue()
        """Warps of the next launch that wait for this one's end."""
        self.knowledge = Knowledge(ANY_CLUSTER, 0)
        """What is known where it has ended: that it has, and what its warps knew of launches before it."""
        self.knowledge.seen.launches = 1 << number
        self.refused: set[int] = set()
        """Clusters whose cancel was refused."""
        self.front: RunningLaunch | None = None
        self.parameters = np.full(max(program.kernel.parameter_bytes, 1), 0xFF, np.uint8)
        for (offset, size), content in zip(program.kernel.parameters.values(), launch.parameters, strict=True):
            self.parameters[offset : offset + size] = np.frombuffer(content[:size], np.uint8)

    @property
    def lets_next_start(self) -> bool:
        """Say whether all its CTAs have triggered or exited."""
        return self.num_triggered == self.launch.num_ctas

    @property
    def known_at_start(self) -> Knowledge | None:
        """Return what its warps know when they begin.

        Of the launch in front all, or with programmatic launch what that one's warps knew when they began: only
        griddepcontrol.wait orders the two, however early the one in front has ended.
        """
        if self.front is None:
            return None
        return self.front.known_at_start if self.launch.is_programmatic else self.front.knowledge

    def cluster_ctas(self, first: Extents) -> list[Extents]:
        """List the CTAs of a cluster, in the order of their ranks."""
        c = self.launch.cluster
        return [
            (first[0] * c[0] + i % c[0], first[1] * c[1] + i // c[0] % c[1], first[2] * c[2] + i // c[0] // c[1])
            for i in range(c[0] * c[1] * c[2])
        ]
