"""Objects of `sm90_one_tile` through the C API into the recorder: the order of tiles.

What they launch beside that is what `sm90_cluster_split_k` launches, and is tested with it.
"""

from __future__ import annotations

import struct

import pytest

from aot.core.problem import Problem
from aot.core.tile_order import NUM_ORDERS, count_clusters, sequence
from tests.compiling import some
from tests.objects import BF16
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_cluster_split_k import compile_beside_others
from tests.runtime.test_real_kernels import A, B, D, launch
from tests.runtime.test_sm90_cluster_split_k import ONE_TILES
from tests.runtime.test_tile_order import SIZES, divide


@pytest.fixture(scope="module")
def built():
    return compile_beside_others(ONE_TILES)


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("one"), list(objects.values())))


def walk(record, parameters, num_ctas):
    """Give the clusters in the order in which the device starts them, along x, then y, then z; None for one without."""
    along_columns, *last = (struct.unpack("<I", x)[0] for x in parameters[-4:])
    width, steps, groups = record.grid[0] // num_ctas, record.grid[1], record.grid[2]
    for z in range(groups):
        for y in range(steps):
            for x in range(width):
                step, place = divide(y * width + x, last) if z == groups - 1 and last[2] != width else (y, x)
                place += z * width
                if step >= steps:
                    yield None
                    continue
                step = step if z % 2 == 0 else steps - 1 - step
                yield (step, place) if along_columns else (place, step)


@pytest.mark.parametrize("candidate", ONE_TILES)
@pytest.mark.parametrize("order", some(range(NUM_ORDERS), 3))
def test_the_device_starts_the_tiles_in_the_order_of_the_launch(real, built, candidate, order):
    for m, n in SIZES:
        _, record, parameters = launch(real, *built, candidate, problem(m, n, 264, data=(A, B, D)), tile_order=order)
        clusters = count_clusters(candidate, Problem(BF16, m, n, 264))
        found = list(walk(record, parameters, candidate.gemm.cluster_m * candidate.gemm.cluster_n))
        expected = sequence(order, *clusters)
        # Those without a tile come last: between the others they take places that a wave of few tiles then waits for.
        assert found == [*expected, *[None] * (len(found) - len(expected))]


@pytest.mark.parametrize("order", [0, 1, 5])
@pytest.mark.parametrize(("m", "n"), [(24 * 70_000, 200), (200, 64 * 70_000)])
def test_more_steps_than_y_takes_lie_along_x(real, built, order, m, n):
    """Blocks along y and z end at 65,535."""
    candidate = ONE_TILES[1]
    stated = problem(m, n, 8, data=(1 << 50, 1 << 51, 1 << 40))
    _, record, parameters = launch(real, *built, candidate, stated, tile_order=order)
    along_columns, *_, last = (struct.unpack("<I", x)[0] for x in parameters[-4:])
    clusters = count_clusters(candidate, Problem(BF16, m, n, 8))
    width, steps, groups = record.grid
    assert max(steps, groups) <= 65535
    assert width * (groups - 1) + last == clusters[along_columns]
    assert steps == clusters[1 - along_columns]
