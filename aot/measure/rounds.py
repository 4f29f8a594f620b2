"""The final rounds of a problem: who is timed how often, rested or not, in which order. What times is passed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aot.measure.protocol import quartiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from aot.core.work import AnyProblem
    from aot.measure.protocol import TimingPlan


def is_intense(problem: AnyProblem, plan: TimingPlan) -> bool:
    """Say whether a problem is timed both ways: the card may be at its power limit in it, or not."""
    return not plan.flush_bytes and problem.flops >= plan.intense_flop_per_byte * problem.num_bytes


def both_ways(unrested_us: Sequence[float], rested_us: Sequence[float]) -> list[float]:
    """Scale the rounds of the two ways to one median, the geometric mean of theirs, so that quartiles speak of noise.

    A kernel that is best at the power limit can lose 10% to another below it, and the other way round (H200,
    2026-11-21, m 8192, n 8192, k 8192: 128x112 c2x1 takes 1,623 and 1,572 us, 128x224 c2x1 1,611 and 1,338). Prefill
    without a pause works at the limit, a burst between memory-bound kernels does not; the mean serves both.
    """
    if not unrested_us or not rested_us:
        return [*unrested_us, *rested_us]
    medians = [quartiles(times)[1] for times in (unrested_us, rested_us)]
    mean = math.sqrt(medians[0] * medians[1])
    return [us * mean / median for times, median in zip((unrested_us, rested_us), medians, strict=True) for us in times]


def interleave(
    chosen: Sequence[int], count: int, rng: np.random.Generator, time_once: Callable[[int], float | None]
) -> dict[int, list[float]]:
    """Time kernels in `count` rounds, in an order shuffled anew for each.

    Args:
        chosen: the kernels.
        count: of rounds.
        rng: shuffles.
        time_once: gives a kernel's microseconds, or None where it failed.
    """
    rounds: dict[int, list[float]] = {kernel: [] for kernel in chosen}
    for _ in range(count):
        for kernel in rng.permutation(chosen).tolist():
            us = time_once(kernel)
            rounds[kernel] += [] if us is None else [us]
    return rounds


def final_rounds(
    problem: AnyProblem,
    chosen: Sequence[int],
    plan: TimingPlan,
    rng: np.random.Generator,
    time_once: Callable[[int, bool], float | None],
    replay_us: float = 0.0,
) -> dict[int, list[float]]:
    """Time the kernels chosen on a problem as the protocol says; give the microseconds of each kernel's rounds.

    Args:
        problem: what they compute.
        chosen: the kernels.
        plan: the protocol's numbers.
        rng: shuffles.
        time_once: gives a kernel's microseconds, or None where it failed; the second argument says whether the GPU is
            to rest before it.
        replay_us: about what a replay lasts: long ones need fewer rounds.
    """
    share = 2 if replay_us >= plan.long_replay_us else 1
    if not is_intense(problem, plan):
        return interleave(chosen, plan.final_rounds // share, rng, lambda kernel: time_once(kernel, False))
    unrested = interleave(chosen, plan.unrested_rounds // share, rng, lambda kernel: time_once(kernel, False))
    rested = interleave(chosen, plan.rested_rounds // share, rng, lambda kernel: time_once(kernel, True))
    return {kernel: both_ways(unrested[kernel], rested[kernel]) for kernel in chosen}
