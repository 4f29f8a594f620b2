"""What the kernel of `mma_sync` works on, and what it takes. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass

MMA_M, MMA_N, MMA_K = 16, 8, 16
"""Source: PTX ISA, mma.m16n8k16."""

ITEM_BYTES = 2
"""Bytes of an element of A and B."""

PAD = 8
"""Elements behind each row of a stage. A row of 32, 64 or 128 elements, or of 16 to 256, is then an odd number of 16
bytes long, so that the eight rows of a matrix that `ldmatrix` reads lie in different banks."""

SUM_PAD = 8
"""Floats behind each row of the sums in shared memory: pairs of floats of the four rows that half a warp writes at once
lie in different banks."""

MIN_PRODUCTS = 16
"""Instructions of `mma` of a warp between two barriers that a block of k is made wide enough for: an assumption, since
a barrier, a wait and the addresses of a block cost a warp some 100 instructions. Not where k is shared by many warps or
by CTAs, which a wider block would leave without work (an H200, 2026-11-28)."""

ALIGN_BYTES = 16
"""Alignment of a stage. Source: PTX ISA, ldmatrix and cp.async."""

MAX_STAGES = 6
"""Stages beyond which more bytes in flight gain nothing: an assumption."""

TARGET_SMEM_BYTES = 100 * 1024
"""Shared memory of a CTA up to which two fit an SM of 228 KiB, with what the driver takes of each."""

MAX_SHARED_ACCUMULATORS = 64
"""Accumulator registers of a thread up to which two CTAs of 256 threads are to share the 65,536 registers of an SM, 128
a thread; larger CTAs are not asked to. Some such kernels spill all the same, by up to 32 bytes on sm_110a
(nvidia-cutlass-dsl 4.8.1, 2026-11-27)."""

MAX_SHARED_THREADS = 256
"""Threads of a CTA up to which two are to share an SM."""

WARPS = {
    (16, 16): ((1, 1, 8), (1, 1, 4)),
    (16, 32): ((1, 1, 8), (1, 2, 4)),
    (16, 64): ((1, 2, 4), (1, 4, 2)),
    (16, 128): ((1, 4, 2), (1, 4, 1)),
    (32, 16): ((1, 1, 8),),
    (32, 32): ((1, 1, 8), (1, 1, 4)),
    (32, 64): ((1, 2, 4), (1, 2, 2)),
    (32, 128): ((1, 4, 2), (1, 4, 1)),
    (64, 16): ((2, 1, 4),),
    (64, 32): ((2, 1, 4), (2, 1, 2)),
    (64, 64): ((2, 2, 2), (2, 2, 1)),
    (64, 128): ((2, 2, 2), (2, 4, 1), (1, 4, 1)),
    (128, 32): ((4, 1, 2), (4, 1, 1)),
    (128, 64): ((4, 2, 1), (2, 2, 1)),
    (128, 128): ((2, 4, 1), (2, 2, 1)),
    (128, 256): ((2, 4, 1),),
    (256, 64): ((4, 2, 1),),
    (256, 128): ((4, 2, 1),),
    (64, 80): ((4, 1, 1), (4, 1, 2)),
    (64, 96): ((2, 3, 1), (2, 3, 2)),
    (128, 80): ((4, 1, 1), (4, 1, 2)),
    (128, 96): ((2, 3, 1), (2, 3, 2)),
    (256, 80): ((8, 1, 1),),
    (256, 96): ((4, 3, 1),),
}
"""Warps along m, n and k of each tile (tile_m, tile_n): those along k have every so many steps of k each.

