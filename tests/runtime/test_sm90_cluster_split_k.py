"""Objects of `sm90_cluster_split_k` and `sm90_one_tile` through the C API: grid, cluster, descriptors, early loads."""

from __future__ import annotations

import struct

import pytest

from aot.core.candidate import gemm_candidate
from aot.core.knobs import SplitK
from tests.compiling import EVERY
from tests.equivalence.descriptor import NUM_BYTES, decode
from tests.runtime.host import Library, compile_library, problem
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

SHAPE = 3
"""AOT_GEMM_ERROR_SHAPE."""
PLAIN = {"use_tma_store": False, "split_k_mode": SplitK.CLUSTER}
PAIR = gemm_candidate("sm90_cluster_split_k", 64, 96, split_k=2, **PLAIN)
FOUR = gemm_candidate("sm90_cluster_split_k", 128, 144, split_k=4, **PLAIN)
SWAPPED = gemm_candidate("sm90_cluster_split_k", 128, 64, split_k=4, swap_ab=True, **PLAIN)
TWO_STEPS = gemm_candidate("sm90_cluster_split_k", 256, 128, split_k=2, num_stages=2, swap_ab=True, **PLAIN)
SHARED_COLUMNS = gemm_candidate("sm90_cluster_split_k", 128, 64, 2, 1, split_k=2, **PLAIN)
SHARED_ROWS = gemm_candidate("sm90_cluster_split_k", 128, 96, 1, 2, split_k=2, swap_ab=True, **PLAIN)
ONE_CTA = gemm_candidate("sm90_cluster_split_k", 192, 80, use_tma_store=False)
SHARED_ALONE = gemm_candidate("sm90_cluster_split_k", 64, 144, 2, 1, swap_ab=True, use_tma_store=False)
ONE_TILES = (
    gemm_candidate("sm90_one_tile", 128, 112, swap_ab=True, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 24, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 128, 96, 4, 1, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 104, 4, 1, swap_ab=True, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 192, 80, 1, 2, swap_ab=True, use_tma_store=False),
    gemm_candidate("sm90_one_tile", 64, 128, 2, 4, swap_ab=True, use_tma_store=False),
)
SOME = (PAIR, SWAPPED, TWO_STEPS, SHARED_COLUMNS, SHARED_ROWS, ONE_CTA, *ONE_TILES)
CANDIDATES = (*SOME, FOUR, SHARED_ALONE) if EVERY else SOME


@pytest.fixture(scope="module")
def built():
    return compile_beside_others(CANDIDATES)


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("shared"), list(objects.values())))


def clusters_of(candidate):
    """Count the clusters along a tile's rows, and along its columns."""
    rows, columns = (N, M) if candidate.gemm.swap_ab else (M, N)
    along_rows = -(-rows // (candidate.gemm.tile_m * candidate.gemm.cluster_m))
    return along_rows, -(-columns // (candidate.gemm.tile_n * candidate.gemm.cluster_n))


def check_grid(record, candidate, rows, columns):
    """Ask for a cluster for each place of so many rows and columns; `sm90_one_tile` has idle ones in the last group."""
    num_ctas = candidate.gemm.cluster_m * candidate.gemm.cluster_n * candidate.gemm.split_k
    (x, y, z), count = record.grid, rows * columns * num_ctas
    if candidate.family == "sm90_one_tile":
        assert y in (rows, columns)
        assert count <= x * y * z < count + 8 * y * num_ctas
    else:
        assert (x, y, z) == (count, 1, 1)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_cluster_takes_each_tile(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    num_ctas = candidate.gemm.cluster_m * candidate.gemm.cluster_n * candidate.gemm.split_k
    check_grid(record, candidate, *clusters_of(candidate))
    assert tuple(record.block) == (kernel.num_threads, 1, 1)
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == (num_ctas, 1, 1)
    assert attributes(record)[PROGRAMMATIC][0] == 1


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_shared_memory_is_what_the_family_counts(real, built, candidate):
    kernel, record, _ = launch(real, *built, candidate, stated())
    assert record.smem_bytes <= kernel.smem_bytes <= record.smem_bytes + 1024


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_boxes_are_rows_of_128_bytes_of_a_ctas_part_of_the_tile(real, built, candidate):
    """A part, or all of a side that has no equal parts of 8 for the CTAs that share it."""
    _, _, parameters = launch(real, *built, candidate, stated())
    maps = [decode(x[:NUM_BYTES]) for x in parameters if len(x) == DESCRIPTOR_BYTES]
    sides = (candidate.gemm.tile_m, candidate.gemm.cluster_n), (candidate.gemm.tile_n, candidate.gemm.cluster_m)
    parts = [extent if extent % (8 * sharing) else extent // sharing for extent, sharing in sides]
    rows_a, rows_b = parts[:: -1 if candidate.gemm.swap_ab else 1]
    assert {x.address: (x.extents, x.box, x.swizzle) for x in maps} == {
        A: ((K, M), (64, rows_a), 3),
        B: ((K, N), (64, rows_b), 3),
    }


@pytest.mark.parametrize(("flags", "expected"), [(0, 0), (B_CONSTANT, 1)])
@pytest.mark.parametrize(("candidate", "place"), [(PAIR, -2), (SWAPPED, -2), (ONE_TILES[0], -6), (ONE_TILES[1], -6)])
def test_b_is_prefetched_only_where_it_is_constant(real, built, candidate, place, flags, expected):
    _, _, parameters = launch(real, *built, candidate, stated(flags=flags))
    assert parameters[place] == struct.pack("<i", expected)


def test_a_grid_past_32_bits_is_refused(real, built):
    """Tiles of D, 2^24 by 2^9, of two CTAs each: counted in 32 bits they would be 0, or any number of blocks."""
    manifest, _ = built
    (index,) = [i for i, x in enumerate(manifest.kernels) if x.candidate == PAIR]
    m, n = 64 * 2**24, 96 * 2**9
    wide = problem(m, n, 8, data=(1 << 50, 1 << 51, 1 << 40))  # D takes 2^47 bytes
    real.c.recorder_reset()
    assert real.launch_kernel(index, wide, 0, 0, 0) == SHAPE
    assert f"{2**32 - 1} x 1 x 1 blocks for m {m} n {n}; CUDA launches at most" in real.error()
    assert real.real_launches() == []
