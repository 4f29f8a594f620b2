"""Our own kernel for few rows of x: clusters all along x, D's tiles of m first; stored without TMA."""

from __future__ import annotations

import struct
from math import ceil

from tests.equivalence.expected import Expected, attributes, ints, product_of
from tests.equivalence.next_start import AT_ONCE

BLOCK_K = 64
"""Elements of k that a box brings: 128 bytes."""
WARPS = {"warps8": 8, "warps4": 4}


def launch(kernel, case, num_sms):
    del num_sms
    candidate = kernel.candidate
    # It computes the transpose, so that X is the weight; its descriptors come in the problem's order.
    product = product_of(kernel, case)
    weight, rows_of_x, d = product.x, product.y, product.z.transposed
    cluster, rows, columns = (
        candidate.gemm.cluster_m,
        candidate.gemm.tile_m * candidate.gemm.cluster_m,
        candidate.gemm.tile_n,
    )
    # Every problem is stated with a constant B, which holds for the kernel's B where the two are not exchanged.
    is_stated = case.n == 1 or case.d.strides[1] == 1
    num_tiles = ceil(d.rows / columns) * ceil(d.columns / rows)
    return Expected(
        (num_tiles * cluster, 1, 1),
        (32 * WARPS[candidate.gemm.schedule], 1, 1),
        case.stream,
        attributes(cluster=(cluster, 1), programmatic=1),
        (
            rows_of_x.tensor_map(product.dtype, (BLOCK_K, columns)),
            rows_of_x.shape,
            weight.tensor_map(product.dtype, (BLOCK_K, rows)),
            weight.shape,
            struct.pack("<Q2iq", d.address, d.rows, d.columns, d.leading),
            *ints(is_stated, AT_ONCE),
        ),
    )
