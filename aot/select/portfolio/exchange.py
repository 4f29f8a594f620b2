"""Greedy choice of kernels, improved by exchanging one at a time and by drawing some anew. Pure.

A kernel that is exchanged changes the best times of the problems that it serves, and of few others. So sums over all
problems are kept, and brought up to date on the problems that change: with 96 kernels that is a hundredth of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Rows = NDArray[np.int64]

MISSING_RATIO = 10.0
"""What a kernel that was not timed on a problem counts as, over the best: it is never picked there by choice."""

WORST_WEIGHT = 0.05
"""Weight of the worst problem beside the mean of all in what a portfolio is judged by."""

RESTARTS = 12
"""How often some kernels of a portfolio are drawn anew and exchanged again. Source: a trial
on the H200 record, in which 24 bf16 kernels went from a mean regret of 1.51 to 1.37 percent within ten, and no further
within forty; 32, and fp16, gained nothing."""

REDRAWN = 4
"""Kernels that a restart draws anew."""

LEAST_GAIN = 1e-12
"""What a change must gain: less is rounding."""

NUM_WORST = 64
"""Problems, the worst ones, in which the worst of every kernel is looked for first."""


@dataclass(frozen=True)
class Instance:
    """What is chosen from: ratios, which kernels are general, what keeping each is worth, each problem's share."""

    ratios: Array
    """(problem, kernel): times over the best."""
    general: NDArray[np.bool_]
    credit: Array
    """Of each kernel that is kept; what is below 0 is a cost."""
    share: Array
    """Of each problem in the mean; they add up to 1."""

    @property
    def num_kernels(self) -> int:
        """Count the kernels there are."""
        return len(self.credit)

    def loss(self, ratios: Array) -> Array:
        """Judge the best ratio of each problem; problems along axis 0, alternatives along the rest."""
        total: Array = self.share @ ratios + WORST_WEIGHT * ratios.max(axis=0)
        return total

    def judge(self, chosen: list[int]) -> float:
        """Judge a portfolio, with the credit of what it keeps."""
        return float(self.loss(self.ratios[:, chosen].min(axis=1))) - float(self.credit[chosen].sum())


class _Kept:
    """A portfolio that changes by one kernel at a time, and what each change would make of the loss."""

    def __init__(self, instance: Instance, chosen: list[int]) -> None:
        self.chosen = list(chosen)
        self._of = instance
        num_problems = len(instance.ratios)
        self._first: Rows = np.zeros(num_problems, dtype=np.int64)
        self._second: Rows = np.zeros(num_problems, dtype=np.int64)
        self.best: Array = np.empty(num_problems)
        self._next: Array = np.empty(num_problems)
        self._kept = instance.ratios[:, self.chosen]
        self._look_up(np.arange(num_problems))
        self._means: Array = instance.share @ np.minimum(self.best[:, None], instance.ratios)
        self._rank()

    def _look_up(self, rows: Rows) -> None:
        """Find the best and the second kernel of some problems anew."""
        kept, ranks = self._kept[rows], np.arange(len(rows))
        if len(self.chosen) == 1:
            self.best[rows], self._next[rows] = kept[:, 0], np.inf
            self._second[rows] = -1
            return
        two = np.argpartition(kept, 1, axis=1)[:, :2]
        self._first[rows], self._second[rows] = two.T
        self.best[rows], self._next[rows] = kept[ranks, two[:, 0]], kept[ranks, two[:, 1]]

    def _rank(self) -> None:
        """Find the worst problems, and what each kernel would make of them."""
        num_worst = min(NUM_WORST, len(self.best))
        order = np.argpartition(-self.best, num_worst - 1)
        self._worst = order[:num_worst]
        self._of_worst = np.minimum(self.best[self._worst, None], self._of.ratios[self._worst])
        self._others_worst = self.best[order[num_worst:]].max(initial=-np.inf)

    def _worst_beside(self, without: int | None) -> Array:
        """Return the worst ratio with each kernel added, over the problems that `without` does not serve; exact."""
        inside = slice(None) if without is None else self._first[self._worst] != without
        found: Array = self._of_worst[inside].max(axis=0, initial=-np.inf)
        unsure = np.flatnonzero(found < self._others_worst)
        if unsure.size:
            rows = slice(None) if without is None else self._first != without
            ratios = self._of.ratios[rows][:, unsure]
            found[unsure] = np.minimum(self.best[rows, None], ratios).max(axis=0, initial=-np.inf)
        return found

    def losses(self) -> Array:
        """Return the loss with each kernel added."""
        return self._means + WORST_WEIGHT * self._worst_beside(None)

    def losses_without(self, position: int) -> Array:
        """Return the loss with each kernel in the place of one that is kept."""
        rows = np.flatnonzero(self._first == position)
        ratios, share = self._of.ratios[rows], self._of.share[rows]
        left = self._next[rows] if len(self.chosen) > 1 else np.full(len(rows), MISSING_RATIO)
        instead = np.minimum(left[:, None], ratios)
        means = self._means + share @ (instead - np.minimum(self.best[rows, None], ratios))
        worst = np.maximum(self._worst_beside(position), instead.max(axis=0, initial=-np.inf))
        losses: Array = means + WORST_WEIGHT * worst
        return losses

    def add(self, kernel: int) -> None:
        """Keep one kernel more."""
        self.chosen.append(kernel)
        self._kept = self._of.ratios[:, self.chosen]
        self._update(np.flatnonzero(self._of.ratios[:, kernel] < self._next))

    def put(self, position: int, kernel: int) -> None:
        """Keep another kernel in the place of one."""
        self.chosen[position] = kernel
        self._kept[:, position] = self._of.ratios[:, kernel]
        held = (self._first == position) | (self._second == position)
        self._update(np.flatnonzero(held | (self._kept[:, position] < self._next)))

    def _update(self, rows: Rows) -> None:
        before = self.best[rows]
        self._look_up(rows)
        rows, before = rows[moved := self.best[rows] != before], before[moved]
        ratios = self._of.ratios[rows]
        change = np.minimum(self.best[rows, None], ratios) - np.minimum(before[:, None], ratios)
        self._means += self._of.share[rows] @ change
        self._rank()


