"""From times to the few kernels worth shipping, and from those to one kernel for each problem.

Works on the times of one operation. Regret is the time of the kernel picked over the best time known, minus 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from aot.core.errors import SelectionError
from aot.select import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate
    from aot.core.measurement import Times
    from aot.core.problem import Problem

MISSING_RATIO = 10.0
"""What a kernel that was not timed on a problem counts as, over the best: it is never picked there by choice."""

SLOWER_WEIGHT = 3.0
"""Weight of what a kernel is slower than the reference library, as a fraction, beside its regret: that no problem be
slower than without the wheel comes before the mean."""

WORST_WEIGHT = 0.05
"""Weight of the worst problem beside the mean of all in what a portfolio is judged by."""

TIE = 0.005
"""Times this close are a tie. Source: below the noise on purpose, since wider ties cost regret (`MAX_TIE`): half the
distance between the quartiles of seven rounds has a median of 0.8 percent over 14,505 timings of an H200."""

MODELLED_TIE = 0.01
"""The same of times that the cost model gives, which is wrong by more than that: 0.5 percent would be 80 kernels for a
Thor instead of 66, for a gain of nothing that is known."""

MAX_TIE = 0.01
"""Widest tie that spreads may make: a time that scatters more is not trusted to be no worse. Source: beside no
ties at all, 1 percent and spreads up to 3 cost 32 bf16 kernels 0.16 percent of mean regret on the H200 record."""

INCUMBENT_CREDIT = 0.002
"""What a shipped kernel may cost in the judgement of a portfolio before another takes its place: a fifth
of a percent of mean regret. Source: with 0.0003, two tunings of one H200 exchanged 2 of 24 kernels for 0.06 percent."""

INCUMBENT_TIE = 0.04
"""Times this close are a tie where one of the kernels is shipped for the problem already. Source: 11,397 times of two
tunings of H200s differ by 1.1 percent in the median, by 3.9 in one of ten (docs/log/2026-11-21-selections.md)."""

EXACT = "exact"
GREEDY = "greedy and exchange"

RESTARTS = 12
"""How often some kernels of a portfolio are drawn anew and exchanged again. Source: a trial
on the H200 record, in which 24 bf16 kernels went from a mean regret of 1.51 to 1.37 percent within ten, and no further
within forty; 32, and fp16, gained nothing."""

REDRAWN = 4
"""Kernels that a restart draws anew."""

MAX_EXACT_PAIRS = 30_000
"""Pairs of problem and kernel up to which a portfolio is solved exactly. Source: 60 problems by 413 kernels, 24,780
pairs, take HiGHS 0.3 to 4 s; 386 by 696 were not solved in 100 s."""

MAX_EXACT_RATIO = 1.5
"""The exact solution looks for kernels up to this ratio on each problem first; if none is that good, at all of them."""


@dataclass(frozen=True)
class Matrix:
    """Times as an array: a row a problem, a column a candidate, each over the row's best."""

    problems: tuple[Problem, ...]
    candidates: tuple[Candidate, ...]
    ratios: NDArray[np.float64]
    best_us: NDArray[np.float64]

    def penalised(self, references: Mapping[Problem, float]) -> NDArray[np.float64]:
        """Return the ratios, with a penalty on what is slower than the reference library where its time is known."""
        known = np.array([references.get(problem, np.inf) for problem in self.problems])
        slower = self.ratios * (self.best_us / known)[:, None] - 1
        found: NDArray[np.float64] = self.ratios + SLOWER_WEIGHT * np.maximum(slower, 0.0)
        return found

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
        bests = np.array([min(times[problem].values()) for problem in problems])
        for i, (problem, best) in enumerate(zip(problems, bests.tolist(), strict=True)):
            for candidate, time in times[problem].items():
                ratios[i, columns[candidate]] = time / best
        return Matrix(problems, candidates, ratios, bests)


@dataclass(frozen=True)
class Budget:
    """What a portfolio is to reach: the least regret of so many kernels, or the fewest kernels for a regret."""

    max_kernels: int
    max_mean: float | None = None
    """Regrets are fractions; with either, the portfolio is the smallest that reaches it, up to `max_kernels`."""
    max_worst: float | None = None

    @property
    def is_fewest(self) -> bool:
        """Say whether the number of kernels is to be least."""
        return self.max_mean is not None or self.max_worst is not None

    def is_met(self, regrets: NDArray[np.float64]) -> bool:
        """Say whether regrets are within the limits."""
        mean_met = self.max_mean is None or float(regrets.mean()) <= self.max_mean
        return mean_met and (self.max_worst is None or float(regrets.max()) <= self.max_worst)