Tiles of 80 and 96 columns are for heads of as many, of which 128 would be a quarter or more for nothing."""


Choices = dict[tuple[int, int], tuple[tuple[int, int, int], ...]]
"""Warps along m, n and k that tiles (tile_m, tile_n) may have."""


def warps_of(choices: Choices, tile: tuple[int, int], along_k: int) -> tuple[int, int, int] | None:
    """Return the warps of a tile of which so many share k; None where there are no such ones."""
    return next((x for x in choices.get(tile, ()) if x[2] == along_k), None)


def no_tile(choices: Choices, tile: tuple[int, int], along_k: int) -> str:
    """Say which tiles there are where one is none of them."""
    tiles = ", ".join(f"{m}x{n} k{'/'.join(str(x[2]) for x in warps)}" for (m, n), warps in choices.items())
    return f"{tile[0]}x{tile[1]} with {along_k} warps along k is no tile; expected one of {tiles}"


@dataclass(frozen=True)
class Tile:
    """The work of a CTA, and how its warps share it; sizes in elements."""

    rows: int
    """Rows of A."""
    columns: int
    """Rows of B; with a gate those of both halves."""
    warps: tuple[int, int, int]
    """Along the rows, the columns, and k."""
    loads: int
    """Bytes of which addresses and leading strides of A and B are multiples, 16, 8, 4 or 2. A copy brings as many at
    once; where it is 2, a copy brings 16 from the aligned address in front, and rows are moved in shared memory."""
    a_is_k_major: bool
    b_is_k_major: bool
    splits: int = 1
    """CTAs of a cluster that share k."""

    @property
    def loads_own(self) -> bool:
        """Whether an operand whose rows begin at multiples of 16 bytes is loaded by as many, whatever the other is."""
        return False

    @property
    def moves_few(self) -> bool:
        """Whether rows that the operands do not have are not moved in shared memory either."""
        return False

    @property
    def num_threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps[0] * self.warps[1] * self.warps[2]

    @property
    def is_shifted(self) -> bool:
        """Whether rows may begin at any element, so that they are moved in shared memory."""
        return self.loads == ITEM_BYTES

    @property
    def block_k(self) -> int:
        """Elements of k in a stage: a step at least for each warp along k, and two where `MIN_PRODUCTS` asks for it."""
        least = max(32, MMA_K * self.warps[2])
        per_step = self.warp_rows // MMA_M * (self.warp_columns // MMA_N)
        is_short = per_step * (least // MMA_K // self.warps[2]) < MIN_PRODUCTS
        return 2 * least if is_short and self.warps[2] <= 2 and self.splits == 1 else least

    @property
    def warp_rows(self) -> int:
        """Rows of a warp's part."""
        return self.rows // self.warps[0]

    @property
    def warp_columns(self) -> int:
        """Columns of a warp's part."""
        return self.columns // self.warps[1]

    @property
    def num_accumulators(self) -> int:
        """Accumulator registers of a thread."""
        return self.warp_rows * self.warp_columns // 32

    def stage_elements(self, extent: int, *, is_k_major: bool) -> int:
        """Count the elements that an operand's part of a stage takes, with what pads its rows."""
        return extent * (self.block_k + PAD) if is_k_major else self.block_k * (extent + PAD)

    @property
    def elements_of_a(self) -> int:
        """Elements of A's part of a stage."""
        return self.stage_elements(self.rows, is_k_major=self.a_is_k_major)

    @property
    def elements_of_b(self) -> int:
        """Elements of B's part of a stage."""
        return self.stage_elements(self.columns, is_k_major=self.b_is_k_major)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return (self.elements_of_a + self.elements_of_b) * ITEM_BYTES

    @property
    def num_moved(self) -> int:
        """Stages beside the ring to which rows that begin at any element are moved: one is written, one multiplied."""
        return 2 if self.is_shifted else 0

    @property
    def num_stages(self) -> int:
        """Stages in all: as many as leave room for a second CTA, two of the ring at least."""
        least = 2 + self.num_moved + (self.is_shifted and self.loads_own)
        return max(least, min(MAX_STAGES, TARGET_SMEM_BYTES // self.stage_bytes))

    @property
    def num_ring(self) -> int:
        """Stages that loads fill in turn."""
        return self.num_stages - self.num_moved

    @property
    def num_ahead(self) -> int:
        """Blocks of k that are brought before the first is multiplied.

        An operand that is moved leaves its stage of the ring a turn earlier, unless one that is not lies there too.
        """
        return self.num_ring if self.is_shifted and not self.loads_own else self.num_ring - 1

    @property
    def num_blocks_per_sm(self) -> int:
        """CTAs that are to fit an SM at once: two where shared memory and registers allow it."""
        fits = self.smem_bytes <= TARGET_SMEM_BYTES and self.num_accumulators <= MAX_SHARED_ACCUMULATORS
        return 2 if fits and self.num_threads <= MAX_SHARED_THREADS else 1

    @property
    def num_sums(self) -> int:
        """Floats of the sums, which lie over the stages in the end: a part for each warp along k."""
        return self.warps[2] * self.rows * (self.columns + SUM_PAD)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        return max(self.num_stages * self.stage_bytes, 4 * self.num_sums)


class OwnTile(Tile):
    """A tile whose operands are loaded each by its own rows. A type, not a field: a kernel's name has its tile's."""

    @property
    def loads_own(self) -> bool:
        """Say that they are."""
        return True


class FewRowsTile(Tile):
    """A tile for fewer rows of A than it has: what there is of them is moved. A type, as `OwnTile` is."""

    @property
    def moves_few(self) -> bool:
        """Say that the others are not."""
        return True
