"""A GEMM of our own for few rows of x, as in decoding, and for small weights: no tile is too small to fill the device.

A CTA takes 16 to 128 rows of the weight and all of x's rows up to 64. Where such tiles are too few for the device's
SMs, the CTAs of a cluster share the k of a tile and add their sums through distributed shared memory: no workspace and
no second kernel. `mma.sync` computes it, which Hopper and Blackwell have alike; e4m3 is converted to float16 for it.

A candidate's `tile_m` runs along n and is the part of a tile's rows that one CTA of the cluster stores; the cluster
multiplies `tile_m * cluster_m` rows. So `tile_m` rows of full k are also the share of the weight that a CTA loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, Resources, Workspace, gemm_candidate
from aot.core.epilogue import Epilogue
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import Layout
from aot.core.types import BF16, E4M3_BF16, E4M3_BF16_FAST, E4M3_FP16, E4M3_FP32, FP16
from aot.families import Defaults
from aot.families._epilogue import has_own_epilogue
from aot.families._skinny_tile import BARRIER_BYTES, MMA_M, ROUNDING_BYTES, EpilogueTile, ScaledTile, Tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

ROWS = (16, 32, 48, 64, 112)
"""Rows of the weight that a cluster multiplies."""

COLUMNS = (1, 8, 16, 32, 64)
"""Rows of x: one for decoding, since TMA takes longer for a row outside x than to load one, else whole MMA
instructions."""

SCHEDULES = {"warps8": 8, "warps4": 4}
"""Warps of a CTA."""

MIN_STAGES = 2
"""Fewest stages of a warp."""

MAX_ACCUMULATORS = 128
"""Accumulator registers of a thread that leave room for the operands."""

MAX_ACCUMULATORS_OF_8 = 32
"""The same where two CTAs of 8 warps share an SM's registers."""

RESERVED_SMEM_BYTES = 1024
"""Shared memory that the driver takes of each block. Source: CUDA C++ Programming Guide, compute capability 9.0."""


def _kind(operation: Operation) -> type[Tile]:
    """Return the class of an operation's tiles."""
    if operation.types.is_scaled:
        return ScaledTile
    return EpilogueTile if has_own_epilogue(operation) else Tile


def _tile(candidate: Candidate, operation: Operation) -> Tile:
    """Return the tile of a candidate whose schedule is one of ours."""
    return _kind(operation)(
        candidate.gemm.tile_m * candidate.gemm.cluster_m,
        candidate.gemm.tile_n,
        candidate.gemm.cluster_m,
        SCHEDULES.get(candidate.gemm.schedule, 8),
        candidate.gemm.num_stages,
    )


def _check_tile(tile: Tile) -> Rejected | None:
    """Apply the limits of the instruction, of the registers and of the stages."""
    if tile.rows % MMA_M:
        text = f"{tile.cluster} CTAs of {tile.share} rows make {tile.rows}; expected a multiple of {MMA_M}"
        return Rejected(Reason.TILE, text)
    if tile.num_accumulators > MAX_ACCUMULATORS:
        text = f"{tile.rows}x{tile.columns} needs {tile.num_accumulators} accumulator registers a thread"
        return Rejected(Reason.REGISTERS, f"{text}; {MAX_ACCUMULATORS} fit")
    if tile.num_stages < MIN_STAGES or not tile.has_room_for_sums:
        text = f"{tile.num_stages} stages of {tile.rows} rows, got for a warp's sums of {tile.columns} columns"
        return Rejected(Reason.COMBINATION, f"{text}; expected at least {MIN_STAGES}, and room for the sums")
    return None