@dataclass(frozen=True)
class Incumbent:
    """What an earlier selection ships, and so what a tie goes to."""

    candidates: frozenset[Candidate] = frozenset()
    solutions: Mapping[Problem, Candidate] = field(default_factory=dict)


@dataclass(frozen=True)
class Portfolio:
    """The kernels kept for one operation, by name, and each problem's kernel; regrets are fractions."""

    candidates: tuple[Candidate, ...]
    solutions: Mapping[Problem, Candidate]
    mean_regret: float
    worst_regret: float
    method: str
    mean_bound: float
    """No portfolio of as many kernels has a lower mean regret on these times."""


@dataclass(frozen=True)
class _Search:
    """One instance: ratios, which kernels are general, what keeping each is worth, each problem's share in the mean."""

    ratios: NDArray[np.float64]
    general: NDArray[np.bool_]
    credit: NDArray[np.float64]
    share: NDArray[np.float64]
    """They add up to 1."""

    def loss(self, ratios: NDArray[np.float64]) -> NDArray[np.float64]:
        """Judge the best ratio of each problem; problems along axis 0, alternatives along the rest."""
        total: NDArray[np.float64] = self.share @ ratios + WORST_WEIGHT * ratios.max(axis=0)
        return total

    def judge(self, chosen: list[int]) -> float:
        """Judge a portfolio, with the credit of what it keeps."""
        return float(self.loss(self.ratios[:, chosen].min(axis=1))) - float(self.credit[chosen].sum())

    def greedy(self, limit: int) -> list[int]:
        """Take the best general kernel first, then whichever lowers the loss most."""
        start = np.where(self.general, self.loss(self.ratios) - self.credit, np.inf)
        chosen = [int(start.argmin())]
        best = self.ratios[:, chosen[0]]
        while len(chosen) < min(limit, self.ratios.shape[1]):
            losses = self.loss(np.minimum(best[:, None], self.ratios)) - self.credit
            losses[chosen] = np.inf
            j = int(losses.argmin())
            if self.loss(np.minimum(best, self.ratios[:, j])) >= self.loss(best):
                break
            chosen.append(j)
            best = np.minimum(best, self.ratios[:, j])
        return chosen

    def exchange(self, start: list[int]) -> list[int]:
        """Replace one kernel at a time while that lowers the loss and leaves a general kernel."""
        chosen = list(start)
        improved = True
        while improved:
            improved = False
            for position in range(len(chosen)):
                rest = chosen[:position] + chosen[position + 1 :]
                base = self.ratios[:, rest].min(axis=1) if rest else np.full(self.ratios.shape[0], MISSING_RATIO)
                losses = self.loss(np.minimum(base[:, None], self.ratios)) - self.credit
                losses[rest] = np.inf
                if not self.general[rest].any():
                    losses = np.where(self.general, losses, np.inf)
                j = int(losses.argmin())
                if losses[j] < losses[chosen[position]] - 1e-12:
                    chosen[position] = j
                    improved = True
        return chosen

    def best(self, limit: int) -> tuple[list[int], str]:
        """Choose up to `limit` kernels and say how."""
        if self.ratios.size <= MAX_EXACT_PAIRS:
            for cap in (MAX_EXACT_RATIO, MISSING_RATIO):
                solved = exact.least_regret(
                    self.ratios, self.general, self.credit, limit, WORST_WEIGHT, cap, self.share
                )
                if solved is not None:
                    return solved, EXACT
        start = self.greedy(limit)
        kept = np.flatnonzero(self.credit).tolist()[:limit]
        starts = [start] if not kept or not self.general[kept].any() else [start, self._filled(kept, limit)]
        return self.restart(min((self.exchange(chosen) for chosen in starts), key=self.judge)), GREEDY

    def restart(self, start: list[int]) -> list[int]:
        """Leave a local optimum: draw some kernels anew, exchange again, keep what is better. Equal for equal input."""
        rng = np.random.default_rng(0)
        best = start
        for _ in range(RESTARTS if len(start) > REDRAWN else 0):
            kept = rng.permutation(best)[REDRAWN:].tolist()
            others = np.setdiff1d(np.arange(self.ratios.shape[1]), kept)
            drawn = [*kept, *rng.choice(others, min(REDRAWN, len(others)), replace=False).tolist()]
            if not self.general[drawn].any():
                continue
            found = self.exchange(drawn)
            if self.judge(found) < self.judge(best) - 1e-12:
                best = found
        return best

    def _filled(self, kept: list[int], limit: int) -> list[int]:
        """Add to kernels that are kept, greedily."""
        chosen = list(kept)
        while len(chosen) < min(limit, self.ratios.shape[1]):
            losses = self.loss(np.minimum(self.ratios[:, chosen].min(axis=1)[:, None], self.ratios))
            losses[chosen] = np.inf
            chosen.append(int(losses.argmin()))
        return chosen


