"""The simulated device.

Launches in stream order, their clusters, warps and asynchronous operations, chosen by an adversary.

One step either lets a warp execute some instructions or completes an asynchronous operation. Which one is drawn by the
schedule's mode from its seed, so that a run is repeated exactly by the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import ThreadpoolController

from aot.emulate.device import Device, Report
from aot.emulate.faults import Fault, FaultKind
from aot.emulate.operation import Operation
from aot.emulate.order import ANY_CLUSTER, MAX_CLUSTER_WARPS, Agent, Knowledge, Shadow
from aot.emulate.running import Cluster, Front, RunningLaunch, Trace, Turns, Warp

if TYPE_CHECKING:
    from aot.emulate.launch import Launch
    from aot.emulate.memory import Allocation, GlobalMemory
    from aot.emulate.program import Program
    from aot.emulate.schedule import Schedule

QUANTUM = 64
"""Most instructions of a turn."""
MAX_IDLE_POLLS = 200
"""Turns of warps that poll global memory, with nothing else going on, after which none of them will end."""


class Machine:
    """Runs launches on a memory.

    Args:
        programs: the kernels, by name.
        memory: what the launches read and write.
        schedule: the adversary.
        num_registers: registers of a thread at a launch, for kernels that move them between warps.
        resident: clusters that run at once. Where CTAs of a launch wait for each other all must, as on a device.
        limit: warp instructions after which a run is given up.
        counts: whether executions of each form, bytes and bank conflicts are counted, which takes time.
        trace: called before each instruction of each warp.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        memory: GlobalMemory,
        schedule: Schedule,
        *,
        num_registers: int = 0,
        resident: int = 2,
        limit: int = 20_000_000,
        counts: bool = False,
        trace: Trace | None = None,
    ) -> None:
        self._programs, self._schedule = programs, schedule
        self._num_registers, self._limit, self._trace = num_registers, limit, trace
        self._device = Device(memory, schedule, resident=resident, counts=counts)
        self._turns = Turns()
        self._launches: list[RunningLaunch] = []
        self._next_launch = 0
        self._launch_of_cluster: list[int] = []

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run launches in stream order.

        Raises:
            Fault: a kernel did what it must not, or nothing can go on.
        """
        for allocation in self._device.memory.allocations():
            allocation.shadow = self._shadow_of(allocation) if allocation.writable else None
        first = Front(is_complete=not (launches and launches[0].is_programmatic))
        if not first.is_complete:
            agent = Agent(Knowledge(ANY_CLUSTER, 0), "", "the kernel in front", is_async_proxy=False)
            self._device.operations.post(Operation("front", agent, first.end))
        front: RunningLaunch | Front = first
        for number, launch in enumerate(launches):
            kernel = self._programs[launch.kernel].kernel
            front = RunningLaunch(launch, kernel, number, front, self._turns, self._trace)
            self._launches.append(front)
        # Products are small: threads of a BLAS that wait for each other take many times as long as one.
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):
            while self._advance():
                pass
        return self.found()

    def found(self) -> Report:
        """Return what was found so far: of a run that a fault has ended, too."""
        return self._device.found()

    def _shadow_of(self, allocation: Allocation) -> Shadow:
        shadow = Shadow(
            allocation.content.size,
            self._device.operations.agents,
            self._device.report,
            has_proxies=False,
            launch_of=self._launch_of_cluster.__getitem__,
        )
        shadow.fill(slice(0, allocation.content.size))
        return shadow

    def _start_clusters(self) -> None:
        """Start clusters of the launches that may begin, up to as many as are resident at once."""
        while self._next_launch < len(self._launches):
            launch = self._launches[self._next_launch]
            if launch.is_early and not (launch.launch.is_programmatic and launch.front.lets_next_start):
                return
            while launch.waiting and sum(len(x.running) for x in self._launches) < self._device.resident:
                self._start_cluster(launch)
            if launch.waiting:
                return
            self._next_launch += 1

    def _start_cluster(self, launch: RunningLaunch) -> None:
        number = len(self._launch_of_cluster)
        self._launch_of_cluster.append(launch.number)
        cluster = Cluster(self._device, launch, number, launch.cluster_ctas(launch.waiting.popleft()))
        program = self._programs[launch.launch.kernel]
        per_cta = launch.launch.warps_per_cta
        block = launch.launch.block
        threads = block[0] * block[1] * block[2]
        for cta in cluster.ctas:
            for index in range(per_cta):
                warp_number = number * MAX_CLUSTER_WARPS + cta.rank * per_cta + index
                warp = Warp(self._device, cta, index, warp_number, min(32, threads - 32 * index))
                warp.num_registers = -(-self._num_registers // 8) * 8
                if launch.known_at_start is not None:
                    warp.knowledge.join(launch.known_at_start)
                warp.registers = program.registers_of(warp)
                cta.warps.append(warp)
                self._turns.ready.append(warp)
        launch.running.append(cluster)

    def _end_launches(self) -> None:
        """End launches whose CTAs have exited, once no operation of theirs is left."""
        for launch in self._launches:
            if not launch.is_complete and launch.num_left == 0 and not launch.running and not launch.waiting:
                launch.is_complete = True
                launch.queue.wake()

    def _advance(self) -> bool:
        """Do one step; say whether there may be another."""
        if self._next_launch < len(self._launches):
            self._start_clusters()
        turns, operations, rng = self._turns, self._device.operations, self._device.rng
        can_step = bool(turns.ready)
        choices = operations.num_choices
        if choices and rng.random() < self._schedule.completion(can_step=can_step):
            operations.complete_one(choices)
            self._end_launches()
        elif can_step:
            self._step(self._choose())
        elif choices:
            operations.complete_one(choices)
            self._end_launches()
        elif operations.has_held:
            operations.complete_held()
            self._end_launches()
        elif turns.polling and turns.idle < MAX_IDLE_POLLS * len(turns.polling):
            turns.idle += 1
            warp = turns.polling.pop(rng.randrange(len(turns.polling)))
            warp.polling = False
            turns.ready.append(warp)
        elif any(x.running or x.waiting for x in self._launches):
            raise Fault(FaultKind.DEADLOCK, self._describe())
        else:
            return False
        return True

    def _choose(self) -> int:
        """Return the place in the list of the ready of the warp that goes on."""
        ready, rng = self._turns.ready, self._device.rng
        if not self._schedule.has_priorities or len(ready) == 1:
            return rng.randrange(len(ready))
        at = max(range(len(ready)), key=lambda i: ready[i].priority)
        # A warp that tries a barrier in vain again is blocked, so that the next one comes only then. A loop of tries of
        # several barriers would be for ever: now and then it gives way.
        if ready[at].tried is not None and rng.random() < 0.1:
            patient = [i for i in range(len(ready)) if ready[i].tried is None]
            at = max(patient, key=lambda i: ready[i].priority) if patient else rng.randrange(len(ready))
        if not self._schedule.is_strict and rng.random() < 0.01:
            ready[at].priority = rng.random()
        return at

    def _step(self, at: int) -> None:
        device, ready = self._device, self._turns.ready
        warp = ready[at]
        before = warp.count
        self._programs[warp.launch.launch.kernel].execute(warp, device.rng.randint(1, QUANTUM))
        device.num_instructions += warp.count - before
        if device.num_instructions > self._limit:
            text = f"no end after {self._limit} warp instructions; {self._describe()}"
            raise Fault(FaultKind.LIMIT, text)
        if warp.done or warp.blocked or warp.polling:
            # The list may have changed meanwhile: others were made ready at its end.
            ready[at] = ready[-1]
            ready.pop()
            if warp.polling and not warp.done:
                self._turns.polling.append(warp)
        if warp.done:
            self._end_launches()

    def _describe(self) -> str:
        lines = []
        for launch in self._launches:
            for cluster in launch.running:
                for cta in cluster.ctas:
                    for warp in cta.warps:
                        if not warp.done:
                            at = warp.waiting_at if warp.blocked else warp.pc
                            where = launch.kernel.instructions[at].where
                            said = warp.waiting_for
                            reason = (said if isinstance(said, str) else said()) or (
                                "polls global memory" if warp.polling else "could go on"
                            )
                            lines.append(f"CTA {cta.ctaid} warp {warp.index} {reason}, at {where}")
        return f"{len(lines)} warps have not ended:\n" + "\n".join(lines[:40])


@cache
def _blas() -> ThreadpoolController:
    """Return what limits the threads of numpy's products."""
    return ThreadpoolController()
