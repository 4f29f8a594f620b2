"""An asynchronous operation: issued by a warp, completed when the scheduler chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.emulate.order import Agent


class Operation:
    """What a unit does on its own.

    Attributes:
        kind: what schedules know it by, such as "tma.load".
        agent: who its accesses are by, with what the issuing warp knew.
        run: completes it.
        done: whether it is complete.
        lane: the lane that issued it.
    """

    __slots__ = ("agent", "done", "kind", "lane", "run")

    def __init__(self, kind: str, agent: Agent, run: Callable[[], None], lane: int = 0) -> None:
        self.kind, self.agent, self.run, self.lane = kind, agent, run, lane
        self.done = False

    @property
    def bit(self) -> int:
        """Return the bit by which others know it to be complete."""
        return self.agent.bit
