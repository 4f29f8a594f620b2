"""Which tiles quack's Hopper GEMM and our kernels take, and how they share them. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aot.families._ragged import MATRIX_COLUMNS, STEP, is_ragged, piece_columns

if TYPE_CHECKING:
    from aot.core.candidate import Candidate

PINGPONG = "pingpong"
COOPERATIVE = "cooperative"
COOPERATIVE3 = "cooperative3"
"""Cooperative, where three warpgroups share the rows of a tile of 192 that is too wide for quack to do so."""

MAX_ACCUMULATORS = 208
"""Float32 accumulators a thread can hold beside its addresses in the 232 to 240 registers that quack gives a
multiplying warpgroup. Source: quack's tile limits for pingpong (128x208) and register budgets in gemm_sm90.py."""

MAX_ACCUMULATORS_OF_THREE = 100
"""The same where three warpgroups multiply. Source: ptxas 13.4 compiles 512 threads for 128 registers; 192x200 fits
without spills, 192x208 needs 130 (nvidia-cutlass-dsl 4.8.1, 2026-11-22)."""

PINGPONG_TILE_N = {64: 256, 128: 208, 192: 128}
"""Largest tile_n for each tile_m of pingpong. Source: gemm_sm90.py, `GemmSm90.__init__`."""

COOPERATIVE_TILE_M = (64, 128, 192, 256, 320)

MAX_INSTRUCTION_N = 256
"""Most columns that a warpgroup multiplies at once. Source: PTX ISA, wgmma.mma_async: n is at most 256."""

WIDE_TILE_N = tuple(range(MAX_INSTRUCTION_N + 16, 353, 16))
"""Columns of cooperative tiles of 128 rows that are too wide for one warpgroup, which two share by columns, in our own
kernels. Source: cuBLAS has tiles of up to 304 by 128 and 352 by 64; on an H200 those up to 352 were timed. Of 128x352
nvidia-cutlass-dsl 4.8.1 spills 8 bytes with GELU and swap, and none plain, with a residual or of fast FP8."""

TALL_TILE_M = 384
TALL_TILE_N = tuple(range(STEP, 129, STEP))
"""Rows and columns of cooperative tiles that are too tall for quack, which two warpgroups share by rows, in our own
kernels. Source: nvidia-cutlass-dsl 4.8.1 compiles 384x128 without spills and spills 16 bytes of 384x136, 2026-11-30."""

MIN_TILE_N = {192: 16, 320: 32}
"""Least tile_n for each tile_m of cooperative that has one. Source: two warpgroups share the columns of a tile of 320,
and each stores 16 at once; the compiler of nvidia-cutlass-dsl 4.8.1 aborts on a transposed D of 192x8."""

MAX_TILE_N_OF_THREE = 128
"""Widest tile of 192 rows that quack gives to three warpgroups by rows; wider ones go to two by columns. Source:
gemm_sm90.py, `GemmSm90.__init__`."""


