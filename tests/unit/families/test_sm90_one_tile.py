from dataclasses import replace

import pytest

from aot.core.candidate import Accepted, Reason, Workspace, changed, gemm_candidate
from aot.core.element import ElementType
from aot.core.epilogue import OF_ONE_WEIGHT
from aot.core.operation import Layout, Operation
from aot.core.target import load_target
from aot.families import families_for
from aot.families._sm90_split_tile import OneTile
from aot.families.sm90_cluster_split_k import FAMILY as SPLIT
from aot.families.sm90_one_tile import FAMILY
from aot.space.legality import check
from tests.unit.accepted import named, reason, resources
from tests.unit.twins import BF16

H200 = load_target("h200")
TILE = named("sm90_one_tile_128x112_c2x1_direct_swap")
COMBINATION = "sm90_one_tile computes a tile in a CTA, of all of k, and stores without TMA"


@pytest.mark.parametrize(
    ("name", "smem_bytes", "stages", "threads"),
    [
        # Stages of 240 rows of 128 bytes; two barriers a stage.
        ("128x112_c2x1_direct_swap", 7 * (240 * 128 + 16), 7, 320),
        ("128x64_c1x1_direct", 9 * (192 * 128 + 16), 9, 320),
        ("64x64_c1x1_direct", 14 * (128 * 128 + 16), 14, 192),
        ("192x80_c1x2_direct_swap", 6 * (272 * 128 + 16), 6, 448),
    ],
)
def test_all_of_the_shared_memory_holds_stages(name, smem_bytes, stages, threads):
    assert resources(f"sm90_one_tile_{name}", "h200") == (smem_bytes, stages, threads, 0)


@pytest.mark.slow
def test_it_has_at_least_the_stages_of_the_kernel_that_keeps_room_for_sums():
    for candidate in FAMILY.candidates(BF16, H200):
        twin = replace(candidate, family=SPLIT.name)
        if all(isinstance(check(x, BF16, H200), Accepted) for x in (candidate, twin)):
            ours, other = (x.resources(y, BF16, H200).num_stages for x, y in ((FAMILY, candidate), (SPLIT, twin)))
            assert ours >= other
            if candidate.gemm.tile_m * candidate.gemm.tile_n >= 128 * 112:
                assert ours > other


def test_the_stages_have_room_for_the_tile_that_is_laid_over_them():
    for candidate in FAMILY.candidates(BF16, H200):
        if isinstance(check(candidate, BF16, H200), Accepted):
            used = FAMILY.resources(candidate, BF16, H200)
            assert used.num_stages * used.stage_bytes >= 4 * candidate.gemm.tile_m * candidate.gemm.tile_n


@pytest.mark.parametrize(
    ("change", "why", "message"),
    [
        (
            {"tile_m": 96},
            Reason.TILE,
            "a tile has 64, 128, 192, 256 rows and up to 256 columns in steps of 8, got 96x112",
        ),
        ({"split_k": 2, "split_k_mode": "cluster"}, Reason.COMBINATION, COMBINATION),
        ({"schedule": "pingpong"}, Reason.COMBINATION, COMBINATION),
        ({"use_tma_store": True}, Reason.COMBINATION, COMBINATION),
        (
            {"tile_m": 192, "tile_n": 168, "cluster_m": 1, "num_stages": 2},
            Reason.COMBINATION,
            "2 stages have no room for the tile; it takes 129024 bytes to store",
        ),
        ({"tile_n": 256, "tile_m": 256}, Reason.REGISTERS, "256x256 needs 256 accumulator registers a thread; 128 fit"),
    ],
)
def test_what_the_kernel_does_not_have_is_refused(change, why, message):
    assert reason(changed(TILE, **change), "h200") == (why, message)


@pytest.mark.parametrize(
    ("sizes", "cluster", "takes_turns"),
    [
        ((128, 112), (2, 1), (False, False)),
        ((128, 112), (4, 1), (False, True)),
        ((128, 112), (1, 4), (False, False)),
        ((64, 24), (2, 4), (False, True)),
        ((64, 40), (1, 16), (True, False)),
    ],
)
def test_what_has_no_equal_parts_of_whole_groups_is_loaded_in_turns(sizes, cluster, takes_turns):
    assert OneTile(*sizes, 1, 1, 4, *cluster).takes_turns == takes_turns


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 4), (2, 2), (4, 2), (2, 4)])
def test_ctas_share_the_operand_of_their_row_and_that_of_their_column(cluster):
    cluster_m, cluster_n = cluster
    tile = OneTile(128, 128, 1, 2, 4, cluster_m, cluster_n)
    for peer in range(cluster_m * cluster_n):
        rows, columns = tile.sharers(peer)
        for (count, first, part, step), alike in ((rows, lambda x: x % cluster_m), (columns, lambda x: x // cluster_m)):
            found = [first + step * i for i in range(count)]
            assert found == [x for x in range(cluster_m * cluster_n) if alike(x) == alike(peer)]
            assert found[part] == peer


def test_clusters_of_two_sides_are_this_familys_alone():
    for family in families_for(H200):
        assert family.own_clusters == (((2, 2), (4, 2), (2, 4)) if family is FAMILY else ())
    wide = changed(TILE, cluster_n=2)
    assert isinstance(check(wide, BF16, H200), Accepted)
    assert reason(changed(wide, cluster_n=8), "h200")[0] is Reason.CLUSTER
    other = gemm_candidate("sm90_quack", 128, 128, 2, 2, "pingpong", use_tma_store=True)
    assert reason(other, "h200")[0] is Reason.CLUSTER


@pytest.mark.parametrize("epilogue", OF_ONE_WEIGHT)
def test_takes_all_sizes_and_epilogues_without_a_workspace(epilogue):
    operation = Operation.of(ElementType.BFLOAT16, Layout.KK, epilogue)
    assert isinstance(check(TILE, operation, H200), Accepted)
    assert (FAMILY.multiples(TILE), FAMILY.workspace(TILE)) == ((1, 1), Workspace())
