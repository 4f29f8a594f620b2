"""Times of any candidate on any problem, learned from a record: what buckets are judged by between measured problems.

Boosted trees correct the cost model: they learn the logarithm of measured over modelled time from the sizes, the tile,
the waves and what of the last tiles lies outside the operands. Against corrections of the nearest measured problems,
tried first, they cut the bucketing loss on shapes of other n and k from 4.2 to 0.7 percent
(research/log/2026-11-21-selections.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from aot.core.epilogue import Epilogue
from aot.core.knobs import SplitK
from aot.families import tiling_of
from aot.select.times.sectors import run_alignments
from aot.select.times.trees import Forest
from aot.space.cost import DEFAULTS, Constants, estimate
from aot.space.cost_operands import Operands, Problems, Sizes, cluster_slots, num_tiles, sizes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate
    from aot.core.measurement import OperationTimes
    from aot.core.operation import Operation
    from aot.core.problem import Problem
    from aot.core.target import Target

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

NUM_TREES = 2000
"""Source: on the H200's record of 2026-11-24, left out a third of its (n, k) each in turn, the kernel that trees put
first takes 1.68% longer than the best by 300 trees and 1.39% by 1,000 (research/log/2026-11-24-trees.md); of drawn
products with a residual, with two fifths of the features, 1.18% by 1,000, 1.09% by 2,000 and 0.98% by 4,000
(research/log/2026-11-30-short-sides.md). More would take longer than the gain is worth: an assumption."""
ROUGH_TREES = 150
"""Trees that all kernels are asked of where many problems are asked for; the rest are asked of those near the best.
Source: `ROUGH_RATIO`'s."""
ROUGH_RATIO = 1.15
"""Time by the first trees over the least of the problem's up to which a kernel is near. Source: on 179 products that
were not learned from, by 650 kernels of an H200, the kernel that comes first is the same as by all trees at 1.1, and
is another on 4% of them, which costs 0.1%, at 1.05 (research/log/2026-11-30-library-tiles.md). Tables by several
ratios were not compared."""
LEARNING_RATE = 0.06
FEATURE_SHARE = 0.4
"""Part of the features that each split chooses among, drawn anew for each. Source: with a third of the (n, k) left out,
the kernel that comes first takes 1.77% longer than the best of `kn`, for 2.18% with all features and a rate of 0.1; of
FP8 2.02% for 2.24%; a quarter of them did worse of `kn` and the same of `kk`
(research/log/2026-11-29-fewer-features.md)."""
MAX_LEAVES = 63
MIN_SAMPLES = 5
"""Of a leaf: fewer times than this say nothing, and the cost model stands."""
NEAR_BEST = 4.0
"""A time weighs with this power of the best time on its problem over it: what is far from winning need not be exact.
Source of these five: of a few settings each, what did well on problems left out of H200 records, the smaller first
(research/log/2026-11-21-selections.md), of the power too
(research/log/2026-11-23-clusters.md); none was searched for."""

TIMED_SHARE = 0.999
"""Part of a family's times that lie within the waves and m at which the trees are trusted. Not all: one would do."""
SHARE_OF_RANGE = 0.25
"""A family timed at this part of the largest m, or of the most waves, that any family was timed at is trusted at any
larger; one timed at the least m of any over this part, at any smaller. An assumption."""
BEYOND_TIMED = 1.25
"""What a prediction outside of that is multiplied by. Source: an assumption. On an H200, 2026-11-23, 99% of the times
of `sm90_one_tile` were at up to 7 waves; by what the trees gave at up to 185 waves the table took it on 37 products of
over 100 us, and lost up to a sixth of the speed that the kernels before had there
(research/log/2026-11-23-one-tile.md). Of FP8 it was timed from m 96 on, and taken at m 16, where it took up to 1.3
times what the kernels before did (research/log/2026-11-23-clusters.md)."""

FEW_PROBLEMS = 400
"""Problems below which the trees are not made for each kernel first: an assumption, of what that takes."""

