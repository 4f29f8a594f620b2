"""The order of tiles, from the call to the parameters of kernels: objects of the Hopper families into the recorder."""

from __future__ import annotations

import struct

import pytest

from aot.core.problem import Problem
from aot.core.tile_order import NUM_ORDERS, count_clusters, sequence
from tests.compiling import some
from tests.objects import BF16, BIG, EARLY, EARLY_SPLIT, SMALL, SPLIT, small_manifest
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_real_kernels import A, B, D, launch

CANDIDATES = (BIG, SMALL, SPLIT, EARLY, EARLY_SPLIT)
SIZES = ((8, 8), (304, 520), (1024, 256), (700, 1416))
"""(m, n): one tile, and more tiles along n, along m, and of both more than a group, and not of whole groups."""
ARGUMENT = 1  # AOT_GEMM_ERROR_ARGUMENT
NUM_WORDS = 17
"""Words of quack's scheduler, the last parameters: the clusters, the batch, the direction; the clusters as a divisor;
whole groups; and as divisors the width of a group, of the last, partial group, and the clusters of a group."""


@pytest.fixture(scope="module")
def built():
    return small_manifest("h200")


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("order"), list(objects.values())))


def divide(number, words):
    """Divide as a kernel does, by a multiplier, a shift and the divisor."""
    magic, shift, divisor = words
    quotient = number if magic == 0 else (number * magic >> 32) >> shift
    return quotient, number - quotient * divisor


def walk(parameters):
    """Give the clusters in the order in which a kernel of these parameters takes them.

    Source: quack tile_scheduler.py, `TileScheduler._swizzle_cta`, 0.6.5.
    """
    words = [struct.unpack("<I", x)[0] for x in parameters[-NUM_WORDS:]]
    clusters_m, clusters_n, num_batches, along_n, *_ = words
    assert (num_batches, words[6]) == (1, clusters_m * clusters_n)
    num_groups, width, tail, of_group = words[7], words[8:11], words[11:14], words[14:17]
    for number in range(clusters_m * clusters_n):
        group, place = divide(number, of_group)
        slow, fast = divide(place, width if group < num_groups else tail)
        if group % 2:
            slow = (clusters_m if along_n else clusters_n) - 1 - slow
        fast += group * width[2]
        yield (slow, fast) if along_n else (fast, slow)


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("order", some(range(NUM_ORDERS), 4))
def test_a_kernel_walks_its_tiles_in_the_order_of_the_launch(real, built, candidate, order):
    for m, n in SIZES:
        stated = problem(m, n, 264, data=(A, B, D))
        _, _, parameters = launch(real, *built, candidate, stated, tile_order=order)
        clusters = count_clusters(candidate, Problem(BF16, m, n, 264))
        assert tuple(walk(parameters)) == sequence(order, *clusters)


@pytest.mark.parametrize(
    ("candidate", "order", "count"), [(SMALL, NUM_ORDERS, NUM_ORDERS), (SMALL, -1, NUM_ORDERS), (None, 1, 1)]
)
def test_an_order_that_a_kernel_does_not_take_is_refused(real, built, candidate, order, count):
    manifest, _ = built
    index = next(i for i, x in enumerate(manifest.kernels) if candidate in (None, x.candidate))
    stated = problem(304, 520, 264, data=(A, B, D))
    assert real.launch_kernel(index, stated, tile_order=order) == ARGUMENT
    name = manifest.kernels[index].name
    assert real.error() == f"order of tiles is {order}; kernel {name} takes 0 to {count - 1}"
