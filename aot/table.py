"""Build the sections of the dispatch table from portfolios: ladders of what was tuned, a grid for all other shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.candidate import SplitK
from aot.cost import estimate
from aot.dispatch import Grid, Ladder, Row, Section
from aot.errors import SelectionError
from aot.families import family_of
from aot.measurement import PROVENANCE_PREDICTED
from aot.problem import Layout, Operation, Problem

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from aot.candidate import Candidate
    from aot.select import Portfolio
    from aot.target import Target

Array = NDArray[np.float64]

GRID_M = (
    *(1, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1792, 2048, 3072, 4096, 8192),
)
GRID_N = (
    *(128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192),
    *(10240, 12288, 16384, 20480, 24576, 32768),
)
GRID_K = (256, 1024, 2048, 4096, 8192, 16384)
"""Upper edges of tier 2's cells: fine in m and n, whose multiples of the tile decide the waves, coarse in k."""

COARSE = 3
"""In the layouts that are not linear's, only every third edge of m and n is kept, and the last."""

CELL_FRACTIONS = (1 / 3, 2 / 3, 1.0)
"""Where between a cell's edges its kernel is judged, in m and n; k is judged at its upper edge."""

NEIGHBOUR_DECAY = 3.0
"""How fast a timed problem's say fades with distance, in e-foldings for each doubling of m, n or k."""


MAX_WORKSPACE_BYTES = 256 * 2**20
"""Most workspace that a row may ask of its caller, at the row's largest shape."""


def is_general(candidate: Candidate) -> bool:
    """Say whether a kernel takes every aligned shape with no workspace."""
    family = family_of(candidate)
    return family.multiples(candidate) == (1, 1) and family.workspace(candidate).mode == SplitK.NONE.value


@dataclass(frozen=True)
class Bucket:
    """The shapes of one row: up to a corner, and beyond it where the bucket is the last of an axis."""

    corner: Problem
    is_open: bool

    def takes(self, candidate: Candidate) -> bool:
        """Say whether a kernel's workspace stays bounded in the bucket; split-K's grows with m and n."""
        workspace = family_of(candidate).workspace(candidate)
        if workspace.mode == SplitK.NONE.value:
            return True
        return not self.is_open and workspace.num_bytes(self.corner.m, self.corner.n) <= MAX_WORKSPACE_BYTES


@dataclass(frozen=True)
class Predictor:
    """Times of a portfolio's kernels on any problem: the cost model, corrected by what was timed nearby."""

    candidates: tuple[Candidate, ...]
    target: Target
    places: Array
    """log2 of (m, n, k) of each timed problem."""
    corrections: Array
    """(timed problem, candidate): logarithm of the time over the model's; 0 where there is no time."""
    known: Array
    """(timed problem, candidate): 1 where there is a time."""

    @staticmethod
    def of(
        candidates: Sequence[Candidate], times: Mapping[Problem, Mapping[Candidate, float]], target: Target
    ) -> Predictor:
        """Compare what was timed with the model."""
        problems = sorted(times)
        model = estimate(candidates, problems, target).total_us
        timed = np.array([[times[problem].get(candidate, np.nan) for candidate in candidates] for problem in problems])
        known = ~np.isnan(timed)
        corrections = np.log(np.where(known, timed, model) / model)
        return Predictor(tuple(candidates), target, _places(problems), corrections, known.astype(float))

    def times_us(self, problems: Sequence[Problem]) -> Array:
        """Predict times in microseconds, (problem, candidate)."""
        model = estimate(self.candidates, problems, self.target).total_us
        distance = np.abs(_places(problems)[:, None, :] - self.places[None, :, :]).sum(axis=2)
        # Relative to the nearest, so that far from every timed problem the nearest still speaks.
        nearest = distance.min(axis=1, keepdims=True)
        weights = np.exp(-NEIGHBOUR_DECAY * (distance - nearest))
        total = weights @ self.known
        mean = np.divide(weights @ self.corrections, total, out=np.zeros_like(total), where=total > 0)
        predicted: Array = model * np.exp(mean)
        return predicted


@dataclass(frozen=True)
class Timed:
    """The times that a section is built from, microseconds by problem and candidate."""

    own: Mapping[Problem, Mapping[Candidate, float]]
    """Of the section's operation."""
    filled: Mapping[Problem, Mapping[Candidate, float]]
    """The same, with stand-ins where a kernel has no time of its own."""
    provenance: str
    """Of the former; a row whose time is a stand-in is predicted."""


def _places(problems: Sequence[Problem]) -> Array:
    return np.log2(np.array([(problem.m, problem.n, problem.k) for problem in problems], dtype=np.float64))


def _order(indices: Mapping[Candidate, int], times: Mapping[Candidate, float]) -> list[Candidate]:
    return sorted(times, key=lambda candidate: (times[candidate], indices[candidate]))