def _assign(
    matrix: Matrix, chosen: list[int], ties: NDArray[np.float64], tie: float, solutions: Mapping[Problem, Candidate]
) -> list[int]:
    """Pick each problem's kernel among those in a tie with the best: the incumbent, or the one best most often."""
    kept = matrix.ratios[:, chosen]
    first = kept.argmin(axis=1)
    best_tie = ties[:, chosen][np.arange(len(kept)), first]
    width = np.clip(np.hypot(ties[:, chosen], best_tie[:, None]), tie, MAX_TIE)
    eligible = kept <= kept.min(axis=1)[:, None] * (1 + width)
    wins = np.bincount(first, minlength=len(chosen)) + eligible.sum(axis=0) / (2 * len(kept) + 1)
    columns = {matrix.candidates[j]: position for position, j in enumerate(chosen)}
    picked = []
    for problem, row, times in zip(matrix.problems, eligible, kept, strict=True):
        own = columns.get(solutions[problem]) if problem in solutions else None
        stays = own is not None and times[own] <= times.min() * (1 + INCUMBENT_TIE)
        picked.append(chosen[own if own is not None and stays else int(np.where(row, wins, -1.0).argmax())])
    return picked


def _regrets(matrix: Matrix, picked: list[int]) -> NDArray[np.float64]:
    regrets: NDArray[np.float64] = matrix.ratios[np.arange(len(picked)), picked] - 1
    return regrets


def _spread_matrix(matrix: Matrix, spreads: Times) -> NDArray[np.float64]:
    columns = {candidate: j for j, candidate in enumerate(matrix.candidates)}
    found = np.zeros(matrix.ratios.shape)
    for i, problem in enumerate(matrix.problems):
        for candidate, spread in spreads.get(problem, {}).items():
            if candidate in columns:
                found[i, columns[candidate]] = spread
    return found


def _fewest(search: _Search, ratios: NDArray[np.float64], budget: Budget) -> tuple[list[int], str]:
    """Find the smallest portfolio whose regrets on `ratios` are within the limits.

    Raises:
        SelectionError: the largest allowed is not good enough.
    """
    first = exact.fewest_for_worst(ratios, search.general, budget.max_worst)
    chosen: list[int] = []
    for limit in range(min(first, budget.max_kernels), budget.max_kernels + 1):
        chosen, method = search.best(limit)
        if budget.is_met(ratios[:, chosen].min(axis=1) - 1):
            return chosen, method
    regrets = ratios[:, chosen].min(axis=1) - 1
    raise SelectionError(
        f"{len(chosen)} kernels: mean regret {regrets.mean():.4f}, worst {regrets.max():.4f}; expected at most "
        f"mean {budget.max_mean}, worst {budget.max_worst}; raise --max-kernels (the worst alone needs {first}) or "
        "the limits"
    )


