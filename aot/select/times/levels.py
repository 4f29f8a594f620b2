"""Put the times of several runs to one level, and join them into one record. Pure.

Runs differ by a common factor: another machine of the same kind, another day, a warmer or cooler card. The factor of a
run is the median ratio over what both it and the others have timed: a library's products that are not intense, which
are the same code in every run; where those are too few all of the library's, and else any pair of problem and kernel.
The median is not moved by a minority that was disturbed.

On one problem kernels of ours deviate from that factor together, as they find the same operands in the same places,
and an intense problem may be at the card's power limit or not. So a problem has a factor of its own: by the kernels
that both have timed on it, or else, where it is intense, by the library (research/log/2026-11-23-levels.md). The
library's own times have the run's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from aot.core.errors import StoreError
from aot.core.measurement import AnyLibraryTime, AnyMeasurement, AnyRecord
from aot.core.tile_order import HEURISTIC
from aot.core.work import AnyKey, AnyProblem
from aot.measure.protocol import TimingPlan
from aot.measure.rounds import is_intense
from aot.select.times.record import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MIN_PAIRS = 20
"""Fewest common pairs that a factor is taken of: single pairs of two runs of an H200 differ by 2 to 4% beside their
common factor (docs/measurements.md, 2026-11-21), so that the median of 20 is known to 1%."""

APART = 0.01
"""By how much runs differ when it is said: that to which the median of MIN_PAIRS is known."""

SHARED_BY_KERNELS = 0.5
"""Correlation of two kernels' deviations from their run's factor on one problem. Source: 2,208 problems of an H200 in
two runs, 0.55 below 6 us, 0.39 to 12, 0.54 to 0.56 above (research/log/2026-11-23-levels.md)."""
SHARED_WITH_LIBRARY = 0.4
"""What of the library's deviation on an intense problem kernels have too. Source: the slope of theirs over it, 0.43 of
968 times of 60 us and more, 0.30 of 1,179 at 25 to 60 us (the same page)."""

Pair: TypeAlias = tuple[AnyProblem, AnyKey | str, int]
"""A problem, and the kernel, or the library by its name and version, that was timed on it; and the order of tiles."""

Timed = TypeVar("Timed", AnyMeasurement, AnyLibraryTime)


@dataclass(frozen=True)
class Level:
    """What a run's times were multiplied with."""

    name: str
    factor: float
    num_pairs: int
    """Pairs that the factor is the median of; 0 of the run that the others were put to."""
    low: float
    """Quartiles of the pairs' own factors."""
    high: float
    num_problems: int = 0
    """Problems whose times have a factor of their own."""


def _times(record: AnyRecord) -> dict[Pair, float]:
    times: dict[Pair, float] = {x.timed: x.median_us for x in record.measurements if x.ok}
    return times | {(x.problem, x.library, HEURISTIC): x.median_us for x in record.library_times}


def _scaled(item: Timed, factor: float) -> Timed:
    low, median, high = (factor * us for us in (item.low_us, item.median_us, item.high_us))
    return replace(item, low_us=low, median_us=median, high_us=high)


def _levelled(record: AnyRecord, factor: float, of_problems: Mapping[AnyProblem, float]) -> AnyRecord:
    """Multiply a record's times with a factor, those of kernels with that of their problem where it has one."""
    found = (_scaled(x, of_problems.get(x.problem, factor)) if x.ok else x for x in record.measurements)
    libraries = (_scaled(x, factor) for x in record.library_times)
    return replace(record, measurements=tuple(found), library_times=tuple(libraries))


def _geometric_mean(values: Iterable[float]) -> float:
    return math.exp(float(np.mean([math.log(value) for value in values])))


def _mean(items: Sequence[Timed]) -> Timed:
    """Return the geometric means of times of one pair, of those that were taken in most rounds.

    A screening alone is not averaged with final rounds: one late launch by the host can double it.
    """
    most = max(x.num_rounds for x in items)
    items = [x for x in items if 2 * x.num_rounds >= most]
    low, median, high = (
        _geometric_mean(values) for values in zip(*((x.low_us, x.median_us, x.high_us) for x in items), strict=True)
    )
    found = replace(items[-1], low_us=low, median_us=median, high_us=high)
    return replace(found, num_rounds=sum(x.num_rounds for x in items))


def _joined(records: Sequence[AnyRecord]) -> AnyRecord:
    """Join records of one level: of a pair that several timed, the geometric mean; of a failure, the latest word."""
    latest = merge(list(records))
    found: dict[Pair, list[AnyMeasurement]] = {}
    for item in chain.from_iterable(record.measurements for record in records):
        if item.ok:
            found.setdefault(item.timed, []).append(item)
    libraries: dict[tuple[AnyProblem, str], list[AnyLibraryTime]] = {}
    for time in chain.from_iterable(record.library_times for record in records):
        libraries.setdefault((time.problem, time.library), []).append(time)
    return replace(
        latest,
        measurements=tuple(_mean(found[x.timed]) if x.ok else x for x in latest.measurements),
        library_times=tuple(_mean(libraries[x.problem, x.library]) for x in latest.library_times),
    )


