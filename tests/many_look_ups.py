"""What a section of a table answers for many sizes at once, in NumPy: the rule of `aot.core.dispatch.look_up`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from aot.core.measurement import PROVENANCE_MEASURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.dispatch import Section

    Whole = np.ndarray[tuple[int], np.dtype[np.int64]]

FAR = 2**32
"""More than any m: the distance of two columns' edges in one ascending array."""


@dataclass(frozen=True)
class Answers:
    """Of each size, in order."""

    kernels: Whole
    is_measured: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether the row of a ladder answers whose time was measured."""
    is_open: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether the size is past the last edge of its ladder, or of an axis of the grid."""


@dataclass(frozen=True)
class _Edges:
    """Ascending edges of m of many columns, one behind the other."""

    starts: Whole
    lasts: Whole
    keys: Whole

    @staticmethod
    def of(columns: Sequence[Sequence[int]]) -> _Edges:
        ends = np.array(list(accumulate(map(len, columns))), dtype=np.int64)
        keys = np.concatenate([i * FAR + np.array(x, dtype=np.int64) for i, x in enumerate(columns)])
        return _Edges(np.concatenate([[0], ends[:-1]]), ends - 1, keys)

    def steps(self, columns: Whole, m: Whole) -> Whole:
        """Return the place of each m's step among all."""
        return np.minimum(self.keys.searchsorted(columns * FAR + m), self.lasts[columns])


def answers(section: Section, sizes: Whole, multiples: Sequence[tuple[int, int]]) -> Answers:
    """Look up sizes, (size, 3) of m, n and k, that are aligned as the section has them.

    Args:
        section: the table.
        sizes: of one product or group.
        multiples: (m_multiple, n_multiple) of every kernel.
    """
    m, n, k = sizes.T
    grid = section.grid
    n_edges, k_edges = np.array(grid.n_edges), np.array(grid.k_edges)
    places = np.minimum(n_edges.searchsorted(n), len(n_edges) - 1) * len(k_edges)
    places += np.minimum(k_edges.searchsorted(k), len(k_edges) - 1)
    edges = _Edges.of([x.m_edges for x in grid.columns])
    steps = edges.steps(places, m)
    kernels = np.concatenate([np.array(x.kernels) for x in grid.columns])[steps]
    is_open = (n > n_edges[-1]) | (k > k_edges[-1]) | (places * FAR + m > edges.keys[steps])
    is_measured = np.zeros(len(m), dtype=bool)
    if section.ladders:
        found = {(x.n, x.k): i for i, x in enumerate(section.ladders)}
        ladders = np.array([found.get(x, -1) for x in zip(n.tolist(), k.tolist(), strict=True)])
        own = np.flatnonzero(ladders >= 0)
        rows = [row for x in section.ladders for row in x.rows]
        edges = _Edges.of([x.m_edges for x in section.ladders])
        at = edges.steps(ladders[own], m[own])
        first = np.array([row.kernel for row in rows])[at]
        whole = np.array(multiples)[first]
        takes = (m[own] % whole[:, 0] == 0) & (n[own] % whole[:, 1] == 0)
        kernels[own] = np.where(takes, first, np.array([row.general for row in rows])[at])
        is_open[own] = ladders[own] * FAR + m[own] > edges.keys[at]
        is_measured[own] = takes & np.array([row.provenance == PROVENANCE_MEASURED for row in rows])[at]
    return Answers(kernels, is_measured, is_open)
