"""CTAs and their clusters: shared memory, barriers, tensor memory, and the warps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.memory import OFFSET_MASK, RANK_SHIFT, SharedMemory
from aot.emulate.order import Knowledge, Shadow
from aot.emulate.warp import WaitQueue

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from aot.emulate.launch import RunningLaunch
    from aot.emulate.machine import Machine
    from aot.emulate.warp import Warp

TENSOR_LANES, TENSOR_COLUMNS = 128, 512
"""Tensor memory of an SM, of 32 bits each. Source: PTX ISA, "Tensor Memory Addressing"."""
TENSOR_POISON = 0x7FC0DEAD
"""A NaN that shows where nothing was written."""
TENSOR_GROUP_LANES = 16
"""Lanes that are ordered as one, in each column: accumulators of 64 rows have 16 of each warp's 32."""


class Mbarrier:
    """An mbarrier object: arrivals that are pending, bytes that are expected, and its phase.

    Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
    """

    __slots__ = (
        "arrived",
        "completed",
        "count",
        "initialised_by",
        "pending",
        "phase",
        "queue",
        "transactions",
        "where",
    )

    MAX_TRANSACTIONS = 2**20 - 1
    """Range of the transaction count. Source: PTX ISA, "Contents of the mbarrier object"."""

    def __init__(self, where: str, count: int, cluster: Cluster) -> None:
        self.where, self.count, self.pending, self.transactions, self.phase = where, count, count, 0, 0
        self.queue = WaitQueue()
        self.arrived = cluster.knowledge()
        """What those know who have arrived; it grows from phase to phase, as a release sequence does."""
        self.completed = cluster.knowledge()
        """The same when the last phase was completed: what a wait for it learns."""
        self.initialised_by: tuple[int, int] = (0, 0)
        """Warp and epoch."""

    def _settle(self) -> None:
        if abs(self.transactions) > self.MAX_TRANSACTIONS:
            raise Fault(FaultKind.BARRIER, f"mbarrier {self.where}: transaction count {self.transactions}")
        if self.pending == 0 and self.transactions == 0:
            self.phase += 1
            self.pending = self.count
            self.completed = self.arrived.copy()
            self.queue.wake()

    def arrive(self, count: int, knowledge: Knowledge | None = None, expected: int = 0, done: int = 0) -> None:
        """Arrive, and expect bytes.

        Args:
            count: arrivals.
            knowledge: what those who arrive know.
            expected: bytes that the phase waits for as well.
            done: bits of operations that are complete.
        """
        if count > self.pending:
            text = f"mbarrier {self.where}: {count} arrivals where {self.pending} of {self.count} are pending"
            raise Fault(FaultKind.BARRIER, text)
        if knowledge is not None:
            self.arrived.join(knowledge)
        self.arrived.join_done(done)
        self.transactions += expected
        self.pending -= count
        self._settle()

    def expect(self, num_bytes: int) -> None:
        """Expect bytes without arriving."""
        self.transactions += num_bytes

    def complete(self, num_bytes: int, done: int) -> None:
        """Take note of bytes that have come, by an operation of a bit."""
        self.arrived.join_done(done)
        self.transactions -= num_bytes
        self._settle()


NUM_BARRIERS = 16
"""Of a CTA. Source: PTX ISA, "barrier"."""


@dataclass(eq=False)
class NamedBarrier:
    """One of a CTA's barriers: how many warps have arrived, and how often it was complete.

    A barrier counts arrivals, not who they are by: quack's pingpong kernels let a group of warps arrive at its own
    barrier in advance, for its first wait there to return at once.
    """

    cluster: Cluster
    knowledge: Knowledge
    num_warps: int = 0
    """Arrivals."""
    expected: int | None = None
    """Threads that those who have arrived speak of; None of all threads of the CTA that have not exited."""
    generation: int = 0
    queue: WaitQueue = field(default_factory=WaitQueue)
    completed: Knowledge | None = None

    @property
    def num_arrived(self) -> int:
        """Return the threads that have arrived, in whole warps, as the barrier counts them."""
        return 32 * self.num_warps

    def settle(self, num_threads: int) -> None:
        """Complete the barrier when all have arrived; `num_threads` of the CTA have not exited."""
        if self.num_warps and self.num_arrived >= (num_threads if self.expected is None else self.expected):
            self.num_warps = 0
            self.generation += 1
            self.completed, self.knowledge = self.knowledge, self.cluster.knowledge()
            self.queue.wake()