def warpgroup_grid(candidate: Candidate) -> tuple[int, int]:
    """Return the (m, n) arrangement of the warpgroups that share one tile."""
    if candidate.gemm.schedule == PINGPONG:
        return 1, 1
    if candidate.gemm.schedule == COOPERATIVE3:
        return 3, 1
    if candidate.gemm.tile_n > MAX_INSTRUCTION_N:
        return 1, 2
    if candidate.gemm.tile_m == 320 or (candidate.gemm.tile_m == 192 and candidate.gemm.tile_n > MAX_TILE_N_OF_THREE):
        return 1, 2
    if candidate.gemm.tile_m == 192:
        return 3, 1
    return min(candidate.gemm.tile_m // 64, 2), 1


def is_large(candidate: Candidate) -> bool:
    """Say whether a tile has more columns than one instruction takes, or more rows than quack gives two warpgroups."""
    return candidate.gemm.tile_n > MAX_INSTRUCTION_N or candidate.gemm.tile_m == TALL_TILE_M


def has_ragged_tile(candidate: Candidate) -> bool:
    """Say whether the epilogue stores columns of a tile twice, or fewer at once than quack."""
    return is_ragged(candidate.gemm.tile_n, warpgroup_grid(candidate)[1])


def epilogue_tile(candidate: Candidate, d_bits: int = 16) -> tuple[int, int]:
    """Return the (m, n) piece of the tile that one stage of the epilogue stores.

    Args:
        candidate: tile and schedule.
        d_bits: of an element of D. Source: gemm_sm90.py, `_compute_tile_shape_or_override`.
    """
    rows, _ = warpgroup_grid(candidate)
    unit, widest = 64, 64 if d_bits == 8 else 32
    if rows > 1:
        unit = 128 if candidate.gemm.tile_m % 128 == 0 else 192 if candidate.gemm.tile_m % 192 == 0 else 64
    columns = math.gcd(32 if unit > 64 else widest, candidate.gemm.tile_n)
    if has_ragged_tile(candidate):
        columns = piece_columns(candidate.gemm.tile_n)
    return math.gcd(unit, candidate.gemm.tile_m), columns


def shapes(step: int) -> list[tuple[str, int, int]]:
    """List (schedule, tile_m, tile_n), legal or not, with tile_n in steps of `step`."""
    columns = range(step, 257, step)
    found = [(PINGPONG, m, n) for m in PINGPONG_TILE_N for n in columns]
    found += [(COOPERATIVE, m, n) for m in COOPERATIVE_TILE_M for n in columns]
    if step == STEP:
        found += [(COOPERATIVE3, 192, n) for n in columns if n > MAX_TILE_N_OF_THREE]
    return found


def large_shapes() -> list[tuple[str, int, int]]:
    """List (schedule, tile_m, tile_n) of the large tiles of our own kernels."""
    return [
        *((COOPERATIVE, 128, n) for n in WIDE_TILE_N),
        *((COOPERATIVE, TALL_TILE_M, n) for n in TALL_TILE_N),
    ]


def tile_fault(candidate: Candidate, step: int) -> str | None:
    """Say what the kernel has against a tile.

    Args:
        candidate: tile and schedule.
        step: `MATRIX_COLUMNS` for quack's kernel, as `GemmSm90.__init__` has it, `STEP` for ours.
    """
    faults = {PINGPONG: _pingpong_fault, COOPERATIVE: _cooperative_fault, COOPERATIVE3: _cooperative3_fault}
    if candidate.gemm.schedule not in faults:
        return f"a schedule is one of {', '.join(faults)}, got {candidate.gemm.schedule!r}"
    return faults[candidate.gemm.schedule](candidate, step)


def _pingpong_fault(candidate: Candidate, step: int) -> str | None:
    if candidate.gemm.tile_m not in PINGPONG_TILE_N:
        return f"pingpong takes tile_m {', '.join(map(str, PINGPONG_TILE_N))}, got {candidate.gemm.tile_m}"
    limit = PINGPONG_TILE_N[candidate.gemm.tile_m]
    if candidate.gemm.tile_n > limit or candidate.gemm.tile_n % step:
        steps = f"in steps of {step} up to {limit}"
        return f"pingpong takes tile_n {steps} at tile_m {candidate.gemm.tile_m}, got {candidate.gemm.tile_n}"
    return None


def _cooperative_fault(candidate: Candidate, step: int) -> str | None:
    if is_large(candidate):
        return _large_fault(candidate, step)
    tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
    if candidate.gemm.tile_m not in COOPERATIVE_TILE_M or candidate.gemm.tile_n % step:
        return f"cooperative takes tile_m {COOPERATIVE_TILE_M} and tile_n in steps of {step}, got {tile}"
    is_odd_height = candidate.gemm.tile_m in (192, 320)
    multiple = 32 if is_odd_height and step == MATRIX_COLUMNS else step * warpgroup_grid(candidate)[1]
    if candidate.gemm.tile_n % multiple:
        return f"cooperative {tile}: tile_n must be a multiple of {multiple}"
    if candidate.gemm.tile_n < MIN_TILE_N.get(candidate.gemm.tile_m, step):
        height = candidate.gemm.tile_m
        return f"cooperative {tile}: tile_n is at least {MIN_TILE_N[height]} at tile_m {height}"
    if candidate.gemm.tile_m == 320 and candidate.gemm.tile_n > 160:
        return f"cooperative {tile}: tile_n is at most 160 at tile_m 320"
    return None


def _large_fault(candidate: Candidate, step: int) -> str | None:
    shape = candidate.gemm.schedule, candidate.gemm.tile_m, candidate.gemm.tile_n
    if step == STEP and shape in large_shapes() and candidate.gemm.split_k == 1:
        return None
    wide = f"tile_m 128 with tile_n {WIDE_TILE_N[0]} to {WIDE_TILE_N[-1]} in steps of 16"
    tall = f"tile_m {TALL_TILE_M} with tile_n to {TALL_TILE_N[-1]} in steps of {STEP}"
    takes = f"large tiles, of our own kernels and without splits of k, are {wide} and {tall}"
    return f"{takes}, got {shape[1]}x{shape[2]}, {candidate.gemm.split_k} splits"


def _cooperative3_fault(candidate: Candidate, step: int) -> str | None:
    is_wide = candidate.gemm.tile_m == 192 and candidate.gemm.tile_n > MAX_TILE_N_OF_THREE
    if step == STEP and is_wide and candidate.gemm.tile_n % STEP == 0:
        return None
    tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
    takes = f"tile_m 192 and tile_n in steps of {STEP} above {MAX_TILE_N_OF_THREE}"
    return f"cooperative3 takes {takes}, in our own kernels, got {tile}"


def register_fault(candidate: Candidate, *, is_promoted: bool = False, most: int = MAX_ACCUMULATORS) -> str | None:
    """Say why the accumulators of a tile do not fit the registers of its threads.

    Args:
        candidate: tile and schedule.
        is_promoted: whether what the tensor cores add up is added to as many accumulators more, every 128 of k.
        most: accumulators that fit a thread where at most two warpgroups multiply.
    """
    warpgroups = math.prod(warpgroup_grid(candidate))
    accumulators = candidate.gemm.tile_m * candidate.gemm.tile_n // (warpgroups * 128) * (2 if is_promoted else 1)
    fit = MAX_ACCUMULATORS_OF_THREE if warpgroups == 3 else most
    if accumulators <= fit:
        return None
    tile = f"{candidate.gemm.tile_m}x{candidate.gemm.tile_n}"
    twice = ", twice its sums since they are promoted every 128 of k" if is_promoted else ""
    return f"{tile} needs {accumulators} accumulator registers a thread{twice}; {fit} fit"
