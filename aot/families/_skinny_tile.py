"""What the kernel of `cluster_split_k` works on, and what it takes. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BYTES = 128
"""Bytes of k in a stage, the widest rows that TMA swizzles. Source: PTX ISA, swizzling modes."""

CHUNK = 8
"""Chunks of 16 bytes in a row of a stage."""

MMA_M, MMA_N = 16, 8
"""Source: PTX ISA, mma.m16n8k16."""

PAD = 4
"""Floats between the columns of a warp's sums. The eight rows and four columns that a warp stores at once fall into
different banks, of 32: two columns take 8 floats more than a multiple of 32, as rows are a multiple of 16."""

ALIGN_BYTES = 1024
"""Alignment of the stages: the 128-byte swizzle repeats after as much. Source: PTX ISA, swizzling modes."""

BARRIER_BYTES = 8
"""Source: PTX ISA, mbarrier: 64 bits."""

ROUNDING_BYTES = 16
"""Shared memory is taken by multiples of this, the alignment of its widest loads."""


@dataclass(frozen=True)
class Tile:
    """The work of a cluster, and how its CTAs and warps share it; sizes in elements."""

    rows: int
    """Rows of the weight that a cluster multiplies."""
    columns: int
    """Rows of x, which are loaded at once."""
    cluster: int
    """CTAs that share k."""
    num_warps: int
    """Warps of a CTA that share its k."""
    num_stages: int
    """Stages of each warp."""

    @property
    def padded_columns(self) -> int:
        """Rows of x that a stage has room for, and that are multiplied: whole MMA instructions."""
        return -(-self.columns // MMA_N) * MMA_N

    @property
    def share(self) -> int:
        """Rows of the weight whose part of D one CTA of the cluster stores."""
        return self.rows // self.cluster

    @property
    def num_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.num_warps

    @property
    def num_accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.rows * self.padded_columns // 32

    @property
    def box_bytes(self) -> int:
        """Bytes that TMA brings into a stage."""
        return (self.rows + self.columns) * ROW_BYTES

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage of all warps of a CTA."""
        return (self.rows + self.padded_columns) * ROW_BYTES * self.num_warps

    @property
    def num_received(self) -> int:
        """Floats that a CTA receives from the cluster, its own among them."""
        return self.share * self.columns * self.cluster if self.cluster > 1 else 1

    @property
    def num_factors(self) -> int:
        """Floats that a CTA keeps for finishing its share: none, a bias alone is read when it is needed."""
        return 0

    @property
    def num_barriers(self) -> int:
        """Barriers of a CTA: one for each stage of each warp, and one for what it receives."""
        return self.num_warps * self.num_stages + 1

    @property
    def fixed_bytes(self) -> int:
        """Bytes beside the stages: sums from the cluster, factors, barriers, and what aligns the stages."""
        used = 4 * (self.num_received + self.num_factors) + BARRIER_BYTES * self.num_barriers
        return ALIGN_BYTES + -(-used // ROUNDING_BYTES) * ROUNDING_BYTES

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.fixed_bytes + self.stage_bytes * self.num_stages

    @property
    def has_room_for_sums(self) -> bool:
        """Whether a warp's sums fit where its stages of the weight were."""
        return 4 * (self.rows + PAD) * self.padded_columns <= self.rows * ROW_BYTES * self.num_stages


@dataclass(frozen=True)
class EpilogueTile(Tile):
    """The same where there are more steps than a bias."""

    @property
    def num_factors(self) -> int:
        """Floats that a CTA keeps for its share: the bias of each row of the weight."""
        return self.share


@dataclass(frozen=True)
class ScaledTile(Tile):
    """The same where the sums have scale factors and perhaps a bias."""

    @property
    def num_factors(self) -> int:
        """Floats that a CTA keeps for its share: a factor and the bias of each row of the weight, a factor of x's."""
        return 2 * self.share + self.columns
