"""An analytic time of a candidate on a problem: an order to try candidates in, never a measured time.

The model knows tiles, waves of tiles over the SMs, the rates of the tensor cores, of L2 and of device memory, and what
split-K adds. Its constants were set by hand on an H200's bf16 table; `aot` calls every time that comes from it
`predicted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aot.candidate import Candidate, SplitK
from aot.families import family_of

if TYPE_CHECKING:
    from aot.problem import Problem
    from aot.target import Target

NAME = "cost-model-v1"
"""Version of the model, recorded with every predicted row."""

MMA_HALF_EDGE = 22.0
"""Tile edge, in elements, whose cost is as if it were added to both sides: what a small tile loses in the tensor
cores' operand traffic. Source: set on the H200 table (tiles 64x16 to 256x208)."""

COOPERATIVE_EPILOGUE = 0.35
"""Share of the epilogue that a cooperative kernel cannot hide behind the next tile. Source: as above."""

L2_BYTES_A_CLOCK_AN_SM = 64.0
"""Bytes that an SM reads from L2 in a clock. Source: Hopper and Blackwell whitepapers, L2 read bandwidth."""

CLOCK_HZ = {"sm_90a": 1.6e9, "sm_110a": 1.575e9}
"""SM clock under load. Source: an H200 under a bf16 matrix product; Thor's highest power mode, not measured."""

SM_SHARE_OF_BANDWIDTH = 2.6
"""How much more than its even share of the device's bandwidth one SM can draw. Source: as MMA_HALF_EDGE."""

RAMP_US = 2.2
"""From a block's start to its first multiplication, and from its last one to the end of its stores. Source: as above;
scaled to other targets by their launch time."""

REFERENCE_LAUNCH_US = 2.0
"""The launch time of the target that RAMP_US was set on (aot/targets/h200.toml)."""

SERIAL_HANDOVER_US = 0.7
"""What each further split waits for the one before it. Source: as MMA_HALF_EDGE."""


@dataclass(frozen=True)
class Estimate:
    """A predicted time and what it is made of, in microseconds."""

    total_us: float
    compute_us: float
    memory_us: float
    ramp_us: float
    num_waves: int


def _ceil(value: int, step: int) -> int:
    return -(-value // step)


def _num_ctas(candidate: Candidate, rows: int, columns: int, cta_m: int) -> int:
    tiles_m = _ceil(_ceil(rows, cta_m), candidate.cluster_m) * candidate.cluster_m
    tiles_n = _ceil(_ceil(columns, candidate.tile_n), candidate.cluster_n) * candidate.cluster_n
    return tiles_m * tiles_n * candidate.split_k


def estimate(candidate: Candidate, problem: Problem, target: Target) -> Estimate:
    """Predict the time of one launch with a cold L2.

    Args:
        candidate: a legal candidate.
        problem: sizes in elements.
        target: rates and limits of the device.
    """
    rows, columns = (problem.n, problem.m) if candidate.swap_ab else (problem.m, problem.n)
    cta_m = candidate.tile_m // 2 if candidate.use_2cta else candidate.tile_m
    ctas = _num_ctas(candidate, rows, columns, cta_m)
    slots = target.num_sms // (candidate.cluster_m * candidate.cluster_n) * candidate.cluster_m * candidate.cluster_n
    waves = _ceil(ctas, slots)
    busy = min(ctas, slots)
    k = _ceil(problem.k, candidate.split_k)
    item = problem.operation.dtype.num_bytes
    efficiency = candidate.tile_m * candidate.tile_n / (candidate.tile_m + MMA_HALF_EDGE)
    efficiency /= candidate.tile_n + MMA_HALF_EDGE
    sm_rate = target.flops_per_s / target.num_sms
    mma_us = 2e6 * cta_m * candidate.tile_n * k / (sm_rate * efficiency) * (256 / (256 + MMA_HALF_EDGE)) ** 2
    loads = (cta_m / candidate.cluster_n + candidate.tile_n / candidate.cluster_m) * k * item
    l2_us = loads / (L2_BYTES_A_CLOCK_AN_SM * CLOCK_HZ[target.arch]) * 1e6
    store_us = cta_m * candidate.tile_n * item / (L2_BYTES_A_CLOCK_AN_SM / 2 * CLOCK_HZ[target.arch]) * 1e6
    exposed = COOPERATIVE_EPILOGUE if candidate.schedule == "cooperative" else 0.1
    compute_us = waves * (max(mma_us, l2_us) + exposed * store_us)
    memory_us = _memory_us(candidate, problem, target, busy)
    ramp_us = RAMP_US * target.launch_us / REFERENCE_LAUNCH_US + _split_us(candidate, problem, target)
    total = max(compute_us, memory_us) + 0.15 * min(compute_us, memory_us) + ramp_us
    return Estimate(total, compute_us, memory_us, ramp_us, waves)


def _memory_us(candidate: Candidate, problem: Problem, target: Target, busy: int) -> float:
    """Give the time to move each operand once, by as much bandwidth as the busy SMs can draw."""
    share = min(1.0, busy / target.num_sms * SM_SHARE_OF_BANDWIDTH)
    extra = family_of(candidate).workspace(candidate).num_bytes(problem.m, problem.n)
    separate = SplitK(candidate.split_k_mode) is SplitK.SEPARATE
    moved = problem.num_bytes + (2 * extra if separate else 0)
    return moved / (target.bandwidth_bytes_per_s * share) * 1e6


def _split_us(candidate: Candidate, problem: Problem, target: Target) -> float:
    """Give what bringing partial sums together adds: clearing the flags, hand-overs, or a second kernel."""
    mode = SplitK(candidate.split_k_mode)
    if mode is SplitK.NONE:
        return 0.0
    if mode is SplitK.SEPARATE:
        return target.launch_us
    workspace = family_of(candidate).workspace(candidate)
    cleared = workspace.num_zero_bytes(problem.m, problem.n) / target.bandwidth_bytes_per_s * 1e6
    handover = SERIAL_HANDOVER_US * (candidate.split_k - 1) if mode is SplitK.SERIAL else SERIAL_HANDOVER_US
    return target.launch_us + cleared + handover
