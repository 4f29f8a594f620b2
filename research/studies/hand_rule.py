"""TensorRT-Edge-LLM's rule for the tile of an fp16 GEMM on Thor, beside the cost model's choice.

Both are priors. The rule is its authors', for kernels of their own; the model's times are predicted. Agreement shows
that neither is absurd; a difference does not show which one is right. Nothing is fitted to the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aot.core.candidate import Candidate
from aot.core.element import ElementType
from aot.core.errors import TargetError
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.problem import Problem
from aot.families import tiling_of
from aot.space.enumeration import legal
from research.studies.prior import times_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot.core.target import Target

ARCH = "sm_110a"
"""Architecture of Thor. The rule's 2-CTA tile is for devices of few SMs, of which it is the one."""

SMALL_ROWS = 64
SMALL_ROWS_AN_SM = 4
"""The small tile is taken up to this many rows of x, or up to so many an SM where that is more: 80 on 20 SMs."""

WIDE_ROWS = 256
WIDE_COLUMNS = 2048
"""The 2-CTA tile is taken from so many rows of x on; below twice as many only where n is at least `WIDE_COLUMNS`."""

WIDE_SMS = 32
"""Most SMs of a device on which the 2-CTA tile is taken.

Source of all: NVIDIA/TensorRT-Edge-LLM, cuteDslGemmRunner.cpp (`loadKernelModule`, `run`); the tiles and clusters:
kernelSrcs/build_cutedsl.py."""

ROWS = (1, 16, 64, 80, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""Rows of x (m) to compare at: both sides of each of the rule's edges."""


CLOSE = 1.05
"""Times the best predicted time up to which the model is not taken to tell candidates apart. Source: our own choice, of
the size by which two runs on one device differ (docs/measurements.md)."""


@dataclass(frozen=True)
class Tile:
    """What the rule names: tile and cluster, and whether two CTAs share a tile. tile_m runs along m."""

    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    use_2cta: bool

    @property
    def name(self) -> str:
        """Return the text for tables, as candidates are named."""
        return f"{self.tile_m}x{self.tile_n}_c{self.cluster_m}x{self.cluster_n}{'_2cta' if self.use_2cta else ''}"

    @staticmethod
    def of(candidate: Candidate) -> Tile:
        """Return a candidate's own, whichever way it lies."""
        x = tiling_of(candidate)
        return Tile(x.tile_m, x.tile_n, x.cluster_m, x.cluster_n, x.use_2cta)


SMALL = Tile(64, 128, 1, 2, use_2cta=False)
MIDDLE = Tile(128, 128, 1, 1, use_2cta=False)
WIDE = Tile(256, 256, 2, 1, use_2cta=True)


def rule(m: int, n: int, num_sms: int) -> Tile:
    """Return the tile that the rule takes for x (m, k) times a weight (n, k), sizes in elements."""
    if m <= max(SMALL_ROWS, SMALL_ROWS_AN_SM * num_sms):
        return SMALL
    if num_sms <= WIDE_SMS and m >= WIDE_ROWS and (m >= 2 * WIDE_ROWS or n >= WIDE_COLUMNS):
        return WIDE
    return MIDDLE


def matches(candidate: Candidate, tile: Tile) -> bool:
    """Say whether a candidate is what the rule names.

    Tile, cluster and two CTAs are equal, tile_m runs along m (no `swap_ab`), and k is not split. Family, schedule and
    store may be any: the rule's own kernels are of no family here, so the best of them stands for it.
    """
    tiling = tiling_of(candidate)
    is_plain = not tiling.swap_ab and SplitK(tiling.split_k_mode) is SplitK.NONE
    return is_plain and Tile.of(candidate) == tile


@dataclass(frozen=True)
class Comparison:
    """The rule beside the model on one problem: predicted times in microseconds.

    `rank` is the place of the rule's best candidate among the `num_candidates` legal ones that take the problem, 1 for
    the first; `rule_us` and `rank` are None where none of them matches the rule. `num_close` are within `CLOSE` of the
    model's first.
    """

    problem: Problem
    tile: Tile
    choice: Candidate
    model_us: float
    rule_us: float | None
    rank: int | None
    num_candidates: int
    num_close: int

    @property
    def loss(self) -> float | None:
        """Return how many times the model's best predicted time the rule's tile takes."""
        return None if self.rule_us is None else self.rule_us / self.model_us

    @property
    def agrees(self) -> bool:
        """Say whether the model's first choice is the rule's tile."""
        return matches(self.choice, self.tile)


def compare(candidates: Sequence[Candidate], problems: Sequence[Problem], target: Target) -> list[Comparison]:
    """Put the rule beside the model.

    Args:
        candidates: the legal ones of the problems' operation.
        problems: of one operation; sizes in elements.
        target: a Thor.

    Raises:
        TargetError: the rule is not for the target's architecture.
    """
    if target.arch != ARCH:
        raise TargetError(f"the hand rule is for {ARCH}, and {target.name} is {target.arch}; give --target thor")
    found = []
    for problem, row in zip(problems, times_us(candidates, problems, target), strict=True):
        tile = rule(problem.m, problem.n, target.num_sms)
        of_rule = np.array([matches(candidate, tile) for candidate in candidates]) & np.isfinite(row)
        rule_us = float(row[of_rule].min()) if of_rule.any() else None
        found.append(
            Comparison(
                problem,
                tile,
                candidates[int(row.argmin())],
                float(row.min()),
                rule_us,
                None if rule_us is None else 1 + int((row < rule_us).sum()),
                int(np.isfinite(row).sum()),
                int((row <= CLOSE * row.min()).sum()),
            )
        )
    return found


def rule_problems(weights: Sequence[tuple[int, int]]) -> list[Problem]:
    """List what the rule is compared on: weights (n, k) in fp16 at each of `ROWS`, row by row."""
    return [Problem(Operation.of(ElementType.FLOAT16), m, n, k) for m in ROWS for n, k in weights]


def compare_weights(weights: Sequence[tuple[int, int]], target: Target) -> list[Comparison]:
    """Put the rule beside the model for weights (n, k) in fp16 at each of `ROWS`, row by row.

    Raises:
        TargetError: the rule is not for the target's architecture.
    """
    problems = rule_problems(weights)
    return compare(legal(problems[0].operation, target), problems, target)
