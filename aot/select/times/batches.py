"""Times of batches by those of one product: for operands that are not aligned, where no batch was timed. Pure.

A batch is taken to take as long as one product of all of its rows, with each product's rows rounded up to whole tiles:
as many CTAs do as much each, and a wave of them is as full. What differs is that products of a batch share no B, which
the L2 then holds less often.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.core.dispatch import LOADS
from aot.core.operation import Layout, Operation
from aot.core.problem import Problem
from aot.families import tiling_of
from aot.space.cost_operands import Problems, Sizes, sizes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from aot.core.candidate import Candidate
    from aot.select.times.model import Mask, Model

BATCHES = (4, 12, 24, 48, 128)
"""Products that there are sections for. A batch gets the first that is not below its own, or the last."""

ROWS = (1, 17, 65, 197, 729, 1500)
TOKENS = (17, 50, 197, 729, 1500)
HEADS = (32, 64, 80, 128)
"""What kernels are chosen by: ROWS of queries, times the keys of TOKENS of images and of sound, of the widths of HEADS,
and weights of so many TOKENS times the values of HEADS."""

GRID_N = (16, 32, 48, 64, 80, 96, *range(128, 513, 32), 640, 768, 896, 1024, 1280, 1536, 2048, 4096, 131072)
GRID_K = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 32768)
"""Edges of the grids of these sections. The products of a batch are small, such as an attention's of one head: small
edges are where the numbers of tiles change, and large ones are few."""


def batched_problems(operation: Operation) -> list[Problem]:
    """List the problems that models are asked about of an operation for batches."""
    pairs = [*product(TOKENS, HEADS), *product(HEADS, TOKENS)]
    return [Problem(operation, m, n, k, count) for m, (n, k), count in product(ROWS, pairs, BATCHES)]


def batched_loads(operation: Operation) -> tuple[int, ...]:
    """List the sections of an operation for batches whose kernels are chosen by times of one product.

    D alone is unaligned where B is contiguous along k: else an odd n makes rows of B that are, too.
    """
    return LOADS if operation.layout is Layout.KK else LOADS[:-1]


@dataclass(frozen=True)
class OfBatches:
    """Gives times of batches by a model of one product; satisfies `aot.select.times.model.Model`."""

    model: Model

    def times_us(self, candidates: Sequence[Candidate], problems: Problems, asked: Mask | None = None) -> Any:
        """Return (problem, candidate) times in microseconds, infinite where a mask does not ask."""
        sizes = sizes_of(problems)
        one = sizes.operation.dense or sizes.operation
        times: NDArray[np.float64] = np.full((len(sizes), len(candidates)), np.inf)
        for j, candidate in enumerate(candidates):
            tiling = tiling_of(candidate)
            tile = tiling.tile_n if tiling.swap_ab else tiling.tile_m
            rows = np.ceil(sizes.m / tile) * tile * sizes.num_groups
            whole = Sizes(one, rows, sizes.n, sizes.k, np.ones_like(rows))
            mask = None if asked is None else asked[:, [j]]
            times[:, [j]] = self.model.times_us([candidate], whole, mask)
        return times
