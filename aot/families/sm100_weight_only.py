"""Many rows of x by a weight of 4 or 8 bits, packed as for `weight_only`: Blackwell's `tcgen05`.

A tile's rows are 128 rows of the weight, its columns rows of x, so that it is the transpose of a tile of D: candidates
have `swap_ab`. Warps decode the weight into shared memory, once for all columns of a tile, while the tensor cores
multiply what was decoded before. A CTA computes a tile. With a gate half of its rows are of each of two weights.
docs/weights.md has the formats, and what is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.core.candidate import Candidate, Reason, Rejected, Resources, gemm_candidate
from aot.core.element import ElementType
from aot.core.errors import CandidateError
from aot.core.feature import Feature
from aot.core.knobs import SplitK
from aot.core.operation import Operation
from aot.core.weight_format import Code
from aot.families import Defaults
from aot.families._sm100_packed_tile import NUM_THREADS, ROWS, X_BYTES, PackedTile
from aot.families._sm100_packed_tile import tile_of as sized_tile
from aot.families.sm90_weight_only import DECODED_K, ROWS_OF_FOUR_WARPS, THREADS_A_CLOCK
from aot.families.sm90_weight_only import DECODING as OF_HOPPER
from aot.families.weight_only import WEIGHT_EPILOGUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot.core.target import Target
    from aot.core.weight_format import WeightFormat
    from aot.families import Entry

TILE_N = (32, 64, 128, 192, 256)
"""Rows of x of a tile: whole reads of tensor memory, of 32 columns, up to what an instruction has. Widths between these
would save less than a tenth on a Thor, by the cost model, which reads the weight as long. Source: PTX ISA, tcgen05.mma,
kind::f16: N up to 256."""
MAX_PROMOTED = 128
"""Most rows of x of a tile whose sums of groups are promoted: as many registers of a thread. Source: a thread that
stores has 208 (`REGISTERS` of the kernel), of which 32 hold what it has read, and none of these kernels spills."""
MMA_A_CLOCK = 4096
"""Multiplications of 16 bits that an SM does in a clock. Source: aot/targets/thor.toml and b200.toml, dense rates."""
MMA_SHARE = 0.9
"""Of these that tcgen05 reaches: an assumption, in want of a device."""
SMEM_BYTES_A_CLOCK = 128
"""That an SM reads or writes of shared memory in a clock. Source: CUDA C++ Programming Guide, 32 banks of 4 bytes.
What warps read and write, and what the tensor cores read, is counted; what TMA writes is not: an assumption."""
ISSUED_A_CLOCK = 0.6
"""Of a scheduler's instructions of decoding and promotion: as in Hopper's kernels of two warpgroups, an assumption."""
DECODING = {**OF_HOPPER, "nvfp4rows": 125, "mxfp4rows": 125}
"""Instructions of a warp that decode 16 rows and 64 of k, about: an assumption by those of Hopper's kernels."""
PROMOTION = 1.25
"""Instructions of a thread for each promoted sum: it is read of tensor memory, and added."""


def _weight_of(operation: Operation) -> WeightFormat:
    if operation.b.weight is None:
        raise CandidateError(f"{operation.tag} has no packed weight; expected an operation with one")
    return operation.b.weight


def _splits_atoms(operation: Operation) -> bool:
    """Say whether half a tile's rows would have to be read of atoms that have the factors of a whole one."""
    return operation.gate is not None and _weight_of(operation).in_rows


def tile_of(candidate: Candidate, operation: Operation, target: Target) -> PackedTile:
    """Return a candidate's tile, with the stages that fill the shared memory."""
    is_bf16 = operation.a.element is ElementType.BFLOAT16
    columns = candidate.gemm.tile_n
    return sized_tile(_weight_of(operation), columns, target.smem_bytes_per_block, is_bf16=is_bf16)


