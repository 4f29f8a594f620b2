"""Kernels that are compiled as one object, and so count once in a portfolio. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate


@dataclass(frozen=True)
class Objects:
    """Which kernels are one object, which counts once in a budget and is as fast as the fastest of them."""

    candidates: tuple[Candidate, ...]
    names: tuple[Candidate, ...]
    """What `object_of` names each object."""
    members: tuple[tuple[int, ...], ...]
    """The columns of each object's kernels."""

    @staticmethod
    def of(candidates: Sequence[Candidate], object_of: Callable[[Candidate], Candidate]) -> Objects:
        """Bring together the kernels of which `object_of` names the same."""
        found: dict[Candidate, list[int]] = {}
        for j, candidate in enumerate(candidates):
            found.setdefault(object_of(candidate), []).append(j)
        return Objects(tuple(candidates), tuple(found), tuple(map(tuple, found.values())))

    def best(self, of_kernels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least of each object's kernels, along the last axis."""
        return np.stack([of_kernels[..., list(x)].min(axis=-1) for x in self.members], axis=-1)

    def kernels(self, chosen: Sequence[int]) -> list[int]:
        """Return the kernels of some objects."""
        return sorted(j for x in chosen for j in self.members[x])

    def of_kernels(self, kernels: Sequence[int]) -> tuple[Candidate, ...]:
        """Return what is compiled for some kernels: an object of several of them, or a kernel alone."""
        found = []
        for name, members in zip(self.names, self.members, strict=True):
            own = sorted(set(members).intersection(kernels))
            found += [name if len(own) > 1 else self.candidates[own[0]]] if own else []
        return tuple(found)


def each_its_own(candidate: Candidate) -> Candidate:
    """Say that every kernel is an object of its own."""
    return candidate
