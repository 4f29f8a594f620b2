"""From times to the few kernels worth shipping, and from those to one kernel for each problem.

Works on the times of one operation. Regret is the time of the kernel picked over the best time known, minus 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from aot.candidate import Candidate
    from aot.problem import Problem

    Times = Mapping[Problem, Mapping[Candidate, float]]

MISSING_RATIO = 10.0
"""What a kernel that was not timed on a problem counts as, over the best: it is never picked there by choice."""

WORST_WEIGHT = 0.05
"""Weight of the worst problem beside the mean of all in what a portfolio is judged by."""

TIE = 0.01
"""Times this close are a tie, resolved to the kernel that serves most problems. Source: half the distance
between the quartiles of seven rounds has a median of 0.8 percent over 14,505 timings of the first H200 tuning."""


@dataclass(frozen=True)
class Matrix:
    """Times as an array: a row a problem, a column a candidate, each over the row's best."""

    problems: tuple[Problem, ...]
    candidates: tuple[Candidate, ...]
    ratios: NDArray[np.float64]

    @staticmethod
    def of(times: Times) -> Matrix:
        """Make the array; problems and candidates ascend, so that equal inputs give equal results.

        Raises:
            SelectionError: there are no times, or a problem has none.
        """
        problems = tuple(sorted(times))
        candidates = tuple(sorted({candidate for row in times.values() for candidate in row}))
        empty = [problem.name for problem in problems if not times[problem]]
        if not problems or empty:
            raise SelectionError(f"no kernel was timed on {', '.join(empty[:3]) or 'any problem'}; tune first")
        columns = {candidate: j for j, candidate in enumerate(candidates)}
        ratios = np.full((len(problems), len(candidates)), MISSING_RATIO)
        for i, problem in enumerate(problems):
            best = min(times[problem].values())
            for candidate, time in times[problem].items():
                ratios[i, columns[candidate]] = time / best
        return Matrix(problems, candidates, ratios)


def _loss(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Judge the best ratio of each problem; problems along axis 0, alternatives along the rest."""
    logs = np.log(ratios)
    total: NDArray[np.float64] = logs.mean(axis=0) + WORST_WEIGHT * logs.max(axis=0)
    return total


def _greedy(ratios: NDArray[np.float64], general: NDArray[np.bool_], limit: int) -> list[int]:
    """Take the best general kernel first, then whichever lowers the loss most."""
    start = np.where(general, _loss(ratios), np.inf)
    chosen = [int(start.argmin())]
    best = ratios[:, chosen[0]]
    while len(chosen) < min(limit, ratios.shape[1]):
        losses = _loss(np.minimum(best[:, None], ratios))
        j = int(losses.argmin())
        if losses[j] >= _loss(best):
            break
        chosen.append(j)
        best = np.minimum(best, ratios[:, j])
    return chosen


def _exchange(ratios: NDArray[np.float64], general: NDArray[np.bool_], chosen: list[int]) -> list[int]:
    """Replace one kernel at a time while that lowers the loss and leaves a general kernel."""
    improved = True
    while improved:
        improved = False
        for position in range(len(chosen)):
            rest = chosen[:position] + chosen[position + 1 :]
            base = ratios[:, rest].min(axis=1) if rest else np.full(ratios.shape[0], MISSING_RATIO)
            losses = _loss(np.minimum(base[:, None], ratios))
            if not general[rest].any():
                losses = np.where(general, losses, np.inf)
            j = int(losses.argmin())
            if losses[j] < _loss(ratios[:, chosen].min(axis=1)) - 1e-12:
                chosen[position] = j
                improved = True
    return chosen


@dataclass(frozen=True)
class Portfolio:
    """The kernels kept for one operation, by name, and each problem's kernel; regrets are fractions."""

    candidates: tuple[Candidate, ...]
    solutions: Mapping[Problem, Candidate]
    mean_regret: float
    worst_regret: float


def _assign(ratios: NDArray[np.float64], chosen: list[int], tie: float) -> list[int]:
    """Pick each problem's kernel among those within the tie of the best: the one that is best most often."""
    kept = ratios[:, chosen]
    best = kept.min(axis=1)
    eligible = kept <= best[:, None] * (1 + tie)
    wins = np.bincount(kept.argmin(axis=1), minlength=len(chosen)) + eligible.sum(axis=0) / (2 * len(ratios) + 1)
    return [chosen[int(np.where(row, wins, -1.0).argmax())] for row in eligible]


def choose(
    times: Times, max_kernels: int, tie: float = TIE, *, is_general: Callable[[Candidate], bool] = lambda _: True
) -> Portfolio:
    """Choose at most `max_kernels` kernels for the problems of `times`, and each problem's kernel.

    Greedy choice, then exchange, on the mean logarithm of the regret with a share of the worst; near-ties then go to
    the kernel that serves most problems, and a kernel left without a problem is dropped, but for the best general one.

    Args:
        times: for each problem, microseconds of each candidate that was timed on it.
        max_kernels: at least 1.
        tie: relative difference of times that counts as none.
        is_general: whether a kernel takes every shape; one that does is always kept, so that the table is total.

    Raises:
        SelectionError: there is nothing to choose from, or no general kernel among it.
    """
    if max_kernels < 1:
        raise SelectionError(f"--max-kernels is {max_kernels}; at least 1 is needed")
    matrix = Matrix.of(times)
    general = np.array([is_general(candidate) for candidate in matrix.candidates])
    if not general.any():
        raise SelectionError("no kernel that was timed takes every shape; time one with a TMA store and no split-K")
    chosen = sorted(_exchange(matrix.ratios, general, _greedy(matrix.ratios, general, max_kernels)))
    picked = _assign(matrix.ratios, chosen, tie)
    used = sorted(set(picked))
    if not general[used].any():
        # No problem prefers it, but shapes outside the tuning may have nothing else.
        used = sorted([*used, min((j for j in chosen if general[j]), key=lambda j: float(_loss(matrix.ratios[:, j])))])
    regrets = [float(matrix.ratios[i, j]) - 1 for i, j in enumerate(picked)]
    return Portfolio(
        tuple(sorted((matrix.candidates[j] for j in used), key=lambda candidate: candidate.name)),
        {problem: matrix.candidates[j] for problem, j in zip(matrix.problems, picked, strict=True)},
        float(np.mean(regrets)),
        max(regrets),
    )