TOGETHER = 32
"""Problems whose times are looked up at once to learn from them."""

_MODES, _EPILOGUES = list(SplitK), list(Epilogue)
_LOG_M = 6
"""The feature that is the logarithm of m."""
_LOG_WAVES = 11
"""The feature that is the logarithm of a launch's waves of tiles."""
_FAMILY = 22
"""The feature that is a candidate's family, by its place among the names."""


class Model(Protocol):
    """Gives times of candidates on problems, in microseconds."""

    def times_us(self, candidates: Sequence[Candidate], problems: Problems, asked: Mask | None = None) -> Array:
        """Return an array (problem, candidate); the problems are of one operation.

        Where there is a mask of that shape, what is not asked for is infinite.
        """


@dataclass(frozen=True)
class Prior:
    """The cost model alone: what a target without a record has."""

    target: Target
    constants: Constants = DEFAULTS

    def times_us(self, candidates: Sequence[Candidate], problems: Problems, asked: Mask | None = None) -> Array:
        """Predict by the cost model."""
        total: Array = estimate(candidates, problems, self.target, self.constants).total_us
        return total if asked is None else np.where(asked, total, np.inf)


def _of_pairs(candidates: Sequence[Candidate], problems: Problems, target: Target) -> tuple[Array, ...]:
    """Return the features that problems have a part in, each broadcasting to (problem, candidate).

    The first is the logarithm of the modelled time.
    """
    modelled = estimate(candidates, problems, target)
    x = Operands.of(candidates, problems)
    tiles_m = num_tiles(x.rows, x.cta_m, x.cluster_m)
    tiles_n = num_tiles(x.columns, x.tile_n, x.cluster_n)
    splits = np.array([float(tiling_of(c).split_k) for c in candidates])
    ctas = tiles_m * tiles_n * splits
    waves = ctas / target.num_sms
    _, slots = cluster_slots(candidates, target)
    whole_waves = np.ceil(ctas / slots)
    loaded = x.rows * x.columns * x.k * splits * (1 / (x.cta_m * x.cluster_m) + 1 / (x.tile_n * x.cluster_n))
    return (
        np.log(modelled.total_us),
        np.log(modelled.compute_us / modelled.total_us),
        np.log(modelled.memory_us / modelled.total_us),
        np.log(x.rows),
        np.log(x.columns),
        np.log(x.k),
        np.log(sizes_of(problems).m),
        x.cta_m,
        x.tile_n,
        x.cluster_m,
        x.cluster_n,
        np.log(waves),
        np.ceil(waves) / waves,
        tiles_m - x.rows / x.cta_m,
        tiles_n - x.columns / x.tile_n,
        whole_waves,
        ctas / (whole_waves * slots),
        np.log(loaded),
        x.rows * x.columns / (tiles_m * tiles_n * x.cta_m * x.tile_n),
        np.log(whole_waves * x.cta_m * x.tile_n * x.k),
        *run_alignments(sizes_of(problems)),
    )


def _of_candidates(candidates: Sequence[Candidate], operation: Operation, names: Sequence[str]) -> tuple[Array, ...]:
    """Return the features that follow those: of the kernels, and of the operation."""
    tilings = [tiling_of(c) for c in candidates]
    of_candidate = (
        [names.index(c.family) if c.family in names else -1 for c in candidates],
        [c.split_k for c in tilings],
        [_MODES.index(SplitK(c.split_k_mode)) for c in tilings],
        [names.index(c.schedule) if c.schedule in names else -1 for c in tilings],
        [c.swap_ab for c in tilings],
        [c.use_2cta for c in tilings],
        [c.use_tma_store for c in tilings],
        [c.num_stages for c in tilings],
    )
    of_operation = operation.element.code, operation.layout.code, _EPILOGUES.index(operation.epilogue)
    return tuple(np.array(values, dtype=np.float64) for values in (*of_candidate, *of_operation))


