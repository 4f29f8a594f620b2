"""How the sums of the warps of `weight_only` become D, by way of shared memory. Imports CUTLASS.

With a gate the first half of a CTA's tiles are rows of the gate's weight, the other half the same rows of the linear
one, so that both sums of an element of D lie in the CTA.

No `from __future__ import annotations` here: CuTe DSL reads the annotations of its functions as they are.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Constexpr, Float32, Int32, Int64, const_expr, cute, range_constexpr

from aot.core.weight_format import TILE_ROWS
from aot.families._epilogue import finish_gate
from aot.families._epilogue_registers import Registers
from aot.families._weight_only_rows import row_of_weight
from aot.families._weight_only_tile import MMA_N, Tile


@dataclass(frozen=True)
class WarpSums:
    """What a CTA's warps have summed up; to be called while tracing."""

    element: Any
    """CUTLASS's type of D."""
    tile: Tile
    exponent: int
    """Of the power of two that sums are multiplied by."""
    gate: Any
    """A `Step`, or None."""

    @property
    def columns_of_d(self) -> int:
        """Return the columns of D that the rows of a CTA make."""
        return self.tile.rows if self.gate is None else self.tile.rows // 2

    @cute.jit
    def write(self, sums: cute.Tensor, ring: Any) -> None:
        """Write a warp's sums over its ring. Source: PTX ISA, mma.m16n8k16, registers of the accumulator."""
        tile, lane = self.tile, cute.arch.lane_idx()
        layout = cute.make_layout((tile.rows, tile.columns), stride=(1, tile.sum_column))
        part = cute.make_tensor(cute.recast_ptr(ring, dtype=Float32), layout)
        for i in range_constexpr(tile.tiles):
            for j in range_constexpr(self.tile.column_tiles):
                for v in range_constexpr(4):
                    row, column = i * TILE_ROWS + lane // 4 + v // 2 * 8, j * MMA_N + lane % 4 * 2 + v % 2
                    part[row, column] = sums[(v % 2, v // 2), 0, j, i]

    @cute.jit
    def store(self, rings: Any, d: Any, place: Any, stride: Int64, added: Any, thread: Int32) -> None:
        """Add the warps' sums, in order, and store the CTA's part of D: neighbours of a row by neighbouring threads.

        `added` are factors and bias: of each an address, a stride or the number of elements, and with a gate how many
        elements the linear one's lie behind the gate's.
        """
        tile, rows = self.tile, const_expr(self.columns_of_d)
        first_row, first_column, columns, n = place
        layout = cute.make_layout(
            (tile.rows, tile.columns, tile.num_warps), stride=(1, tile.sum_column, tile.ring_bytes // 4)
        )
        parts = cute.make_tensor(cute.recast_ptr(rings, dtype=Float32), layout)
        for element in cutlass.range(thread, columns * rows, tile.num_threads, unroll=1):
            row, column = element % rows, element // rows
            at = first_row + row
            if const_expr(tile.form.in_rows):
                at = row_of_weight(first_row // TILE_ROWS + row // TILE_ROWS, row % TILE_ROWS)
            if at < n:
                value = self._finished(parts, row, column, at, 0, added)
                if const_expr(self.gate is not None):
                    linear = self._finished(parts, row + rows, column, at, 1, added)
                    value = Float32(finish_gate(self.gate, value, linear, Registers()))
                place_of_d = d + (Int64(first_column + column) * stride + at)
                cute.make_tensor(place_of_d, cute.make_layout(1))[0] = value.to(self.element)

    @cute.jit
    def _finished(
        self, parts: cute.Tensor, row: Int32, column: Int32, at: Int32, half: Constexpr[int], added: Any
    ) -> Any:
        """Return a sum of all warps with its factor and bias, those of a row of the weight."""
        scale, bias = added
        value = parts[row, column, 0]
        for w in range_constexpr(1, self.tile.num_warps):
            value += parts[row, column, w]
        value *= 2.0**self.exponent
        if const_expr(scale[0] is not None):
            of_scale = scale[0] + at * scale[1]
            if const_expr(half > 0):
                of_scale = of_scale + scale[2]
            value *= cute.make_tensor(of_scale, cute.make_layout(1))[0]
        if at < bias[1]:
            of_bias = bias[0] + at
            if const_expr(half > 0):
                of_bias = of_bias + bias[2]
            value += cute.make_tensor(of_bias, cute.make_layout(1))[0].to(Float32)
        return value
