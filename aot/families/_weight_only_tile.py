"""What the kernel of `weight_only` works on, and what it takes. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

from aot.core.weight_format import BLOCK_K, TILE_ROWS, PackedLayout, WeightFormat

MMA_N = 8
"""Rows of x in an instruction. Source: PTX ISA, mma.m16n8k16."""

X_BYTES = 2
"""Of an element of x."""

X_PIECE = 8
"""Elements of x that are copied, and read, at once."""

X_TURN = 4
"""Pieces of x, 64 bytes, that change places with as many behind them in each odd row: eight lanes read as much of two
rows at once, which then lie in different banks. Rows without bytes between them leave room for more CTAs."""

SUM_PAD = 4
"""Floats between the columns of a warp's sums. The eight rows and four columns that a warp stores at once fall into
different banks, of 32: two columns take 8 floats more than a multiple of 32, as rows are a multiple of 16, or 24."""

BARRIER_BYTES = 8
"""Source: PTX ISA, mbarrier: 64 bits."""

ALIGN_BYTES = 128
"""Of a warp's ring. Bulk copies ask for 16. Source: PTX ISA, cp.async.bulk."""

SM_BYTES = 227 * 1024
"""Shared memory of an SM that CTAs share, each of which takes `RESERVED_BYTES` more. Source: CUDA C++ Programming
Guide, technical specifications, compute capability 9.0."""
RESERVED_BYTES = 1024


@dataclass(frozen=True)
class Tile:
    """The work of a CTA, and how its warps share it."""

    form: WeightFormat
    tiles: int
    """Of 16 rows of the weight."""
    columns: int
    """Rows of x that there is room for."""
    num_warps: int
    num_stages: int
    """Of the ring of each warp."""
    blocks: int
    """Of 128 elements along k, in a stage."""

    @property
    def layout(self) -> PackedLayout:
        """Describe the packed weight."""
        return PackedLayout(self.form)

    @property
    def rows(self) -> int:
        """Return the rows of the weight."""
        return self.tiles * TILE_ROWS

    @property
    def num_threads(self) -> int:
        """Return the threads of a CTA."""
        return 32 * self.num_warps

    @property
    def scales_operands(self) -> bool:
        """Say whether factors multiply the codes: in rows the lanes of an instruction have elements of four groups."""
        return self.form.is_nvfp4 or self.form.in_rows

    @property
    def block_bytes(self) -> int:
        """Return the bytes from a block of 16 rows to the next: in rows a box of TMA's begins at a multiple of 128.

        Source: PTX ISA, cp.async.bulk.tensor, .tile mode: alignment of shared memory.
        """
        held = self.layout.block_bytes
        return -(-held // ALIGN_BYTES) * ALIGN_BYTES if self.form.in_rows else held

    @property
    def copy_bytes(self) -> int:
        """Return the bytes of the weight that a stage has room for, of 16 rows."""
        return self.blocks * self.block_bytes

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the weight in a stage."""
        return self.tiles * self.copy_bytes

    @property
    def x_row_bytes(self) -> int:
        """Return the bytes of a row of x in a stage."""
        return self.blocks * BLOCK_K * X_BYTES

    @property
    def x_pieces(self) -> int:
        """Return the pieces that a row of x in a stage is copied in."""
        return self.blocks * BLOCK_K // X_PIECE

    @property
    def stage_bytes(self) -> int:
        """Return the bytes of a stage of a warp."""
        return self.weight_bytes + self.columns * self.x_row_bytes

    @property
    def ring_bytes(self) -> int:
        """Return the bytes of a warp's ring, in which its sums lie in the end."""
        used = max(self.num_stages * self.stage_bytes, 4 * self.num_sums)
        return -(-used // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def sum_column(self) -> int:
        """Return the floats from a column of a warp's sums to the next."""
        return self.rows + SUM_PAD

    @property
    def column_tiles(self) -> int:
        """Return the instructions that the rows of x take."""
        return -(-self.columns // MMA_N)

    @property
    def num_sums(self) -> int:
        """Return the floats of a warp's sums, of whole instructions."""
        return self.column_tiles * MMA_N * self.sum_column

    @property
    def barrier_bytes(self) -> int:
        """Return the bytes of the barriers: one for each stage of each warp."""
        used = self.num_warps * self.num_stages * BARRIER_BYTES
        return -(-used // ALIGN_BYTES) * ALIGN_BYTES

    @property
    def smem_bytes(self) -> int:
        """Return the shared memory of a CTA."""
        return self.barrier_bytes + self.num_warps * self.ring_bytes

    @property
    def blocks_per_sm(self) -> int:
        """Return the CTAs that are to fit an SM at once: up to two."""
        return 2 if 2 * (self.smem_bytes + RESERVED_BYTES) <= SM_BYTES and self.num_threads <= 256 else 1
