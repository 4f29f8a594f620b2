"""From times to the few kernels worth shipping, and from those to one kernel for each problem.

Works on the times of one operation. Regret is the time of the kernel picked over the best time known, minus 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic

import numpy as np

from aot.core.errors import SelectionError
from aot.core.work import P, in_order
from aot.select.portfolio import exact, exchange
from aot.select.portfolio.exchange import MISSING_RATIO, WORST_WEIGHT, Instance
from aot.select.portfolio.objects import Objects, each_its_own

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate
    from aot.core.measurement import TimesOf

SLOWER_WEIGHT = 3.0
"""Weight of what a kernel is slower than the reference library, as a fraction, beside its regret: that no problem be
slower than without the wheel comes before the mean."""

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
tunings of H200s differ by 1.1 percent in the median, by 3.9 in one of ten (research/log/2026-11-21-selections.md)."""

EXACT = "exact"
GREEDY = "greedy and exchange"

MAX_EXACT_PAIRS = 30_000
"""Pairs of problem and kernel up to which a portfolio is solved exactly. Source: 60 problems by 413 kernels, 24,780
pairs, take HiGHS 0.3 to 4 s; 386 by 696 were not solved in 100 s."""

MAX_EXACT_RATIO = 1.5
"""The exact solution looks for kernels up to this ratio on each problem first; if none is that good, at all of them."""


@dataclass(frozen=True)
class Matrix(Generic[P]):
    """Times as an array: a row a problem, a column a candidate, each over the row's best."""

    problems: tuple[P, ...]
    candidates: tuple[Candidate, ...]
    ratios: NDArray[np.float64]
    best_us: NDArray[np.float64]

    def penalised(self, references: Mapping[P, float]) -> NDArray[np.float64]:
        """Return the ratios, with a penalty on what is slower than the reference library where its time is known."""
        known = np.array([references.get(problem, np.inf) for problem in self.problems])
        slower = self.ratios * (self.best_us / known)[:, None] - 1
        found: NDArray[np.float64] = self.ratios + SLOWER_WEIGHT * np.maximum(slower, 0.0)
        return found

    @staticmethod
    def of(times: TimesOf[P]) -> Matrix[P]:
        """Make the array; problems and candidates ascend, so that equal inputs give equal results.

        Raises:
            SelectionError: there are no times, or a problem has none.
        """
        problems = tuple(sorted(times, key=in_order))
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
    kernel_cost: float = 0.0
    """What a kernel more must lower the mean regret by, and a share of the worst, to be chosen."""

    @property
    def is_fewest(self) -> bool:
        """Say whether the number of kernels is to be least."""
        return self.max_mean is not None or self.max_worst is not None

    def is_met(self, regrets: NDArray[np.float64]) -> bool:
        """Say whether regrets are within the limits."""
        mean_met = self.max_mean is None or float(regrets.mean()) <= self.max_mean
        return mean_met and (self.max_worst is None or float(regrets.max()) <= self.max_worst)


@dataclass(frozen=True)
class Incumbent(Generic[P]):
    """What an earlier selection ships, and so what a tie goes to."""

    candidates: frozenset[Candidate] = frozenset()
    solutions: Mapping[P, Candidate] = field(default_factory=dict)


@dataclass(frozen=True)
class Portfolio(Generic[P]):
    """The kernels kept for one operation, by name, and each problem's kernel; regrets are fractions."""

    candidates: tuple[Candidate, ...]
    solutions: Mapping[P, Candidate]
    mean_regret: float
    worst_regret: float
    method: str
    mean_bound: float
    """No portfolio of as many objects has a lower mean regret on these times; 0 where that was not asked for."""
    objects: tuple[Candidate, ...]
    """What is compiled: one of several widths for several of the candidates, and each other candidate."""


def _best(search: Instance, limit: int) -> tuple[list[int], str]:
    """Choose up to `limit` kernels and say how."""
    if search.ratios.size <= MAX_EXACT_PAIRS:
        for cap in (MAX_EXACT_RATIO, MISSING_RATIO):
            solved = exact.least_regret(
                search.ratios, search.general, search.credit, limit, WORST_WEIGHT, cap, search.share
            )
            if solved is not None:
                return solved, EXACT
    return exchange.search(search, limit), GREEDY


