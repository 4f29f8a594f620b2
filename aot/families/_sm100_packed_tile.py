"""What the kernels of `sm100_weight_only` work on, and what they take. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.weight_format import BLOCK_K, TILE_ROWS, PackedLayout, WeightFormat
from aot.families._sm90_packed_tile import promotes
from aot.families._tcgen05 import ALIGNMENT_BYTES, BARRIER_BYTES, MIN_TMEM_COLUMNS, TILE_K_BYTES

ROWS = 128
"""Rows of the weight of a tile: lanes of tensor memory, of which each of four warps reads 32. Source: PTX ISA,
tcgen05.mma, kind::f16 without .cta_group::2; tcgen05.ld, .32x32b."""

X_BYTES = 2
"""Of an element of x, and of a decoded one."""

PART_K = TILE_K_BYTES // X_BYTES
"""Elements along k of a stage of operands: a swizzled row of 128 bytes."""

PARTS = BLOCK_K // PART_K
"""Stages of operands that a stage of packed bytes becomes."""

ROW_CODE_BYTES = BLOCK_K // 2
"""Of a row's codes in a stage, where a weight lies in rows: two in a byte."""

WARPGROUP = 4
"""Warps of a warpgroup, which share what setmaxnreg moves."""

NUM_DECODING = ROWS // TILE_ROWS
"""Warps that decode, each a tile of 16 rows: two of each of an SM's four schedulers."""

NUM_STORING = 4
"""Warps that read tensor memory: each its quarter of the lanes."""

FIRST_DECODING = WARPGROUP
FIRST_STORING = FIRST_DECODING + NUM_DECODING
NUM_THREADS = 32 * (FIRST_STORING + NUM_STORING)
"""One warpgroup of which a warp loads the weight, one x, and one multiplies; two that decode; and one that stores."""

MOST_OPERANDS, MOST_PACKED = 4, 8
"""Stages beyond which more hide nothing: an assumption, in want of a device."""
MIN_STAGES = 2
"""Fewest stages of either kind with which loading, decoding and multiplication overlap."""

BARRIER_SIZE = 8
"""Source: PTX ISA, mbarrier: 64 bits."""


@dataclass(frozen=True)
class PackedTile:
    """A tile of D's transpose: 128 rows of the weight by some rows of x; all of k."""

    form: WeightFormat
    columns: int
    """Rows of x."""
    is_promoted: bool
    """Whether sums of a group are multiplied by its factor in float32, out of tensor memory."""
    num_packed: int
    """Stages of packed bytes, of 128 along k."""
    num_operands: int
    """Stages of operands, of 64 along k."""

    @property
    def layout(self) -> PackedLayout:
        """Describe the packed weight."""
        return PackedLayout(self.form)

    @property
    def packed_bytes(self) -> int:
        """Return the bytes of a stage of the weight, as it was packed."""
        return NUM_DECODING * self.layout.block_bytes

    @property
    def decoded_bytes(self) -> int:
        """Return the bytes of the weight in a stage of operands."""
        return ROWS * TILE_K_BYTES

    @property
    def x_bytes(self) -> int:
        """Return the bytes of x in a stage of operands."""
        return self.columns * TILE_K_BYTES

    @property
    def operand_bytes(self) -> int:
        """Return the bytes of a stage of operands."""
        return self.decoded_bytes + self.x_bytes

    @property
    def num_sums(self) -> int:
        """Count the sets of sums in tensor memory: two where they are read group by group."""
        return 2 if self.is_promoted else 1

    @property
    def tmem_columns(self) -> int:
        """Return the columns of tensor memory, a power of two."""
        used = self.columns * self.num_sums
        return max(1 << (used - 1).bit_length(), MIN_TMEM_COLUMNS)

    @property
    def groups_of_block(self) -> int:
        """Count the groups of 128 along k whose sums are promoted."""
        return BLOCK_K // self.form.group if self.is_promoted else 1

    @property
    def num_barriers(self) -> int:
        """Count the barriers: two of each stage and of each set of sums."""
        return 2 * (self.num_packed + self.num_operands + self.num_sums)

    @property
    def packed_start(self) -> int:
        """Return where the packed stages begin, behind the operands', in bytes."""
        return BARRIER_BYTES + self.num_operands * self.operand_bytes

    @property
    def smem_bytes(self) -> int:
        """Return the shared memory of a CTA: barriers, operands, and packed bytes."""
        return self.packed_start + self.num_packed * self.packed_bytes


def tile_of(form: WeightFormat, columns: int, limit_bytes: int, *, is_bf16: bool) -> PackedTile:
    """Return the tile whose stages fill the shared memory.

    Stages of packed bytes hide the latency of device memory, those of operands that of decoding and multiplication.

    Args:
        form: of the weight.
        columns: rows of x.
        limit_bytes: shared memory of a CTA.
        is_bf16: whether operands are bfloat16.
    """
    is_promoted = promotes(form, is_bf16=is_bf16) and not form.is_nvfp4
    bare = PackedTile(form, columns, is_promoted, 0, 0)
    left = limit_bytes - BARRIER_BYTES
    num_operands = min(MOST_OPERANDS, (left - MIN_STAGES * bare.packed_bytes) // bare.operand_bytes)
    num_operands = max(num_operands, MIN_STAGES)
    num_packed = max((left - num_operands * bare.operand_bytes) // bare.packed_bytes, MIN_STAGES)
    num_packed = min(num_packed, MOST_PACKED)
    return PackedTile(form, columns, bare.is_promoted, num_packed, num_operands)


assert ALIGNMENT_BYTES == BARRIER_BYTES  # noqa: S101 - operands lie behind the barriers, aligned as swizzles ask for
