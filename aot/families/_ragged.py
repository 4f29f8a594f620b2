"""Tiles whose columns are no multiple of what the epilogue stores at once. Imports neither CUDA nor CUTLASS.

quack's Hopper GEMM takes tile_n in steps of 16. wgmma and the k-major stages in shared memory take steps of 8 (PTX ISA,
wgmma: n in steps of 8; 128-byte swizzling repeats after 8 rows), and steps of 8 fit the waves of more problems. What
does not fit is the epilogue: it stores pieces of 32 or 16 columns, 16 at the fewest for each warpgroup, since a thread
stores four 8x8 matrices at once. Where the tile has a rest, the last piece starts earlier, so that it ends where the
tile ends. The columns that two pieces share are stored twice, with equal values.
"""

from __future__ import annotations

STEP = 8
"""Columns in which a tile can grow. Source: PTX ISA, wgmma.mma_async: n is a multiple of 8."""

MATRIX_COLUMNS = 16
"""Columns that a warpgroup stores at once: stmatrix .x4 moves four matrices of 8x8. Source: PTX ISA, stmatrix."""

PIECE_COLUMNS = 32
"""Columns of the pieces of a ragged tile: 64 bytes of a 16-bit D, as quack stores wherever they fit."""


def is_ragged(tile_n: int, warpgroup_columns: int) -> bool:
    """Say whether the last piece of a tile shares columns with the one before it, or is narrower than quack's.

    Args:
        tile_n: columns of the tile.
        warpgroup_columns: warpgroups that share the tile's columns.
    """
    return tile_n % (MATRIX_COLUMNS * warpgroup_columns) != 0


def piece_columns(tile_n: int) -> int:
    """Return the columns of a ragged tile's pieces: `PIECE_COLUMNS` unless the tile has fewer."""
    return next(columns for columns in (PIECE_COLUMNS, MATRIX_COLUMNS, STEP) if columns <= tile_n)


def piece_starts(tile_n: int) -> tuple[int, ...]:
    """List the first columns of a ragged tile's pieces, ascending."""
    columns = piece_columns(tile_n)
    return tuple(min(start, tile_n - columns) for start in range(0, tile_n, columns))
