"""A task for the strategies of search, and what they do with it."""

from __future__ import annotations

from aot.core.candidate import gemm_candidate
from aot.search.strategy import Stop, Task
from tests.unit.twins import problem_of

CANDIDATES = tuple(
    gemm_candidate("f", 64 * 2**i, 16 * j, c, 1, "pingpong", swap_ab=swap)
    for i in range(2)
    for j in range(1, 17)
    for c in (1, 2)
    for swap in (False, True)
)


def task(m=256):
    return Task(problem_of(m, 4096, 4096), CANDIDATES, tuple(10.0 + 0.5 * i for i in range(len(CANDIDATES))))


def run(strategy, task, times):
    """Search with these times; give the order, and let the strategy learn."""
    search, order = strategy.search(task), []
    while not isinstance(step := search.ask(), Stop):
        order.append(step)
        search.tell(step, times[step])
    strategy.learn(task, {i: times[i] for i in order})
    return order, step.reason


def ended(search, time_us=1.0):
    """Measure to the end; give the order and the reason."""
    order = []
    while not isinstance(step := search.ask(), Stop):
        assert search.ask() == step  # asking again changes nothing
        order.append(step)
        search.tell(step, time_us)
    return order, step.reason
