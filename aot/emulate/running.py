"""What runs: launches, their clusters, CTAs and warps, each of which knows what it is part of and what it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from aot.emulate.faults import Fault, FaultKind, FindingKind
from aot.emulate.memory import OFFSET_MASK, RANK_SHIFT, SharedMemory
from aot.emulate.order import ANY_CLUSTER, MAX_CLUSTER_WARPS, Agent, Knowledge, Shadow
from aot.emulate.ptx import Instruction, Kernel
from aot.emulate.tensor_loads import TensorLoads
from aot.emulate.tensor_memory import TensorMemory
from aot.emulate.types import LANES, Lanes, Value
from aot.emulate.wait_queue import WaitQueue

if TYPE_CHECKING:
    from aot.emulate.barriers import Mbarrier, NamedBarrier
    from aot.emulate.device import Device
    from aot.emulate.launch import Extents, Launch
    from aot.emulate.operation import Operation


class Turns:
    """The warps of all launches that can go on, and those that poll global memory."""

    __slots__ = ("idle", "polling", "ready")

    def __init__(self) -> None:
        self.ready: list[Warp] = []
        self.polling: list[Warp] = []
        self.idle = 0
        """How many that poll have looked in vain since global memory changed."""

    def global_changed(self) -> None:
        """Let warps that poll global memory look again."""
        for warp in self.polling:
            warp.polling = False
        self.ready += self.polling
        self.polling = []
        self.idle = 0


class Front:
    """What stands in front of the first launch: a kernel that is not executed, and lets the next start at once."""

    knowledge = known_at_start = None
    lets_next_start = True

    def __init__(self, *, is_complete: bool) -> None:
        self.is_complete, self.queue = is_complete, WaitQueue()

    def end(self) -> None:
        """Let those go on that wait for its end."""
        self.is_complete = True
        self.queue.wake()


class RunningLaunch:
    """A launch on the device: which clusters wait, which run, and whether the next launch may begin.

    Args:
        launch: what the host asked for.
        kernel: what its warps execute.
        number: of the launch.
        front: what is in front of it in the stream.
        turns: where its warps are when they can go on.
        trace: called before each instruction of each warp.
    """

    def __init__(
        self,
        launch: Launch,
        kernel: Kernel,
        number: int,
        front: RunningLaunch | Front,
        turns: Turns,
        trace: Trace | None,
    ) -> None:
        self.launch, self.kernel, self.number = launch, kernel, number
        self.front, self.turns, self.trace = front, turns, trace
        self.smem_bytes = launch.smem_bytes + kernel.dynamic_start
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
        self.parameters = np.full(max(kernel.parameter_bytes, 1), 0xFF, np.uint8)
        for (offset, size), content in zip(kernel.parameters.values(), launch.parameters, strict=True):
            self.parameters[offset : offset + size] = np.frombuffer(content[:size], np.uint8)

    @property
    def is_early(self) -> bool:
        """Say whether what stands in front of it has not ended."""
        return not self.front.is_complete

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
        return self.front.known_at_start if self.launch.is_programmatic else self.front.knowledge

    def cluster_ctas(self, first: Extents) -> list[Extents]:
        """List the CTAs of a cluster, in the order of their ranks."""
        c = self.launch.cluster
        return [
            (first[0] * c[0] + i % c[0], first[1] * c[1] + i // c[0] % c[1], first[2] * c[2] + i // c[0] // c[1])
            for i in range(c[0] * c[1] * c[2])
        ]

    def cancel_cluster(self) -> Extents | None:
        """Take away a cluster that has not begun; return its position in clusters, or None."""
        if not self.waiting:
            return None
        first = self.waiting.popleft()
        size = len(self.cluster_ctas(first))
        self.num_left -= size
        self.num_triggered += size
        return first


class Cluster:
    """The CTAs that run together, and their barrier."""

    def __init__(self, device: Device, launch: RunningLaunch, number: int, ctaids: list[Extents]) -> None:
        self.launch, self.number = launch, number
        self.ctas = [Cta(device, self, rank, ctaid) for rank, ctaid in enumerate(ctaids)]
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


class Cta:
    """One CTA of a cluster."""

    def __init__(self, device: Device, cluster: Cluster, rank: int, ctaid: Extents) -> None:
        self.device, self.cluster, self.rank, self.ctaid, self.launch = device, cluster, rank, ctaid, cluster.launch
        num_bytes = self.launch.smem_bytes
        cells = -(-num_bytes // 16) * 4
        shadow = Shadow(cells, device.operations.agents, device.report, has_proxies=True)
        self.shared = SharedMemory(rank, num_bytes, shadow)
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
            self.tensor = TensorMemory(self.device)
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

    def trigger(self) -> None:
        """Let the next launch begin, as far as this CTA goes."""
        if not self.has_triggered:
            self.has_triggered = True
            self.launch.num_triggered += 1

    def finish(self) -> None:
        """End, once all warps have exited."""
        self.done = True
        self.trigger()
        launch, cluster = self.launch, self.cluster
        launch.num_left -= 1
        if self.tensor is not None and self.tensor.allocated.any():
            count = int(self.tensor.allocated.sum())
            self.device.report(FindingKind.EXIT, f"CTA {self.ctaid}", f"{count} columns of tensor memory are allocated")
        for warp in self.warps:
            launch.knowledge.seen.launches |= warp.knowledge.seen.launches
        if all(x.done for x in cluster.ctas):
            launch.running.remove(cluster)


class Warp:
    """One warp. Registers are arrays of the raw bits of 32 lanes, and are replaced, never changed in place."""

    __slots__ = (
        "acquiring", "agent", "blocked", "bulk_groups", "bulk_open", "by_products", "cluster_arrived",
        "cluster_waited", "copies", "copy_groups", "count", "cta", "device", "done", "fenced_registers",
        "fences", "full", "groups", "index", "lanes", "launch", "mask", "met", "num_groups", "num_issued",
        "num_registers", "number", "pc", "pending", "polled", "polling", "priority", "registers",
        "tensor_done", "tensor_loads", "tried", "untouchable", "waiting_at", "waiting_for",
    )  # fmt: skip

    def __init__(self, device: Device, cta: Cta, index: int, number: int, num_lanes: int) -> None:
        self.device, self.cta, self.launch, self.index, self.number = device, cta, cta.launch, index, number
        self.registers: list[Value] = []
        self.pc, self.count, self.done = 0, 0, False
        self.lanes: Lanes = num_lanes > LANES
        """The lanes that have not exited."""
        self.mask, self.full = self.lanes.copy(), num_lanes == 32
        """The lanes that execute now, and whether they are all 32."""
        self.pending: list[tuple[int, Lanes]] = []
        """Where the other lanes go on."""
        self.priority = device.rng.random()
        self.blocked = self.polling = False
        self.waiting_for: str | Callable[[], str] = ""
        self.waiting_at = 0
        """The instruction by which it is blocked."""
        knowledge = cta.cluster.knowledge()
        who = f"warp {index} of CTA {cta.ctaid}"
        self.agent = Agent(knowledge, "", who, False, warp=number, epoch=1, launch=cta.launch.number)
        knowledge.seen.epochs[number % MAX_CLUSTER_WARPS] = 1
        # What units keep of a warp.
        self.tried: tuple[object, ...] | None = None
        """The last try of a barrier that failed."""
        self.polled: dict[tuple[int, bytes], bytes] = {}
        """What strong loads last found, by instruction and places."""
        self.met: Any = None
        """What the warp does together with a warp of the pair's other CTA."""
        self.cluster_arrived = self.cluster_waited = -1
        self.bulk_open: list[Operation] = []
        self.bulk_groups: deque[list[Operation]] = deque()
        self.copies: list[Operation] = []
        self.copy_groups: deque[list[Operation]] = deque()
        self.num_registers = 0
        """Registers of a thread, which setmaxnreg changes."""
        self.groups: deque[Any] = deque()
        """Groups of wgmma that are committed, and the open one."""
        self.num_groups = self.num_issued = 0
        self.untouchable: frozenset[int] = frozenset()
        """Registers of a wgmma in flight, which may not be used."""
        self.fenced_registers: list[Value] | None = None
        """The registers at the last wgmma.fence."""
        self.by_products: dict[int, Value] = {}
        self.tensor_done = 0
        """The bits of all tcgen05 operations that the warp has issued."""
        self.tensor_loads = TensorLoads()
        self.acquiring: Any = None
        self.fences: Any = None
        """What fences make of relaxed stores and loads: see units/atomics.py."""

    def block(self, reason: str | Callable[[], str]) -> None:
        """Wait, for a reason in the words of a deadlock's report, or what says it when it is reported."""
        self.blocked, self.waiting_for, self.waiting_at = True, reason, self.pc

    def go_on(self) -> None:
        """Be among those again that can go on."""
        self.blocked, self.waiting_for = False, ""
        self.launch.turns.ready.append(self)

    def note_early(self, address: int, *, is_write: bool, where: str) -> None:
        """Report an access to global memory before the kernel in front has ended."""
        if not self.launch.is_early:
            return
        for x in self.device.memory.allocations():
            if x.start <= address < x.end:
                verb = "writes" if is_write else "reads"
                self.device.report(FindingKind.EARLY, where, f"{verb} {x.name}")

    @property
    def knowledge(self) -> Knowledge:
        """Return what the warp knows to have happened."""
        return self.agent.knowledge

    def release(self) -> Knowledge:
        """Return what others learn who wait for the warp now; what it does from here on is a later epoch."""
        found = self.knowledge.copy()
        self.next_epoch()
        return found

    def next_epoch(self) -> None:
        """Begin an epoch: what the warp did before can be told apart from what it does next."""
        self.agent.epoch += 1
        self.knowledge.seen.epochs[self.number % MAX_CLUSTER_WARPS] = self.agent.epoch

    def at(self, where: str) -> Agent:
        """Return who accesses memory by the instruction at `where`."""
        self.agent.where = where
        return self.agent

    def put(self, slot: int | None, value: Value) -> None:
        """Write a register in the active lanes."""
        if slot is None:
            return
        if self.full:
            self.registers[slot] = value
        else:
            old = self.registers[slot]
            mask = self.mask if old.ndim == 1 else self.mask[:, None]
            self.registers[slot] = np.where(mask, value, old)

    def active(self) -> list[int]:
        """List the active lanes."""
        return [int(x) for x in np.flatnonzero(self.mask)]

    def reconverge(self) -> None:
        """Go on with the lanes that are farthest behind, together with all that are at the same place."""
        low = min(at for at, _ in self.pending)
        if low > self.pc:
            return
        if low < self.pc:
            self.pending.append((self.pc, self.mask))
            self.pc, self.mask = low, np.zeros(32, bool)
        rest = []
        for at, mask in self.pending:
            if at == self.pc:
                self.mask = self.mask | mask
            else:
                rest.append((at, mask))
        self.pending = rest
        self.full = bool(self.mask.all())


Trace: TypeAlias = Callable[[Warp, Instruction], None]
"""Called before each instruction of each warp."""
