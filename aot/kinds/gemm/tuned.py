"""A kernel of products in a tuning library."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from aot.core.alignment import unaligned_loads
from aot.core.candidate import KernelKey
from aot.core.constraints import Extent, Range, Sha256
from aot.core.dispatch import takes
from aot.core.formats import ALIGNMENT_BYTES
from aot.core.kernel import Kernel
from aot.core.knobs import SplitK, split_mode
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC, TileOrder, count_clusters, distinct_orders, order_name

Alignment = Annotated[int, Range(1, ALIGNMENT_BYTES)]


@dataclass(frozen=True)
class TunedKernel:
    """One kernel of a tuning library; satisfies `aot.kinds.kind.Tuned`."""

    key: KernelKey
    object_sha256: Sha256
    """Digest of the compiled object: a kernel that is compiled anew is measured anew."""
    m_multiple: Extent = 1
    n_multiple: Extent = 1
    is_fallback: bool = False
    """Whether it takes operands of any alignment and layout; such a kernel is verified and never timed."""
    orders_tiles: bool = False
    """Whether it takes its tiles in an order that it is told."""
    load_alignment: Alignment = ALIGNMENT_BYTES
    """Bytes of which addresses and leading strides of A and B are multiples."""
    store_alignment: Alignment = ALIGNMENT_BYTES
    """The same of D and of what the epilogue reads; 1 of a kernel that takes any."""
    tile_order: TileOrder = HEURISTIC
    """The order in which it takes them."""

    @staticmethod
    def of(kernel: Kernel, *, is_fallback: bool) -> TunedKernel:
        """Return what measuring must know of a compiled kernel."""
        return TunedKernel(
            kernel.key,
            kernel.object_sha256,
            kernel.m_multiple,
            kernel.n_multiple,
            is_fallback,
            kernel.orders_tiles,
            kernel.load_alignment,
            kernel.store_alignment,
        )

    @cached_property
    def name(self) -> str:
        """Return the kernel's name in the library; of another order, with that behind it."""
        return f"{self.key.name} {order_name(self.tile_order)}".rstrip()

    @property
    def is_reproducible(self) -> bool:
        """Say whether two runs must give the same bits."""
        return split_mode(self.key.candidate.knobs) is not SplitK.PARALLEL

    def takes(self, problem: object) -> bool:
        """Say whether the kernel is to be timed on the problem, with packed operands."""
        if self.is_fallback or not isinstance(problem, Problem) or problem.operation != self.key.operation:
            return False
        loads = unaligned_loads(problem)
        if loads and (self.load_alignment > loads or self.store_alignment > 1):
            return False
        return takes(problem, self.m_multiple, self.n_multiple)

    def in_order(self, tile_order: int) -> TunedKernel:
        """Return the kernel with its tiles in another order."""
        return replace(self, tile_order=tile_order)

    def other_orders(self, problem: Problem, num_ctas: float) -> list[int]:
        """List the other orders of its tiles that differ on a problem, of which it has at most so many CTAs."""
        if not self.orders_tiles:
            return []
        knobs, clusters = self.key.candidate.gemm, count_clusters(self.key.candidate, problem)
        if math.prod(clusters) * knobs.cluster_m * knobs.cluster_n > num_ctas:
            return []
        return distinct_orders(*clusters)[1:]
