"""When kernels let the next one start: what the recorder finds of it among a launch's parameters."""

from __future__ import annotations

import struct

import pytest

from aot.core.candidate import gemm_candidate
from aot.core.knobs import SplitK
from aot.core.target import load_target
from tests.equivalence.next_start import AFTER_LOADS, AT_ONCE, UNLESS_EARLY, when
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_cluster_split_k import compile_beside_others
from tests.runtime.test_real_kernels import B_CONSTANT, A, B, D, launch

ONE_TILE = gemm_candidate("sm90_one_tile", 64, 64, use_tma_store=False)
FOUR = gemm_candidate("sm90_cluster_split_k", 64, 64, split_k=4, split_k_mode=SplitK.CLUSTER, use_tma_store=False)
PERSISTENT = gemm_candidate("sm90_prefetch_b", 64, 48, schedule="cooperative")
NUM_SMS, HELD_BY_FOURS = 132, 120
"""CTAs that an H200 holds: any, and of clusters of four."""


@pytest.fixture(scope="module")
def built():
    return compile_beside_others([ONE_TILE, FOUR, PERSISTENT])


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("next"), list(objects.values())))


def told(real, built, candidate, tiles, k, flags):
    """Launch a row of tiles and return when the next kernel may start: the parameter behind that of `prefetch_b`."""
    stated = problem(8, tiles * candidate.gemm.tile_n, k, data=(A, B, D), flags=flags)
    _, _, other = launch(
        real, *built, candidate, problem(8, tiles * candidate.gemm.tile_n, k, data=(A, B, D), flags=1 - flags)
    )
    _, _, parameters = launch(real, *built, candidate, stated)
    size = struct.calcsize("<i")
    (place,) = [
        i
        for i, (mine, others) in enumerate(zip(parameters, other, strict=True))
        if len(mine) == size
        and {mine, others} == {struct.pack("<i", 0), struct.pack("<i", B_CONSTANT)}
        and mine == struct.pack("<i", flags)
    ][:1]
    return struct.unpack("<i", parameters[place + 1])[0]


def expected(candidate, tiles, k, flags):
    return when(
        tiles * candidate.gemm.split_k,
        HELD_BY_FOURS if candidate is FOUR else NUM_SMS,
        2 * k * (8 + tiles * candidate.gemm.tile_n),
        round(load_target("h200").bandwidth_bytes_per_s / 1e6),
        is_constant=flags != 0,
        is_large_cluster=candidate is FOUR,
    )


CASES = [
    (ONE_TILE, 40, 4096),  # both kernels fit the device together
    (ONE_TILE, 80, 1024),  # crowded, but short
    (ONE_TILE, 80, 4096),
    (ONE_TILE, 100, 14336),
    (ONE_TILE, 125, 14336),  # nearly all of the device
    (FOUR, 10, 4096),
    (FOUR, 16, 1024),
    (FOUR, 16, 14336),
    (PERSISTENT, 80, 14336),
    (PERSISTENT, 132, 14336),
    (PERSISTENT, 211, 1024),
    (PERSISTENT, 211, 14336),  # a wave and six tenths
    (PERSISTENT, 1000, 4096),
]


@pytest.mark.parametrize("flags", [0, B_CONSTANT])
@pytest.mark.parametrize(("candidate", "tiles", "k"), CASES)
def test_the_next_kernel_starts_early_where_its_ctas_do_not_crowd(real, built, candidate, tiles, k, flags):
    assert told(real, built, candidate, tiles, k, flags) == expected(candidate, tiles, k, flags)


def test_the_cases_have_all_answers():
    found = {expected(*case, flags) for case in CASES for flags in (0, B_CONSTANT)}
    assert found == {AT_ONCE, AFTER_LOADS, UNLESS_EARLY}
