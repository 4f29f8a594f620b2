"""Barriers in shared memory, and those of a CTA that have numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aot.emulate.faults import Fault, FaultKind
from aot.emulate.wait_queue import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.order import Knowledge


class Mbarrier:
    """An mbarrier object: arrivals that are pending, bytes that are expected, and its phase.

    Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".

    Args:
        where: its place, for messages.
        count: arrivals of a phase.
        knowledge: makes what one of the cluster knows who knows nothing yet.
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

    def __init__(self, where: str, count: int, knowledge: Callable[[], Knowledge]) -> None:
        self.where, self.count, self.pending, self.transactions, self.phase = where, count, count, 0, 0
        self.queue = WaitQueue()
        self.arrived = knowledge()
        """What those know who have arrived; it grows from phase to phase, as a release sequence does."""
        self.completed = knowledge()
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

    def complete(self, num_bytes: int, done: int, ended: int = 0) -> None:
        """Take note of bytes that have come, by an operation of a bit.

        Args:
            num_bytes: how many.
            done: the operation's bit.
            ended: of launches, those whose end the warp had waited for before it issued the operation. Whoever sees
                that it is complete runs behind that end, since nothing completes before it is issued.
        """
        self.arrived.join_done(done)
        self.arrived.seen.launches |= ended
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

    new_knowledge: Callable[[], Knowledge]
    """Makes what one of the cluster knows who knows nothing yet."""
    knowledge: Knowledge
    """What those know who have arrived."""
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
            self.completed, self.knowledge = self.knowledge, self.new_knowledge()
            self.queue.wake()
