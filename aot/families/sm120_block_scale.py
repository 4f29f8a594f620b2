"""A GEMM of our own for narrow operands whose blocks along k have scale factors, by the tensor cores of sm_120.

Those have no tcgen05: a warp multiplies, by `mma.sync` with `.block_scale`, and has the factors in registers. Values
and factors lie in memory as `sm100_block_scale` takes them, so that one packed weight serves both. Operands and atoms
come by `cp.async` into a ring of stages; what lies behind m, n and k is not read. The sums go through shared memory to
D, as those of `mma_sync` do, whose end this is.

A candidate's schedule says how many bytes of k a stage has, and how many warps of a CTA share k, such as `b64k2`.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from aot.core.candidate import (
    Alignment,
    Candidate,
    KernelKey,
    Reason,
    Rejected,
    Resources,
    gemm_candidate,
)
from aot.core.epilogue import OF_ONE_WEIGHT
from aot.core.feature import Feature
from aot.core.formats import FactorLayout
from aot.core.operation import Operation
from aot.families import Defaults
from aot.families._mma_sync_tile import no_tile, warps_of
from aot.families._sm120_block_scale_tile import PIECE_BYTES, STEP_BYTES, BlockScaledTile, instruction_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.core.types import Types
    from aot.families import Entry

_SCHEDULE = re.compile(r"b(64|128)k([124])")

ROW_BYTES = (64, 128)
"""Bytes of A's rows in a stage: two or four instructions along k, whose swizzled rows lie in different banks."""

WARPS = {
    (16, 32): ((1, 1, 4),),
    (16, 64): ((1, 2, 2), (1, 1, 4)),
    (16, 128): ((1, 4, 1), (1, 2, 2)),
    (32, 32): ((1, 1, 4),),
    (32, 64): ((1, 2, 2),),
    (32, 128): ((1, 4, 1),),
    (64, 32): ((2, 1, 2),),
    (64, 64): ((2, 2, 1), (2, 1, 2)),
    (64, 128): ((2, 2, 1), (2, 2, 2)),
    (128, 64): ((2, 2, 1), (4, 1, 2)),
    (128, 128): ((2, 4, 1),),
    (128, 256): ((2, 4, 1),),
    (256, 128): ((4, 2, 1),),
}
"""Warps along m, n and k of each tile (tile_m, tile_n): those along k have every so many steps of k each."""


def _parts(candidate: Candidate) -> tuple[int, int]:
    """Return the bytes of k of a stage and the warps along k; (0, 0) where a candidate's schedule is none of ours."""
    found = _SCHEDULE.fullmatch(candidate.gemm.schedule)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _warps(candidate: Candidate) -> tuple[int, int, int] | None:
    """Return the warps of a candidate's tile; None where there is no such tile."""
    return warps_of(WARPS, (candidate.gemm.tile_m, candidate.gemm.tile_n), _parts(candidate)[1])


def _is_taken(types: Types) -> bool:
    """Say whether operands have factors in atoms, and D has none."""
    return types.factors is FactorLayout.ATOMS and types.blocks_d is None


def tile_of(candidate: Candidate, operation: Operation, target: Target) -> BlockScaledTile:
    """Return the tile of a candidate; of one whose schedule is none of ours that of another."""
    knobs, row_bytes = candidate.gemm, _parts(candidate)[0] or ROW_BYTES[0]
    return BlockScaledTile(
        knobs.tile_m,
        knobs.tile_n,
        _warps(candidate) or (1, 1, 1),
        PIECE_BYTES,
        a_is_k_major=True,
        b_is_k_major=True,
        instruction=instruction_of(operation),
        row_bytes=row_bytes,
        is_padded=operation.b.is_padded,
        limit_bytes=target.smem_bytes_per_block,
        sm_bytes=target.smem_bytes_per_sm,
    )


class Sm120BlockScale(Defaults):
    """The family `sm120_block_scale`."""

    name = "sm120_block_scale"
    needs = (Feature.CP_ASYNC, Feature.MMA_SYNC, Feature.WARP_BLOCK_SCALE)
    types = tuple(dict.fromkeys(x.types for x in Operation if _is_taken(x.types)))
    epilogues = OF_ONE_WEIGHT

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles, warps along k, and the bytes of k of a stage."""
        del operation, target
        for ((tile_m, tile_n), choices), row_bytes in product(WARPS.items(), ROW_BYTES):
            for _, _, along_k in choices:
                if row_bytes % (along_k * STEP_BYTES) == 0:
                    schedule = f"b{row_bytes}k{along_k}"
                    yield gemm_candidate(self.name, tile_m, tile_n, schedule=schedule, use_tma_store=False)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on tile and schedule."""
        del operation, target
        knobs = candidate.gemm
        plain = gemm_candidate(self.name, knobs.tile_m, knobs.tile_n, schedule=knobs.schedule, use_tma_store=False)
        if candidate != plain:
            text = f"{self.name} computes a tile in a CTA, with as many stages as fit, and stores elements"
            return Rejected(Reason.COMBINATION, f"{text}; expected {plain.name}")
        row_bytes, along_k = _parts(candidate)
        if not row_bytes or row_bytes % (along_k * STEP_BYTES):
            text = f"{self.name} has schedules such as b64k2: bytes of k of a stage, and warps along k, each of which"
            return Rejected(Reason.COMBINATION, f"{text} has {STEP_BYTES} of them at least; got {knobs.schedule!r}")
        if _warps(candidate) is None:
            return Rejected(Reason.TILE, no_tile(WARPS, (knobs.tile_m, knobs.tile_n), along_k))
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages, over which the sums lie in the end."""
        tile = tile_of(candidate, operation, target)
        return Resources(tile.smem_bytes, tile.stage_bytes, tile.num_threads, tile.num_stages)

    def alignment(self, candidate: Candidate) -> Alignment:
        """Take any D, and rows of A and B that begin at multiples of 16 bytes."""
        del candidate
        return Alignment(stores=1)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order in which warps take steps of k by turns, and add up their sums."""
        return f"block-scaled mma.sync, steps of k by turns of {_parts(candidate)[1]}"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import signature
        from aot.families._sm120_block_scale_kernel import block_scale_entry

        arguments = signature(KernelKey(operation, candidate))
        is_dependent = Feature.DEPENDENT_LAUNCH in target.features
        tile = tile_of(candidate, operation, target)
        return block_scale_entry(tile, operation, arguments, is_dependent=is_dependent)


FAMILY = Sm120BlockScale()