def _assign(
    matrix: Matrix[P], chosen: list[int], ties: NDArray[np.float64], tie: float, solutions: Mapping[P, Candidate]
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


def _regrets(matrix: Matrix[P], picked: list[int]) -> NDArray[np.float64]:
    regrets: NDArray[np.float64] = matrix.ratios[np.arange(len(picked)), picked] - 1
    return regrets


def _spread_matrix(matrix: Matrix[P], spreads: TimesOf[P]) -> NDArray[np.float64]:
    columns = {candidate: j for j, candidate in enumerate(matrix.candidates)}
    found = np.zeros(matrix.ratios.shape)
    for i, problem in enumerate(matrix.problems):
        for candidate, spread in spreads.get(problem, {}).items():
            if candidate in columns:
                found[i, columns[candidate]] = spread
    return found


def _fewest(search: Instance, ratios: NDArray[np.float64], budget: Budget) -> tuple[list[int], str]:
    """Find the smallest portfolio whose regrets on `ratios` are within the limits.

    Raises:
        SelectionError: the largest allowed is not good enough.
    """
    first = exact.fewest_for_worst(ratios, search.general, budget.max_worst)
    chosen: list[int] = []
    for limit in range(min(first, budget.max_kernels), budget.max_kernels + 1):
        chosen, method = _best(search, limit)
        if budget.is_met(ratios[:, chosen].min(axis=1) - 1):
            return chosen, method
    regrets = ratios[:, chosen].min(axis=1) - 1
    raise SelectionError(
        f"{len(chosen)} kernels: mean regret {regrets.mean():.4f}, worst {regrets.max():.4f}; expected at most "
        f"mean {budget.max_mean}, worst {budget.max_worst}; raise --max-kernels (the worst alone needs {first}) or "
        "the limits"
    )


def _instance(
    times: TimesOf[P],
    beside: TimesOf[P],
    weights: Mapping[P, float],
    references: Mapping[P, float],
    incumbent: Incumbent[P],
    is_general: Callable[[Candidate], bool],
    object_of: Callable[[Candidate], Candidate],
) -> tuple[Matrix[P], Matrix[P], Objects, Instance]:
    """Return the matrix of `times`, that of all problems, the objects, and the search for objects over all problems.

    Raises:
        SelectionError: there is nothing to choose from, or no general kernel among it.
    """
    matrix, both = Matrix.of(times), Matrix.of({**beside, **times})
    if both.candidates != matrix.candidates:
        raise SelectionError("the problems beside name kernels that were never timed; predict those of the record only")
    general = np.array([is_general(candidate) for candidate in matrix.candidates])
    if not general.any():
        raise SelectionError(
            "no kernel that was timed takes every shape; time one that takes any size with no workspace"
        )
    credit = np.array([INCUMBENT_CREDIT if x in incumbent.candidates else 0.0 for x in matrix.candidates])
    weight = np.array([weights.get(problem, 1.0) for problem in both.problems])
    objects = Objects.of(matrix.candidates, object_of)
    ratios = objects.best(both.penalised(references))
    able = np.array([general[list(x)].any() for x in objects.members])
    return matrix, both, objects, Instance(ratios, able, -objects.best(-credit), weight / weight.sum())


def _used(
    matrix: Matrix[P],
    both: Matrix[P],
    search: Instance,
    chosen: list[int],
    picked: list[int],
    is_general: Callable[[Candidate], bool],
) -> list[int]:
    """Drop the kernels that no problem picks, sampled ones included, but for the best general one."""
    own = set(matrix.problems)
    sampled = [i for i, problem in enumerate(both.problems) if problem not in own]
    used = sorted({*picked, *(chosen[j] for j in both.ratios[np.ix_(sampled, chosen)].argmin(axis=1).tolist())})
    if any(is_general(matrix.candidates[j]) for j in used):
        return used
    # No problem prefers it, but shapes outside the tuning may have nothing else.
    losses = search.loss(both.ratios)
    able = [j for j in chosen if is_general(matrix.candidates[j])]
    return sorted([*used, min(able, key=lambda j: float(losses[j]))])


@dataclass(frozen=True)
class Choice(Generic[P]):
    """What kernels are chosen from, arranged once for portfolios of several sizes."""

    matrix: Matrix[P]
    """Of the problems that get a kernel."""
    both: Matrix[P]
    """Of these and of those beside."""
    objects: Objects
    search: Instance
    """For objects."""
    is_general: Callable[[Candidate], bool]
    ties: NDArray[np.float64]
    """(problem, kernel): the relative half-distance of the quartiles."""
    tie: float
    incumbent: Incumbent[P]

    @staticmethod
    def of(
        times: TimesOf[P],
        *,
        beside: TimesOf[P] | None = None,
        weights: Mapping[P, float] | None = None,
        references: Mapping[P, float] | None = None,
        spreads: TimesOf[P] | None = None,
        tie: float = TIE,
        incumbent: Incumbent[P] | None = None,
        is_general: Callable[[Candidate], bool] = lambda _: True,
        object_of: Callable[[Candidate], Candidate] = each_its_own,
    ) -> Choice[P]:
        """Arrange times and what `choose` takes beside them.

        Raises:
            SelectionError: there is nothing to choose from, or no general kernel among it.
        """
        incumbent = incumbent or Incumbent()
        known = weights or {}, references or {}, incumbent, is_general, object_of
        matrix, both, objects, search = _instance(times, beside or {}, *known)
        ties = _spread_matrix(matrix, spreads or {})
        return Choice(matrix, both, objects, search, is_general, ties, tie, incumbent)

    def portfolio(self, budget: Budget, *, is_bounded: bool = True) -> Portfolio[P]:
        """Choose the kernels of a budget, and each problem's kernel; see `choose`.

        Raises:
            SelectionError: no portfolio is good enough.
        """
        matrix, search = self.matrix, replace(self.search, credit=self.search.credit - budget.kernel_cost)
        ratios = self.objects.best(matrix.ratios)
        found, method = _fewest(search, ratios, budget) if budget.is_fewest else _best(search, budget.max_kernels)
        chosen = self.objects.kernels(found)
        picked = _assign(matrix, chosen, self.ties, self.tie, self.incumbent.solutions)
        if budget.is_fewest and not budget.is_met(_regrets(matrix, picked)):
            # Ties are given away only within the limits.
            picked = [chosen[j] for j in matrix.ratios[:, chosen].argmin(axis=1).tolist()]
        used = _used(matrix, self.both, search, chosen, picked, self.is_general)
        objects = self.objects.of_kernels(used)
        regrets = _regrets(matrix, picked)
        mean = float(regrets.mean())
        return Portfolio(
            tuple(sorted((matrix.candidates[j] for j in used), key=lambda candidate: candidate.name)),
            {problem: matrix.candidates[j] for problem, j in zip(matrix.problems, picked, strict=True)},
            mean,
            float(regrets.max()),
            method,
            min(exact.mean_bound(ratios, len(objects), mean), mean) if is_bounded else 0.0,
            objects,
        )


def choose(
    times: TimesOf[P],
    budget: Budget,
    *,
    beside: TimesOf[P] | None = None,
    weights: Mapping[P, float] | None = None,
    references: Mapping[P, float] | None = None,
    spreads: TimesOf[P] | None = None,
    tie: float = TIE,
    incumbent: Incumbent[P] | None = None,
    is_general: Callable[[Candidate], bool] = lambda _: True,
    object_of: Callable[[Candidate], Candidate] = each_its_own,
    is_bounded: bool = True,
) -> Portfolio[P]:
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
        object_of: the kernel that computes a candidate's tiles beside others', where there is one: it counts once.
        is_bounded: whether to prove `mean_bound`, which takes about as long as choosing.

    Raises:
        SelectionError: there is nothing to choose from, no general kernel among it, or no portfolio is good enough.
    """
    if budget.max_kernels < 1:
        raise SelectionError(f"--max-kernels is {budget.max_kernels}; at least 1 is needed")
    arranged = Choice.of(
        times,
        beside=beside,
        weights=weights,
        references=references,
        spreads=spreads,
        tie=tie,
        incumbent=incumbent,
        is_general=is_general,
        object_of=object_of,
    )
    return arranged.portfolio(budget, is_bounded=is_bounded)
