"""A Hopper GEMM by wgmma of operands whose rows begin at any element, which warps move in shared memory.

Where rows of A or B do not begin at multiples of 16 bytes, TMA takes none of them. `mma_sync` multiplies such operands
by the slower instruction, and `sm90_realigned` copies them to a workspace first, which reads and writes all of a weight
before it is read again. Here some warps of a CTA copy blocks of k as they lie in memory and move each row to where
wgmma reads it, while others multiply: a weight is read once. Operands that need none of it are loaded by TMA.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from aot.core.candidate import Alignment, Candidate, KernelKey, Reason, Rejected, gemm_candidate
from aot.core.epilogue import WITHOUT_GATE
from aot.core.knobs import SplitK
from aot.core.types import BF16, FP16
from aot.families._mma_sync_tile import ITEM_BYTES
from aot.families._sm90_shifted_tile import MIN_STAGES, ShiftedOneTile, ShiftedTile, filled, takes
from aot.families.sm90_cluster_split_k import Sm90ClusterSplitK, are_k_major, check_tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.operation import Operation
    from aot.core.target import Target
    from aot.families import Entry

WARPGROUPS = {64: 1, 128: 2, 256: 2}
"""Multiplying warpgroups of each number of a tile's rows."""

TILE_N = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192)
"""Columns of a tile."""

SPLITS = (1, 2, 4, 8)
"""CTAs of a cluster that share k."""

MAX_ACCUMULATORS = {1: 96, 2: 96}
"""Accumulator registers of a thread, by warpgroups. Source: of 73 kernels of 64 and more without a residual none
spills, nvidia-cutlass-dsl 4.8.1, 2026-12-01; a thread gets 168 and 128 registers."""

RESIDUAL_ACCUMULATORS = {1: 64, 2: 48}
"""The same with a residual. Source: as above, 64x160, 128x128 and 256x64 spill 8 to 80 bytes with one."""


class Sm90Shifted(Sm90ClusterSplitK):
    """The family `sm90_shifted`."""

    name = "sm90_shifted"
    loads_outside = False
    types = (BF16, FP16)
    epilogues = WITHOUT_GATE

    def tile(self, candidate: Candidate, operation: Operation, target: Target) -> ShiftedTile:
        """Return a candidate's tile."""
        knobs = candidate.gemm
        kind = ShiftedOneTile if knobs.split_k == 1 else ShiftedTile
        bare = kind(
            knobs.tile_m,
            knobs.tile_n,
            knobs.split_k,
            WARPGROUPS.get(knobs.tile_m, 1),
            MIN_STAGES,
            are_k_major=are_k_major(candidate, operation),
        )
        return filled(bare, target.smem_bytes_per_block)

    def kernel_classes(self, candidate: Candidate) -> tuple[Any, Any, Any]:
        """Return the classes of kernels with a bias at most, and with more of an epilogue."""
        from aot.families import _sm90_shifted_kernel as kernels

        if candidate.gemm.split_k == 1:
            return kernels.ShiftedOneTileGemmSm90, kernels.ShiftedEpilogueOneTileGemmSm90, None
        return kernels.ShiftedSplitGemmSm90, kernels.ShiftedEpilogueSplitGemmSm90, None

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, the CTAs that share one's k, and swap."""
        del operation, target
        for tile_m, tile_n, splits, swap_ab in product(WARPGROUPS, TILE_N, SPLITS, (False, True)):
            yield gemm_candidate(
                self.name,
                tile_m,
                tile_n,
                swap_ab=swap_ab,
                use_tma_store=False,
                split_k=splits,
                split_k_mode=SplitK.CLUSTER if splits > 1 else SplitK.NONE,
            )

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on layout, tile, registers and stages."""
        knobs = candidate.gemm
        mode = SplitK.CLUSTER if knobs.split_k > 1 else SplitK.NONE
        cluster = (knobs.cluster_m, knobs.cluster_n, SplitK(knobs.split_k_mode))
        others = knobs.use_2cta or knobs.use_tma_store or knobs.schedule or knobs.num_stages
        if cluster != (1, 1, mode) or knobs.split_k not in SPLITS or others:
            text = f"{self.name} computes a tile in a CTA, or in 2, 4 or 8 of a cluster that share k"
            return Rejected(Reason.COMBINATION, f"{text}, with as many stages as fit, and stores elements")
        if knobs.tile_m not in WARPGROUPS:
            text = f"a tile has {', '.join(map(str, WARPGROUPS))} rows"
            return Rejected(Reason.TILE, f"{text}, got {knobs.tile_m}x{knobs.tile_n}")
        tile = self.tile(candidate, operation, target)
        sides = zip((tile.rows, tile.columns), tile.are_k_major, strict=True)
        if not all(takes(extent, is_k_major=is_k_major) for extent, is_k_major in sides):
            text = "an operand that is not contiguous along k takes a side of 64, 128 or 256"
            return Rejected(Reason.LAYOUT, f"{text}, got {tile.rows}x{tile.columns}")
        limits = RESIDUAL_ACCUMULATORS if operation.has_residual else MAX_ACCUMULATORS
        most = limits[tile.num_warpgroups]
        if tile.num_accumulators > most:
            text = f"{tile.rows}x{tile.columns} needs {tile.num_accumulators} accumulator registers a thread"
            return Rejected(Reason.REGISTERS, f"{text}; {most} fit beside the warps that move rows")
        return check_tile(tile, candidate, operation)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any operands; what TMA takes, others load at once."""
        del candidate
        return Alignment(loads=ITEM_BYTES, stores=1, only_unaligned=True)

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._sm90_shifted_kernel import shifted_entry

        gemm, has_vectors = self.of_16_bits(candidate, operation, target)
        return shifted_entry(gemm, signature(KernelKey(operation, candidate)), operation, has_vectors=has_vectors)


FAMILY = Sm90Shifted()