class Sm100WeightOnly(Defaults):
    """The family `sm100_weight_only`."""

    name = "sm100_weight_only"
    needs = (Feature.TCGEN05, Feature.TMA, Feature.DEPENDENT_LAUNCH)
    loads_outside = True
    prefetches_b = True
    types = tuple(dict.fromkeys(x.types for x in Operation if x.types.weight is not None))
    epilogues = WEIGHT_EPILOGUES

    def candidates(self, operation: Operation, target: Target) -> Iterator[Candidate]:
        """Enumerate tiles."""
        del target
        for tile_n in TILE_N if operation.types in self.types and not _splits_atoms(operation) else ():
            yield gemm_candidate(family=self.name, tile_m=ROWS, tile_n=tile_n, swap_ab=True, use_tma_store=False)

    def check(self, candidate: Candidate, operation: Operation, target: Target) -> Rejected | None:
        """Apply the kernel's limits on cluster, tile and registers."""
        gemm = candidate.gemm
        if _splits_atoms(operation):
            text = (
                f"{self.name} has {ROWS // 2} rows of each of a gate's weights in a tile, and atoms of factors {ROWS}"
            )
            return Rejected(Reason.COMBINATION, text)
        is_alone = (gemm.cluster_m, gemm.cluster_n, gemm.split_k) == (1, 1, 1)
        if (
            gemm.use_2cta
            or gemm.use_tma_store
            or gemm.schedule
            or gemm.num_stages
            or not gemm.swap_ab
            or not is_alone
            or SplitK(gemm.split_k_mode) is not SplitK.NONE
        ):
            text = f"{self.name} is one CTA to a cluster, swapped, with as many stages as fit, and stores without TMA"
            return Rejected(Reason.COMBINATION, text)
        name = f"{gemm.tile_m}x{gemm.tile_n}"
        if gemm.tile_m != ROWS or gemm.tile_n not in TILE_N:
            allowed = ", ".join(map(str, TILE_N))
            return Rejected(Reason.TILE, f"a tile has {ROWS} rows and {allowed} columns, got {name}")
        if tile_of(candidate, operation, target).is_promoted and gemm.tile_n > MAX_PROMOTED:
            text = f"{name} needs {gemm.tile_n} registers a thread for sums of groups, which have factors"
            return Rejected(Reason.REGISTERS, f"{text}; {MAX_PROMOTED} fit")
        return None

    def resources(self, candidate: Candidate, operation: Operation, target: Target) -> Resources:
        """Count the stages of packed bytes and of operands, the barriers, and tensor memory."""
        tile = tile_of(candidate, operation, target)
        return Resources(
            smem_bytes=tile.smem_bytes,
            stage_bytes=tile.packed_bytes + tile.operand_bytes,
            num_threads=NUM_THREADS,
            num_stages=min(tile.num_packed, tile.num_operands),
            tmem_columns=tile.tmem_columns,
        )

    def tile_clocks(self, candidate: Candidate, operation: Operation) -> float:
        """Return the clocks of an SM that a CTA's arithmetic takes for each element along k: see `aot.space.cost`.

        It is the largest of what the tensor cores, shared memory, and the schedulers take: no measured number.
        """
        columns, form = candidate.gemm.tile_n, _weight_of(operation)
        multiplied = ROWS * columns / (MMA_A_CLOCK * MMA_SHARE)
        decoded = ROWS * X_BYTES
        moved = ROWS * form.code.bits / 8 + 2 * decoded + columns * X_BYTES
        name = form.name if form.code is Code.E2M1 else form.code.value
        issued = ROWS / ROWS_OF_FOUR_WARPS * DECODING[f"{name}z" if form.has_zeros else name] / DECODED_K
        if sized_tile(form, columns, 0, is_bf16=operation.a.element is ElementType.BFLOAT16).is_promoted:
            issued += PROMOTION * ROWS * columns / THREADS_A_CLOCK / form.group
        return max(multiplied, moved / SMEM_BYTES_A_CLOCK, issued / ISSUED_A_CLOCK)

    def sum_order(self, candidate: Candidate) -> str:
        """Name the order of `tcgen05.mma` over all of k, or over groups."""
        del candidate
        return "tcgen05 of packed weights"

    def entry(self, candidate: Candidate, operation: Operation, target: Target) -> Entry:
        """Make the kernel and its entry."""
        from aot.families import Entry
        from aot.families._arguments import cutlass_type
        from aot.families._packed_operands import packed_entry
        from aot.families._sm100_packed_kernel import PackedGemmSm100

        tile, gate = tile_of(candidate, operation, target), operation.gate
        element = cutlass_type(operation.a.element)
        gemm = PackedGemmSm100(element, tile, gate)
        return Entry(*packed_entry(gemm, element, is_scaled=operation.types.is_scaled, gate=gate))


FAMILY = Sm100WeightOnly()
