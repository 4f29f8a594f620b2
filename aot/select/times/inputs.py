"""What a section is made of: known times with a model for all others, and the buckets that kernels are chosen for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aot.core.measurement import PROVENANCE_PREDICTED, Provenance
from aot.families import family_of
from aot.space.roofline import roofline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aot.core.candidate import Candidate
    from aot.core.dispatch import Section
    from aot.core.problem import Problem
    from aot.core.target import Target
    from aot.select.times.model import Model

Array = NDArray[np.float64]

MAX_WORKSPACE_BYTES = 256 * 2**20
"""Most workspace that a row may ask of its caller, at the row's largest shape."""


def is_general(candidate: Candidate) -> bool:
    """Say whether a kernel is for every aligned shape, with no workspace."""
    family = family_of(candidate)
    return family.multiples(candidate) == (1, 1) and not family.max_m and not family.workspace(candidate).is_needed


def workspace_bytes(candidate: Candidate, problems: Sequence[Problem]) -> NDArray[np.int64]:
    """Return the workspace of a kernel for each of some problems, in bytes."""
    workspace = family_of(candidate).workspace(candidate)
    sizes = np.array([(x.m, x.n, x.k, x.num_groups) for x in problems], dtype=np.int64).reshape(len(problems), 4)
    distinct, place = np.unique(sizes, axis=0, return_inverse=True)
    found: NDArray[np.int64] = np.array([workspace.num_bytes(*x) for x in distinct.tolist()], dtype=np.int64)[place]
    return found


@dataclass(frozen=True)
class Bucket:
    """The shapes of one row: up to a corner, and beyond it where the bucket is the last of an axis."""

    corner: Problem
    is_open: bool
    is_open_along_m: bool = False
    """Whether it is open along m."""


def no_incumbent(_problem: Problem) -> Candidate | None:
    """Say that no earlier selection dispatches a problem."""
    return None


@dataclass(frozen=True)
class Timed:
    """What a section is built from: times in microseconds by problem and candidate, and a model for other problems."""

    own: Mapping[Problem, Mapping[Candidate, float]]
    """Of the section's operation."""
    filled: Mapping[Problem, Mapping[Candidate, float]]
    """The same, with imputed times where a kernel has no time of its own."""
    provenance: Provenance
    """Of `own`; a row whose time is not in it is predicted."""
    model: Model
    incumbent: Callable[[Problem], Candidate | None] = field(default=no_incumbent)
    """Gives the kernel that an earlier selection dispatches a problem to."""
    target: Target | None = None
    """Where it is known, no time that is predicted, by the model or by another operation's, is below its roofline."""
    kept: Section | None = None
    """An earlier selection's table of the operation: its edges stay, so that only kernels can change."""

    def times_us(self, candidates: Sequence[Candidate], problems: Sequence[Problem]) -> Array:
        """Return times, (problem, candidate): those that are known, the model's for the rest."""
        is_measured = self.provenance != PROVENANCE_PREDICTED
        least = [0.0 if self.target is None else roofline(x, self.target).time_us for x in problems]
        times: Array = np.maximum(self.model.times_us(candidates, problems), np.array(least)[:, None])
        for row, least_us, problem in zip(times, least, problems, strict=True):
            filled, own = self.filled.get(problem), self.own.get(problem) if is_measured else None
            if filled or own:
                row[:] = self._known_us(candidates, row.tolist(), least_us, filled or {}, own or {})
        return times

    @staticmethod
    def _known_us(
        candidates: Sequence[Candidate],
        predicted: list[float],
        least_us: float,
        filled: Mapping[Candidate, float],
        own: Mapping[Candidate, float],
    ) -> list[float]:
        """Return times of one problem, of which the predicted ones are no less than `least_us`."""
        return [own.get(c, max(filled.get(c, us), least_us)) for c, us in zip(candidates, predicted, strict=True)]
