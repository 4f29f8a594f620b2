"""Our own kernel for operands of any alignment: a CTA or a cluster for each tile, all along x; plain tensors."""

from __future__ import annotations

import struct
from math import ceil

from tests.equivalence.expected import Expected, attributes, product_of

WARPS = {
    (16, 16, 4): 4,
    (16, 128, 1): 4,
    (32, 32, 4): 4,
    (32, 64, 2): 4,
    (32, 128, 1): 4,
    (64, 32, 2): 4,
    (64, 64, 1): 4,
    (128, 32, 1): 4,
    (64, 80, 1): 4,
    (128, 80, 1): 4,
    (64, 96, 1): 6,
    (128, 96, 1): 6,
    (64, 96, 2): 12,
    (128, 96, 2): 12,
    (256, 96, 1): 12,
}
"""Of a CTA, by (tile_m, tile_n, warps along k); 8 where it is not said."""


def launch(kernel, case, num_sms):
    del num_sms
    candidate, product = kernel.candidate, product_of(kernel, case)
    along_k, splits = int(candidate.gemm.schedule.partition("k")[2]), candidate.gemm.split_k
    tiles = ceil(product.z.rows / candidate.gemm.tile_m) * ceil(product.z.columns / candidate.gemm.tile_n)
    operands = (product.x, product.y, product.z)
    return Expected(
        (tiles * splits, 1, 1),
        (32 * WARPS.get((candidate.gemm.tile_m, candidate.gemm.tile_n, along_k), 8), 1, 1),
        case.stream,
        attributes(cluster=(splits, 1) if splits > 1 else None, programmatic=1),
        tuple(struct.pack("<Q2iq", x.address, x.rows, x.columns, x.leading) for x in operands),
    )
