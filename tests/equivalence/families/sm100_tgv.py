"""Source: `TgvGemmKernel` of nvidia-cutlass-operators: one tile a CTA, stored without TMA."""

from __future__ import annotations

import struct

from tests.equivalence.expected import Expected, attributes, product_of
from tests.equivalence.tiles import Tile

THREADS = 256


def launch(kernel, case, num_sms):
    del num_sms
    product, tile = product_of(kernel, case), Tile.of(kernel.candidate)
    z = product.z
    return Expected(
        (*tile.tiles(z), 1),
        (THREADS, 1, 1),
        case.stream,
        attributes(cluster=tile.cluster),
        (tile.mma, *tile.load_parameters(product), struct.pack("<Q2iq", z.address, z.rows, z.columns, z.leading)),
    )
