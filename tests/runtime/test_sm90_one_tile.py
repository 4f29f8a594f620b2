"""Objects of `sm90_one_tile` through the C API into the recorder: how a CTA finds its tile.

What they launch beside that is what `sm90_cluster_split_k` launches, and is tested with it.
"""

from __future__ import annotations

import struct

import pytest

from tests.runtime.host import Library, compile_library
from tests.runtime.test_cluster_split_k import compile_beside_others, stated
from tests.runtime.test_real_kernels import launch
from tests.runtime.test_sm90_cluster_split_k import ONE_TILES, clusters_of

DIVISOR_WORDS = 3


@pytest.fixture(scope="module")
def built():
    return compile_beside_others(ONE_TILES)


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("one"), list(objects.values())))


@pytest.mark.parametrize("candidate", ONE_TILES)
def test_a_ctas_place_is_found_by_the_clusters_along_the_rows(real, built, candidate):
    """The quotient of all numbers of clusters, as the kernel computes it of what it is given."""
    _, _, parameters = launch(real, *built, candidate, stated())
    magic, shift, divisor = (struct.unpack("<I", x)[0] for x in parameters[-DIVISOR_WORDS:])
    rows, columns = clusters_of(candidate)
    assert divisor == rows
    assert [(x * magic >> 32 >> shift) if magic else x for x in range(rows * columns)] == [
        x // rows for x in range(rows * columns)
    ]
