"""Sums of a Hopper tile of FP8 operands with a factor for each block of 128 of k: what its kernels share.

A stage holds 128 of k, so that it is one block of A's factors and of B's. Its product is multiplied into registers of
its own, and added to the tile's sums in float32, times the factors. These are read from global memory, those of the
next stage while this one is multiplied. Imports CUTLASS.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from typing import Any, NamedTuple

import cutlass
from cutlass import Boolean, Int32, const_expr, cute
from cutlass.cute.nvgpu import warpgroup

from aot.core.formats import SCALE_BLOCK

ATOM_ROWS, ATOM_COLUMNS = 2, 2
"""Rows and columns of which a thread holds sums, of each 64 rows and 8 columns of a tile; the columns come first.
Source: PTX ISA, wgmma, registers of D."""

COLUMNS_OF_AN_ATOM = 8
"""Columns of a tile after which the pattern of a thread's sums repeats; they lie in one block of B's factors."""


class Factors(NamedTuple):
    """What the sums of a tile are multiplied by, and which of it a thread reads."""

    of_a: Any
    """(rows, blocks of k): the factors of A."""
    of_b: Any
    """(blocks of rows, blocks of k): the factors of B, of a group that of the group."""
    rows: Any
    """Registers: A's rows of a thread's sums; -1 where there is none, in a kernel of groups."""
    blocks: Any
    """B's blocks that the tile's columns lie in: with a gate the gate's and the linear half's, else one or two."""
    boundary: Any
    """Int32: columns of the tile that lie in the first of two blocks, without a gate."""


class BlockSums:
    """What a GEMM of `GemmSm90`'s kind inherits to multiply its stages by factors; it says how these are read."""

    has_gate = False
    """Whether the columns of a thread's sums are the gate's and the linear half's in turn."""

    def read_factors(self, factors: Factors, block: Int32) -> Any:
        """Return registers (blocks of B, rows of A): the products of a thread's factors for a block of k."""
        raise NotImplementedError

    @cute.jit
    def add_stages(
        self,
        pipeline: Any,
        state: Any,
        multiply: Any,
        k_tiles: Int32,
        factors: Factors,
        total: Any,
        sums: Any,
        first: Any = None,
    ) -> Any:
        """Multiply the stages of a tile, and add each to the tile's sums, times its factors; return the next state.

        Args:
            pipeline: of the stages.
            state: where in it this warp group reads.
            multiply: quack's function that issues the instructions of a stage into `sums`.
            k_tiles: stages of the tile.
            factors: of the tile.
            total: registers, of zeros, which get the sums.
            sums: registers of one stage.
            first: the factors of the tile's first stage, where that is being multiplied already.
        """
        is_begun = const_expr(first is not None)
        scales = first if is_begun else self.read_factors(factors, Int32(0))
        if const_expr(is_begun):
            of_second = self.read_factors(factors, cutlass.min(Int32(1), k_tiles - 1))
            warpgroup.wait_group(0)
            pipeline.consumer_release(state)
            self._add(total, sums, scales, factors.boundary)
            scales.store(of_second.load())
            state.advance()
        is_full = Boolean(True)
        if k_tiles > int(is_begun):
            is_full = pipeline.consumer_try_wait(state)
        for k_tile in cutlass.range(int(is_begun), k_tiles, 1, unroll=1):
            pipeline.consumer_wait(state, is_full)
            multiply(A_idx=state.index, B_idx=state.index, zero_init=Boolean(True))
            following = self.read_factors(factors, cutlass.min(k_tile + 1, k_tiles - 1))
            warpgroup.wait_group(0)
            pipeline.consumer_release(state)
            self._add(total, sums, scales, factors.boundary)
            scales.store(following.load())
            state.advance()
            is_full = Boolean(True)
            if k_tile + 1 < k_tiles:
                is_full = pipeline.consumer_try_wait(state)
        return state

    @cute.jit
    def _add(self, total: Any, sums: Any, scales: Any, boundary: Int32) -> None:
        """Add a stage's sums, (of an atom, column by column; atoms of rows; 1), times their factors."""
        size = const_expr(ATOM_ROWS * ATOM_COLUMNS)
        for i in cutlass.range_constexpr(cute.size(sums, mode=[1])):
            for atom in cutlass.range_constexpr(cute.size(sums, mode=[0]) // size):
                for r in cutlass.range_constexpr(ATOM_ROWS):
                    scale = scales[0, r + ATOM_ROWS * i]
                    if const_expr(not self.has_gate and cute.size(scales, mode=[0]) > 1):
                        second = scales[1, r + ATOM_ROWS * i]
                        scale = second if atom * COLUMNS_OF_AN_ATOM >= boundary else scale
                    for c in cutlass.range_constexpr(ATOM_COLUMNS):
                        factor = scales[c, r + ATOM_ROWS * i] if const_expr(self.has_gate) else scale
                        e = const_expr(c + ATOM_COLUMNS * r + size * atom)
                        total[e, i, 0] = total[e, i, 0] + sums[e, i, 0] * factor


def num_blocks(tile_n: int) -> int:
    """Return how many blocks of B's factors a tile of at most SCALE_BLOCK columns may lie in."""
    return 1 if SCALE_BLOCK % tile_n == 0 else 2
