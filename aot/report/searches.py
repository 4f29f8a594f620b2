"""The curves of search strategies that a report shows beside a tuning, as the study of searches writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.core.constraints import Count, Error, Excess, Label, Seconds, Share, TargetName, Text, Version
from aot.core.errors import StoreError
from aot.core.strict_json import DecodeError, decode_version, parse_json, read_content
from aot.report.facts import SearchPoint

if TYPE_CHECKING:
    from pathlib import Path

CURVE_VERSION = 1


@dataclass(frozen=True)
class CurvePoint:
    """A strategy at a budget, over all problems and all seeds: a point of the file.

    Regrets are fractions. `budget` is the share of a problem's candidates that might be measured; `fraction` is the
    share that was, less where the strategy stopped by itself. `measurements` and `device_s` are of one seed, the mean.
    """

    strategy: Label
    budget: Share
    fraction: Share
    measurements: Error
    device_s: Seconds
    mean_regret: Excess
    p95_regret: Excess
    worst_regret: Excess
    within_1_percent: Share
    """Share of the problems with a regret of at most 0.01."""
    num_problems: Count
    num_seeds: Count


@dataclass(frozen=True)
class Searches:
    """What the study of searches writes."""

    version: Version
    target: TargetName
    record: Text
    points: tuple[CurvePoint, ...]


def read_searches(path: Path, target: str) -> list[SearchPoint]:
    """Read the curves of a file.

    Raises:
        StoreError: the file cannot be read, is of another version, or is of another target.
    """
    try:
        found = decode_version(Searches, parse_json(read_content(path)), "version", CURVE_VERSION)
    except DecodeError as error:
        raise StoreError(f"cannot read the searches {path}: {error}; make it again") from error
    if found.target != target:
        raise StoreError(f"{path} is of {found.target}, not of {target}; give --search, or make it again")
    return [SearchPoint(x.strategy, x.fraction, x.device_s, x.mean_regret, x.worst_regret) for x in found.points]