def _blocks_per_sm(tile: Tile, target: Target) -> int:
    """Count the CTAs that an SM's shared memory holds, at most 2."""
    return max(1, min(2, target.smem_bytes_per_sm // (tile.smem_bytes + RESERVED_SMEM_BYTES)))


class ClusterSplitK(Defaults):
    """The family `cluster_split_k`."""

    name = "cluster_split_k"
    needs = (Feature.TMA, Feature.CLUSTERS, Feature.MMA_SYNC, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    widens_fp8 = True
    prefetches_b = True
    types = (BF16, FP16, E4M3_BF16, E4M3_FP16, E4M3_FP32, E4M3_BF16_FAST)
    epilogues = tuple(Epilogue)
    layouts = (Layout.KK,)

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles and clusters, each with stages that fill an SM's shared memory with one CTA and with two.

        With two, the next kernel's CTAs find room beside this one's, and begin with the weight where it is constant.
        """
        kind = _kind(operation)
        for rows in ROWS:
            for columns in COLUMNS:
                for cluster in sorted({m for m, n in target.clusters if n == 1 and rows % m == 0}):
                    for schedule, num_stages in _fillings(kind, rows, columns, cluster, target):
                        yield gemm_candidate(
                            family=self.name,
                            tile_m=rows // cluster,
                            tile_n=columns,
                            cluster_m=cluster,
                            schedule=schedule,
                            num_stages=num_stages,
                            swap_ab=True,
                            use_tma_store=False,
                        )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on epilogue, tile, registers and stages."""
        del target
        plain = (candidate.gemm.cluster_n, candidate.gemm.use_2cta, candidate.gemm.use_tma_store) == (1, False, False)
        if not plain or not candidate.gemm.swap_ab or SplitK(candidate.gemm.split_k_mode) is not SplitK.NONE:
            text = f"{self.name} is swapped, stores without TMA, and splits k over the CTAs of a cluster of m x 1"
            return Rejected(Reason.COMBINATION, text)
        if candidate.gemm.schedule not in SCHEDULES:
            text = f"{self.name} has the schedules {', '.join(SCHEDULES)}, got {candidate.gemm.schedule!r}"
            return Rejected(Reason.COMBINATION, text)
        halves = operation.num_rows_of_b(1)
        if candidate.gemm.tile_m % halves:
            text = (
                f"{operation.epilogue.value} takes rows of the weight by pairs, got a share of {candidate.gemm.tile_m}"
            )
            return Rejected(Reason.TILE, text)
        return _check_tile(_tile(candidate, operation))

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages of all warps, the sums that a CTA receives, the factors, and the barriers."""
        del target
        tile = _tile(candidate, operation)
        return Resources(tile.smem_bytes, tile.stage_bytes, tile.num_threads, tile.num_stages)

    def workspace(self, candidate: Candidate) -> Workspace:
        """Need none: sums travel through distributed shared memory."""
        del candidate
        return Workspace()

    def multiples(self, candidate: Candidate) -> tuple[int, int]:
        """Take all: the store is predicated."""
        del candidate
        return 1, 1

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take operands as TMA loads them, and any D: it is stored by elements, as a residual is read."""
        del candidate
        return Alignment(stores=1)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which the warps of a cluster take blocks of k by turns, and add up their sums."""
        return f"mma.sync, blocks of k by turns of {candidate.gemm.schedule} of {candidate.gemm.cluster_m}"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._arguments import cutlass_type
        from aot.families._next_start import Places

        tile, arguments = _tile(candidate, operation), signature(KernelKey(operation, candidate))
        blocks_per_sm = _blocks_per_sm(tile, target)
        places = Places.of(target, tile.cluster, blocks_per_sm)
        configured = (cutlass_type(operation.a.element), tile, blocks_per_sm, places)
        stores = self.alignment(candidate).stores
        if operation.has_parts:
            from aot.families._parts import parts_entry
            from aot.families._skinny_parts_kernel import PartsSplitGemm

            return parts_entry(PartsSplitGemm(*configured), arguments, operation, stores)
        if has_own_epilogue(operation):
            from aot.families._skinny_entry import skinny_epilogue_entry
            from aot.families._skinny_epilogue_kernel import EpilogueSplitGemm, ScaledSplitGemm

            kernel = ScaledSplitGemm if operation.types.is_scaled else EpilogueSplitGemm
            return skinny_epilogue_entry(kernel(*configured, operation), arguments, operation, stores)
        from aot.families._prefetch_entry import prefetch_entry
        from aot.families._skinny_kernel import SplitGemm

        return prefetch_entry(SplitGemm(*configured), arguments, operation, stores)


def _fillings(kind: type[Tile], rows: int, columns: int, cluster: int, target: Target) -> Iterator[tuple[str, int]]:
    """List warps and stages that fill an SM's shared memory with one CTA, and those that do with two."""
    few = kind(rows, columns, cluster, 8, 0).num_accumulators <= MAX_ACCUMULATORS_OF_8
    for num_blocks in (1, 2):
        limit = min(target.smem_bytes_per_block, target.smem_bytes_per_sm // num_blocks - RESERVED_SMEM_BYTES)
        of_8, of_4 = (_count_stages(kind(rows, columns, cluster, num_warps, 0), limit) for num_warps in (8, 4))
        if few and of_8 > MIN_STAGES:
            yield "warps8", of_8
        elif of_4 >= MIN_STAGES and kind(rows, columns, cluster, 4, of_4).has_room_for_sums:
            yield "warps4", of_4


def _count_stages(tile: Tile, smem_bytes: int) -> int:
    """Count the stages that fit shared memory beside what a tile without stages takes."""
    stage_bytes = tile.stage_bytes + BARRIER_BYTES * tile.num_warps
    return max(smem_bytes - tile.fixed_bytes - ROUNDING_BYTES, 0) // stage_bytes


FAMILY = ClusterSplitK()