def _of_problems(ratios: Mapping[Pair, float], factor: float) -> dict[AnyProblem, float]:
    """Return the factors of problems, of the ratios of all common pairs and the run's factor.

    A kernel that has changed deviates everywhere: its problems are told apart by the median of all kernels' deviations.
    """
    of_libraries = {problem: math.log(x / factor) for (problem, what, _), x in ratios.items() if isinstance(what, str)}
    found = {x: SHARED_WITH_LIBRARY * y for x, y in of_libraries.items() if is_intense(x, TimingPlan())}
    of_kernels: dict[AnyProblem, list[float]] = {}
    for (problem, what, _), ratio in ratios.items():
        if not isinstance(what, str):
            of_kernels.setdefault(problem, []).append(math.log(ratio / factor))
    usual = float(np.median(list(chain.from_iterable(of_kernels.values())))) if of_kernels else 0.0
    for problem, deviations in of_kernels.items():
        count = len(deviations)
        known = count * SHARED_BY_KERNELS / (1 + (count - 1) * SHARED_BY_KERNELS)
        found[problem] = known * float(np.mean(deviations) - usual)
    return {problem: factor * math.exp(deviation) for problem, deviation in found.items()}


def _level(
    name: str, own: Mapping[Pair, float], known: Mapping[Pair, Sequence[float]]
) -> tuple[Level, dict[AnyProblem, float]]:
    """Find what puts a run's times to the level of those that are known: its factor, and those of problems.

    Raises:
        StoreError: fewer than MIN_PAIRS are common to both.
    """
    ratios = {x: _geometric_mean(known[x]) / own[x] for x in sorted(known.keys() & own.keys(), key=str)}
    of_libraries = {x: ratio for x, ratio in ratios.items() if isinstance(x[1], str)}
    others = {x: ratio for x, ratio in of_libraries.items() if not is_intense(x[0], TimingPlan())}
    used = next((x for x in (others, of_libraries) if len(x) >= MIN_PAIRS), ratios)
    if len(used) < MIN_PAIRS:
        raise StoreError(
            f"{name} has {len(used)} pairs of problem and kernel in common with the others, and at least {MIN_PAIRS} "
            "are needed to put it to their level; measure some of the same, or import it without --level"
        )
    low, factor, high = (float(x) for x in np.percentile(list(used.values()), [25, 50, 75]))
    of_problems = _of_problems(ratios, factor)
    return Level(name, factor, len(used), low, high, len(of_problems)), of_problems


def level(records: Sequence[tuple[str, AnyRecord]]) -> tuple[AnyRecord, list[Level]]:
    """Put records to the level of the first, and join them.

    The one that has the most pairs in common with those at that level already comes next, so that one which shares
    pairs with another than the first finds its place too.

    Args:
        records: with the name of each, for messages.

    Returns:
        The record, in which a pair that several timed has the geometric mean of its times, and each one's factor.

    Raises:
        StoreError: they are not comparable (`merge`), or one has fewer than MIN_PAIRS pairs in common with the others.
    """
    merge([record for _, record in records])  # refuses what is not comparable
    (name, first), *left = records
    done, levels = [first], [Level(name, 1.0, 0, 1.0, 1.0)]
    known = {pair: [us] for pair, us in _times(first).items()}
    while left:
        times = [_times(record) for _, record in left]
        nearest = max(range(len(left)), key=lambda i: len(known.keys() & times[i].keys()))
        name, record = left.pop(nearest)
        found, of_problems = _level(name, times[nearest], known)
        levels.append(found)
        done.append(_levelled(record, found.factor, of_problems))
        for pair, us in _times(done[-1]).items():
            known.setdefault(pair, []).append(us)
    return _joined(done), levels


def levels_apart(records: Sequence[tuple[str, AnyRecord]]) -> list[Level]:
    """Return what would put runs to the level of those in front of them, where that is more than APART away.

    Args:
        records: with the name of each; those with fewer than MIN_PAIRS pairs in common with the others are left out.
    """
    known: dict[Pair, list[float]] = {}
    found = []
    for name, record in records:
        own = _times(record)
        if len(known.keys() & own.keys()) >= MIN_PAIRS:
            found.append(_level(name, own, known)[0])
        for pair, us in own.items():
            known.setdefault(pair, []).append(us)
    return [x for x in found if abs(x.factor - 1) > APART]