def _row(
    indices: Mapping[Candidate, int],
    times: Mapping[Candidate, float],
    bucket: Bucket,
    provenance: str,
    first: Candidate | None = None,
    rivals: Container[Candidate] | None = None,
) -> Row:
    """Make the row of a bucket from the times of the portfolio; its kernel is `first` where the bucket takes that.

    The runner-up comes from `rivals` where given: beside a measured time stands no predicted one.
    """
    order = [candidate for candidate in _order(indices, times) if bucket.takes(candidate)]
    general = [candidate for candidate in order if family_of(candidate).multiples(candidate) == (1, 1)]
    if not general:
        raise SelectionError(
            f"no kernel of the portfolio takes every shape near {bucket.corner.name}; raise --max-kernels, or keep one "
            "with a TMA store and no split-K"
        )
    first = first if first in order else order[0]
    takes_all = family_of(first).multiples(first) == (1, 1)
    others = (candidate for candidate in order if candidate != first and (rivals is None or candidate in rivals))
    runner_up = next(others, first)
    return Row(
        kernel=indices[first],
        general=indices[first if takes_all else general[0]],
        time_us=round(times[first], 3),
        provenance=provenance,
        runner_up=indices[runner_up],
        runner_up_us=round(times[runner_up], 3),
    )


def _ladders(
    portfolio: Portfolio,
    timed: Timed,
    predictor: Predictor,
    indices: Mapping[Candidate, int],
) -> tuple[Ladder, ...]:
    problems = sorted(portfolio.solutions)
    predicted = predictor.times_us(problems)
    candidate_of = {index: candidate for candidate, index in indices.items()}
    last = {(problem.n, problem.k): problem.m for problem in problems}
    steps: dict[tuple[int, int], list[tuple[int, Row]]] = {}
    for problem, guess in zip(problems, predicted.tolist(), strict=True):
        known = timed.filled[problem]
        row_times = {c: known.get(c, time) for c, time in zip(predictor.candidates, guess, strict=True)}
        bucket = Bucket(problem, is_open=problem.m == last[problem.n, problem.k])
        own, first = timed.own[problem], portfolio.solutions[problem]
        row = _row(indices, row_times, bucket, timed.provenance, first, own)
        if candidate_of[row.kernel] not in own:
            row = _row(indices, row_times, bucket, PROVENANCE_PREDICTED, first)
        steps.setdefault((problem.n, problem.k), []).append((problem.m, row))
    return tuple(
        Ladder(n, k, tuple(m for m, _ in sorted(found, key=lambda step: step[0])), tuple(row for _, row in found))
        for (n, k), found in sorted(steps.items())
    )


def _between(edges: Sequence[int], index: int) -> list[int]:
    """Give the extents inside a cell's range at which its kernel is judged, ending with the upper edge."""
    low = edges[index - 1] if index else 0
    return sorted({low + max(1, round(fraction * (edges[index] - low))) for fraction in CELL_FRACTIONS})


def _thin(edges: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*edges[::COARSE], edges[-1]}))


def _grid(operation: Operation, predictor: Predictor, indices: Mapping[Candidate, int]) -> Grid:
    """Give each cell the kernel whose predicted time is least, by geometric mean over the cell's shapes."""
    fine = operation.layout is Layout.KK
    grid_m, grid_n = (GRID_M, GRID_N) if fine else (_thin(GRID_M), _thin(GRID_N))
    cells = []
    for (i, m), (j, n), k in product(enumerate(grid_m), enumerate(grid_n), GRID_K):
        inside = [Problem(operation, a, b, k) for a in _between(grid_m, i) for b in _between(grid_n, j)]
        means = np.exp(np.log(predictor.times_us(inside)).mean(axis=0)).tolist()
        is_open = m == grid_m[-1] or n == grid_n[-1] or k == GRID_K[-1]
        bucket = Bucket(Problem(operation, m, n, k), is_open)
        times = dict(zip(predictor.candidates, means, strict=True))
        cells.append(_row(indices, times, bucket, PROVENANCE_PREDICTED))
    return Grid(grid_m, grid_n, GRID_K, tuple(cells))


def build_section(
    operation: Operation,
    portfolio: Portfolio,
    timed: Timed,
    indices: Mapping[Candidate, int],
    fallback: int,
    target: Target,
) -> Section:
    """Build the table of one operation.

    Args:
        operation: the section's key.
        portfolio: its kernels and the solutions of the problems that were timed.
        timed: the times that the solutions were chosen by.
        indices: index in the manifest of each kernel of the portfolio.
        fallback: index of the kernel for what is not aligned.
        target: the device.

    Raises:
        SelectionError: no kernel of the portfolio takes every shape.
    """
    predictor = Predictor.of(portfolio.candidates, timed.filled, target)
    ladders = _ladders(portfolio, timed, predictor, indices)
    return Section(operation, ladders, _grid(operation, predictor, indices), fallback)
