"""An analytic time of a candidate on a problem: an order to try candidates in, never a measured time.

The model knows tiles, waves of tiles over the SMs, the rates of the tensor cores, of L2 and of device memory, what rows
outside the operands cost, and what split-K adds. `aot` calls every time that comes from it `predicted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aot.core.candidate import MIN_SPLITS_OF_TWO_WAVES, Candidate
from aot.core.constraints import Rate
from aot.core.element import ElementType
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.reference import PROMOTED_RUN
from aot.families import family_of, tiling_of
from aot.space.cost_operands import (
    Column,
    ItemBytes,
    Operands,
    Problems,
    Sizes,
    cluster_slots,
    columns,
    is_tail_of,
    num_sharing,
    num_tiles,
    sizes_of,
)

if TYPE_CHECKING:
    from aot.core.target import Target

NAME = "cost-model-v1"
"""Version of the model, recorded with every predicted row."""

REFERENCE_LAUNCH_US = 2.0
"""The launch time of the target that `ramp_us` was set on (aot/targets/h200.toml)."""

ROW_BYTES = 128
"""Bytes of k that a TMA load brings of each row of a tile: a pipeline stage (`TILE_K_BYTES` of the families)."""


SUM_BYTES = 4
"""Bytes of a partial sum: float32."""

PROMOTED_BY = Feature.WGMMA
"""What FP8 sums are added up in float32 behind, every 128 of k, unless asked to be fast. Source: `Types.is_fast`."""

EXPOSED_PROMOTION = 0.2
"""Share of those additions, on the CUDA cores, that other warps' multiplications do not hide. Source: an assumption.
Not hidden at all they would add 25% to FP8's multiplications on an H200; torch._scaled_mm with promoted sums takes -11
to +10% more than with fast ones there (torch 2.11, 2026-11-21, m 16 to 4096), by kernels of which little is known."""


@dataclass(frozen=True)
class Constants:
    """The model's numbers that no data sheet gives; aot.space.calibrate fits them to measurements. All are above 0.

    The defaults were set by hand on an H200's bf16 tables (tiles 64x16 to 256x208), unless a field says otherwise.
    """

    mma_half_edge: Rate = 22.0
    """Tile edge, in elements, whose cost is as if it were added to both sides: what a small tile loses in the tensor
    cores' operand traffic."""
    blocking_epilogue: Rate = 0.35
    """Share of the epilogue that is not hidden behind the next tile where the multiplying warps store too
    (cooperative), or where D leaves the registers without TMA. Source: for stores without TMA an assumption."""
    hidden_epilogue: Rate = 0.1
    """The same share where the epilogue overlaps the next tile."""
    l2_bytes_a_clock_an_sm: Rate = 64.0
    """Bytes that an SM reads from L2 in a clock. Source: an assumption, of the size that microbenchmarks publish."""
    sm_share_of_bandwidth: Rate = 2.6
    """How much more than its even share of the device's bandwidth one SM can draw."""
    ramp_us: Rate = 2.2
    """From a block's start to its first multiplication, and from its last one to the end of its stores; scaled to other
    targets by their launch time."""
    memory_latency_us: Rate = 1.0
    """From a load's issue to its data, with memory busy. Source: an assumption, of the size that microbenchmarks of
    Hopper publish; it only orders pipelines of different depth."""
    outside_row_ns: Rate = 1.6
    """What TMA takes to fill one row of a tile that lies outside the operand, more than to load it. Source: the
    committed H200 record: m 192 against 256 with 64x128 tiles, m 384 against 512 with 64x256 give 1.9 to 2.6 ns where
    nothing hides it (a tile half outside takes up to 1.8 times as long as a whole one); 1.6 orders the record's
    candidates best."""
    unhidden_share: Rate = 0.15
    """Share of the smaller of compute and memory time that does not overlap the larger."""
    serial_handover_us: Rate = 0.7
    """What each further split waits for the one before it."""
    flops_share: Rate = 1.0
    """Rate of the tensor cores over the target's, of each element type."""
    bandwidth_share: Rate = 1.0
    """Rate of device memory over the target's `bandwidth_bytes_per_s`."""