def _features(
    candidates: Sequence[Candidate], problems: Problems, target: Target, names: Sequence[str]
) -> tuple[Array, Array]:
    """Return (problem, candidate, feature), and the logarithm of the modelled time."""
    found = _of_pairs(candidates, problems, target)
    every = (*found, *_of_candidates(candidates, sizes_of(problems).operation, names))
    shape = found[0].shape
    return np.stack([np.broadcast_to(feature, shape) for feature in every], axis=-1), found[0]


def _timed_parts(
    rows: Mapping[Problem, Mapping[Candidate, float]], target: Target, names: Sequence[str]
) -> Iterator[tuple[Array, Array, Array]]:
    """Give the features, modelled logarithms and measured times, NaN where there are none, of a few problems at a time.

    A search times some of very many candidates on each problem: a table of all problems and all candidates of a record
    would be nearly empty.
    """
    problems = sorted(x for x, row in rows.items() if row)
    for first in range(0, len(problems), TOGETHER):
        part = problems[first : first + TOGETHER]
        candidates = sorted({candidate for problem in part for candidate in rows[problem]})
        place = {candidate: j for j, candidate in enumerate(candidates)}
        measured = np.full((len(part), len(candidates)), np.nan)
        for i, problem in enumerate(part):
            row = rows[problem]
            measured[i, [place[x] for x in row]] = list(row.values())
        yield *_features(candidates, part, target, names), measured


@dataclass(frozen=True)
class TimedRange:
    """Where a family was timed, as logarithms; infinite where it is trusted at any."""

    least_m: float
    most_m: float
    most_waves: float

    def is_beyond(self, log_m: Array, log_waves: Array) -> Mask:
        """Say of which problems there is nothing to learn from."""
        beyond: Mask = (log_m < self.least_m) | (log_m > self.most_m) | (log_waves > self.most_waves)
        return beyond


def _timed_ranges(features: Array, names: Sequence[str]) -> dict[str, TimedRange]:
    """Return `TimeModel.timed` of the features of all times."""
    families, every = features[:, _FAMILY], {}
    for i in np.unique(families):
        rows = features[families == i]
        (least, most), waves = np.quantile(rows[:, _LOG_M], (1 - TIMED_SHARE, TIMED_SHARE)), rows[:, _LOG_WAVES]
        every[names[int(i)]] = float(least), float(most), float(np.quantile(waves, TIMED_SHARE))
    least_m, most_m, most_waves = (limit(x[i] for x in every.values()) for i, limit in enumerate((min, max, max)))
    margin = -np.log(SHARE_OF_RANGE)
    return {
        family: TimedRange(
            least if least > least_m + margin else -np.inf,
            most if most < most_m - margin else np.inf,
            waves if waves < most_waves - margin else np.inf,
        )
        for family, (least, most, waves) in every.items()
    }


