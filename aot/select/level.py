"""Put the times of several runs to one level, and join them into one record. Pure.

Runs differ by a common factor: another machine of the same kind, another day, a warmer or cooler card. The factor of a
run is the median ratio over the pairs of problem and kernel that both it and the others have timed; a library counts as
a kernel. The median is not moved by the pairs in which kernels differ, nor by a minority that was disturbed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from aot.core.candidate import KernelKey
from aot.core.errors import StoreError
from aot.core.measurement import LibraryTime, Measurement, Record
from aot.core.problem import Problem
from aot.core.tile_order import HEURISTIC
from aot.select.record import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MIN_PAIRS = 20
"""Fewest common pairs that a factor is taken of: single pairs of two runs of an H200 differ by 2 to 4% beside their
common factor (docs/measurements.md, 2026-11-21), so that the median of 20 is known to 1%."""

Pair: TypeAlias = tuple[Problem, KernelKey | str, int]
"""A problem, and the kernel, or the library by its name and version, that was timed on it; and the order of tiles."""

Timed = TypeVar("Timed", Measurement, LibraryTime)


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


def _times(record: Record) -> dict[Pair, float]:
    times: dict[Pair, float] = {x.timed: x.median_us for x in record.measurements if x.ok}
    return times | {(x.problem, x.library, HEURISTIC): x.median_us for x in record.library_times}


def _scaled(item: Timed, factor: float) -> Timed:
    low, median, high = (factor * us for us in (item.low_us, item.median_us, item.high_us))
    return replace(item, low_us=low, median_us=median, high_us=high)


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


def _joined(records: Sequence[Record]) -> Record:
    """Join records of one level: of a pair that several timed, the geometric mean; of a failure, the latest word."""
    latest = merge(list(records))
    found: dict[Pair, list[Measurement]] = {}
    for item in chain.from_iterable(record.measurements for record in records):
        if item.ok:
            found.setdefault(item.timed, []).append(item)
    libraries: dict[tuple[Problem, str], list[LibraryTime]] = {}
    for time in chain.from_iterable(record.library_times for record in records):
        libraries.setdefault((time.problem, time.library), []).append(time)
    return replace(
        latest,
        measurements=tuple(_mean(found[x.timed]) if x.ok else x for x in latest.measurements),
        library_times=tuple(_mean(libraries[x.problem, x.library]) for x in latest.library_times),
    )


def level(records: Sequence[tuple[str, Record]]) -> tuple[Record, list[Level]]:
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
        own = times[nearest]
        ratios = [_geometric_mean(known[pair]) / own[pair] for pair in sorted(known.keys() & own.keys(), key=str)]
        if len(ratios) < MIN_PAIRS:
            raise StoreError(
                f"{name} has {len(ratios)} pairs of problem and kernel in common with the others, and at least "
                f"{MIN_PAIRS} are needed to put it to their level; measure some of the same, or import it without "
                "--level"
            )
        low, factor, high = (float(x) for x in np.percentile(ratios, [25, 50, 75]))
        levels.append(Level(name, factor, len(ratios), low, high))
        done.append(
            replace(
                record,
                measurements=tuple(_scaled(x, factor) if x.ok else x for x in record.measurements),
                library_times=tuple(_scaled(x, factor) for x in record.library_times),
            )
        )
        for pair, us in own.items():
            known.setdefault(pair, []).append(factor * us)
    return _joined(done), levels
