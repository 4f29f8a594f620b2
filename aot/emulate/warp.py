"""A warp: 32 lanes with their registers, the lanes that are active, and what it waits for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.emulate.order import MAX_CLUSTER_WARPS, Agent, Knowledge
from aot.emulate.tensor_loads import TensorLoads
from aot.emulate.types import LANES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from aot.emulate.cta import Cta
    from aot.emulate.machine import Machine
    from aot.emulate.operation import Operation

    Lanes = NDArray[np.bool_]
    Value = NDArray[Any]


class Warp:
    """One warp. Registers are arrays of the raw bits of 32 lanes, and are replaced, never changed in place."""

    __slots__ = (
        "acquiring", "agent", "blocked", "bulk_groups", "bulk_open", "by_products", "cluster_arrived",
        "cluster_waited", "copies", "copy_groups", "count", "cta", "done", "fenced_registers", "fences", "full",
        "groups", "index", "lanes", "launch", "machine", "mask", "met", "num_groups", "num_issued",
        "num_registers", "number", "pc", "pending", "polled", "polling", "priority", "registers", "resume",
        "tensor_done", "tensor_loads", "tried", "untouchable", "waiting_at", "waiting_for",
    )  # fmt: skip

    def __init__(self, machine: Machine, cta: Cta, index: int, number: int, num_lanes: int) -> None:
        self.machine, self.cta, self.launch, self.index, self.number = machine, cta, cta.launch, index, number
        self.registers: list[Value] = []
        self.pc, self.count, self.done = 0, 0, False
        self.lanes: Lanes = num_lanes > LANES
        """The lanes that have not exited."""
        self.mask, self.full = self.lanes.copy(), num_lanes == 32
        """The lanes that execute now, and whether they are all 32."""
        self.pending: list[tuple[int, Lanes]] = []
        """Where the other lanes go on."""
        self.priority = machine.rng.random()
        self.blocked = self.polling = False
        self.waiting_for: str | Callable[[], str] = ""
        self.waiting_at = 0
        """The instruction by which it is blocked."""
        self.resume: Callable[[], None] | None = None
        knowledge = cta.cluster.knowledge()
        self.agent = Agent(
            knowledge, "", f"warp {index} of CTA {cta.ctaid}", is_async_proxy=False, warp=number, epoch=1
        )
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


class WaitQueue:
    """Warps that wait until something of theirs holds."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Warp, Callable[[], bool], Callable[[], None] | None]] = []

    def wait(
        self,
        warp: Warp,
        reason: str | Callable[[], str],
        condition: Callable[[], bool],
        resume: Callable[[], None] | None = None,
    ) -> None:
        """Block a warp.

        Args:
            warp: who waits.
            reason: for what, in the words of a deadlock's report, or a function that says so when it is reported.
            condition: says whether it can go on.
            resume: called when it goes on.
        """
        warp.blocked, warp.waiting_for, warp.waiting_at = True, reason, warp.pc
        self._waiting.append((warp, condition, resume))

    def wake(self) -> None:
        """Let those go on that can."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            warp, condition, resume = item
            if condition():
                if resume is not None:
                    resume()
                warp.machine.make_ready(warp)
            else:
                self._waiting.append(item)
