"""Source: `PersistentDenseGemmKernel` of nvidia-cutlass-operators and the two tile schedulers of CuTe DSL."""

from __future__ import annotations

import struct

from tests.equivalence.expected import Expected, attributes, ints, product_of
from tests.equivalence.tiles import Tile

THREADS = {"static": 192, "clc": 224}


def _divisor(divisor):
    """Give what a number is divided by without a division (Granlund and Montgomery, 1994, figure 4.1)."""
    bits = (divisor - 1).bit_length()
    multiplier = (1 << 32) * ((1 << bits) - divisor) // divisor + 1
    return struct.pack("<IIBB", divisor, multiplier, min(bits, 1), max(bits - 1, 0))


def launch(kernel, case, num_sms):
    product, tile = product_of(kernel, case), Tile.of(kernel.candidate)
    clusters, (cluster_m, cluster_n) = tile.clusters(product.z), tile.cluster
    schedule = ints(*tile.tiles(product.z))
    if kernel.candidate.gemm.schedule == "clc":
        grid = clusters[0] * cluster_m, clusters[1] * cluster_n, 1
    else:
        schedule = (*schedule, *(_divisor(x) for x in clusters))
        grid = cluster_m, cluster_n, min(clusters[0] * clusters[1], num_sms // (cluster_m * cluster_n))
    # The schedule comes twice: once for clusters of another size, which these kernels do not use.
    return Expected(
        grid,
        (THREADS[kernel.candidate.gemm.schedule], 1, 1),
        case.stream,
        attributes(cluster=tile.cluster),
        (tile.mma, *tile.load_parameters(product), *tile.store_parameters(product), *schedule, *schedule),
    )
