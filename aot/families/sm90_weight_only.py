"""Many rows of x by a weight of 4 or 8 bits, packed as for `weight_only`: Hopper's tensor cores, A in registers.

A tile's rows are rows of the weight, its columns rows of x, so that it is the transpose of a tile of D: candidates have
`swap_ab`. Codes are decoded once for all columns of a tile, while the tensor cores multiply those before. Where tiles
are too few for the device, the CTAs of a cluster share k, as in `sm90_cluster_split_k`; else a CTA computes a tile, as
in `sm90_one_tile`. docs/weights.md has the formats, and what is exact.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from aot.core.candidate import Candidate, Reason, Rejected, Resources, gemm_candidate
from aot.core.element import ElementType
from aot.core.errors import CandidateError
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.weight_format import MXFP4, NVFP4
from aot.families import Defaults
from aot.families._sm90_packed_tile import PackedOneTile, PackedTile, promotes
from aot.families._sm90_split_tile import BARRIER_BYTES, GROUP
from aot.families.sm90_cluster_split_k import MIN_STAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.core.weight_format import WeightFormat
    from aot.families import Entry

WARPGROUPS = {64: 1, 128: 2, 256: 2}
"""Multiplying warpgroups of each tile_m, rows of the weight."""
TILE_N = (*range(48, 129, 16), 160, 192, 224, 256)
"""Rows of x of a tile."""
IN_TURNS = "pingpong"
"""The schedule of kernels whose two warpgroups multiply blocks of k in turns; of the others it is empty."""
CLUSTERS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2))
"""(tiles along the weight's rows, which share x; splits of k)."""
MAX_ACCUMULATORS = 128
"""Accumulator registers of a thread beside the operands. Source: those of 256 columns, of which no kernel spills."""
PROMOTED_SUMS = {64: 176, 128: 160, 256: 128}
"""Registers of a thread for promoted sums and for those of a group, by tile_m. Source: up to these no kernel that was
compiled of the catalogue's formats spills, 256x80 up to 48 bytes (nvidia-cutlass-dsl 4.8.1, 2026-11-27)."""
MMA_A_CLOCK = 2048
"""Multiplications of 16 bits that an SM does in a clock. Source: NVIDIA H100 whitepaper, 989 teraflops of 132 SMs."""
MMA_SHARE = 0.92
"""Of these that wgmma reaches. Source: an H100's times, 2026-11-27 (docs/weights.md), as all that follows."""
ROWS_OF_FOUR_WARPS, THREADS_A_CLOCK, DECODED_K = 64, 128, 64
DECODING = {"int4": 64, "int4z": 80, "nvfp4": 110, "mxfp4": 100, "int8": 72, "e4m3": 72}
"""Instructions of a warp that decode 16 rows and 64 of k, about: counted in `_sm90_packed_decode.py`."""
ISSUED_A_CLOCK = {1: 0.47, 2: 0.6}
"""Of a scheduler's instructions of decoding and promotion, by warpgroups: they wait for each other. Source: with k
14336 blocks of 128x48, 128x64 and 128x128 take 820, 940 and 1300 clocks of int4g128, 1100, 1170 and 1400 of nvfp4, and
blocks of 64x48 520 and 650."""
EXPOSED_MMA = 0.6
"""Share of the multiplication that these do not hide. Source: likewise. In the mean of each of 80 kernels 2,000 times
are 0.86 to 1.12 times what is predicted (docs/weights.md)."""
MAX_COLUMNS_ALONE = 192
"""Most columns of a tile of one warpgroup. Source: with 256 it takes 1.3 times as long as that, and was never best."""
TURNOVER_US = 3.0
"""From a CTA's last multiplication to the first of the next one in its place. Source: n 28672, k 4096, m 48 to 4096,
where waves but the first take 1.8 to 6 us more than their blocks do."""


def _weight_of(operation: Operation) -> WeightFormat:
    if operation.b.weight is None:
        raise CandidateError(f"{operation.tag} has no packed weight; expected an operation with one")
    return operation.b.weight


def is_promoted(operation: Operation) -> bool:
    """Say whether an operation's kernels multiply sums of groups by their factors in float32."""
    return promotes(_weight_of(operation), is_bf16=operation.a.element is ElementType.BFLOAT16)


def _mode(splits: int) -> SplitK:
    return SplitK.CLUSTER if splits > 1 else SplitK.NONE


def tile_of(candidate: Candidate, operation: Operation, target: Target) -> PackedTile:
    """Return a candidate's tile, with the stages that it names or those that fill the shared memory."""
    gemm = candidate.gemm
    make = PackedTile if gemm.split_k > 1 else PackedOneTile
    sizes = gemm.tile_m, gemm.tile_n, gemm.split_k, WARPGROUPS.get(gemm.tile_m, 1), 0, gemm.cluster_m, 1
    bare = make(*sizes, form=_weight_of(operation), in_turns=gemm.schedule == IN_TURNS)
    left = target.smem_bytes_per_block - bare.fixed_bytes
    fit = left // (bare.stage_bytes + 2 * BARRIER_BYTES)
    return replace(bare, num_stages=gemm.num_stages or max(fit, MIN_STAGES))


class Sm90WeightOnly(Defaults):
    """The family `sm90_weight_only`."""

    name = "sm90_weight_only"
    needs = (Feature.WGMMA, Feature.TMA, Feature.CLUSTERS, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    prefetches_b = True
    types = tuple(
        dict.fromkeys(x.types for x in Operation if x.types.weight is not None and not x.types.weight.in_rows)
    )

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, clusters, and whether warpgroups take turns, where sums are promoted."""
        del target
        for tile_m, tile_n, (cluster_m, splits) in product(WARPGROUPS, TILE_N, CLUSTERS):
            if operation.types not in self.types:
                return
            if WARPGROUPS[tile_m] == 1 and tile_n > MAX_COLUMNS_ALONE:
                continue
            is_promoted_by_two = WARPGROUPS[tile_m] > 1 and is_promoted(operation)
            for schedule in ("", IN_TURNS) if is_promoted_by_two else ("",):
                yield gemm_candidate(
                    family=self.name,
                    tile_m=tile_m,
                    tile_n=tile_n,
                    cluster_m=cluster_m,
                    schedule=schedule,
                    swap_ab=True,
                    use_tma_store=False,
                    split_k=splits,
                    split_k_mode=_mode(splits),
                )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on cluster, tile, registers and stages."""
        gemm = candidate.gemm
        if (
            gemm.use_2cta
            or gemm.use_tma_store
            or gemm.schedule not in ("", IN_TURNS)
            or not gemm.swap_ab
            or SplitK(gemm.split_k_mode) is not _mode(gemm.split_k)
        ):
            text = f"{self.name} has rows of the weight as rows of its tiles, and stores without TMA"
            return Rejected(Reason.COMBINATION, text)
        if gemm.cluster_n != 1 or (gemm.cluster_m, gemm.split_k) not in CLUSTERS:
            allowed = ", ".join(f"{m} in {splits}" for m, splits in CLUSTERS)
            text = f"{gemm.cluster_m}x{gemm.cluster_n} tiles whose k is split in {gemm.split_k} are not a cluster"
            return Rejected(Reason.CLUSTER, f"{text}; expected {allowed}")
        tile = tile_of(candidate, operation, target)
        return _check_tile(tile) or _check_room(tile, operation)

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages, the sums that a CTA receives, and the barriers."""
        tile = tile_of(candidate, operation, target)
        return Resources(tile.smem_bytes, tile.stage_bytes, tile.num_threads, tile.num_stages)

    def tile_clocks(self, candidate: Candidate, operation: Operation) -> float:
        """Return the clocks of an SM that a CTA's arithmetic takes for each element along k: see `aot.space.cost`."""
        gemm, form = candidate.gemm, _weight_of(operation)
        num_warpgroups = WARPGROUPS.get(gemm.tile_m, 1)
        multiplied = gemm.tile_m * gemm.tile_n / (MMA_A_CLOCK * MMA_SHARE)
        name = {NVFP4: "nvfp4", MXFP4: "mxfp4"}.get(form, form.code.value)
        # Each of an SM's four schedulers has a warp of every warpgroup.
        issued = gemm.tile_m / ROWS_OF_FOUR_WARPS * DECODING[f"{name}z" if form.has_zeros else name] / DECODED_K
        if is_promoted(operation):
            issued += gemm.tile_m * gemm.tile_n / THREADS_A_CLOCK / form.group
        issued /= ISSUED_A_CLOCK[num_warpgroups]
        return max(multiplied, issued + EXPOSED_MMA * MMA_SHARE * multiplied)

    def turnover_us(self, candidate: Candidate) -> float:
        """Return what each wave of CTAs but the first takes beside its arithmetic: see `aot.space.cost`."""
        del candidate
        return TURNOVER_US

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which CTAs take blocks of k, and add up their sums."""
        return f"wgmma of packed weights, blocks of k by turns of {candidate.gemm.split_k}"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import Entry
        from aot.families._arguments import cutlass_type
        from aot.families._next_start import Places
        from aot.families._sm90_packed_kernel import PackedOneTileGemmSm90, PackedSplitGemmSm90, entry_of

        tile = tile_of(candidate, operation, target)
        make = PackedSplitGemmSm90 if tile.splits > 1 else PackedOneTileGemmSm90
        places = Places.of(target, tile.num_ctas)
        gemm = make(cutlass_type(operation.d), tile, swap_ab=True, places=places, are_k_major=(True, True))
        function, arguments = entry_of(gemm, is_scaled=operation.types.is_scaled)
        return Entry(function, arguments)


def _check_tile(tile: PackedTile) -> Rejected | None:
    """Apply the limits of the instruction, of the exchange, and of loads that are shared."""
    name = f"{tile.rows}x{tile.columns}"
    if tile.rows not in WARPGROUPS or tile.columns % GROUP or not GROUP <= tile.columns <= 256:
        text = f"a tile has {', '.join(map(str, WARPGROUPS))} rows and up to 256 columns in steps of {GROUP}"
        return Rejected(Reason.TILE, f"{text}, got {name}")
    if (tile.splits - 1) * tile.share >= tile.num_groups:
        text = f"{tile.num_groups} groups of {GROUP} columns leave one of {tile.splits} CTAs none to store"
        return Rejected(Reason.TILE, f"{name}: {text}")
    if tile.in_turns and tile.num_warpgroups == 1:
        return Rejected(Reason.COMBINATION, f"{name}: one warpgroup has nobody to take turns with")
    if tile.columns % (GROUP * tile.cluster_m):
        text = f"{tile.cluster_m} tiles cannot share a load in parts of whole groups of {GROUP}"
        return Rejected(Reason.TILE, f"{name}: {text}")
    return None


def _check_room(tile: PackedTile, operation: Operation) -> Rejected | None:
    """Apply the limits of registers and of the stages."""
    name, is_twice = f"{tile.rows}x{tile.columns}", is_promoted(operation)
    sums = tile.num_accumulators * (2 if is_twice else 1)
    fit = PROMOTED_SUMS[tile.rows] if is_twice else MAX_ACCUMULATORS
    if sums > fit:
        twice = ", twice its sums since groups have factors" if is_twice else ""
        return Rejected(Reason.REGISTERS, f"{name} needs {sums} accumulator registers a thread{twice}; {fit} fit")
    if tile.num_stages < MIN_STAGES:
        text = f"{tile.num_stages} stages, expected 0 for as many as fit or at least {MIN_STAGES}"
        return Rejected(Reason.COMBINATION, text)
    if isinstance(tile, PackedOneTile) and tile.num_stages * tile.stage_bytes < tile.stored_bytes:
        text = f"{tile.num_stages} stages have no room for the tile; it takes {tile.stored_bytes} bytes to store"
        return Rejected(Reason.COMBINATION, text)
    return None


FAMILY = Sm90WeightOnly()
