"""Source: `GemmSm100`, `TileScheduler` and `FastDivmod` of quack."""

from __future__ import annotations

from math import ceil

from tests.equivalence.expected import Expected, attributes, ints, product_of
from tests.equivalence.tiles import Tile

THREADS = 256
MAX_GROUP = 8
"""Clusters that are neighbours in the order of tiles."""


def _divisor(divisor):
    """Give multiplier, shift and divisor: exact for numbers below 2^31; a multiplier of 0 stands for a divisor of 1."""
    shift = max((divisor - 1).bit_length() - 1, 0)
    return ints(-(-(1 << (32 + shift)) // divisor) & 0xFFFFFFFF, shift, divisor)


def _walk(order, clusters):
    """Return whether groups of clusters are along n, and their width: orders 1 to 8 are 1, 2, 4, 8 along m, then n."""
    if order:
        return order > 4, 2 ** ((order - 1) % 4)
    groups = [ceil(x / MAX_GROUP) for x in clusters]
    return groups[1] <= groups[0], MAX_GROUP


def launch(kernel, case, num_sms):
    product, tile = product_of(kernel, case), Tile.of(kernel.candidate)
    clusters, (cluster_m, cluster_n) = tile.clusters(product.z), tile.cluster
    num_clusters = clusters[0] * clusters[1]
    along_n, width = _walk(case.tile_order, clusters)
    fast, slow = clusters[::-1] if along_n else clusters
    group = min(width, fast)
    schedule = (
        *ints(*clusters, 1, along_n),
        *_divisor(num_clusters),
        *ints(fast // group),
        *_divisor(group),
        *_divisor(fast % group or 1),
        *_divisor(group * slow),
    )
    if kernel.candidate.schedule == "clc":
        grid = num_clusters * cluster_m, cluster_n, 1
    else:
        grid = cluster_m, cluster_n, min(num_clusters, num_sms // (cluster_m * cluster_n))
    return Expected(
        grid,
        (THREADS, 1, 1),
        case.stream,
        attributes(cluster=tile.cluster, programmatic=1),
        (tile.mma, *tile.load_parameters(product), *tile.store_parameters(product), *schedule),
    )