class Cta:
    """One CTA of a cluster."""

    def __init__(self, machine: Machine, cluster: Cluster, rank: int, ctaid: tuple[int, int, int]) -> None:
        self.machine, self.cluster, self.rank, self.ctaid, self.launch = machine, cluster, rank, ctaid, cluster.launch
        num_bytes = self.launch.smem_bytes
        cells = -(-num_bytes // 16) * 4
        self.shared = SharedMemory(
            rank, num_bytes, Shadow(cells, machine.operations.agents, machine.report, has_proxies=True)
        )
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.warps: list[Warp] = []
        self.done = self.has_triggered = False
        self.free_registers = 0
        self.register_queue = WaitQueue()
        self.issued: dict[Any, Any] = {}
        """What warps of a group issue together."""
        self.tensor: TensorMemory | None = None

    @property
    def tensor_memory(self) -> TensorMemory:
        """Return the CTA's tensor memory, made when it is first used."""
        if self.tensor is None:
            self.tensor = TensorMemory(self.machine)
        return self.tensor

    @property
    def num_threads(self) -> int:
        """Return the threads of warps that have not exited, in whole warps, as barriers count them."""
        return 32 * sum(not x.done for x in self.warps)

    @property
    def window(self) -> int:
        """Return the address that the cluster sees its shared memory at."""
        return self.rank << RANK_SHIFT

    def mbarrier(self, address: int, where: str) -> Mbarrier:
        """Return the barrier at a shared address.

        Raises:
            Fault: none was initialised there, or the CTA has exited.
        """
        if self.done:
            raise Fault(FaultKind.EXITED, f"{where}: CTA {self.rank} of the cluster has exited")
        found = self.mbarriers.get(address & OFFSET_MASK)
        if found is None:
            raise Fault(FaultKind.BARRIER, f"{where}: no mbarrier is initialised at {address:#x} of CTA {self.rank}")
        return found


class TensorMemory:
    """128 lanes of 512 columns of 32 bits; which columns are allocated, and whether more may be."""

    def __init__(self, machine: Machine) -> None:
        self.words = np.full((TENSOR_LANES, TENSOR_COLUMNS), TENSOR_POISON, np.uint32)
        self.allocated = np.zeros(TENSOR_COLUMNS, bool)
        self.may_allocate = True
        self.queue = WaitQueue()
        self.shadow = Shadow(
            TENSOR_LANES // TENSOR_GROUP_LANES * TENSOR_COLUMNS,
            machine.operations.agents,
            machine.report,
            has_proxies=False,
        )

    @staticmethod
    def cells(first_lane: int, num_lanes: int, column: int, num_columns: int) -> NDArray[np.int64]:
        """Return the cells of lanes and columns, by number."""
        groups = np.arange(first_lane // TENSOR_GROUP_LANES, -(-(first_lane + num_lanes) // TENSOR_GROUP_LANES))
        return (groups[:, None] * TENSOR_COLUMNS + np.arange(column, column + num_columns)).reshape(-1)

    def check_allocated(self, column: int, num_columns: int, where: str) -> None:
        """Fault where columns are not allocated."""
        end = column + num_columns
        if end > TENSOR_COLUMNS or not self.allocated[column:end].all():
            raise Fault(FaultKind.TENSOR_MEMORY, f"{where}: columns {column} to {end} are not allocated")


class Cluster:
    """The CTAs that run together, and their barrier."""

    def __init__(
        self, machine: Machine, launch: RunningLaunch, number: int, ctaids: list[tuple[int, int, int]]
    ) -> None:
        self.launch, self.number = launch, number
        self.ctas = [Cta(machine, self, rank, ctaid) for rank, ctaid in enumerate(ctaids)]
        self.num_arrived = self.generation = 0
        self.arrived, self.completed = self.knowledge(), self.knowledge()
        self.queue = WaitQueue()

    def knowledge(self) -> Knowledge:
        """Return what one of the cluster knows who knows nothing yet."""
        return Knowledge(self.number, len(self.ctas) * self.launch.launch.warps_per_cta)

    def cta_of(self, address: int, where: str) -> Cta:
        """Return the CTA that a shared::cluster address is of.

        Raises:
            Fault: there is none, or it has exited.
        """
        rank = address >> RANK_SHIFT
        if rank >= len(self.ctas):
            raise Fault(FaultKind.ADDRESS, f"{where}: {address:#x} is of CTA {rank} of {len(self.ctas)}")
        if self.ctas[rank].done:
            raise Fault(FaultKind.EXITED, f"{where}: CTA {rank} of the cluster has exited")
        return self.ctas[rank]

    def ctas_of_mask(self, mask: int, where: str) -> list[Cta]:
        """Return the CTAs of a multicast mask.

        Raises:
            Fault: one is not of the cluster, or has exited.
        """
        if mask >> len(self.ctas):
            raise Fault(FaultKind.ADDRESS, f"{where}: multicast to {mask:#x} in a cluster of {len(self.ctas)}")
        found = [x for x in self.ctas if mask >> x.rank & 1]
        if any(x.done for x in found):
            raise Fault(FaultKind.EXITED, f"{where}: multicast to a CTA that has exited")
        return found

    def settle(self) -> None:
        """Complete the barrier when all warps that have not exited have arrived."""
        warps = [x for cta in self.ctas for x in cta.warps]
        exited = sum(x.done and x.cluster_arrived != self.generation for x in warps)
        if self.num_arrived and self.num_arrived + exited >= len(warps):
            self.num_arrived = 0
            self.generation += 1
            self.completed = self.arrived.copy()
            self.queue.wake()
