"""Objects of `sm90_stream_k` through the C API into the recorder: grid, the split of the tail, flags, workspace."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from aot.core.candidate import KernelKey, gemm_candidate, tail_splits
from aot.core.target import load_target
from tests.compiling import EVERY, compile_kernels
from tests.golden.manifest import as_compiled, round_trip
from tests.objects import BF16, small_manifest
from tests.runtime.host import Library, compile_library, problem
from tests.runtime.test_real_kernels import (
    CLUSTER,
    PROGRAMMATIC,
    STREAM,
    WORKSPACE,
    A,
    B,
    D,
    attributes,
    descriptors,
    launch,
)

FOUR = gemm_candidate("sm90_stream_k", 128, 128, schedule="cooperative", split_k=4, split_k_mode="tail")
EIGHT = gemm_candidate("sm90_stream_k", 64, 128, 1, 2, "pingpong", swap_ab=True, split_k=8, split_k_mode="tail")
CANDIDATES = (FOUR, EIGHT) if EVERY else (EIGHT,)
SIZES = (
    (8, 8),  # one tile
    (1280, 1024),  # FOUR: two waves of thirds; EIGHT: a whole wave and quarters
    (19200, 128),  # a whole wave and 18 tiles
    (2304, 1536),
    (1000, 2000),  # a tail that is not split
    (4224, 512),  # no tail
)
"""(m, n) of which each has another tail."""


@pytest.fixture(scope="module")
def built():
    """Compile the candidates; gives a manifest that has them after other kernels, and all objects by name."""
    keys = [KernelKey(BF16, x) for x in CANDIDATES]
    artifacts = compile_kernels(keys, load_target("h200"))
    manifest, objects = small_manifest("h200")
    manifest = replace(manifest, kernels=(*manifest.kernels, *as_compiled(x.kernel for x in artifacts)))
    return round_trip(manifest), objects | {x.kernel.name: x.path for x in artifacts}


@pytest.fixture(scope="module")
def real(built, tmp_path_factory):
    manifest, objects = built
    return Library(compile_library(manifest, tmp_path_factory.mktemp("tail"), list(objects.values())))


def tail_of(candidate, m, n):
    """Give (tiles of whole waves, tiles left over, splits of each), in clusters."""
    rows, columns = (n, m) if candidate.gemm.swap_ab else (m, n)
    tiles = -(-rows // (candidate.gemm.tile_m * candidate.gemm.cluster_m)) * -(
        -columns // (candidate.gemm.tile_n * candidate.gemm.cluster_n)
    )
    clusters = 132 // (candidate.gemm.cluster_m * candidate.gemm.cluster_n)
    return tiles - tiles % clusters, tiles % clusters, tail_splits(tiles % clusters, clusters, candidate.gemm.split_k)


def launch_tail(real, built, candidate, size):
    """Launch one kernel, behind the one that clears the flags of a tail that is split; gives what `launch` does."""
    *_, splits = tail_of(candidate, *size)
    return launch(real, *built, candidate, problem(*size, 264, data=(A, B, D)), num_before=int(splits > 1))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("size", SIZES)
def test_the_grid_has_a_cluster_for_each_item_up_to_a_wave(real, built, candidate, size):
    kernel, record, parameters = launch_tail(real, built, candidate, size)
    whole, tail, splits = tail_of(candidate, *size)
    cluster = candidate.gemm.cluster_m * candidate.gemm.cluster_n
    assert tuple(record.grid) == (
        candidate.gemm.cluster_m,
        candidate.gemm.cluster_n,
        min(whole + tail * splits, 132 // cluster),
    )
    assert tuple(record.block) == (kernel.num_threads, 1, 1)
    assert attributes(record).get(CLUSTER, (1, 1, 1)) == (candidate.gemm.cluster_m, candidate.gemm.cluster_n, 1)
    assert attributes(record)[PROGRAMMATIC][0] == 1
    assert {A, B, D} <= set(descriptors(parameters))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("size", SIZES)
def test_the_kernel_is_told_of_whole_waves_and_of_splits(real, built, candidate, size):
    _, _, parameters = launch_tail(real, built, candidate, size)
    whole, _, splits = tail_of(candidate, *size)
    # The last parameters are the scheduler's, and of these the last `num_whole`, and `splits` with the numbers that
    # divide by it.
    num_whole, divisor = (struct.unpack("<i", parameters[i])[0] for i in (-4, -1))
    assert (num_whole, divisor) == (whole, splits)


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("size", SIZES)
def test_a_warp_clears_the_flags_where_a_tail_is_split_and_regions_lie_behind_them(real, built, candidate, size):
    _, record, parameters = launch_tail(real, built, candidate, size)
    *_, splits = tail_of(candidate, *size)
    assert real.clears() == []
    before = real.real_launches()[:-1]
    assert len(before) == int(splits > 1)
    for clear in before:
        assert (tuple(clear.grid), tuple(clear.block)) == ((1, 1, 1), (32, 1, 1))
        assert attributes(clear)[PROGRAMMATIC][0] == 1
        assert clear.stream == record.stream == STREAM
        flag_bytes = 132 * 4
        assert parameters[7:9] == [struct.pack("<q", WORKSPACE), struct.pack("<q", WORKSPACE + flag_bytes)]
