"""Why a bigger tile was not chosen: not legal, in figures, or slower, by measurement or by the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from aot.core.candidate import Accepted, Candidate, KernelKey, changed
from aot.core.knobs import GemmKnobs
from aot.core.measurement import PROVENANCE_MEASURED, OperationTimes
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.families import family_named, family_of
from aot.space.cost import estimate
from aot.space.legality import check

if TYPE_CHECKING:
    from aot.core.dispatch import Row
    from aot.core.target import Target
    from aot.select.selection import Selection


@dataclass(frozen=True)
class BiggerTile:
    """A candidate that differs from a kernel's in its tile alone, and why it may not be compiled; empty if it may."""

    candidate: Candidate
    rejection: str

    @property
    def tile(self) -> str:
        """Return the tile as names have it."""
        return f"{self.candidate.gemm.tile_m}x{self.candidate.gemm.tile_n}"


def _kind(candidate: Candidate) -> tuple[object, ...]:
    """Return all that a candidate is beside its tile."""
    knobs = vars(candidate.knobs)
    return (candidate.family, *(value for name, value in knobs.items() if name not in {"tile_m", "tile_n"}))


@lru_cache(maxsize=32)
def _tiles(family: str, operation: Operation, target: Target) -> dict[tuple[object, ...], frozenset[tuple[int, int]]]:
    """Return the tiles of a family's space, by all that a candidate is beside its tile."""
    found: dict[tuple[object, ...], set[tuple[int, int]]] = {}
    for candidate in family_named(family).candidates(operation, target):
        found.setdefault(_kind(candidate), set()).add((candidate.gemm.tile_m, candidate.gemm.tile_n))
    return {kind: frozenset(tiles) for kind, tiles in found.items()}


def bigger_tiles(key: KernelKey, target: Target) -> list[BiggerTile]:
    """List the next bigger tiles: twice in m, in n, in both; where twice is not legal, also the next step that is."""
    candidate = key.candidate
    if family_of(candidate).is_fallback or not isinstance(candidate.knobs, GemmKnobs):
        return []
    known = _tiles(candidate.family, key.operation, target).get(_kind(candidate), frozenset())

    def judged(tile: tuple[int, int]) -> BiggerTile:
        bigger = changed(candidate, tile_m=tile[0], tile_n=tile[1])
        verdict = check(bigger, key.operation, target)
        if not isinstance(verdict, Accepted):
            return BiggerTile(bigger, verdict.message)
        return BiggerTile(bigger, "" if tile in known else f"{candidate.family} has no such tile")

    def nearest(tiles: list[tuple[int, int]]) -> list[BiggerTile]:
        legal = (tile for tile in map(judged, sorted(tiles)) if not tile.rejection)
        return list(islice(legal, 1))

    m, n = candidate.gemm.tile_m, candidate.gemm.tile_n
    taller, wider = judged((2 * m, n)), judged((m, 2 * n))
    return [
        *(nearest([tile for tile in known if tile[1] == n and tile[0] > m]) if taller.rejection else ()),
        taller,
        *(nearest([tile for tile in known if tile[0] == m and tile[1] > n]) if wider.rejection else ()),
        wider,
        judged((2 * m, 2 * n)),
    ]


def _model_ratio(bigger: Candidate, key: KernelKey, problems: list[Problem], target: Target) -> list[float]:
    times = estimate([key.candidate, bigger], problems, target).total_us
    ratios: list[float] = (times[:, 1] / times[:, 0] - 1).tolist()
    return ratios


def verdict_on(
    tile: BiggerTile, key: KernelKey, problem: Problem, row: Row | None, timed: OperationTimes, target: Target
) -> str:
    """Say what one problem's bucket has against a bigger tile.

    Args:
        tile: one of `bigger_tiles` of the kernel.
        key: the kernel.
        problem: the bucket's corner, or, where the table has no time of the very kernel for it, any problem.
        row: the table's row if its time is the kernel's on `problem`; else None.
        timed: measured times, if they are at hand.
        target: the device.
    """
    if tile.rejection:
        return f"not legal: {tile.rejection}"
    time_us = timed.get(key.operation, {}).get(problem, {}).get(tile.candidate)
    if time_us is not None and row is not None and row.provenance == PROVENANCE_MEASURED:
        return f"legal: {time_us:.1f} us measured ({time_us / row.time_us - 1:+.1%})"
    (ratio,) = _model_ratio(tile.candidate, key, [problem], target)
    return f"legal: {ratio:+.1%} by the cost model, not timed here"


def _range(ratios: list[float]) -> str:
    low, high = f"{min(ratios):+.1%}", f"{max(ratios):+.1%}"
    return low if low == high else f"{low} to {high}"


def _summary(
    tile: BiggerTile, key: KernelKey, rows: Mapping[Problem, Row], timed: OperationTimes, target: Target
) -> str:
    """Say of a bigger tile what all buckets of the kernel have against it."""
    if tile.rejection:
        return f"{tile.tile} not legal: {tile.rejection}"
    if not rows:
        return f"{tile.tile} legal: no tuned bucket has this kernel to compare it in"
    own = timed.get(key.operation, {})
    measured = [
        own[problem][tile.candidate] / row.time_us - 1
        for problem, row in rows.items()
        if row.provenance == PROVENANCE_MEASURED and tile.candidate in own.get(problem, {})
    ]
    of = f"of {len(rows)} tuned buckets that have this kernel"
    if measured:
        return f"{tile.tile} legal: {_range(measured)} measured in {len(measured)} {of}"
    ratios = _model_ratio(tile.candidate, key, list(rows), target)
    return f"{tile.tile} legal: {_range(ratios)} predicted by the cost model in {len(ratios)} {of}"


def tile_notes(selection: Selection, target: Target, timed: OperationTimes) -> dict[str, tuple[str, ...]]:
    """Say of each selected kernel, by name, what there is against the next bigger tiles; none of a fallback."""
    rows: dict[int, dict[Problem, Row]] = {}
    for section in selection.table.sections:
        for ladder in section.ladders:
            for m, row in zip(ladder.m_edges, ladder.rows, strict=True):
                problem = Problem(section.operation, m, ladder.n, ladder.k, section.num_groups)
                rows.setdefault(row.kernel, {})[problem] = row
    notes = {}
    for index, key in enumerate(selection.kernels):
        texts = [_summary(tile, key, rows.get(index, {}), timed, target) for tile in bigger_tiles(key, target)]
        if texts:
            notes[key.name] = tuple(texts)
    return notes
