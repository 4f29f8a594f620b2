"""The asynchronous operations of a run, and which of them are to be completed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aot.emulate.operation import Operation
from aot.emulate.order import Agent

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Callable


class Operations:
    """The operations of a run, and those among them that are still to be completed.

    Args:
        held_kinds: what is held back until nothing else can go on.
        rng: draws which operation is completed next.
        counts: counts operations by their kinds.
    """

    def __init__(self, held_kinds: frozenset[str], rng: random.Random, counts: Counter[str]) -> None:
        self._held_kinds, self._rng, self._counts = held_kinds, rng, counts
        self.agents: dict[int, Agent] = {}
        """Who each operation is, by its token."""
        self._free: list[Operation] = []
        self._held: list[Operation] = []
        self._queues: dict[int, deque[Operation]] = {}

    def agent(self, kind: str, issuer: Agent, where: str, *, is_async_proxy: bool = True) -> Agent:
        """Make who accesses memory for a warp, the issuer; the warp itself may say when its accesses are over."""
        token = len(self.agents) + 1
        agent = Agent(
            issuer.knowledge.copy(),
            where,
            f"{kind} {token} of {issuer.who}",
            is_async_proxy,
            bit=1 << token,
            token=token,
            generic=not is_async_proxy,
            issuer=issuer.warp,
            launch=issuer.launch,
        )
        self.agents[token] = agent
        return agent

    def make(
        self,
        kind: str,
        issuer: Agent,
        where: str,
        run: Callable[[], None],
        *,
        is_async_proxy: bool = True,
        lane: int = 0,
    ) -> Operation:
        """Make an operation of a warp; its accesses are declared by its agent, then it is posted or queued."""
        return Operation(kind, self.agent(kind, issuer, where, is_async_proxy=is_async_proxy), run, lane)

    def post(self, operation: Operation) -> None:
        """Let an operation complete whenever the schedule chooses."""
        self._counts[operation.kind] += 1
        (self._held if operation.kind in self._held_kinds else self._free).append(operation)

    def enqueue(self, owner: object, operation: Operation) -> None:
        """Let an operation complete after those that its owner has queued before."""
        self._counts[operation.kind] += 1
        self._queues.setdefault(id(owner), deque()).append(operation)

    def complete(self, operation: Operation) -> None:
        """Complete an operation now, if it is not complete: a wait for it may be the reason."""
        if not operation.done:
            operation.done = True
            operation.run()

    @property
    def num_choices(self) -> int:
        """Count the operations of which one may be completed next."""
        return len(self._free) + len(self._free_queues())

    def _free_queues(self) -> list[int]:
        return [key for key, x in self._queues.items() if x[0].kind not in self._held_kinds]

    @property
    def has_held(self) -> bool:
        """Say whether there are operations that are held back."""
        return bool(self._held or self._queues)

    def complete_one(self, num_choices: int) -> None:
        """Complete one of those that may be."""
        at = self._rng.randrange(num_choices)
        if at < len(self._free):
            operation = self._free[at]
            self._free[at] = self._free[-1]
            self._free.pop()
        else:
            operation = self._pop(self._free_queues()[at - len(self._free)])
        self.complete(operation)

    def complete_held(self) -> None:
        """Complete one of those that are held back."""
        if self._held and (not self._queues or self._rng.random() < 0.5):
            self.complete(self._held.pop(self._rng.randrange(len(self._held))))
        else:
            self.complete(self._pop(self._rng.choice(list(self._queues))))

    def _pop(self, key: int) -> Operation:
        queue = self._queues[key]
        operation = queue.popleft()
        if not queue:
            del self._queues[key]
        return operation
