"""Build the sections of the dispatch table from portfolios: ladders of what was tuned, a grid for all other shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.cost import estimate
from aot.dispatch import Grid, Ladder, Row, Section
from aot.errors import SelectionError
from aot.families import family_of
from aot.measurement import PROVENANCE_PREDICTED
from aot.problem import Operation, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot.candidate import Candidate
    from aot.select import Portfolio
    from aot.target import Target

GRID_M = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192)
GRID_N = (128, 512, 1024, 2048, 3072, 4096, 6144, 8192, 16384, 32768)
GRID_K = (128, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper edges of tier 2's cells. Each step is a factor of at most 2, so that a cell's corner is near its shapes."""

NEIGHBOUR_DECAY = 3.0
"""How fast a timed problem's say fades with distance, in e-foldings for each doubling of m, n or k."""


@dataclass(frozen=True)
class Predictor:
    """Times of a portfolio's kernels on untimed problems: the cost model, corrected by what was timed nearby."""

    times: Mapping[Problem, Mapping[Candidate, float]]
    target: Target

    def corrections(self, candidate: Candidate) -> list[tuple[Problem, float]]:
        """Give, for each problem on which the candidate was timed, the logarithm of its time over the model's."""
        found = []
        for problem, row in sorted(self.times.items()):
            if candidate in row:
                model = estimate(candidate, problem, self.target).total_us
                found.append((problem, math.log(row[candidate] / model)))
        return found

    def time_us(self, candidate: Candidate, problem: Problem, corrections: Sequence[tuple[Problem, float]]) -> float:
        """Predict a time, in microseconds."""
        model = estimate(candidate, problem, self.target).total_us
        total = weights = 0.0
        for other, correction in corrections:
            distance = sum(
                abs(math.log2(a / b)) for a, b in ((problem.m, other.m), (problem.n, other.n), (problem.k, other.k))
            )
            weight = math.exp(-NEIGHBOUR_DECAY * distance)
            total += weight * correction
            weights += weight
        return model * math.exp(total / weights) if weights else model


def _order(indices: Mapping[Candidate, int], times: Mapping[Candidate, float]) -> list[Candidate]:
    return sorted(times, key=lambda candidate: (times[candidate], indices[candidate]))


def _row(indices: Mapping[Candidate, int], times: Mapping[Candidate, float], first: Candidate, provenance: str) -> Row:
    """Make the row of a bucket whose kernel is `first`; the rest follows from the times of the portfolio."""
    order = _order(indices, times)
    general = [candidate for candidate in order if family_of(candidate).multiples(candidate) == (1, 1)]
    if not general:
        raise SelectionError("no kernel of the portfolio takes every shape; keep one with a TMA store and no split-K")
    takes_all = family_of(first).multiples(first) == (1, 1)
    runner_up = next((candidate for candidate in order if candidate != first), first)
    return Row(
        kernel=indices[first],
        general=indices[first if takes_all else general[0]],
        time_us=round(times[first], 3),
        provenance=provenance,
        runner_up=indices[runner_up],
        runner_up_us=round(times[runner_up], 3),
    )


def _ladders(
    portfolio: Portfolio, predictor: Predictor, indices: Mapping[Candidate, int], provenance: str
) -> tuple[Ladder, ...]:
    corrections = {candidate: predictor.corrections(candidate) for candidate in portfolio.candidates}
    rows: dict[tuple[int, int], list[tuple[int, Row]]] = {}
    for problem, solution in sorted(portfolio.solutions.items()):
        known = predictor.times[problem]
        times = {
            candidate: known[candidate]
            if candidate in known
            else predictor.time_us(candidate, problem, corrections[candidate])
            for candidate in portfolio.candidates
        }
        row = _row(indices, times, solution.candidate, provenance)
        rows.setdefault((problem.n, problem.k), []).append((problem.m, row))
    return tuple(
        Ladder(n, k, tuple(m for m, _ in sorted(steps, key=lambda step: step[0])), tuple(row for _, row in steps))
        for (n, k), steps in sorted(rows.items())
    )


def _grid(operation: Operation, portfolio: Portfolio, predictor: Predictor, indices: Mapping[Candidate, int]) -> Grid:
    corrections = {candidate: predictor.corrections(candidate) for candidate in portfolio.candidates}
    cells = []
    for m in GRID_M:
        for n in GRID_N:
            for k in GRID_K:
                problem = Problem(operation, m, n, k)
                times = {
                    candidate: predictor.time_us(candidate, problem, corrections[candidate])
                    for candidate in portfolio.candidates
                }
                cells.append(_row(indices, times, _order(indices, times)[0], PROVENANCE_PREDICTED))
    return Grid(GRID_M, GRID_N, GRID_K, tuple(cells))


def build_section(
    operation: Operation,
    portfolio: Portfolio,
    predictor: Predictor,
    indices: Mapping[Candidate, int],
    fallback: int,
    provenance: str,
) -> Section:
    """Build the table of one operation.

    Args:
        operation: the section's key.
        portfolio: its kernels and the solutions of the problems that were timed.
        predictor: times beyond those.
        indices: index in the manifest of each kernel of the portfolio.
        fallback: index of the kernel for what is not aligned.
        provenance: of the ladders' times; the grid's are always predicted.

    Raises:
        SelectionError: no kernel of the portfolio takes every shape.
    """
    ladders = _ladders(portfolio, predictor, indices, provenance)
    return Section(operation, ladders, _grid(operation, portfolio, predictor, indices), fallback)
