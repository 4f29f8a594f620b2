from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Reason, Workspace
from aot.core.element import ElementType
from aot.core.epilogue import Epilogue
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families._sm90_split_tile import Tile
from aot.families.sm90_cluster_split_k import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
NAME = "sm90_cluster_split_k_128x128_c1x1_direct_cluster2"
TILE = named(NAME, "h200")
COMBINATION = "sm90_cluster_split_k splits k over the CTAs of a cluster and stores without TMA"
CLUSTERS = "expected 1x1 in 2, 1x1 in 4, 2x1 in 2, 1x2 in 2"


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        # 6 stages of 256 rows of 128 bytes; half of 128 by 128 floats from the other CTA; 13 barriers, rounded.
        (NAME, 6 * 256 * 128 + 64 * 128 * 4 + 112, 6, 320),
        # 13 stages of 128 rows; half of 64 by 64 floats; 27 barriers.
        ("sm90_cluster_split_k_64x64_c1x1_direct_cluster2_swap", 13 * 128 * 128 + 32 * 64 * 4 + 224, 13, 192),
        # 4 stages of 272 rows; 5 of 18 groups of 8 columns from each of three CTAs; 9 barriers.
        ("sm90_cluster_split_k_128x144_c1x1_direct_cluster4", 4 * 272 * 128 + 3 * 128 * 40 * 4 + 80, 4, 320),
        # 4 stages of 320 rows; a quarter of 64 by 256 floats from each of three CTAs.
        ("sm90_cluster_split_k_64x256_c1x1_direct_cluster4", 4 * 320 * 128 + 3 * 64 * 64 * 4 + 80, 4, 192),
    ],
)
def test_resources(name, smem_bytes, stages, threads):
    assert resources(name, "h200") == (smem_bytes, stages, threads, 0)


def test_stages_fill_the_shared_memory():
    for candidate in FAMILY.candidates(BF16, H200):
        if isinstance(check(candidate, BF16, H200), Accepted):
            used = FAMILY.resources(candidate, BF16, H200)
            assert used.smem_bytes <= H200.smem_bytes_per_block < used.smem_bytes + used.stage_bytes + 16
            fewer = FAMILY.resources(replace(candidate, num_stages=2), BF16, H200)
            assert (fewer.num_stages, used.smem_bytes - fewer.smem_bytes) == (
                2,
                (used.num_stages - 2) * (used.stage_bytes + 16),
            )


@pytest.mark.parametrize(
    ("columns", "cluster", "shares"),
    [(128, 2, [8, 8]), (144, 4, [5, 5, 5, 3]), (80, 4, [3, 3, 3, 1]), (16, 2, [1, 1]), (48, 4, [2, 2, 2, 0])],
)
def test_each_cta_stores_whole_groups_of_columns(columns, cluster, shares):
    tile = Tile(64, columns, cluster, 1, 2)
    assert [min(tile.share, tile.num_groups - tile.share * x) for x in range(cluster)] == shares
    legal = check(replace(TILE, tile_n=columns, split_k=cluster), BF16, H200)
    assert isinstance(legal, Accepted) == (0 not in shares)


def test_registers_of_all_threads_fit_an_sm():
    """A thread has its sums, what is its own to store, and at least 16 addresses, within its share of 65,536."""
    found = [x for x in FAMILY.candidates(BF16, H200) if isinstance(check(x, BF16, H200), Accepted)]
    assert len(found) == 400
    for candidate in found:
        threads = FAMILY.resources(candidate, BF16, H200).num_threads
        accumulators = candidate.tile_m * candidate.tile_n // (threads - 64)
        assert accumulators + 16 <= min(65536 // threads, 255)


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"tile_m": 96},
            Reason.TILE,
            "a tile has 64, 128, 192, 256 rows and up to 256 columns in steps of 8, got 96x128",
        ),
        (
            {"tile_n": 100},
            Reason.TILE,
            "a tile has 64, 128, 192, 256 rows and up to 256 columns in steps of 8, got 128x100",
        ),
        (
            {"tile_n": 16, "split_k": 4},
            Reason.TILE,
            "128x16: 2 groups of 8 columns leave one of 4 CTAs none to store",
        ),
        (
            {"tile_m": 256, "tile_n": 136},
            Reason.REGISTERS,
            "256x136 needs 136 accumulator registers a thread; 128 fit",
        ),
        ({"tile_m": 192, "tile_n": 200}, Reason.REGISTERS, "192x200 needs 100 accumulator registers a thread; 96 fit"),
        ({"num_stages": 1}, Reason.COMBINATION, "1 stages, expected 0 for as many as fit or at least 2"),
        ({"split_k": 3}, Reason.CLUSTER, f"1x1 tiles whose k is split in 3 are not a cluster; {CLUSTERS}"),
        ({"split_k": 16}, Reason.CLUSTER, f"1x1 tiles whose k is split in 16 are not a cluster; {CLUSTERS}"),
        ({"split_k": 1, "split_k_mode": "none"}, Reason.COMBINATION, COMBINATION),
        ({"split_k_mode": "serial"}, Reason.COMBINATION, COMBINATION),
        (
            {"cluster_m": 2, "split_k": 8},
            Reason.CLUSTER,
            f"2x1 tiles whose k is split in 8 are not a cluster; {CLUSTERS}",
        ),
        (
            {"cluster_m": 2, "tile_n": 136},
            Reason.TILE,
            "128x136: 2 tiles cannot share a load in parts of whole groups of 8",
        ),
        ({"schedule": "pingpong"}, Reason.COMBINATION, COMBINATION),
        ({"use_tma_store": True}, Reason.COMBINATION, COMBINATION),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(replace(TILE, **change), "h200") == (why, message)


def test_stages_that_do_not_fit_are_refused():
    assert reason(replace(TILE, num_stages=7), "h200")[0] is Reason.SMEM


def test_both_operands_must_be_contiguous_along_k():
    operation = Operation.of(ElementType.FLOAT16, Layout.MK)
    message = "sm90_cluster_split_k takes A and B contiguous along k, got mk"
    assert reason(TILE, "h200", operation) == (Reason.LAYOUT, message)


@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS])
def test_takes_all_sizes_without_a_workspace(epilogue):
    operation = Operation.of(ElementType.FLOAT16, Layout.KK, epilogue)
    assert isinstance(check(TILE, operation, H200), Accepted)
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())