def _is_worth(instance: Instance, kept: _Kept, kernel: int) -> bool:
    """Say whether another kernel lowers the loss, by more than it costs where its credit is negative."""
    after = instance.loss(np.minimum(kept.best, instance.ratios[:, kernel]))
    return bool(instance.loss(kept.best) - after > max(0.0, -instance.credit[kernel]))


def greedy(instance: Instance, limit: int) -> list[int]:
    """Take the best general kernel first, then whichever lowers the loss most."""
    start = np.where(instance.general, instance.loss(instance.ratios) - instance.credit, np.inf)
    kept = _Kept(instance, [int(start.argmin())])
    while len(kept.chosen) < min(limit, instance.num_kernels):
        losses = kept.losses() - instance.credit
        losses[kept.chosen] = np.inf
        j = int(losses.argmin())
        if not _is_worth(instance, kept, j):
            break
        kept.add(j)
    return kept.chosen


def filled(instance: Instance, start: list[int], limit: int) -> list[int]:
    """Add to kernels that are kept, greedily; those that cost something while they are worth it."""
    kept = _Kept(instance, start)
    while len(kept.chosen) < min(limit, instance.num_kernels):
        losses = kept.losses()
        losses[kept.chosen] = np.inf
        j = int(losses.argmin())
        if instance.credit[j] < 0 and not _is_worth(instance, kept, j):
            break
        kept.add(j)
    return kept.chosen


def exchange(instance: Instance, start: list[int]) -> list[int]:
    """Replace one kernel at a time while that lowers the loss and leaves a general kernel."""
    kept = _Kept(instance, start)
    improved = True
    while improved:
        improved = False
        for position in range(len(kept.chosen)):
            rest = kept.chosen[:position] + kept.chosen[position + 1 :]
            losses = kept.losses_without(position) - instance.credit
            losses[rest] = np.inf
            if not instance.general[rest].any():
                losses = np.where(instance.general, losses, np.inf)
            j = int(losses.argmin())
            if losses[j] < losses[kept.chosen[position]] - LEAST_GAIN:
                kept.put(position, j)
                improved = True
    return kept.chosen


def restart(instance: Instance, start: list[int]) -> list[int]:
    """Leave a local optimum: draw some kernels anew, exchange again, keep what is better. Equal for equal input."""
    rng = np.random.default_rng(0)
    best = start
    for _ in range(RESTARTS if len(start) > REDRAWN else 0):
        kept = rng.permutation(best)[REDRAWN:].tolist()
        others = np.setdiff1d(np.arange(instance.num_kernels), kept)
        drawn = [*kept, *rng.choice(others, min(REDRAWN, len(others)), replace=False).tolist()]
        if not instance.general[drawn].any():
            continue
        found = exchange(instance, drawn)
        if instance.judge(found) < instance.judge(best) - LEAST_GAIN:
            best = found
    return best


def search(instance: Instance, limit: int) -> list[int]:
    """Choose up to `limit` kernels: from a greedy choice and from those with credit, whichever ends better."""
    start = greedy(instance, limit)
    kept = np.flatnonzero(instance.credit).tolist()[:limit]
    starts = [start]
    if kept and instance.general[kept].any():
        starts.append(filled(instance, kept, limit))
    return restart(instance, min((exchange(instance, chosen) for chosen in starts), key=instance.judge))
