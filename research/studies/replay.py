"""Replay a search on recorded times, as if measuring: regret against the measurements and the device time it takes.

A record's times stand in for the device; what a strategy leaves out costs nothing, what it asks for costs what the
timing protocol would have taken. The best time of the record is the exhaustive search's; regret is the time of the best
kernel that a strategy measured over that, minus 1. A kernel's screening and its rounds are one time here, the recorded
one, so that a replay says how well a strategy chooses and not how noisy the device is.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import Candidate
from aot.core.problem import Problem
from aot.core.whole_file import write_whole
from aot.measure.protocol import TimingPlan, num_launches, num_sets, survivors
from aot.report.searches import CURVE_VERSION, CurvePoint
from aot.search.strategy import Limited, Stop, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from aot.search.strategy import Strategy

HOST_US = 4000.0
"""Host time of screening a kernel beside its launches: up to 200 launches captured at 10 us each
(aot.measure.protocol), the check's 16 rows copied and compared, and four commits. Source: an estimate; it is
the same for every strategy."""


@dataclass(frozen=True)
class Outcome:
    """What a search did on one problem."""

    problem: Problem
    num_candidates: int
    num_measured: int
    best_us: float
    """The least time that it measured."""
    exhaustive_us: float
    """The least time there is."""
    device_s: float
    reason: str

    @property
    def regret(self) -> float:
        """Return the best time measured over the least there is, minus 1."""
        return self.best_us / self.exhaustive_us - 1


def screening_us(problem: Problem, time_us: float, l2_bytes: int, plan: TimingPlan) -> float:
    """Return the device's and the host's time of screening one kernel: a check, a rough launch and a replay."""
    launches = num_launches(num_sets(problem, l2_bytes, plan), max(time_us, 1.0), plan)
    return HOST_US + (launches + 2) * time_us


def _device_s(problem: Problem, times_us: Mapping[int, float], l2_bytes: int, plan: TimingPlan) -> float:
    """Return the seconds that screening these kernels takes, and the rounds of those that survive."""
    cost = {i: screening_us(problem, us, l2_bytes, plan) for i, us in times_us.items()}
    rounds = sum(cost[i] - HOST_US for i in survivors(times_us, plan))
    return (sum(cost.values()) + plan.final_rounds * rounds) / 1e6


def _product(task: Task) -> Problem:
    """Return a task's problem: records of products are replayed."""
    if not isinstance(task.problem, Problem):
        raise TypeError(f"{task.problem.name}: expected a product")
    return task.problem


def replay_problem(
    strategy: Strategy, task: Task, times_us: Sequence[float], budget: float, l2_bytes: int, plan: TimingPlan
) -> Outcome:
    """Search one problem; the strategy learns from it.

    Args:
        strategy: with what it learned before.
        task: the problem.
        times_us: what each of the task's candidates takes.
        budget: share of the candidates that may be measured; at least one is.
        l2_bytes: the device's, by which operands rotate.
        plan: the protocol's numbers.
    """
    problem = _product(task)
    limit = max(1, math.ceil(budget * len(times_us) - 1e-9))
    search, measured = Limited(strategy.search(task), limit), dict[int, float]()
    while not isinstance(step := search.ask(), Stop):
        measured[step] = times_us[step]
        search.tell(step, times_us[step])
    strategy.learn(task, measured)
    seconds = _device_s(problem, measured, l2_bytes, plan)
    return Outcome(problem, len(times_us), len(measured), min(measured.values()), min(times_us), seconds, step.reason)


def replay(
    strategy: Strategy,
    tasks: Sequence[Task],
    times: Mapping[Problem, Mapping[Candidate, float]],
    budget: float = 1.0,
    *,
    l2_bytes: int,
    plan: TimingPlan | None = None,
) -> list[Outcome]:
    """Search problem after problem, in the tasks' order; see `replay_problem`."""
    plan = plan or TimingPlan()
    outcomes = []
    for task in tasks:
        row = times[_product(task)]
        known = [row[x] for x in task.candidates if isinstance(x, Candidate)]
        outcomes.append(replay_problem(strategy, task, known, budget, l2_bytes, plan))
    return outcomes


def shuffled(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return the tasks in another order: what a strategy has learned when it comes to a problem depends on it."""
    return [tasks[i] for i in np.random.default_rng(seed).permutation(len(tasks))]


def summarise(strategy: str, budget: float, runs: Sequence[Sequence[Outcome]]) -> CurvePoint:
    """Put the outcomes of some seeds together."""
    found = [outcome for run in runs for outcome in run]
    regrets = np.array([outcome.regret for outcome in found])
    num_measured = sum(outcome.num_measured for outcome in found)
    return CurvePoint(
        strategy,
        budget,
        round(num_measured / sum(outcome.num_candidates for outcome in found), 5),
        round(num_measured / len(runs), 1),
        round(float(sum(outcome.device_s for outcome in found)) / len(runs), 3),
        round(float(regrets.mean()), 6),
        round(float(np.quantile(regrets, 0.95)), 6),
        round(float(regrets.max()), 6),
        round(float((regrets <= 0.01).mean()), 5),
        len(runs[0]),
        len(runs),
    )


def curve(
    make: Callable[[int], Strategy],
    tasks: Sequence[Task],
    times: Mapping[Problem, Mapping[Candidate, float]],
    *,
    budgets: Sequence[float],
    seeds: Iterable[int],
    l2_bytes: int,
    report: Callable[[CurvePoint], None] = lambda _point: None,
) -> list[CurvePoint]:
    """Replay a strategy at each budget, once for each seed, with the problems in the seed's order.

    Args:
        make: makes the strategy anew, of a seed.
        tasks: the problems.
        times: microseconds by problem and candidate.
        budgets: shares of a problem's candidates.
        seeds: of the problems' order, and of the strategy where it draws.
        l2_bytes: the device's.
        report: told each point as it is known.
    """
    points, chosen = [], list(seeds)
    for budget in budgets:
        runs, name = [], ""
        for seed in chosen:
            strategy = make(seed)
            name = strategy.name
            runs.append(replay(strategy, shuffled(tasks, seed), times, budget, l2_bytes=l2_bytes))
        points.append(summarise(name, budget, runs))
        report(points[-1])
    return points


def write_curves(path: Path, target: str, record: str, points: Sequence[CurvePoint]) -> None:
    """Write curves as JSON: {version, target, record, points: [a CurvePoint's fields, ...]}."""
    content = {"version": CURVE_VERSION, "target": target, "record": record, "points": [asdict(x) for x in points]}
    write_whole(path, json.dumps(content, indent=1) + "\n")
