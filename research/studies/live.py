"""Compare searches that were run on a device: the time that each took, and the regret of what it found.

The first results file is the reference, an exhaustive run; regret is judged by its times alone, so that noise between
runs does not count: the time, there, of the kernel that the other run found best, over the best time there, minus 1.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from aot.core.errors import StoreError
from aot.core.whole_file import write_whole
from aot.core.work import in_order
from aot.measure.store import read_store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aot.core.work import AnyProblem

LIVE_VERSION = 1


@dataclass(frozen=True)
class LiveSearch:
    """A run over the problems that it and the reference have finished: a row of what `search --live` writes.

    Regrets are fractions; `fraction` is the measurements over the reference's, `seconds` what the searches took,
    checks, rounds and host included, verification not.
    """

    results: str
    strategy: str
    num_problems: int
    measurements: int
    skipped: int
    fraction: float
    seconds: float
    time_fraction: float
    mean_regret: float
    worst_regret: float
    worst_problem: str


@dataclass(frozen=True)
class _Run:
    times_us: Mapping[AnyProblem, Mapping[str, float]]
    """Of each finished problem, by the kernel's name."""
    seconds: Mapping[AnyProblem, float]
    skipped: Mapping[AnyProblem, int]
    strategy: str


def _read(path: Path) -> _Run:
    times: dict[AnyProblem, dict[str, float]] = {}
    with read_store(path) as store:
        for _, item in store.measurements():
            row = times.setdefault(item.problem, {})
            row.pop(item.kernel.name, None)
            if item.ok:
                row[item.kernel.name] = item.median_us
        finished = {problem: row for problem, row in times.items() if row and store.is_finished(problem)}
        ends = {problem: store.searches(problem) for problem in finished}
    names = {end.strategy for found in ends.values() for end in found}
    seconds = {problem: sum(end.seconds for end in found) for problem, found in ends.items()}
    skipped = {problem: found[-1].num_skipped if found else 0 for problem, found in ends.items()}
    return _Run(finished, seconds, skipped, " and ".join(sorted(names)) or "unknown")


def _compare(path: Path, run: _Run, reference: _Run) -> LiveSearch:
    regrets: dict[AnyProblem, float] = {}
    for problem in sorted(set(run.times_us) & set(reference.times_us), key=in_order):
        row, other = run.times_us[problem], reference.times_us[problem]
        known = [name for name in row if name in other]
        if known:
            regrets[problem] = other[min(known, key=lambda x: (row[x], x))] / min(other.values()) - 1
    if not regrets:
        raise StoreError(f"{path} and the reference have no finished problem in common; run both to the end")
    worst = max(regrets, key=lambda x: (regrets[x], x))
    measured, all_measured = (sum(len(x.times_us[problem]) for problem in regrets) for x in (run, reference))
    seconds, all_seconds = (sum(x.seconds[problem] for problem in regrets) for x in (run, reference))
    return LiveSearch(
        path.name,
        run.strategy,
        len(regrets),
        measured,
        sum(run.skipped[problem] for problem in regrets),
        round(measured / all_measured, 4),
        round(seconds, 2),
        round(seconds / all_seconds, 4) if all_seconds else 0.0,
        round(sum(regrets.values()) / len(regrets), 5),
        round(regrets[worst], 5),
        worst.name,
    )


def compare_live(paths: Sequence[Path]) -> list[LiveSearch]:
    """Compare results files with the first of them.

    Raises:
        StoreError: a file cannot be read, or has nothing in common with the first.
    """
    runs = [_read(path) for path in paths]
    return [_compare(path, run, runs[0]) for path, run in zip(paths, runs, strict=True)]


def write_live(path: Path, rows: Sequence[LiveSearch]) -> None:
    """Write a comparison as JSON: {version, searches: [a LiveSearch's fields, ...]}."""
    content = {"version": LIVE_VERSION, "searches": [asdict(row) for row in rows]}
    write_whole(path, json.dumps(content, indent=1) + "\n")