def _instance(
    times: Times,
    beside: Times,
    weights: Mapping[Problem, float],
    references: Mapping[Problem, float],
    incumbent: Incumbent,
    is_general: Callable[[Candidate], bool],
) -> tuple[Matrix, Matrix, _Search]:
    """Return the matrix of `times`, that of all problems, and the search over the latter.

    Raises:
        SelectionError: there is nothing to choose from, or no general kernel among it.
    """
    matrix, both = Matrix.of(times), Matrix.of({**beside, **times})
    if both.candidates != matrix.candidates:
        raise SelectionError("the problems beside name kernels that were never timed; predict those of the record only")
    general = np.array([is_general(candidate) for candidate in matrix.candidates])
    if not general.any():
        raise SelectionError("no kernel that was timed takes every shape; time one with a TMA store and no split-K")
    credit = np.array([INCUMBENT_CREDIT if x in incumbent.candidates else 0.0 for x in matrix.candidates])
    weight = np.array([weights.get(problem, 1.0) for problem in both.problems])
    return matrix, both, _Search(both.penalised(references), general, credit, weight / weight.sum())


def _used(matrix: Matrix, both: Matrix, search: _Search, chosen: list[int], picked: list[int]) -> list[int]:
    """Drop the kernels that no problem picks, sampled ones included, but for the best general one."""
    own = set(matrix.problems)
    sampled = [i for i, problem in enumerate(both.problems) if problem not in own]
    used = sorted({*picked, *(chosen[j] for j in both.ratios[np.ix_(sampled, chosen)].argmin(axis=1).tolist())})
    if search.general[used].any():
        return used
    # No problem prefers it, but shapes outside the tuning may have nothing else.
    losses = search.loss(both.ratios)
    return sorted([*used, min((j for j in chosen if search.general[j]), key=lambda j: float(losses[j]))])


def choose(
    times: Times,
    budget: Budget,
    *,
    beside: Times | None = None,
    weights: Mapping[Problem, float] | None = None,
    references: Mapping[Problem, float] | None = None,
    spreads: Times | None = None,
    tie: float = TIE,
    incumbent: Incumbent | None = None,
    is_general: Callable[[Candidate], bool] = lambda _: True,
) -> Portfolio:
    """Choose the kernels for the problems of `times`, and each problem's kernel.

    Exactly, by mixed-integer programming, where the instance is small; else by greedy choice, exchange and restarts, on
    the mean regret with a share of the worst, beside a proven lower bound. Near-ties go to the kernel that is shipped
    already, then to the one that serves most problems; a kernel that no problem picks, sampled ones included, is
    dropped, but for the best general one.

    Args:
        times: for each problem, microseconds of each candidate that was timed on it.
        budget: how many kernels, or which regret.
        beside: times of further problems, predicted ones say, that count in the choice but in no regret reported.
        weights: how much problems count in the mean that is minimised; 1 where none is given. Regrets reported are
            plain means.
        references: microseconds of the reference library, torch say, on the problems where that is known: being slower
            than it counts `SLOWER_WEIGHT` times in the choice, and in no regret reported.
        spreads: for each problem, the relative half-distance of each candidate's quartiles; what differs less is a tie.
        tie: what differs less, as a fraction of the best, is a tie in any case.
        incumbent: what an earlier selection ships.
        is_general: whether a kernel takes every shape; one that does is always kept, so that the table is total.

    Raises:
        SelectionError: there is nothing to choose from, no general kernel among it, or no portfolio is good enough.
    """
    if budget.max_kernels < 1:
        raise SelectionError(f"--max-kernels is {budget.max_kernels}; at least 1 is needed")
    incumbent = incumbent or Incumbent()
    matrix, both, search = _instance(times, beside or {}, weights or {}, references or {}, incumbent, is_general)
    chosen, method = _fewest(search, matrix.ratios, budget) if budget.is_fewest else search.best(budget.max_kernels)
    chosen = sorted(chosen)
    picked = _assign(matrix, chosen, _spread_matrix(matrix, spreads or {}), tie, incumbent.solutions)
    if budget.is_fewest and not budget.is_met(_regrets(matrix, picked)):
        # Ties are given away only within the limits.
        picked = [chosen[j] for j in matrix.ratios[:, chosen].argmin(axis=1).tolist()]
    used = _used(matrix, both, search, chosen, picked)
    regrets = _regrets(matrix, picked)
    mean = float(regrets.mean())
    return Portfolio(
        tuple(sorted((matrix.candidates[j] for j in used), key=lambda candidate: candidate.name)),
        {problem: matrix.candidates[j] for problem, j in zip(matrix.problems, picked, strict=True)},
        mean,
        float(regrets.max()),
        method,
        min(exact.mean_bound(matrix.ratios, len(used)), mean),
    )
