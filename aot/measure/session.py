"""What one process measures with, and what ends it between two measurements."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aot.measure.inputs import SOURCE_ELEMENTS
from aot.measure.protocol import TimingPlan
from aot.search.strategy import EXHAUSTIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aot.measure.feed import Portion
    from aot.measure.gpu import Gpu, Kernels, Library
    from aot.measure.store import Store
    from aot.measure.tuning_set import TuningSet


class StoppedError(Exception):
    """The user, or the time budget, ended the run between two measurements; everything is in the store."""


@dataclass
class Session:
    """What one process measures with."""

    gpu: Gpu
    kernels: Kernels
    tuning: TuningSet
    store: Store
    run: int
    seed: int
    plan: TimingPlan = field(default_factory=TimingPlan)
    report: Callable[[int, int, str], None] = lambda _done, _total, _what: None
    """Called often with the steps done, the steps in all, and what is being done."""
    stop: Callable[[], bool] = lambda: False
    """Asked between measurements whether to end."""
    source_elements: int = SOURCE_ELEMENTS
    warn: Callable[[str], None] = lambda _text: None
    """Told what a person should know."""
    strategy: str = EXHAUSTIVE
    """How kernels are searched on each problem, one of `aot.search.strategy.NAMES`."""
    library: Library | None = None
    """A library whose own product is timed beside the kernels, if any: its only kernel."""
    num_sms: int = 0
    """Of the device; where it is 0, kernels take their tiles in their own order alone."""
    portions: Callable[[Callable[[], None]], Iterator[Portion]] | None = None
    """Gives what to do, bit by bit, where the run is handed that (aot.measure.feed); it calls its argument while there
    is nothing. None: all of the tuning."""
    finished: Callable[[Portion], None] = lambda _portion: None
    """Told of each portion that is done."""
    search_budget: float = 1.0
    """Share of a problem's kernels that the search may measure."""


class Steps:
    """Counts what a process has done of its session, and reports it."""

    def __init__(self, session: Session, total: int) -> None:
        self._session, self._total, self._done = session, total, 0

    def tick(self, what: str) -> None:
        """Report that this process lives, with no step done."""
        self._session.report(self._done, self._total, what)

    def step(self, what: str, count: int = 1) -> None:
        """Count and report steps.

        Raises:
            StoppedError: the session's `stop` said so.
        """
        self._done += count
        self.tick(what)
        if self._session.stop():
            raise StoppedError


def deadline_stop(budget_s: float | None, is_interrupted: Callable[[], bool]) -> Callable[[], bool]:
    """Make a `stop` that says yes after an interrupt, or once the budget in seconds is spent."""
    end = None if budget_s is None else time.monotonic() + budget_s
    return lambda: is_interrupted() or (end is not None and time.monotonic() >= end)
