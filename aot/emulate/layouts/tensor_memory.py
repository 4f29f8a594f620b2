"""Where matrices, scale factors and registers lie in tensor memory: 128 lanes of 512 columns of 32 bits a CTA.

Accumulators, factors and the shapes of tcgen05.ld and tcgen05.st are tested against the layouts that CuTe DSL gives
its tensor memory fragments and copy atoms. Not independently checked: the 16 lanes to which an accumulator of 64 rows
can be moved by its address.

Source: PTX ISA, "Tensor Memory"; "Data path layout organization" (layouts A to G); tcgen05.ld, "Data movement shape";
CUTLASS, include/cute/atom/mma_traits_sm100_frag.hpp and copy_traits_sm100.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from aot.emulate.layouts.errors import UnsupportedLayoutError

NUM_LANES = 128
"""Source: PTX ISA, "Tensor Memory Addressing"."""

NUM_COLUMNS = 512
"""Source: PTX ISA, "Tensor Memory Addressing"."""

LANES_A_WARP = 32
"""A warp reaches as many lanes, from 32 times its rank in its warpgroup on.

Source: PTX ISA, tcgen05.ld, "Access restrictions".
"""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Cells:
    """Places in tensor memory relative to an address, of any shape."""

    lanes: Indices
    columns: Indices

    @property
    def num_columns(self) -> int:
        """Return the columns that the places span."""
        return int(self.columns.max()) + 1


def _cells(lanes: Indices, columns: Indices) -> Cells:
    lanes, columns = (np.ascontiguousarray(x, np.int64) for x in np.broadcast_arrays(lanes, columns))
    lanes.flags.writeable = columns.flags.writeable = False
    return Cells(lanes, columns)


def split_address(address: int) -> tuple[int, int]:
    """Return the lane and the column of a tensor memory address. Source: PTX ISA, "Tensor Memory Addressing"."""
    return address >> 16, address & 0xFFFF


@lru_cache(maxsize=256)
def accumulator_cells(m: int, n: int, cta_group: int) -> Cells:
    """Return where each CTA has its rows of D, of shape (m / cta_group, n); 32-bit elements.

    - 128 rows a CTA: a row is a lane.
    - 64 rows of one CTA: 16 lanes of each warp's 32.
    - 64 rows a CTA of a pair: lanes 0 to 63 have the first half of N, lanes 64 to 127 the second.

    Args:
        m: rows of the instruction, over all its CTAs.
        n: columns of the instruction.
        cta_group: 1 or 2 CTAs.
    """
    row, column = np.arange(m // cta_group)[:, None], np.arange(n)[None, :]
    if row.size == NUM_LANES:
        return _cells(row, column)
    if row.size != 64:
        raise UnsupportedLayoutError(f"accumulator of {row.size} rows a CTA; expected 64 or 128")
    if cta_group == 1:
        return _cells(row // 16 * LANES_A_WARP + row % 16, column)
    half = n // 2
    return _cells(row + 64 * (column >= half), column % half)


@dataclass(frozen=True, eq=False)
class FactorCells:
    """Where the scale factors of rows lie: a byte of a column each."""

    lanes: Indices
    columns: Indices
    factor_bytes: Indices


@lru_cache(maxsize=256)
def factor_cells(rows: int, num_factors: int, first_byte: int) -> FactorCells:
    """Return where the factors of an operand's rows lie for one instruction, of shape (rows, factors).

    Row r is in lane r % 32 of column r / 32, and again 32, 64 and 96 lanes further: tcgen05.cp with .warpx4 makes the
    copies. Its factors along k are bytes of that column, one after the other from the byte that the instruction
    descriptor names.

    Args:
        rows: rows of A of this CTA, or of B.
        num_factors: factors of a row in one instruction: 4 of NVFP4 (K 64, blocks of 16), 2 of MXFP4 (K 64, blocks of
            32), 1 of MXFP8 (K 32, blocks of 32).
        first_byte: byte of the first.

    Raises:
        UnsupportedLayoutError: the factors would cross a column.
    """
    if first_byte % num_factors or first_byte + num_factors > 4:
        raise UnsupportedLayoutError(
            f"{num_factors} scale factors from byte {first_byte} of a column; expected a multiple of their number"
        )
    r, j = np.arange(rows)[:, None], np.arange(num_factors)[None, :]
    lanes, columns, places = np.broadcast_arrays(r % LANES_A_WARP, r // LANES_A_WARP, first_byte + j)
    return FactorCells(lanes, columns, places)


class LoadShape(Enum):
    """A shape of tcgen05.ld and tcgen05.st: lanes and bits of a lane, repeated along columns."""

    L32_B32 = "32x32b"
    L16_B64 = "16x64b"
    L16_B128 = "16x128b"
    L16_B256 = "16x256b"
    L16_B32X2 = "16x32bx2"

    @property
    def num_lanes(self) -> int:
        """Return the lanes that one instruction of a warp touches."""
        return 32 if self is LoadShape.L32_B32 else 16


_COLUMNS = {
    LoadShape.L32_B32: 1,
    LoadShape.L16_B64: 2,
    LoadShape.L16_B128: 4,
    LoadShape.L16_B256: 8,
    LoadShape.L16_B32X2: 1,
}
"""Columns of 32 bits of one repetition; of .16x32bx2 of each half."""


def num_registers(shape: LoadShape, repeat: int) -> int:
    """Return the registers of a thread that an instruction loads or stores.

    Source: PTX ISA, tcgen05.ld, table of .num.
    """
    if shape is LoadShape.L16_B32X2:  # 16 threads have the first half, 16 the second
        return repeat
    return repeat * _COLUMNS[shape] * shape.num_lanes // 32


@lru_cache(maxsize=256)
def register_cells(shape: LoadShape, repeat: int, half_offset: int = 0) -> Cells:
    """Return where the registers of a warp's threads lie, relative to the address, of shape (registers, 32).

    Args:
        shape: of the instruction.
        repeat: its .num.
        half_offset: columns of .16x32bx2 between what threads 0 to 15 and threads 16 to 31 have: its immediate operand.
    """
    register, thread = np.arange(num_registers(shape, repeat))[:, None], np.arange(32)[None, :]
    if shape is LoadShape.L32_B32:
        return _cells(thread, register)
    if shape is LoadShape.L16_B32X2:
        return _cells(thread % 16, register + half_offset * (thread // 16))
    if shape is LoadShape.L16_B64:  # two threads a row of two columns; odd threads have the lanes from 8 on
        return _cells(thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register)
    if shape is LoadShape.L16_B128:
        return _cells(thread // 4 + 8 * (register % 2), thread % 4 + 4 * (register // 2))
    # 16x256b: the fragment of a 16x8 accumulator of mma.sync.
    column = 2 * (thread % 4) + register % 2 + 8 * (register // 4)
    return _cells(thread // 4 + 8 * (register // 2 % 2), column)
