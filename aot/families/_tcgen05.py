"""Arithmetic that the families of tcgen05 kernels (sm_100, sm_110) share. Imports neither CUDA nor CUTLASS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.core.candidate import Candidate

STATIC = "static"
CLC = "clc"
"""How persistent tiles are handed out: by index, or by the hardware's cluster launch control."""

TILE_K_BYTES = 128
"""Bytes of k in a stage: four MMA instructions of 32 bytes each. Source: PTX ISA, tcgen05.mma, kind::f16: K is 16."""

BARRIER_BYTES = 1024
"""Shared memory set aside for barriers, by NVIDIA's kernels and quack's alike. Source: their `_compute_stages`."""

ALIGNMENT_BYTES = 1024
"""Alignment of the stages of A, B, C and D. Source: quack gemm_sm100.py, `buffer_align_bytes`."""

MIN_STAGES = 2
"""Fewest stages with which loads overlap the multiplication."""

MIN_TMEM_COLUMNS = 32
"""Tensor memory is allocated by powers of two from 32 columns up. Source: PTX ISA, tcgen05.alloc."""

TILE_M = {False: (64, 128), True: (128, 256)}
"""MMA tile_m without and with two CTAs to an instruction. Source: PTX ISA, tcgen05.mma, shapes of kind::f16."""

TMEM_LANES_A_WARP = 32
"""Lanes of tensor memory that a warp can read. Source: PTX ISA, tcgen05.ld."""

EPILOGUE_ELEMENTS = 4096
"""Elements of D that one stage of the epilogue aims at. Source: cutlass.utils,
`compute_epilogue_tile_size`, as all of `Shape.epilogue_elements`."""


@dataclass(frozen=True)
class Shape:
    """The parts of a tcgen05 candidate that its resources depend on; tiles in elements."""

    tile_m: int
    tile_n: int
    use_2cta: bool
    d_contiguous_m: bool
    """Whether D, as the kernel sees it, is contiguous along m: the case with swap_ab."""

    @property
    def cta_m(self) -> int:
        """Return the rows of the tile that one CTA holds."""
        return self.tile_m // 2 if self.use_2cta else self.tile_m

    @property
    def stage_bytes(self) -> int:
        """Return the bytes of A and B in one stage of one CTA: with two CTAs, each holds half of B."""
        return (self.cta_m + (self.tile_n // 2 if self.use_2cta else self.tile_n)) * TILE_K_BYTES

    def epilogue_elements(self, d_bytes: int, c_bytes: int = 0) -> int:
        """Count the elements of D in one stage of the epilogue.

        Args:
            d_bytes: bytes of an element of D.
            c_bytes: bytes of an element of what is added to D from global memory; 0 without.
        """
        warps_m = 2 if self.use_2cta and self.cta_m == 64 else 4
        warps_n = 4 // warps_m
        tile_m = min(self.cta_m, TMEM_LANES_A_WARP * warps_m)
        floor = (8 if self.d_contiguous_m else 16 // d_bytes) * warps_n
        tile_n = EPILOGUE_ELEMENTS // tile_m
        if c_bytes:
            tile_n = self._columns_beside_c(max(c_bytes, d_bytes))
        while self.tile_n % tile_n:
            tile_n //= 2
        return tile_m * min(self.tile_n, max(tile_n, floor))

    def _columns_beside_c(self, num_bytes: int) -> int:
        """Return the columns that one stage of the epilogue aims at where there is a C, by the wider element."""
        if num_bytes == 4:
            return 16 if self.cta_m > 64 and self.tile_n <= 128 else 32
        return 32 if num_bytes == 2 and self.tile_n <= 128 else 64

    def tmem_columns(self, num_accumulators: int) -> int:
        """Count the tensor memory columns of the accumulators, rounded up to what can be allocated."""
        columns = self.tile_n * num_accumulators
        if self.cta_m == 64:  # two accumulators of 64 rows lie side by side in the 128 lanes
            columns //= 2
        return max(1 << (columns - 1).bit_length(), MIN_TMEM_COLUMNS)


def shape_of(candidate: Candidate) -> Shape:
    """Return the parts of a candidate that its resources depend on."""
    return Shape(candidate.gemm.tile_m, candidate.gemm.tile_n, candidate.gemm.use_2cta, candidate.gemm.swap_ab)


def stages_that_fit(limit_bytes: int, fixed_bytes: int, stage_bytes: int) -> int:
    """Count the stages that fit beside what is fixed, but never fewer than MIN_STAGES, so that the excess shows."""
    return max((limit_bytes - fixed_bytes) // stage_bytes, MIN_STAGES)
