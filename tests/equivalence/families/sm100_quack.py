"""Source: `GemmSm100`, `TileScheduler` and `FastDivmod` of quack."""

from __future__ import annotations

from math import ceil

from tests.equivalence.expected import Expected, attributes, ints, product_of
from tests.equivalence.tiles import Tile

THREADS = 256
MAX_GROUP = 8
"""Clusters that are neighbours in the order of tiles."""


def divisor(divisor):
    """Give multiplier, shift and divisor: exact for numbers below 2^31; a multiplier of 0 stands for a divisor of 1."""
    shift = max((divisor - 1).bit_length() - 1, 0)
    return ints(-(-(1 << (32 + shift)) // divisor) & 0xFFFFFFFF, shift, divisor)


def num_in_group(clusters):
    """Give how many clusters are neighbours in the order of tiles, of so many along the faster side."""
    return min(MAX_GROUP, clusters)


def walk(order, clusters):
    """Return whether groups of clusters are along n, and their width: orders 1 to 8 are 1, 2, 4, 8 along m, then n."""
    if order:
        return order > 4, 2 ** ((order - 1) % 4)
    groups = [ceil(x / MAX_GROUP) for x in clusters]
    return groups[1] <= groups[0], MAX_GROUP


def schedule(clusters, num_products=1, tile_order=0):
    """Give the parameters by which quack numbers the tiles, of so many clusters along M and N."""
    along_n, width = walk(tile_order, clusters)
    fast, slow = clusters[::-1] if along_n else clusters
    group = min(width, fast)
    return (
        *ints(*clusters, num_products, along_n),
        *divisor(clusters[0] * clusters[1]),
        *ints(fast // group),
        *divisor(group),
        *divisor(fast % group or 1),
        *divisor(group * slow),
    )


def launch(kernel, case, num_sms):
    product, tile = product_of(kernel, case), Tile.of(kernel.candidate)
    clusters, (cluster_m, cluster_n) = tile.clusters(product.z), tile.cluster
    num_clusters = clusters[0] * clusters[1]
    if kernel.candidate.gemm.schedule == "clc":
        grid = num_clusters * cluster_m, cluster_n, 1
    else:
        grid = cluster_m, cluster_n, min(num_clusters, num_sms // (cluster_m * cluster_n))
    return Expected(
        grid,
        (THREADS, 1, 1),
        case.stream,
        attributes(cluster=tile.cluster, programmatic=1),
        (
            tile.mma,
            *tile.load_parameters(product),
            *tile.store_parameters(product),
            *schedule(clusters, tile_order=case.tile_order),
        ),
    )
