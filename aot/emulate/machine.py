"""The simulated device.

Launches in stream order, their clusters, warps and asynchronous operations, chosen by an adversary.

One step either lets a warp execute some instructions or completes an asynchronous operation. Which one is drawn by the
schedule's mode from its seed, so that a run is repeated exactly by the two.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import ThreadpoolController

from aot.emulate.cta import Cluster, Cta
from aot.emulate.faults import Fault, FaultKind, Finding, FindingKind
from aot.emulate.launch import Launch, RunningLaunch
from aot.emulate.memory import Allocation, GlobalMemory
from aot.emulate.operation import Operation
from aot.emulate.operations import Operations
from aot.emulate.order import MAX_CLUSTER_WARPS, Agent, Knowledge, Shadow
from aot.emulate.schedule import Schedule
from aot.emulate.warp import WaitQueue, Warp

if TYPE_CHECKING:
    from aot.emulate.program import Program
    from aot.emulate.ptx import Instruction

__all__ = ["Launch", "Machine", "Report"]

QUANTUM = 64
"""Most instructions of a turn."""
MAX_IDLE_POLLS = 200
"""Turns of warps that poll global memory, with nothing else going on, after which none of them will end."""


@dataclass(frozen=True)
class Report:
    """What a run showed beside the results in memory."""

    findings: tuple[Finding, ...]
    num_instructions: int
    """Of warps."""
    counts: Mapping[str, int]
    """Executions of each instruction form, if the machine counts them, and operations of each kind."""
    bytes_moved: Mapping[str, int]
    """By kind of operation, and the conflicts of shared memory's banks as `bank conflicts`, if the machine counts."""


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
        trace: Callable[[Warp, Instruction], None] | None = None,
    ) -> None:
        self.programs, self.memory, self.schedule = programs, memory, schedule
        self.num_registers, self.resident, self.limit, self.trace = num_registers, resident, limit, trace
        self.counts_forms = counts
        self.rng = random.Random(schedule.seed)  # noqa: S311 - draws schedules, no secrets
        self.counts: Counter[str] = Counter()
        self.bytes_moved: Counter[str] = Counter()
        self.num_instructions = 0
        self.operations = Operations(schedule.held, self.rng, self.counts)
        self._ready: list[Warp] = []
        self._polling: list[Warp] = []
        self._launches: list[RunningLaunch] = []
        self._next_launch = self._idle = 0
        self._launch_of_cluster: list[int] = []
        self.told: dict[int, Knowledge] = {}
        """What strong stores have told, by place: see units/atomics.py."""
        self._findings: dict[tuple[FindingKind, str], list[object]] = {}
        self.front_is_done = True
        """Whether what stands in front of the first launch has ended."""
        self.front_queue = WaitQueue()

    # What units call.

    def report(self, kind: FindingKind, where: str, text: str) -> None:
        """Take note of a finding; those of one kind and place are counted."""
        found = self._findings.setdefault((kind, where), [text, 0])
        found[1] += 1  # type: ignore[operator]

    def make_ready(self, warp: Warp) -> None:
        """Let a warp go on that was blocked."""
        warp.blocked, warp.waiting_for = False, ""
        self._ready.append(warp)

    def global_changed(self) -> None:
        """Let warps that poll global memory look again."""
        for warp in self._polling:
            warp.polling = False
        self._ready += self._polling
        self._polling = []
        self._idle = 0

    def access(self, warp: Warp, allocation_at: int, *, is_write: bool, where: str) -> None:
        """Take note of an access to global memory before the kernel in front has ended."""
        if not self.is_early(warp.launch):
            return
        for x in self.memory.allocations():
            if x.start <= allocation_at < x.end:
                verb = "writes" if is_write else "reads"
                self.report(FindingKind.EARLY, where, f"{verb} {x.name}")

    def is_early(self, launch: RunningLaunch) -> bool:
        """Say whether what stands in front of a launch has not ended."""
        return not (self.front_is_done if launch.front is None else launch.front.is_complete)

    def cancel_cluster(self, launch: RunningLaunch) -> tuple[int, int, int] | None:
        """Take a cluster that has not begun away from a launch; return its position in clusters, or None."""
        if not launch.waiting:
            return None
        first = launch.waiting.popleft()
        size = len(launch.cluster_ctas(first))
        launch.num_left -= size
        launch.num_triggered += size
        return first

    def trigger(self, cta: Cta) -> None:
        """Note that a CTA lets the next launch begin."""
        if not cta.has_triggered:
            cta.has_triggered = True
            cta.launch.num_triggered += 1

    def finish(self, cta: Cta) -> None:
        """End a CTA whose warps have exited."""
        cta.done = True
        self.trigger(cta)
        launch, cluster = cta.launch, cta.cluster
        launch.num_left -= 1
        if cta.tensor is not None and cta.tensor.allocated.any():
            count = int(cta.tensor.allocated.sum())
            self.report(FindingKind.EXIT, f"CTA {cta.ctaid}", f"{count} columns of tensor memory are allocated")
        for warp in cta.warps:
            launch.knowledge.seen.launches |= warp.knowledge.seen.launches
        if all(x.done for x in cluster.ctas):
            launch.running.remove(cluster)

    # The run.

    def run(self, launches: Sequence[Launch]) -> Report:
        """Run launches in stream order.

        Raises:
            Fault: a kernel did what it must not, or nothing can go on.
        """
        for allocation in self.memory.allocations():
            allocation.shadow = self._shadow_of(allocation) if allocation.writable else None
        front: RunningLaunch | None = None
        for launch in launches:
            program = self.programs[launch.kernel]
            running = RunningLaunch(launch, program, len(self._launches))
            running.front, front = front, running
            self._launches.append(running)
        if launches and launches[0].is_programmatic:
            self.front_is_done = False
            agent = Agent(Warp.__new__(Warp), "", "the kernel in front", is_async_proxy=False)  # type: ignore[arg-type]
            self.operations.post(Operation("front", agent, self._end_front))
        # Products are small: threads of a BLAS that wait for each other take many times as long as one.
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):
            while self._advance():
                pass
        return self.found()

    def found(self) -> Report:
        """Return what was found so far: of a run that a fault has ended, too."""
        findings = [Finding(kind, where, str(x[0]), int(x[1])) for (kind, where), x in self._findings.items()]  # type: ignore[call-overload]
        return Report(tuple(findings), self.num_instructions, dict(self.counts), dict(self.bytes_moved))

    def _shadow_of(self, allocation: Allocation) -> Shadow:
        shadow = Shadow(
            allocation.content.size,
            self.operations.agents,
            self.report,
            has_proxies=False,
            launch_of=self._launch_of_cluster.__getitem__,
        )
        shadow.fill(slice(0, allocation.content.size))
        return shadow

    def _end_front(self) -> None:
        self.front_is_done = True
        self.front_queue.wake()

    def _start_clusters(self) -> None:
        """Start clusters of the launches that may begin, up to as many as are resident at once."""
        while self._next_launch < len(self._launches):
            launch = self._launches[self._next_launch]
            is_free = launch.front is None or launch.front.is_complete
            if not is_free and not (launch.launch.is_programmatic and launch.front and launch.front.lets_next_start):
                return
            while launch.waiting and sum(len(x.running) for x in self._launches) < self.resident:
                self._start_cluster(launch)
            if launch.waiting:
                return
            self._next_launch += 1

    def _start_cluster(self, launch: RunningLaunch) -> None:
        number = len(self._launch_of_cluster)
        self._launch_of_cluster.append(launch.number)
        cluster = Cluster(self, launch, number, launch.cluster_ctas(launch.waiting.popleft()))
        per_cta = launch.launch.warps_per_cta
        block = launch.launch.block
        threads = block[0] * block[1] * block[2]
        for cta in cluster.ctas:
            for index in range(per_cta):
                warp_number = number * MAX_CLUSTER_WARPS + cta.rank * per_cta + index
                warp = Warp(self, cta, index, warp_number, min(32, threads - 32 * index))
                warp.num_registers = -(-self.num_registers // 8) * 8
                if launch.known_at_start is not None:
                    warp.knowledge.join(launch.known_at_start)
                warp.registers = launch.program.registers_of(warp)
                cta.warps.append(warp)
                self._ready.append(warp)
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
        can_step = bool(self._ready)
        operations = self.operations
        choices = operations.num_choices
        if choices and self.rng.random() < self.schedule.completion(can_step=can_step):
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
        elif self._polling and self._idle < MAX_IDLE_POLLS * len(self._polling):
            self._idle += 1
            warp = self._polling.pop(self.rng.randrange(len(self._polling)))
            warp.polling = False
            self._ready.append(warp)
        elif any(x.running or x.waiting for x in self._launches):
            raise Fault(FaultKind.DEADLOCK, self._describe())
        else:
            return False
        return True

    def _choose(self) -> int:
        """Return the place in the list of the ready of the warp that goes on."""
        ready = self._ready
        if not self.schedule.has_priorities or len(ready) == 1:
            return self.rng.randrange(len(ready))
        at = max(range(len(ready)), key=lambda i: ready[i].priority)
        # A warp that tries a barrier in vain again is blocked, so that the next one comes only then. A loop of tries of
        # several barriers would be for ever: now and then it gives way.
        if ready[at].tried is not None and self.rng.random() < 0.1:
            patient = [i for i in range(len(ready)) if ready[i].tried is None]
            at = max(patient, key=lambda i: ready[i].priority) if patient else self.rng.randrange(len(ready))
        if not self.schedule.is_strict and self.rng.random() < 0.01:
            ready[at].priority = self.rng.random()
        return at

    def _step(self, at: int) -> None:
        warp = self._ready[at]
        before = warp.count
        program = warp.launch.program
        program.execute(warp, self.rng.randint(1, QUANTUM))
        self.num_instructions += warp.count - before
        if self.num_instructions > self.limit:
            text = f"no end after {self.limit} warp instructions; {self._describe()}"
            raise Fault(FaultKind.LIMIT, text)
        if warp.done or warp.blocked or warp.polling:
            # The list may have changed meanwhile: others were made ready at its end.
            self._ready[at] = self._ready[-1]
            self._ready.pop()
            if warp.polling and not warp.done:
                self._polling.append(warp)
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
                            where = launch.program.kernel.instructions[at].where
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
