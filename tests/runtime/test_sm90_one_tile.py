"""Objects of `sm90_one_tile` through the C API into the recorder: grid, cluster, descriptors, prefetch of B."""

from __future__ import annotations

import struct

import pytest

from aot.core.candidate import Candidate
from tests.equivalence.descriptor import NUM_BYTES, decode
from tests.runtime.host import Library, compile_library
from tests.runtime.test_cluster_split_k import K, M, N, compile_beside_others, stated
from tests.runtime.test_real_kernels import (
    B_CONSTANT,
    CLUSTER,
    DESCRIPTOR_BYTES,
    PROGRAMMATIC,
    A,
    B,
    attributes,
    launch,
)

ALONE = Candidate("sm90_one_tile", 128, 112, swap_ab=True, use_tma_store=False)
NARROW = Candidate("sm90_one_tile", 64, 24, use_tma_store=False)
SHARED_COLUMNS = Candidate("sm90_one_tile", 128, 96, 4, 1, use_tma_store=False)
SHARED_ROWS = Candidate("sm90_one_tile", 192, 80, 1, 2, swap_ab=True, use_tma_store=False)
CANDIDATES = (ALONE, NARROW, SHARED_COLUMNS, SHARED_ROWS)
DIVISOR_WORDS = 3


@pytest.fixture(scope="module")
def built():
    return compile_beside_others(CANDIDATES)


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("one"), list(objects.values())))


def clusters_of(candidate):
    rows, columns = (N, M) if candidate.swap_ab else (M, N)
    return (
        -(-rows // (candidate.tile_m * candidate.cluster_m)),
        -(-columns // (candidate.tile_n * candidate.cluster_n)),
    )


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_cta_takes_each_tile(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    rows, columns = clusters_of(candidate)
    num_ctas = candidate.cluster_m * candidate.cluster_n
    assert tuple(record.grid) == (rows * columns * num_ctas, 1, 1)
    assert tuple(record.block) == (kernel.num_threads, 1, 1)
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == (num_ctas, 1, 1)
    assert attributes(record)[PROGRAMMATIC][0] == 1


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_shared_memory_is_what_the_family_counts(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    assert record.smem_bytes <= kernel.smem_bytes <= record.smem_bytes + 1024


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_boxes_are_rows_of_128_bytes_of_a_ctas_part_of_the_tile(real, built, candidate):
    _, _, parameters = launch(real, *built, candidate, stated())
    maps = [decode(x[:NUM_BYTES]) for x in parameters if len(x) == DESCRIPTOR_BYTES]
    parts = candidate.tile_m // candidate.cluster_n, candidate.tile_n // candidate.cluster_m
    rows_a, rows_b = parts[:: -1 if candidate.swap_ab else 1]
    assert {x.address: (x.extents, x.box, x.swizzle) for x in maps} == {
        A: ((K, M), (64, rows_a), 3),
        B: ((K, N), (64, rows_b), 3),
    }


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_ctas_place_is_found_by_the_clusters_along_the_rows(real, built, candidate):
    """The quotient of all numbers of clusters, as the kernel computes it of what it is given."""
    _, _, parameters = launch(real, *built, candidate, stated())
    magic, shift, divisor = (struct.unpack("<I", x)[0] for x in parameters[-DIVISOR_WORDS:])
    rows, columns = clusters_of(candidate)
    assert divisor == rows
    assert [(x * magic >> 32 >> shift) if magic else x for x in range(rows * columns)] == [
        x // rows for x in range(rows * columns)
    ]


@pytest.mark.parametrize(("flags", "expected"), [(0, 0), (B_CONSTANT, 1)])
@pytest.mark.parametrize("candidate", [ALONE, NARROW])
def test_b_is_prefetched_only_where_it_is_constant(real, built, candidate, flags, expected):
    _, _, parameters = launch(real, *built, candidate, stated(flags=flags))
    assert parameters[-DIVISOR_WORDS - 1] == struct.pack("<i", expected)
