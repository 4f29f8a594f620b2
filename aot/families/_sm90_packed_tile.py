"""What the kernels of `sm90_weight_only` work on, and what they take. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.weight_format import BLOCK_K, NVFP4, TILE_ROWS, PackedLayout, WeightFormat
from aot.families._sm90_split_tile import WARPGROUP, OneTile, Tile

X_BYTES = 2
"""Of an element of x."""

LINE_BYTES = 64
"""Of a line of packed codes: what the four lanes of a row read at once. TMA exchanges their 16 bytes by the line, so
that eight lines give 16 bytes of one number from different banks. Source: PTX ISA, 64-byte swizzling."""

GROUPS_ALIGN_BYTES = 128
"""Alignment of what TMA brings of the groups' factors. Source: PTX ISA, cp.async.bulk.tensor."""


def promotes(form: WeightFormat, *, is_bf16: bool) -> bool:
    """Say whether a group's sums are multiplied by its factor in float32, in registers of their own.

    Factors of nvfp4 multiply the operands, which is exact, and so do those of mxfp4 where operands have the exponents
    of float32, as bfloat16 does.
    """
    return form.group > 0 and form is not NVFP4 and not (form.is_mxfp4 and is_bf16)


@dataclass(frozen=True, kw_only=True)
class PackedTile(Tile):
    """A tile whose rows are those of a packed weight; a stage has 128 of k."""

    form: WeightFormat
    in_turns: bool = False
    """Whether two warpgroups multiply blocks of k in turns, so that one promotes while the other multiplies."""

    @property
    def moves_registers(self) -> bool:
        """Say whether multiplying warps take registers of those that load, which are a whole warpgroup then.

        A thread of 10 or of 12 warps gets 168 registers, and one of 6 all that it may have.
        """
        return self.num_warpgroups > 1

    @property
    def num_threads(self) -> int:
        """Return the threads of a CTA."""
        return self.num_multiplying + WARPGROUP if self.moves_registers else super().num_threads

    @property
    def layout(self) -> PackedLayout:
        """Describe the packed weight."""
        return PackedLayout(self.form)

    @property
    def row_tiles(self) -> int:
        """Count the tiles of 16 rows that packing makes."""
        return self.rows // TILE_ROWS

    @property
    def block_group_bytes(self) -> int:
        """Return the bytes of a block's factors and zero points."""
        return self.layout.factor_bytes + self.layout.zero_bytes

    @property
    def code_bytes(self) -> int:
        """Return the bytes of the codes of a stage."""
        return self.row_tiles * self.layout.code_bytes

    @property
    def group_bytes(self) -> int:
        """Return the bytes of the groups of a stage, from one stage to the next."""
        return -(-self.row_tiles * self.block_group_bytes // GROUPS_ALIGN_BYTES) * GROUPS_ALIGN_BYTES

    @property
    def stage_bytes(self) -> int:
        """Return the bytes of a stage: codes, x, and the groups' factors and zero points."""
        return self.code_bytes + self.columns * BLOCK_K * X_BYTES + self.group_bytes


@dataclass(frozen=True, kw_only=True)
class PackedOneTile(PackedTile, OneTile):
    """The same of a tile that one CTA computes, and stores by way of its stages."""
