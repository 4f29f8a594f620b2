"""How the tcgen05 kernels cut a product into tiles, and tiles into the boxes that TMA moves.

Sources: PTX ISA, tcgen05.mma (two CTAs to an instruction each hold half of M and N), cp.async.bulk.tensor (multicast:
each CTA of a row or column of the cluster loads its share for all); CuTe DSL, `compute_epilogue_tile_shape`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tests.equivalence.expected import STEP, SWIZZLES

K_ELEMENTS = 64
"""Elements of k in a row of shared memory: 128 bytes, the widest swizzle."""
EPILOGUE_ELEMENTS = 4096
LANES_A_WARP = 32
"""Rows of the accumulator that a warp of the epilogue can read."""
TILED_MMA_BYTES = 32
"""Bytes for each CTA of an instruction; all zero: a tiled MMA is types only."""


def _swizzled_row(elements):
    """Give the widest swizzled row that an extent is made of."""
    return next(x for x in SWIZZLES if elements % x == 0)


def _load_box(matrix, rows, num_ctas):
    """Give the box by which one CTA loads its share of `rows` of an operand that `num_ctas` CTAs multicast."""
    if matrix.row_major:
        return K_ELEMENTS, rows // num_ctas
    return _swizzled_row(rows), K_ELEMENTS // num_ctas


def _store_box(matrix, rows, columns, warps_m):
    """Give the box by which an epilogue of four warps, `warps_m` of them along M, stores a CTA's tile in pieces."""
    warps_n = 4 // warps_m
    piece_m = min(rows, LANES_A_WARP * warps_m)
    piece_n = EPILOGUE_ELEMENTS // piece_m
    while columns % piece_n:
        piece_n //= 2
    piece_n = min(columns, max(piece_n, STEP * warps_n))
    if piece_n < columns:
        piece_n //= warps_n  # the warps' shares then lie apart, each in its part of the tile
    inner, outer = (piece_n, piece_m) if matrix.row_major else (piece_m, piece_n)
    return _swizzled_row(inner), outer


@dataclass(frozen=True)
class Tile:
    """A CTA's tile of Z, and its cluster."""

    rows: int
    columns: int
    cluster: tuple[int, int]
    pair: int
    """CTAs to an instruction."""

    @staticmethod
    def of(candidate):
        pair = 2 if candidate.gemm.use_2cta else 1
        cluster = candidate.gemm.cluster_m, candidate.gemm.cluster_n
        return Tile(candidate.gemm.tile_m // pair, candidate.gemm.tile_n, cluster, pair)

    @property
    def mma(self):
        """Give the parameter that the tiled MMA is."""
        return bytes(TILED_MMA_BYTES * self.pair)

    def tiles(self, matrix):
        return ceil(matrix.rows / self.rows), ceil(matrix.columns / self.columns)

    def clusters(self, matrix):
        return tuple(ceil(x / size) for x, size in zip(self.tiles(matrix), self.cluster, strict=True))

    def load_parameters(self, product):
        """Give the descriptors of X and Y, each with its shape."""
        x = product.x.tensor_map(product.dtype, _load_box(product.x, self.rows, self.cluster[1]))
        box = _load_box(product.y, self.columns // self.pair, self.cluster[0] // self.pair)
        return x, product.x.shape, product.y.tensor_map(product.dtype, box), product.y.shape

    def store_parameters(self, product):
        """Give the descriptor of Z and its shape."""
        warps_m = 2 if self.pair == 2 and self.rows == 2 * LANES_A_WARP else 4
        box = _store_box(product.z, self.rows, self.columns, warps_m)
        return product.z.tensor_map(product.dtype, box), product.z.shape