@dataclass(frozen=True)
class TimeModel:
    """The cost model corrected by what a record holds."""

    target: Target
    names: tuple[str, ...]
    """Families and schedules; their index is the feature."""
    regressor: Any
    """scikit-learn's HistGradientBoostingRegressor."""
    timed: Mapping[str, TimedRange]
    """By family where it was timed."""

    @staticmethod
    def fit(times: OperationTimes, target: Target) -> TimeModel:
        """Learn from times in microseconds by operation, problem and candidate. Equal times give equal answers.

        However many threads learn: by 1, 2, 4 and 7 every bit was the same.

        Operations with an epilogue are learned from only where there is none without of such types: they are measured
        on a few problems, and what they add to the product is below what is learned. Where there is none without, the
        epilogue is one of the features.

        Raises:
            ValueError: there are no times.
        """
        from sklearn.ensemble import HistGradientBoostingRegressor

        plain = {x for x in times if not x.epilogue.steps}
        times = {x: rows for x, rows in times.items() if x in plain or plain.isdisjoint((x.plain, *x.plain.twins))}
        known_candidates = {c for rows in times.values() for row in rows.values() for c in row}
        names = tuple(sorted({name for c in known_candidates for name in (c.family, tiling_of(c).schedule)}))
        features, residuals, weights = [], [], []
        for operation in sorted(times):
            for found, modelled, measured in _timed_parts(times[operation], target, names):
                known = ~np.isnan(measured)
                features.append(found[known])
                residuals.append((np.log(measured) - modelled)[known])
                weights.append(((np.nanmin(measured, axis=1, keepdims=True) / measured) ** NEAR_BEST)[known])
        regressor = HistGradientBoostingRegressor(
            max_iter=NUM_TREES,
            learning_rate=LEARNING_RATE,
            max_leaf_nodes=MAX_LEAVES,
            max_features=FEATURE_SHARE,
            min_samples_leaf=MIN_SAMPLES,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=0,
        )
        every = np.concatenate(features)
        regressor.fit(every, np.concatenate(residuals), np.concatenate(weights))
        return TimeModel(target, names, regressor, _timed_ranges(every, names))

    def times_us(self, candidates: Sequence[Candidate], problems: Problems, asked: Mask | None = None) -> Array:
        """Predict times in microseconds, (problem, candidate); infinite where a mask does not ask.

        Of FEW_PROBLEMS and more, a kernel that is not near a problem's best has the time of the first trees alone.
        """
        sizes = sizes_of(problems)
        predicted: Array = np.full((len(problems), len(candidates)), np.inf)
        if len(problems) < FEW_PROBLEMS:
            found, modelled = _features(candidates, sizes, self.target, self.names)
            asked = np.ones(modelled.shape, dtype=bool) if asked is None else asked
            if asked.any():
                with threadpool_limits(1):
                    predicted[asked] = np.exp(modelled[asked] + self.regressor.predict(found[asked]))
            log_m, log_waves = found[..., _LOG_M], found[..., _LOG_WAVES]
            beyond = [self._is_beyond(x, log_m[:, j], log_waves[:, j]) for j, x in enumerate(candidates)]
            return np.where(np.stack(beyond, axis=1), predicted * BEYOND_TIMED, predicted)
        first, rest = self._forest.split(ROUGH_TREES)
        sums = np.zeros(predicted.shape)
        wanted = np.ones(predicted.shape, dtype=bool) if asked is None else asked
        for forest in (first, rest):
            for j, candidate in enumerate(candidates):
                rows = np.flatnonzero(wanted[:, j])
                if rows.size:
                    part = sums[rows, j] if forest is rest else None
                    sums[rows, j], predicted[rows, j] = self._times_of(candidate, sizes.taken(rows), forest, part)
            wanted = wanted & (predicted <= ROUGH_RATIO * predicted.min(axis=1, keepdims=True))
        return predicted

    def _times_of(self, candidate: Candidate, sizes: Sizes, forest: Forest, sums: Array | None) -> tuple[Array, Array]:
        """Return a candidate's sums of trees, which go on from those given, and its times by them."""
        found = _of_pairs([candidate], sizes, self.target)
        modelled = found[0][:, 0]
        features = [x[:, 0] if x.ndim > 1 else x for x in found]
        own = _of_candidates([candidate], sizes.operation, self.names)
        sums = forest.predict([*features, *own], modelled, sums)
        times: Array = np.exp(modelled + sums)
        is_beyond = self._is_beyond(candidate, features[_LOG_M], features[_LOG_WAVES])
        return sums, np.where(is_beyond, times * BEYOND_TIMED, times)

    def _is_beyond(self, candidate: Candidate, log_m: Array, log_waves: Array) -> Mask:
        """Say on which problems a candidate's family was not timed near; all of them where it never was."""
        timed = self.timed.get(candidate.family)
        return np.ones(len(log_m), dtype=bool) if timed is None else timed.is_beyond(log_m, log_waves)

    @cached_property
    def _forest(self) -> Forest:
        return Forest.of(self.regressor)