DEFAULTS = Constants()
"""What every target starts with."""


def _outside_us(x: Operands, waves: Column, item: ItemBytes, constants: Constants) -> Column:
    """Return what loading rows outside the operands adds to the SM that has most of them.

    The last tile of an axis has some; a cluster that reaches past the last tile has a CTA with nothing else, which its
    neighbours wait for. An SM meets such a tile at least once, or once in as many tiles as the axis has.
    """
    total = np.zeros(np.broadcast_shapes(x.rows.shape, x.cta_m.shape))
    axes = ((x.rows, x.cta_m, x.cluster_m, item.rows), (x.columns, x.tile_n, x.cluster_n, item.columns))
    for extent, tile, cluster, item_bytes in axes:
        tiles = num_tiles(extent, tile, cluster)
        outside = np.minimum(tiles * tile - extent, tile)
        total += outside * np.maximum(waves / tiles, 1.0) * item_bytes
    return total * x.k / ROW_BYTES * constants.outside_row_ns / 1e3


def _tail_waves(ctas: Column, slots: Column, cluster: Column, most: Column) -> tuple[Column, Column]:
    """Count waves where only the tiles that fill no whole one are split, and each one's splits, as `tail_splits` does.

    Args:
        ctas: of all tiles, whole clusters.
        slots: CTAs of a whole wave.
        cluster: CTAs of a cluster.
        most: the candidate's `split_k`.
    """
    num_clusters = slots / cluster
    tail = ctas / cluster % num_clusters
    in_one = np.minimum(most, num_clusters // np.maximum(tail, 1.0))
    thirds = (in_one == 1.0) & (most >= MIN_SPLITS_OF_TWO_WAVES) & (MIN_SPLITS_OF_TWO_WAVES * tail <= 2 * num_clusters)
    splits = np.where(tail > 0, np.where(thirds, float(MIN_SPLITS_OF_TWO_WAVES), in_one), 1.0)
    waves: Column = ctas // slots + np.ceil(tail * splits / num_clusters) / splits
    return waves, splits


@dataclass(frozen=True)
class Estimate:
    """Predicted times and what they are made of, in microseconds: arrays of (problem, candidate)."""

    total_us: Column
    compute_us: Column
    memory_us: Column
    overhead_us: Column
    num_waves: Column


def _is_fp8(operation: Operation) -> bool:
    return operation.types.a.bits == 8 and operation.accumulator is ElementType.FLOAT32


def _widens(candidates: Sequence[Candidate], operation: Operation) -> NDArray[np.bool_]:
    """Say which candidates multiply an operation's FP8 as 16-bit operands."""
    return np.array([_is_fp8(operation) and family_of(candidate).widens_fp8 for candidate in candidates])


def _promotion_us(x: Operands, operation: Operation, target: Target) -> Column | float:
    """Return what adding a tile's FP8 sums up in float32 every 128 of k adds to its multiplications."""
    if not operation.types.is_promoted or PROMOTED_BY not in target.features:
        return 0.0
    additions_per_us = target.fp32_flops_per_s / 2 / target.num_sms / 1e6
    promoted: Column = EXPOSED_PROMOTION * x.cta_m * x.tile_n * np.ceil(x.k / PROMOTED_RUN) / additions_per_us
    return promoted


def _counted_clocks(candidates: Sequence[Candidate], operation: Operation) -> Column:
    """Return the clocks of an SM that a tile's arithmetic takes for each element along k; NaN where no family says.

    A family whose kernels do more than to multiply, as to decode a weight, has `tile_clocks(candidate, operation)`.
    """
    families = [family_of(x) for x in candidates]
    counts = [getattr(x, "tile_clocks", None) for x in families]
    return np.array([np.nan if f is None else f(x, operation) for f, x in zip(counts, candidates, strict=True)])


def _turnover_us(candidates: Sequence[Candidate]) -> Column:
    """Return what each wave but the first takes beside its tiles; 0 where a family does not say.

    A family whose CTAs end with their tile has `turnover_us(candidate)`, if that was measured.
    """
    says = [getattr(family_of(x), "turnover_us", None) for x in candidates]
    return np.array([0.0 if f is None else f(x) for f, x in zip(says, candidates, strict=True)])


def _tile_us(
    x: Operands, candidates: Sequence[Candidate], operation: Operation, target: Target, constants: Constants
) -> Column:
    """Return the time of one tile on one SM: the slower of multiplications and loads from L2, and its stores."""
    tile_m, item = columns(candidates, "tile_m"), ItemBytes.of(candidates, operation)
    edge = constants.mma_half_edge
    efficiency = tile_m * x.tile_n / ((tile_m + edge) * (x.tile_n + edge))
    best = (256 / (256 + edge)) ** 2
    widens = _widens(candidates, operation)
    peak = np.where(widens, target.peak_flops_per_s(Operation.FP16_KK), target.peak_flops_per_s(operation))
    shares = np.array([family_of(candidate).peak_share for candidate in candidates])
    flops_per_s = constants.flops_share * peak * shares / target.num_sms
    mma_us = 2e6 * x.cta_m * x.tile_n * x.k / (flops_per_s * efficiency) * best
    mma_us = mma_us + np.where(widens, 0.0, _promotion_us(x, operation, target))
    counted = _counted_clocks(candidates, operation)
    mma_us = np.where(np.isnan(counted), mma_us, counted * x.k / target.clock_hz * 1e6)
    l2_bytes_per_us = constants.l2_bytes_a_clock_an_sm * target.clock_hz / 1e6
    loaded = x.cta_m * item.rows / x.cluster_n + x.tile_n * item.columns / x.cluster_m
    store_us = 2 * x.cta_m * x.tile_n * item.stored / l2_bytes_per_us
    blocking = np.array(
        [x.schedule.startswith("cooperative") or not x.use_tma_store for x in map(tiling_of, candidates)]
    )
    exposed = np.where(blocking, constants.blocking_epilogue, constants.hidden_epilogue)
    # What the CTAs of a cluster send each other is taken to travel as fast as what L2 sends: an assumption.
    exchanged = 1 - 1 / num_sharing(candidates)
    exchange_us = x.cta_m * x.tile_n * exchanged * SUM_BYTES / l2_bytes_per_us
    tile_us: Column = np.maximum(mma_us, loaded * x.k / l2_bytes_per_us) + exchange_us + exposed * store_us
    return tile_us


def _operand_bytes(sizes: Sizes) -> Column:
    """Count the fewest bytes of each problem, as `Operation.num_bytes` does: it takes whole arrays too."""
    count: Any = sizes.operation.num_bytes
    moved: Column = count(sizes.m, sizes.n, sizes.k, sizes.num_groups)
    return moved


def _workspace_bytes(candidates: Sequence[Candidate], sizes: Sizes, *, zero: bool) -> Column:
    """Count workspace, or what of it is cleared."""
    found = np.zeros((len(sizes), len(candidates)))
    given = tuple(x[:, 0].astype(np.int64) for x in (sizes.m, sizes.n, sizes.k, sizes.num_groups))
    for j, candidate in enumerate(candidates):
        workspace = family_of(candidate).workspace(candidate)
        if workspace.is_needed:
            count: Any = workspace.num_zero_bytes if zero else workspace.num_bytes
            needed = given[:2] if zero else given
            # All but the tail's arithmetic takes whole arrays.
            is_whole = workspace.mode is not SplitK.TAIL
            found[:, j] = (
                count(*needed) if is_whole else [count(*x) for x in zip(*(y.tolist() for y in needed), strict=True)]
            )
    return found


def estimate(
    candidates: Sequence[Candidate], problems: Problems, target: Target, constants: Constants = DEFAULTS
) -> Estimate:
    """Predict the times of one launch with a cold L2.

    Args:
        candidates: legal candidates.
        problems: sizes in elements, all of one operation.
        target: rates and limits of the device.
        constants: what the target's rates leave open.

    Returns:
        Arrays with a row for each problem and a column for each candidate.
    """
    sizes = sizes_of(problems)
    x, operation = Operands.of(candidates, sizes), sizes.operation
    cluster, slots = cluster_slots(candidates, target)
    is_tail, most = is_tail_of(candidates), columns(candidates, "split_k")
    tail_waves, tail_splits = _tail_waves(x.num_ctas(), slots, cluster, most)
    ctas = x.num_ctas() * np.where(is_tail, tail_splits, most)
    waves = np.where(is_tail, tail_waves, np.ceil(ctas / slots))
    reaches = np.array([float(family_of(candidate).loads_outside) for candidate in candidates])
    outside_us = reaches * _outside_us(x, waves, ItemBytes.of(candidates, operation), constants)
    compute_us = waves * _tile_us(x, candidates, operation, target, constants) + outside_us
    modes = [SplitK(tiling_of(candidate).split_k_mode) for candidate in candidates]
    # Partial sums are written once and read once, whoever adds them up; so are copies, beside what they are made of.
    moved = _operand_bytes(sizes) + 2 * _workspace_bytes(candidates, sizes, zero=False)
    bytes_per_s = constants.bandwidth_share * target.bandwidth_bytes_per_s
    share = np.minimum(1.0, np.minimum(ctas, slots) / target.num_sms * constants.sm_share_of_bandwidth)
    share = share * _depth(candidates, operation, target, constants)
    memory_us = moved / (bytes_per_s * share) * 1e6
    ramp_us = constants.ramp_us * target.launch_us / REFERENCE_LAUNCH_US
    split_us = _split_us(modes, candidates, sizes, target, constants)
    turnover_us = np.maximum(waves - 1.0, 0.0) * _turnover_us(candidates)
    overhead_us = ramp_us + turnover_us + np.where(is_tail & (tail_splits == 1.0), 0.0, split_us)
    hidden = constants.unhidden_share * np.minimum(compute_us, memory_us)
    total_us = np.maximum(compute_us, memory_us) + hidden + overhead_us
    return Estimate(total_us, compute_us, memory_us, overhead_us, waves)


LOAD_BYTES = 16
"""What a thread of a kernel without stages has under way: the widest load of a thread. Source: PTX ISA, ld, .v4."""


def _depth(candidates: Sequence[Candidate], operation: Operation, target: Target, constants: Constants) -> Column:
    """Return the share of an SM's bandwidth that a pipeline's bytes in flight sustain, over that of a full block's."""
    latency_bytes = target.bandwidth_bytes_per_s / target.num_sms * constants.memory_latency_us / 1e6
    full = target.smem_bytes_per_block / (target.smem_bytes_per_block + latency_bytes)
    used = [family_of(candidate).resources(candidate, operation, target) for candidate in candidates]
    flight = np.array(
        [float(x.flight_bytes or x.num_stages * x.stage_bytes or LOAD_BYTES * x.num_threads) for x in used]
    )
    depth: Column = np.minimum(flight / (flight + latency_bytes) / full, 1.0)
    return depth


def _split_us(
    modes: Sequence[SplitK],
    candidates: Sequence[Candidate],
    sizes: Sizes,
    target: Target,
    constants: Constants,
) -> Column:
    """Return what partial sums and copies add: clearing the flags and hand-overs, or a second kernel."""
    fixed = []
    for mode, candidate in zip(modes, candidates, strict=True):
        handovers = tiling_of(candidate).split_k - 1 if mode is SplitK.SERIAL else 1
        in_place = target.launch_us + constants.serial_handover_us * handovers
        free = {SplitK.NONE: 0.0, SplitK.CLUSTER: 0.0}
        copying = target.launch_us if family_of(candidate).workspace(candidate).copies else 0.0
        fixed.append(copying + {**free, SplitK.SEPARATE: target.launch_us}.get(mode, in_place))
    cleared = _workspace_bytes(candidates, sizes, zero=True) / target.bandwidth_bytes_per_s * 1e6
    total: Column = np.array(fixed) + cleared
    return total
