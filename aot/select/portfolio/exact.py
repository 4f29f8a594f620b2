"""The portfolio as a mixed-integer programme, solved by SciPy's HiGHS: exact answers and proven bounds.

Which kernels to ship so that each problem has one near its best is the p-median problem: x_j says whether kernel j is
shipped, y_ij whether problem i takes it. Only pairs below a cap are in the programme; a problem that has none pays the
cap, so that a solution in which none pays is exact, and the value is a lower bound in any case. Pure and deterministic:
no solver here has a time limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

GAP = 1e-4
"""Relative gap at which HiGHS calls a solution optimal: under noise by two orders of magnitude."""

BOUND_CAP = 1.3
"""Cap on ratios in the programme that gives the bound of a large instance."""


MAX_BOUND_PAIRS = 30_000
"""Pairs of problem and kernel below `BOUND_CAP` up to which the bound is that of the linear relaxation; of more it is
`lagrangian_bound`, which HiGHS takes minutes to better in the fourth digit (bf16 of the H200's record: 378,644)."""

ROUNDS = 200
"""Steps by which the prices of the bound are improved."""

PATIENCE = 12
"""Steps without a better bound after which the steps are halved."""


def lagrangian_bound(ratios: Array, limit: int, mean: float) -> float:
    """Prove a lower bound on the mean regret of any `limit` columns, by prices of the problems.

    Whatever price a problem pays to be served, no portfolio's regrets add up to less than the prices, less what the
    `limit` columns that earn most by them earn: of each problem its price over the regret there, where that is more.
    The best of all prices give the value of the linear relaxation; these are found by subgradient steps.
    Source: the Lagrangian relaxation of the p-median problem; Cornuejols, Fisher and Nemhauser, 1977.

    Args:
        ratios: (problem, kernel), times over the best.
        limit: most columns.
        mean: mean regret of some portfolio, which the steps aim at: a bad one makes the bound weaker, never wrong.
    """
    regrets = np.ascontiguousarray(np.minimum(ratios, BOUND_CAP) - 1)
    num_problems, num_kernels = regrets.shape
    limit = min(limit, num_kernels)
    prices: Array = np.partition(regrets, min(2, num_kernels - 1), axis=1)[:, min(2, num_kernels - 1)]
    best, scale, since = 0.0, 1.0, 0
    for _ in range(ROUNDS):
        earned = np.maximum(prices[:, None] - regrets, 0.0).sum(axis=0)
        dearest = np.argpartition(-earned, limit - 1)[:limit]
        bound = float(prices.sum() - earned[dearest].sum()) / num_problems
        since = 0 if bound > best else since + 1
        best = max(best, bound)
        if since >= PATIENCE:
            scale, since = scale / 2, 0
        wrong = 1.0 - (prices[:, None] > regrets[:, dearest]).sum(axis=1)
        length = float((wrong**2).sum())
        if length == 0.0:
            break
        prices = np.maximum(prices + scale * (mean - bound) * num_problems / length * wrong, 0.0)
    return best


@dataclass(frozen=True)
class _Programme:
    """Variables in order: x of each kernel, y of each pair, what each problem pays outside the pairs, the worst."""

    problem: NDArray[np.int64]
    kernel: NDArray[np.int64]
    regret: Array
    """Of each pair, as a fraction."""
    num_problems: int
    num_kernels: int
    cap: float
    """Regret of a problem outside the pairs."""
    share: Array
    """Of each problem in the mean; they add up to 1."""

    @staticmethod
    def of(ratios: Array, cap: float, share: Array | None = None) -> _Programme:
        problem, kernel = np.nonzero(ratios < cap)
        num_problems, num_kernels = ratios.shape
        share = np.full(num_problems, 1 / num_problems) if share is None else share
        return _Programme(problem, kernel, ratios[problem, kernel] - 1, num_problems, num_kernels, cap - 1, share)

    @property
    def num_pairs(self) -> int:
        return len(self.problem)

    @property
    def num_variables(self) -> int:
        return self.num_kernels + self.num_pairs + self.num_problems + 1

    def rows(self, pair_values: Array, outside_value: float, worst_value: float, limits: tuple[float, float]) -> Any:
        """Make a constraint a problem: its pairs, its payment outside and the worst, weighted."""
        p, e = np.arange(self.num_problems), np.arange(self.num_pairs)
        values = [pair_values, np.full(self.num_problems, outside_value), np.full(self.num_problems, worst_value)]
        columns = [self.num_kernels + e, self.num_kernels + self.num_pairs + p, np.full(p.size, self.num_variables - 1)]
        shape = (self.num_problems, self.num_variables)
        place = (np.concatenate([self.problem, p, p]), np.concatenate(columns))
        return _constraint((np.concatenate(values), place), *limits, shape=shape)

    def only_shipped(self) -> Any:
        """Let a problem take only a kernel that is shipped."""
        e = np.arange(self.num_pairs)
        values = np.concatenate([np.ones(e.size), -np.ones(e.size)])
        place = (np.concatenate([e, e]), np.concatenate([self.num_kernels + e, self.kernel]))
        return _constraint((values, place), -np.inf, 0, shape=(self.num_pairs, self.num_variables))

    def count(self, chosen: NDArray[np.bool_], low: float, high: float) -> Any:
        """Bound the number of kernels shipped among those chosen."""
        row = np.zeros((1, self.num_variables))
        row[0, : self.num_kernels] = chosen
        return _constraint(row, low, high)


def _constraint(entries: Any, low: float, high: float, shape: tuple[int, int] | None = None) -> Any:
    """Bound the products of a sparse matrix: a dense one, or its (values, (rows, columns)).

    SciPy takes most of a second to import, which commands that choose nothing do without.
    """
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

    return LinearConstraint(csr_array(entries, shape=shape), low, high)


def _optimum(cost: Array, constraints: list[Any], upper: Array | float, integrality: Array, **options: float) -> Any:
    from scipy.optimize import Bounds, milp

    return milp(cost, constraints=constraints, bounds=Bounds(0, upper), integrality=integrality, options=options)


def _solve(
    programme: _Programme, constraints: list[Any], credit: Array, worst_weight: float, *, whole: bool
) -> tuple[Array, float]:
    share = programme.share
    cost = np.concatenate([-credit, programme.regret * share[programme.problem], programme.cap * share, [worst_weight]])
    upper = np.ones(programme.num_variables)
    upper[-1] = np.inf
    integrality = np.zeros(programme.num_variables)
    integrality[: programme.num_kernels] = whole
    found = _optimum(cost, constraints, upper, integrality, mip_rel_gap=GAP)
    return found.x, float(found.fun)


def least_regret(
    ratios: Array,
    general: NDArray[np.bool_],
    credit: Array,
    limit: int,
    worst_weight: float,
    cap: float,
    share: Array | None = None,
) -> list[int] | None:
    """Choose up to `limit` columns of least mean regret plus `worst_weight` times the worst, exactly.

    Args:
        ratios: (problem, kernel), times over the best.
        general: columns of which at least one must be chosen.
        credit: what choosing a column is worth.
        limit: most columns.
        worst_weight: weight of the worst regret beside the mean.
        cap: ratio above which a pair is left out.
        share: of each problem in the mean, adding up to 1; equal ones by default.

    Returns:
        The columns, ascending; None if some problem has no kernel below the cap, so that the answer is not exact.
    """
    programme = _Programme.of(ratios, cap, share)
    pairs = np.ones(programme.num_pairs)
    constraints = [
        programme.rows(pairs, 1.0, 0.0, (1, 1)),
        programme.rows(programme.regret, programme.cap, -1.0, (-np.inf, 0)),
        programme.only_shipped(),
        programme.count(np.ones(programme.num_kernels, bool), 1, limit),
        programme.count(general, 1, np.inf),
    ]
    values, _ = _solve(programme, constraints, credit, worst_weight, whole=True)
    chosen = np.flatnonzero(values[: programme.num_kernels] > 0.5)
    within = ratios[:, chosen].min(axis=1) < cap
    return chosen.tolist() if bool(within.all()) else None


def mean_bound(ratios: Array, limit: int, mean: float) -> float:
    """Prove a lower bound on the mean regret of any `limit` columns: the value of the linear relaxation, or near it.

    Args:
        ratios: (problem, kernel), times over the best.
        limit: most columns.
        mean: mean regret of some portfolio of so many, which helps to find it where there are many pairs.
    """
    programme = _Programme.of(ratios, BOUND_CAP)
    if programme.num_pairs > MAX_BOUND_PAIRS:
        return lagrangian_bound(ratios, limit, mean)
    constraints = [
        programme.rows(np.ones(programme.num_pairs), 1.0, 0.0, (1, 1)),
        programme.only_shipped(),
        programme.count(np.ones(programme.num_kernels, bool), 0, limit),
    ]
    _, value = _solve(programme, constraints, np.zeros(programme.num_kernels), 0.0, whole=False)
    return max(value, 0.0)


def fewest_for_worst(ratios: Array, general: NDArray[np.bool_], max_worst: float | None) -> int:
    """Count the fewest columns that keep every problem's regret within `max_worst`: a set cover, solved exactly.

    Without a limit, or where no portfolio keeps it, gives 1 or the number of columns.
    """
    num_kernels = ratios.shape[1]
    if max_worst is None:
        return 1
    covers = (ratios <= 1 + max_worst).astype(float)
    constraints = [_constraint(covers, 1, np.inf), _constraint(general[None, :].astype(float), 1, np.inf)]
    found = _optimum(np.ones(num_kernels), constraints, 1, np.ones(num_kernels))
    return num_kernels if found.x is None else round(float(found.fun))
