"""The bucketing loss, on problems that no step of the selection saw. Pure: a table and measured times in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from aot.core.alignment import unaligned_loads
from aot.core.dispatch import Tier, look_up
from aot.core.work import P, in_order
from aot.select.coverage import multiples_of
from aot.select.selection import AgainstReference, HeldOut, Stepped
from aot.select.times.orders import NONE_ORDERED, OrderedTimes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aot.core.candidate import Candidate, KernelKey
    from aot.core.dispatch import Section
    from aot.core.measurement import Times, TimesOf
    from aot.core.problem import Problem
    from aot.core.work import AnyOperation


@dataclass(frozen=True)
class LookUp(Generic[P]):
    """What the table gives one problem, beside the best that is known; times in microseconds."""

    problem: P
    tier: Tier
    chosen: Candidate
    time_us: float | None
    """Of `chosen`; None where it was not timed on the problem."""
    best_shipped_us: float
    """Least of the kernels that are shipped; as the next, infinite where none was timed."""
    best: Candidate
    best_us: float

    @staticmethod
    def of(
        problem: P,
        tier: Tier,
        chosen: Candidate,
        time_us: float | None,
        times: Mapping[Candidate, float],
        shipped: Collection[Candidate],
    ) -> LookUp[P]:
        """Stand what a table gives beside the times of a problem and the kernels that are shipped."""
        best_shipped_us = min((time for other, time in times.items() if other in shipped), default=float("inf"))
        best_us, best = min((time, other) for other, time in times.items())
        return LookUp(problem, tier, chosen, time_us, best_shipped_us, best, best_us)

    @property
    def rounding(self) -> float | None:
        """Return the bucketing loss, as a fraction: the time over the best shipped kernel's, minus 1."""
        return None if self.time_us is None else self.time_us / self.best_shipped_us - 1

    @property
    def regret(self) -> float | None:
        """Return the time over the best known of any kernel, minus 1."""
        return None if self.time_us is None else self.time_us / self.best_us - 1


def look_ups(
    section: Section, kernels: Sequence[KernelKey], times: Times, ordered: OrderedTimes = NONE_ORDERED
) -> list[LookUp[Problem]]:
    """Look every problem up that is as aligned as the section has it.

    Args:
        section: the table of the problems' operation.
        kernels: by the index that the table uses.
        times: microseconds by problem and candidate, of at least one candidate each.
        ordered: times of kernels in other orders of their tiles, which a row may ask for. Where that was not timed, the
            kernel has the time of its own order.
    """
    multiples = multiples_of(kernels)
    shipped = {key.candidate for key in kernels if key.operation == section.operation}
    found = []
    for problem in sorted(times):
        if unaligned_loads(problem) != section.loads:
            continue
        row = times[problem]
        choice = look_up(section, problem, multiples)
        chosen = kernels[choice.kernel].candidate
        us = ordered.time_us(problem, chosen, choice.tile_order) or row.get(chosen)
        found.append(LookUp.of(problem, choice.tier, chosen, us, row, shipped))
    return found


def step_look_ups(steps: Stepped, times: TimesOf[P]) -> Iterator[LookUp[P]]:
    """Look every problem of operations on rows up, as aligned tensors; see `look_ups`."""
    for problem in sorted(times, key=in_order):
        asked: Any = problem
        (chosen, tier), row = steps.look_up(asked), times[problem]
        shipped = {key.candidate for key in steps.kernels if key.operation == problem.operation}
        yield LookUp.of(problem, tier, chosen, row.get(chosen), row, shipped)


def against(
    section: Section,
    kernels: Sequence[KernelKey],
    times: Times,
    references: Mapping[Problem, float],
    ordered: OrderedTimes = NONE_ORDERED,
    *,
    is_heldout: bool,
) -> AgainstReference | None:
    """Compare a table's look-ups with a reference library where both were timed; None where neither was.

    Args:
        section: the table of the problems' operation.
        kernels: by the index that the table uses.
        times: measured microseconds by problem and candidate.
        references: the library's, by problem.
        ordered: times of kernels in other orders of their tiles.
        is_heldout: whether no step of the selection saw the problems.
    """
    both = {problem: row for problem, row in times.items() if problem in references}
    found = look_ups(section, kernels, both, ordered)
    speeds = [(references[x.problem] / x.time_us, x.problem) for x in found if x.time_us is not None]
    if not speeds:
        return None
    values = np.array([speed for speed, _ in speeds])
    worst, problem = min(speeds)
    return AgainstReference(
        operation=section.operation,
        is_heldout=is_heldout,
        num_problems=len(speeds),
        num_untimed=len(found) - len(speeds),
        mean=round(float(np.exp(np.log(values).mean())), 5),
        num_below_98=int((values < 0.98).sum()),
        num_below_93=int((values < 0.93).sum()),
        worst=round(worst, 5),
        worst_problem=problem.name,
    )


def score(
    section: Section, kernels: Sequence[KernelKey], times: Times, ordered: OrderedTimes = NONE_ORDERED
) -> tuple[HeldOut, ...]:
    """Score a table's look-ups on held-out problems, tier 1 and tier 2 apart.

    Args:
        section: the table of the problems' operation.
        kernels: by the index that the table uses.
        times: measured microseconds by problem and candidate.
        ordered: times of kernels in other orders of their tiles.

    Returns:
        An entry for each tier that some problem fell to. A problem whose kernel was not timed on it is counted in
        `num_unmeasured` and in no regret.
    """
    return scores(section.operation, look_ups(section, kernels, times, ordered))


def scores(operation: AnyOperation, found: Sequence[LookUp[P]]) -> tuple[HeldOut, ...]:
    """Score look-ups of an operation's problems, tier 1 and tier 2 apart; see `score`."""
    scored = []
    for tier in (Tier.TUNED, Tier.GRID):
        of_tier = [item for item in found if item.tier is tier]
        rows = [(x.rounding, x.regret, x.problem) for x in of_tier if x.rounding is not None and x.regret is not None]
        if not of_tier:
            continue
        rounding, regret = np.array([[a, b] for a, b, _ in rows] or [[0.0, 0.0]]).T
        worst = max(rows, default=None, key=lambda row: row[0])
        scored.append(
            HeldOut(
                operation=operation,
                tier=tier.value,
                num_problems=len(rows),
                num_unmeasured=len(of_tier) - len(rows),
                bucketing_loss_mean=round(float(rounding.mean()), 5),
                bucketing_loss_worst=round(float(rounding.max()), 5),
                mean=round(float(regret.mean()), 5),
                worst=round(float(regret.max()), 5),
                worst_problem="" if worst is None else worst[2].name,
            )
        )
    return tuple(scored)
