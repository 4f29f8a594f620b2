"""Which tiles quack's Hopper GEMM takes, and how its warpgroups share them. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.core.candidate import Candidate

PINGPONG = "pingpong"
COOPERATIVE = "cooperative"

MAX_ACCUMULATORS = 208
"""Float32 accumulators a thread can hold beside its addresses in the 232 to 240 registers that quack gives a
multiplying warpgroup. Source: quack's tile limits for pingpong (128x208) and register budgets in gemm_sm90.py."""

PINGPONG_TILE_N = {64: 256, 128: 208, 192: 128}
"""Largest tile_n for each tile_m of pingpong. Source: gemm_sm90.py, `GemmSm90.__init__`."""

COOPERATIVE_TILE_M = (64, 128, 192, 256, 320)


def warpgroup_grid(candidate: Candidate) -> tuple[int, int]:
    """Return the (m, n) arrangement of the warpgroups that share one tile."""
    if candidate.schedule == PINGPONG:
        return 1, 1
    if candidate.tile_m == 320 or (candidate.tile_m == 192 and candidate.tile_n > 128):
        return 1, 2
    if candidate.tile_m == 192:
        return 3, 1
    return min(candidate.tile_m // 64, 2), 1


def epilogue_tile(candidate: Candidate) -> tuple[int, int]:
    """Return the (m, n) piece of the tile that one stage of the epilogue stores."""
    rows, _ = warpgroup_grid(candidate)
    unit = 64
    if rows > 1:
        unit = 128 if candidate.tile_m % 128 == 0 else 192 if candidate.tile_m % 192 == 0 else 64
    return math.gcd(unit, candidate.tile_m), math.gcd(32, candidate.tile_n)


def _pingpong_fault(candidate: Candidate) -> str | None:
    if candidate.tile_m not in PINGPONG_TILE_N:
        return f"pingpong takes tile_m {', '.join(map(str, PINGPONG_TILE_N))}, got {candidate.tile_m}"
    limit = PINGPONG_TILE_N[candidate.tile_m]
    if candidate.tile_n > limit or candidate.tile_n % 16:
        steps = f"in steps of 16 up to {limit}"
        return f"pingpong takes tile_n {steps} at tile_m {candidate.tile_m}, got {candidate.tile_n}"
    return None


def tile_fault(candidate: Candidate) -> str | None:
    """Say what `GemmSm90.__init__` has against a tile."""
    tile = f"{candidate.tile_m}x{candidate.tile_n}"
    if candidate.schedule == PINGPONG:
        return _pingpong_fault(candidate)
    if candidate.tile_m not in COOPERATIVE_TILE_M or candidate.tile_n % 16:
        return f"cooperative takes tile_m {COOPERATIVE_TILE_M} and tile_n in steps of 16, got {tile}"
    if candidate.tile_m in (192, 320) and candidate.tile_n % 32:
        return f"cooperative {tile}: tile_n must be a multiple of 32"
    if candidate.tile_m == 320 and candidate.tile_n > 160:
        return f"cooperative {tile}: tile_n is at most 160 at tile_m 320"
    return None


def register_fault(candidate: Candidate) -> str | None:
    """Say why the accumulators of a tile do not fit the registers of its threads."""
    accumulators = candidate.tile_m * candidate.tile_n // (math.prod(warpgroup_grid(candidate)) * 128)
    if accumulators <= MAX_ACCUMULATORS:
        return None
    tile = f"{candidate.tile_m}x{candidate.tile_n}"
    return f"{tile} needs {accumulators} accumulator registers a thread; {MAX_ACCUMULATORS} fit"
