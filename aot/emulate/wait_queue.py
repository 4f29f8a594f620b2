"""Where warps wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Waiter(Protocol):
    """What can be blocked: a warp."""

    def block(self, reason: str | Callable[[], str]) -> None:
        """Stop where it is, for a reason in the words of a deadlock's report, or what says it when it is reported."""

    def go_on(self) -> None:
        """Be among those again that can go on."""


class WaitQueue:
    """Warps that wait until something of theirs holds."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Waiter, Callable[[], bool], Callable[[], None] | None]] = []

    def wait(
        self,
        waiter: Waiter,
        reason: str | Callable[[], str],
        condition: Callable[[], bool],
        resume: Callable[[], None] | None = None,
    ) -> None:
        """Block a warp.

        Args:
            waiter: who waits.
            reason: for what, in the words of a deadlock's report, or a function that says so when it is reported.
            condition: says whether it can go on.
            resume: called when it goes on.
        """
        waiter.block(reason)
        self._waiting.append((waiter, condition, resume))

    def wake(self) -> None:
        """Let those go on that can."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            waiter, condition, resume = item
            if condition():
                if resume is not None:
                    resume()
                waiter.go_on()
            else:
                self._waiting.append(item)
