"""What the cost model looks at: problems and tiles of candidates as arrays that broadcast to (problem, candidate)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import Candidate
from aot.core.element import BYTE_BITS
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.families import tiling_of

if TYPE_CHECKING:
    from aot.core.problem import Problem
    from aot.core.target import Target

Column = NDArray[np.float64]


def columns(candidates: Sequence[Candidate], name: str) -> Column:
    """Return what the tilings of candidates have under a name, as numbers."""
    return np.array([float(getattr(tiling_of(candidate), name)) for candidate in candidates])


def is_tail_of(candidates: Sequence[Candidate]) -> NDArray[np.bool_]:
    """Say which candidates split only the tiles that fill no whole wave."""
    return np.array([tiling_of(candidate).split_k_mode == SplitK.TAIL for candidate in candidates])


def num_sharing(candidates: Sequence[Candidate]) -> Column:
    """Count the CTAs of a cluster that share the k of a tile."""
    tilings = map(tiling_of, candidates)
    return np.array([x.split_k if x.split_k_mode == SplitK.CLUSTER else 1 for x in tilings], dtype=np.float64)


def cluster_slots(candidates: Sequence[Candidate], target: Target) -> tuple[Column, Column]:
    """Return the CTAs of each candidate's clusters, and the CTAs that whole clusters of them fill the device with."""
    cluster = columns(candidates, "cluster_m") * columns(candidates, "cluster_n") * num_sharing(candidates)
    return cluster, cluster * [float(target.num_clusters(size)) for size in cluster.astype(int).tolist()]


@dataclass(frozen=True)
class Sizes:
    """The sizes of problems of one operation as arrays (problem, 1), made once for many looks."""

    operation: Operation
    m: Column
    n: Column
    k: Column
    num_groups: Column

    @staticmethod
    def of(problems: Sequence[Problem]) -> Sizes:
        """Take the sizes of problems, at least one."""
        rows = np.array([(x.m, x.n, x.k, x.num_groups) for x in problems], dtype=np.float64)
        return Sizes(problems[0].operation, *(np.ascontiguousarray(rows[:, i, None]) for i in range(4)))

    def taken(self, rows: NDArray[np.int64]) -> Sizes:
        """Return those of some problems."""
        return Sizes(self.operation, self.m[rows], self.n[rows], self.k[rows], self.num_groups[rows])

    def __len__(self) -> int:
        """Count the problems."""
        return len(self.m)


Problems: TypeAlias = "Sequence[Problem] | Sizes"
"""Problems of one operation, or their sizes."""


def sizes_of(problems: Problems) -> Sizes:
    """Return the sizes of problems."""
    return problems if isinstance(problems, Sizes) else Sizes.of(problems)


@dataclass(frozen=True)
class ItemBytes:
    """Bytes of an element of each operand, as the kernel sees them: rows (candidate,) exchanged by `swap_ab`."""

    rows: Column
    columns: Column
    stored: float
    """What a column of the kernel's tile stores of D, and loads of a residual; with a gate two make one of D."""

    @staticmethod
    def of(candidates: Sequence[Candidate], operation: Operation) -> ItemBytes:
        """Look at an operation's operands as candidates do."""
        swap = columns(candidates, "swap_ab") > 0
        a, b = operation.a.num_bytes, operation.b.num_bytes
        stored = operation.d.bits / BYTE_BITS * (2 if operation.has_residual else 1) / operation.num_rows_of_b(1)
        return ItemBytes(np.where(swap, b, a), np.where(swap, a, b), stored)


@dataclass(frozen=True)
class Operands:
    """Arrays that broadcast to (problem, candidate): the problem's extents as the kernel sees them, and its tiles.

    With a gate the columns are B's rows, both of its halves.
    """

    rows: Column
    columns: Column
    k: Column
    """Of one split; in the mode `tail`, of a whole tile."""
    cta_m: Column
    tile_n: Column
    cluster_m: Column
    cluster_n: Column
    num_groups: Column
    """Products of the same sizes that a launch computes; groups are taken to have what is expected of each."""

    @staticmethod
    def of(candidates: Sequence[Candidate], problems: Problems) -> Operands:
        """Look at problems as candidates do: with `swap_ab` m and n change places."""
        sizes = sizes_of(problems)
        m, n, k, num_groups = sizes.m, sizes.n, sizes.k, sizes.num_groups
        n = n * sizes.operation.num_rows_of_b(1)
        swap = columns(candidates, "swap_ab") > 0
        splits = np.where(is_tail_of(candidates), 1.0, columns(candidates, "split_k"))
        return Operands(
            np.where(swap, n, m),
            np.where(swap, m, n),
            np.ceil(k / splits),
            columns(candidates, "tile_m") / np.where(columns(candidates, "use_2cta") > 0, 2.0, 1.0),
            columns(candidates, "tile_n"),
            columns(candidates, "cluster_m"),
            columns(candidates, "cluster_n"),
            num_groups,
        )

    def num_ctas(self) -> Column:
        """Count the CTAs of one split, whole clusters."""
        tiles: Column = num_tiles(self.rows, self.cta_m, self.cluster_m)
        return tiles * num_tiles(self.columns, self.tile_n, self.cluster_n) * self.num_groups


def num_tiles(extent: Column, tile: Column, cluster: Column) -> Column:
    """Count the tiles of an axis, whole clusters."""
    tiles: Column = np.ceil(np.ceil(extent / tile) / cluster) * cluster
    return tiles
