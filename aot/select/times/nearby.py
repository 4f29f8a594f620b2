"""Times of sizes between those that were measured, for kinds whose tables have one key axis. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.work import in_order
from aot.kinds.registry import kind_of
from aot.search.residuals import Coordinates, Observed, Prior, expected_errors
from aot.space.kinds import space_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.candidate import Candidate
    from aot.core.measurement import TimesOf
    from aot.core.target import Target
    from aot.core.work import AnyOperation, AnyProblem, P

Array = NDArray[np.float64]

PRIOR = Prior()
"""How the cost model's errors vary: as a search has them.

Source: the H200's record of operations on rows, each of its 78 inner sizes left out in turn. The kernel that is best by
these times takes 0.9% longer there than the best in the mean, and 10% at worst; corrected by the nearest size at which
each kernel was timed it was 8.4% and 94%, and by the cost model alone 7.6% and 45%. With all sizes of an inner
width left out in turn it is 2.1% and 24%.
"""


@dataclass(frozen=True)
class NearbyTimes:
    """Predictions of the cost model, corrected by its errors on similar sizes and kernels (`aot.search.residuals`)."""

    operation: AnyOperation
    target: Target
    coordinates: Coordinates
    memory: tuple[Observed, ...]

    @staticmethod
    def of(operation: AnyOperation, times: TimesOf[P], target: Target) -> NearbyTimes:
        """Learn from measured times of one operation; there may be none."""
        coordinates = Coordinates(PRIOR, kind_of(operation))

        def observed(problem: P) -> Observed:
            candidates = sorted(times[problem])
            predicted = space_of(operation).times_us(candidates, problem, target)
            errors = np.log([times[problem][x] / us for x, us in zip(candidates, predicted, strict=True)])
            return Observed(coordinates.place(problem), coordinates.points(candidates), errors)

        return NearbyTimes(operation, target, coordinates, tuple(map(observed, sorted(times, key=in_order))))

    def times_us(self, candidates: Sequence[Candidate], problems: Sequence[AnyProblem]) -> Array:
        """Return times (problem, candidate), in microseconds."""
        space = space_of(self.operation)
        predicted = np.array([space.times_us(candidates, x, self.target) for x in problems])
        places = [self.coordinates.place(x) for x in problems]
        errors = expected_errors(PRIOR, places, self.coordinates.points(candidates), self.memory)
        found: Array = predicted * np.exp(errors)
        return found
