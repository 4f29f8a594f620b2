"""The candidates worth compiling and measuring, by the cost model's order."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from aot.core.candidate import changed
from aot.core.knobs import GemmKnobs
from aot.space.cost import DEFAULTS, Constants, estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.candidate import Candidate
    from aot.core.problem import Problem
    from aot.core.target import Target


def _kin(candidate: Candidate) -> Candidate:
    """Return what a candidate shares with those that differ from it in cluster and swap only."""
    if not isinstance(candidate.knobs, GemmKnobs):
        return candidate
    return changed(candidate, cluster_m=1, cluster_n=1, swap_ab=False)


def shortlist(
    candidates: Sequence[Candidate],
    problems: Sequence[Problem],
    target: Target,
    limit: int,
    constants: Constants = DEFAULTS,
) -> list[Candidate]:
    """Choose up to `limit` candidates: each problem's best first, then each one's second best, and so on.

    With a candidate come its kin: the model can hardly tell them apart.
    """
    by_name = sorted(candidates, key=lambda candidate: candidate.name)
    times = estimate(by_name, problems, target, constants).total_us
    orders = [[by_name[j] for j in order] for order in times.argsort(axis=1, kind="stable")]
    kin: dict[Candidate, list[Candidate]] = {}
    for candidate in candidates:
        kin.setdefault(_kin(candidate), []).append(candidate)
    chosen: dict[Candidate, None] = {}
    for rank in zip_longest(*orders):
        for candidate in rank:
            if candidate is None or candidate in chosen:
                continue
            for relative in kin[_kin(candidate)]:
                if len(chosen) == limit:
                    return list(chosen)
                chosen.setdefault(relative)
    return list(chosen)


def within(
    candidates: Sequence[Candidate], problem: Problem, target: Target, ratio: float, constants: Constants = DEFAULTS
) -> list[Candidate]:
    """Keep the candidates predicted to take at most `ratio` times the best predicted time, in the given order."""
    times = estimate(candidates, [problem], target, constants).total_us[0]
    limit = times.min() * ratio
    return [candidate for candidate, time in zip(candidates, times, strict=True) if time <= limit]
